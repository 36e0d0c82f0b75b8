"""``ssl-bench mi``: estimate the mutual information of correlated Gaussians by a contrastive loss (EqCo, appendix C).

X ~ N(0, 1) in d dimensions and Y = rho X + sqrt(1 - rho^2) noise have I(X; Y) = -d/2 log(1 - rho^2). Two networks f and
g are trained so that the score f(x) . g(y) distinguishes y from the other y of a batch. The loss L then gives a lower
bound on I(X; Y): log(1 + K) - L for InfoNCE with K negatives, log(1 + alpha) - L for EqCo.

The losses are those of the image experiments, with scores in the place of cosines.
"""

import math
from collections.abc import Sequence
from typing import Any

from ssl_bench.config.build import build, converted
from ssl_bench.errors import require

INTEGERS = ("dimensions", "pairs", "hidden", "outputs", "steps", "evaluations", "seed")


def main(arguments: Sequence[str]) -> int:
    """Compute one estimate or, with ``-m``, a grid; exit codes as of ``ssl-bench train``."""
    from ssl_bench.commands import train

    return train.main(arguments, "mi", check, bound)


def check(config: dict[str, Any]) -> None:
    """Refuse invalid values."""
    for key in ("information", "lr", *INTEGERS):
        value = converted(config[key], int if key in INTEGERS else float, key)
        require(value > 0 or key == "seed", key, value, "a positive number")
    require(config["pairs"] >= 2, "pairs", config["pairs"], "2 or more")
    for group in ("loss", "temperature"):
        build(config[group], group)


def bound(config: dict[str, Any]) -> dict[str, float]:
    """The metrics ``mi/estimate`` and ``mi/true``, in nats."""
    return {"mi/estimate": estimate(config), "mi/true": float(config["information"])}


def estimate(config: dict[str, Any]) -> float:
    """Train f and g, then return the mean lower bound over new batches."""
    import torch
    from torch import Tensor, nn

    from ssl_bench.objective.contrast import Contrast, Embedded
    from ssl_bench.objective.negatives import CrossView
    from ssl_bench.seeding import seed_everything

    seed_everything(config["seed"])
    loss, temperature = build(config["loss"], "loss"), build(config["temperature"], "temperature")
    d, n, hidden = config["dimensions"], config["pairs"], config["hidden"]
    rho = math.sqrt(1 - math.exp(-2 * config["information"] / d))
    f, g = (nn.Sequential(nn.Linear(d, hidden), nn.ReLU(), nn.Linear(hidden, config["outputs"])) for _ in range(2))
    optimizer = torch.optim.Adam([*f.parameters(), *g.parameters(), *loss.parameters()], config["lr"], fused=True)
    generator, ids, negatives = torch.Generator().manual_seed(config["seed"]), torch.arange(n), CrossView()

    def batch(progress: float) -> tuple[Contrast, Tensor]:
        x, noise = torch.randn(2, n, d, generator=generator)
        q, key = f(x)[None], g(rho * x + math.sqrt(1 - rho**2) * noise)[None]  # [1, n, outputs]
        e = Embedded(q, key, q, ids)
        contrast = Contrast.of(e, negatives.bank(e))
        return contrast, temperature(progress, contrast)

    for step in range(config["steps"]):
        optimizer.zero_grad()
        loss(*batch(step / config["steps"])).mean().backward()
        optimizer.step()
    with torch.no_grad():
        found = [loss.information(*batch(1.0)).mean() for _ in range(config["evaluations"])]
    return float(torch.stack(found).mean())
