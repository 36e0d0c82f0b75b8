"""Tensors that callers of ``ssl_bench`` give: those of torch, arrays of numpy, or lists of numbers."""

from typing import Any

import torch
from torch import Tensor

from ssl_bench.errors import InvalidValue, require


def tensor(name: str, value: Any) -> Tensor:
    """``value`` as a tensor of real numbers without gradient: one of torch as it is, anything else as numpy reads it.

    Raises:
        InvalidValue: a sparse or complex tensor, or what numpy does not read as numbers.
    """
    if not isinstance(value, Tensor):
        import numpy

        try:
            array = numpy.asarray(value)
            value = torch.from_numpy(numpy.require(array, array.dtype.newbyteorder("="), ("C", "W")))
        except (TypeError, ValueError, RuntimeError) as error:  # texts, rows of several lengths, None
            remedy = "a torch tensor, an array of numpy or a list of numbers"
            raise InvalidValue(name, type(value).__name__, remedy) from error
    fits = value.layout == torch.strided and not value.is_complex()
    require(fits, name, f"{value.layout} {value.dtype}", "a dense tensor of real numbers")
    return value.detach()


def integers(name: str, value: Any, count: int) -> Tensor:
    """``value`` as int64 [count] on the device that it is on.

    Raises:
        InvalidValue: another shape, or numbers that are no integers.
    """
    x = tensor(name, value)
    fits = list(x.shape) == [count] and x.dtype != torch.bool and not x.is_floating_point()
    require(fits, name, f"{x.dtype} {list(x.shape)}", f"integers [{count}], one for each image")
    return x.long()


def require_one_device(**tensors: Tensor) -> None:
    """Refuse tensors that are on several devices."""
    devices = [str(x.device) for x in tensors.values()]
    require(len({*devices}) == 1, ", ".join(tensors), devices, "tensors on one device")
