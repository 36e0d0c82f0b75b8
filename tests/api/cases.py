"""Vectors, and the losses with the options that they need."""

from typing import Any

import torch
from torch import Tensor

from ssl_bench.api import options
from ssl_bench.config.build import find_target, has_argument

# The normaliser of nce depends on all anchors of the first batch: tests/methods/test_cld.py has its formula.
_NODES = {name: options.node("loss", name) for name in options.names("loss") if name != "nce"}
LOSSES: dict[str, dict[str, Any]] = {
    name: {"instances": 100} if has_argument(node, "loss", "instances") else {} for name, node in _NODES.items()
}
_NEEDS = {name: find_target(_NODES[name], "loss").needs for name in LOSSES}
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
