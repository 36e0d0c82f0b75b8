"""Vectors, and the losses with options that their naive formulas have too (tests/objective/test_losses.py)."""

from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from ssl_bench.api import options
from ssl_bench.config.build import find_target
from tests.objective.test_losses import LOSSES as ROWS


def _options(name: str) -> dict[str, Any]:
    """The arguments that the loss of a row has, learned ones as they begin; swd has tests of its own."""
    loss = ROWS[name].loss if name in ROWS else nn.Identity()
    given = {key: getattr(loss, key) for key in signature(type(loss)).parameters if hasattr(loss, key)}
    return {key: value.item() if isinstance(value, Tensor) else value for key, value in given.items()}


# The options of conf with the arguments of the row in tests/objective/test_losses.py that has a loss's naive formula.
# The normaliser of nce depends on all anchors of the first batch: tests/methods/test_cld.py has its formula.
LOSSES = {name: _options(name) for name in options.names("loss") if name != "nce"}
_NEEDS = {name: find_target(options.node("loss", name), "loss").needs for name in LOSSES}
MADE_FOR = {name: "cross_view" for name in LOSSES if "aligned" in _NEEDS[name]}  # all others: in_batch
MADE_FOR |= {name: "own_view" for name in LOSSES if "own_view" in _NEEDS[name]}
MADE_FOR |= {name: "none" for name in LOSSES if "negatives" not in _NEEDS[name]}


def labels(name: str) -> dict[str, Tensor]:
    """The argument ``labels`` of a call, where the loss takes it, for six images."""
    return {"labels": torch.tensor([0, 1, 0, -1, 2, 1])} if "labels" in _NEEDS[name] else {}


def vectors(views: int = 2, images: int = 6, width: int = 5, seed: int = 0) -> Tensor:
    """[views, images, width] in double precision; the views of an image are correlated, and no vector has length 1."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(images, width, generator=generator, dtype=torch.float64)
    return 3 * centres + torch.randn(views, images, width, generator=generator, dtype=torch.float64)
