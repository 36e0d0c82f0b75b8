"""``ssl-bench weight``: how hard a loss pulls an anchor towards its positive, for given cosines.

W = -tau dL / ds for the cosine s of the positive and K negatives of equal cosine. For InfoNCE it is 1 minus the
positive's probability, the factor of its gradient that MACL (arXiv 2307.12252, figure 3) shows to vanish at small tau.
"""

from collections.abc import Sequence
from typing import Any

from ssl_bench.errors import ConfigError


def main(arguments: Sequence[str]) -> int:
    """Computes one cell or, with ``-m``, a grid, as ``ssl-bench train`` does; gives the same exit codes."""
    from ssl_bench.commands import train

    return train.main(arguments, "weight", check, weight)


def check(config: dict[str, Any]) -> None:
    """Raises ConfigError for values that cannot be meant."""
    for key in ("positive", "negative"):
        if not -1 <= config[key] <= 1:
            raise ConfigError(f"{key}={config[key]}: set {key} to a cosine, -1 to 1")
    if config["k"] < 1:
        raise ConfigError(f"k={config['k']}: set k to 1 or more negatives")


def weight(config: dict[str, Any]) -> dict[str, float]:
    """The metric ``weight``, in float64."""
    import torch

    from ssl_bench.config.build import build
    from ssl_bench.objective.contrast import Contrast

    loss, temperature = build(config["loss"], "loss"), build(config["temperature"], "temperature")
    positive = torch.full((1, 1), config["positive"], dtype=torch.float64, requires_grad=True)
    contrast = Contrast.dense(positive, torch.full((1, 1, config["k"]), config["negative"], dtype=torch.float64))
    tau = temperature(0.0, contrast).double()
    (slope,) = torch.autograd.grad(loss(contrast, tau).sum(), positive)
    return {"weight": -float(tau * slope)}
