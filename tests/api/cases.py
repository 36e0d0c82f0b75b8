"""Vectors, and the 13 losses with options that their naive formulas have too (tests/objective/test_losses.py)."""

from typing import Any

import torch
from torch import Tensor

# The name of a loss, its options and the row of the formula; swd has tests of its own.
LOSSES: dict[str, dict[str, Any]] = {
    "align_uniform": {"weight": 0.7, "t": 1.5},
    "byol": {},
    "dcl": {},
    "dclw": {},
    "decoupled_nt_xent": {"weight": 0.3},
    "dual_temperature": {},
    "eqco": {},
    "flatnce": {},
    "infonce": {},
    "macl": {},
    "macl_w": {},
    "relic": {"weight": 2.5},
    "swd": {},
}
MADE_FOR = {"relic": "cross_view", "byol": "none", "swd": "none"}  # all others: in_batch


def vectors(views: int = 2, images: int = 6, width: int = 5, seed: int = 0) -> Tensor:
    """[views, images, width] in double precision; the views of an image are correlated, and no vector has length 1."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(images, width, generator=generator, dtype=torch.float64)
    return 3 * centres + torch.randn(views, images, width, generator=generator, dtype=torch.float64)
