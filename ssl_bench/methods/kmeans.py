"""k-means for cross-level discrimination: a few of Lloyd's steps, of which the last has a gradient.

    c_j = x_j (j < C),   then several times:   label_i = argmin_j |x_i - c_j|^2,   c_j = mean of the x_i with label j

Shapes: N points; C clusters; D width.
"""

import torch
from torch import Tensor

from ssl_bench.objective.products import products


def kmeans(x: Tensor, clusters: int, iterations: int) -> tuple[Tensor, Tensor]:
    """Cluster the points ``x`` [N, D]: labels [N] and the means [C, D] of the points with these labels.

    The first C points are the initial means. Labels are constants; a mean has the gradient of a mean. The mean of a
    cluster without points is the origin, as in CLD's code. Nothing waits for the device, and the cost does not depend
    on the data.

    Args:
        clusters: C, at most N.
        iterations: number of times that labels and means are computed, 1 or more.
    """
    means = x.detach()[:clusters]
    for _ in range(iterations - 1):
        means = products(_members(x.detach(), means), x.detach().mT)
    members = _members(x.detach(), means)  # [C, N]
    return members.argmax(0), products(members, x.mT)


def _members(x: Tensor, means: Tensor) -> Tensor:
    """[C, N]: 1 / n where a point belongs to a cluster of n points, else 0."""
    labels = (means.square().sum(1) - products(2 * x, means)).argmin(1)  # [N]; |x|^2 is the same for all clusters
    belongs = (labels == torch.arange(len(means), device=x.device)[:, None]).to(x.dtype)
    return belongs / belongs.sum(1, keepdim=True).clamp(min=1)
