"""Kernel contrastive learning: a kernel of the positives against its mean over the negatives.

    L = -k(f, g) + weight mean_k k(f, f_k)
    k(x, y) = exp(-t ||x - y||^2)  gaussian,   t / sqrt(t^2 + ||x - y||^2)  imq, the inverse multiquadric

with ||x - y||^2 = 2 - 2 cos. The mean is linear, so the expectation of the loss does not depend on K: what changes with
K is the noise alone. Koromilas et al. 2024 section 5, where the negatives are those of the anchor's own view.
"""

from typing import Literal

from torch import Tensor

from ssl_bench.errors import require
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss


class KCL(Loss):
    """Kernel contrastive learning, whose expectation is that of one negative. The temperature is not used.

    Args:
        kernel: ``gaussian`` or ``imq``, as above.
        t: sharpness of the Gaussian kernel, or width of the inverse multiquadric, positive.
        weight: of the negatives (gamma), at least 0.
    """

    equation = "-k(s) + weight mean_k k(s_k), k(s) = exp(-2 t (1 - s)) or (1 + 2 (1 - s) / t^2)^(-1/2)"
    gradient = "-k'(s) grad s + weight mean_k k'(s_k) grad s_k"
    code = "pakoromilas/DHEL-KCL"
    needs = frozenset({"negatives"})
    uses_tau = False

    def __init__(self, kernel: Literal["gaussian", "imq"] = "gaussian", t: float = 2.0, weight: float = 16.0) -> None:
        super().__init__()
        require(kernel in ("gaussian", "imq"), "kernel", kernel, "gaussian or imq")
        require(t > 0, "t", t, "a positive number")
        require(weight >= 0, "weight", weight, "0 or more")
        self.kernel, self.t, self.weight = kernel, t, weight

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        return self.weight * contrast.sum(self._kernel) / contrast.count - self._kernel(contrast.pos)  # [V, B]

    def _kernel(self, s: Tensor) -> Tensor:
        if self.kernel == "gaussian":
            return (2 * self.t * (s - 1)).exp()
        return (1 + 2 / self.t**2 * (1 - s)).rsqrt()
