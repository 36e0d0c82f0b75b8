"""Booleans, eight in a byte: which of many candidates an anchor leaves out takes an eighth of a byte each."""

from typing import Any

import torch
from torch import Tensor

np: Any
try:
    import numpy as np
except ImportError:  # torch computes alone; its draws are then other ones, as those of a GPU are
    np = None


def in_numpy(device: torch.device) -> bool:
    """Whether numpy, which sorts and packs several times faster than torch, computes for tensors on ``device``."""
    return device.type == "cpu" and np is not None


def pack(values: Tensor) -> Tensor:
    """Booleans [..., C] as bytes [..., ceil(C / 8)], uint8; the first of eight is the lowest bit."""
    if in_numpy(values.device):
        return torch.from_numpy(np.packbits(values.numpy(), axis=-1, bitorder="little"))
    padded = torch.nn.functional.pad(values.to(torch.uint8), (0, -values.shape[-1] % 8)).unflatten(-1, (-1, 8))
    return (padded << torch.arange(8, dtype=torch.uint8, device=values.device)).sum(-1, dtype=torch.uint8)


def unpack(packed: Tensor, count: int) -> Tensor:
    """The first ``count`` booleans [..., count] of bytes [..., n]."""
    if in_numpy(packed.device):
        values = np.unpackbits(packed.numpy(), axis=-1, count=count, bitorder="little")
        return torch.from_numpy(values).view(torch.bool)
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return (packed[..., None] >> shifts & 1).bool().flatten(-2)[..., :count]
