"""``ssl-bench weight``: the weight of the positive in the gradient of a loss, for given cosines.

W = -tau dL / ds for the cosine s of the positive and K negatives of equal cosine. For InfoNCE it is 1 minus the
positive's probability, the factor of the gradient that vanishes at small tau (MACL, arXiv 2207.07874, figure 3).
"""

from collections.abc import Sequence
from typing import Any

from ssl_bench.config.build import build
from ssl_bench.errors import require


def main(arguments: Sequence[str]) -> int:
    """Compute one weight or, with ``-m``, a grid; exit codes as of ``ssl-bench train``."""
    from ssl_bench.commands import train

    return train.main(arguments, "weight", check, weight)


def check(config: dict[str, Any]) -> None:
    """Refuse invalid values."""
    for key in ("positive", "negative"):
        require(-1 <= config[key] <= 1, key, config[key], "a cosine, -1 to 1")
    require(config["k"] >= 1, "k", config["k"], "1 or more negatives")
    for group in ("loss", "temperature"):
        build(config[group], group)


def weight(config: dict[str, Any]) -> dict[str, float]:
    """The metric ``weight``, computed in float64."""
    import torch

    from ssl_bench.objective.contrast import Contrast

    loss, temperature = build(config["loss"], "loss"), build(config["temperature"], "temperature")
    positive = torch.full((1, 1), config["positive"], dtype=torch.float64, requires_grad=True)
    contrast = Contrast.dense(positive, torch.full((1, 1, config["k"]), config["negative"], dtype=torch.float64))
    tau = temperature(0.0, contrast).double()
    (slope,) = torch.autograd.grad(loss(contrast, tau).sum(), positive)
    return {"weight": -float(tau * slope)}
