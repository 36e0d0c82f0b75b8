"""Tensors that callers of ``ssl_bench`` give: those of torch, or arrays of numpy."""

from typing import Any

import torch
from torch import Tensor

from ssl_bench.errors import require


def tensor(value: Any) -> Tensor:
    """``value`` as a tensor without gradient: one of torch as it is, anything else as numpy reads it."""
    if isinstance(value, Tensor):
        return value.detach()
    import numpy

    return torch.from_numpy(numpy.require(value, requirements=("C", "W")))


def integers(name: str, value: Any, count: int) -> Tensor:
    """``value`` as int64 [count] on the device that it is on.

    Raises:
        InvalidValue: another shape, or numbers that are no integers.
    """
    x = tensor(value)
    fits = list(x.shape) == [count] and x.dtype != torch.bool and not x.is_floating_point()
    require(fits, name, f"{x.dtype} {list(x.shape)}", f"integers [{count}], one for each image")
    return x.long()
