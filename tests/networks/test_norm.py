"""Batch statistics over ranks."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ssl_bench.errors import InvalidValue
from ssl_bench.networks.norm import synchronise
from tests.ranks import on_two_ranks


def _norm(rank: int | None) -> dict[str, Tensor]:
    """Outputs and gradients of a BN over 8 rows, or over this rank's half of them with global statistics."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 3, 2, 2, generator=generator, dtype=torch.float64) * 5 + 100
    target = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    model: nn.Module = nn.Sequential(nn.BatchNorm2d(3)).double()
    rows = slice(None) if rank is None else slice(4 * rank, 4 * rank + 4)
    if rank is not None:
        model = synchronise(model, torch.device("cpu"))
    x = x[rows].requires_grad_()
    y = model(x)
    (y - target[rows]).square().mean().backward()
    norm = model[0]  # type: ignore[index]
    found = {"y": y.detach(), "weight": norm.weight.grad, "bias": norm.bias.grad, "x": x.grad}
    found |= {"mean": norm.running_mean, "var": norm.running_var}
    if rank is not None:
        for name in ("weight", "bias"):
            dist.all_reduce(found[name])
            found[name] /= 2
    return found


def test_global_batch_statistics_are_those_of_one_process() -> None:
    alone, ranks = _norm(None), on_two_ranks(_norm)
    for rank in ranks:
        for name in ("weight", "bias", "mean", "var"):
            torch.testing.assert_close(rank[name], alone[name], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.cat([r["y"] for r in ranks]), alone["y"], rtol=1e-11, atol=1e-11)
    # Each rank's loss is a mean over half of the rows, so the gradient of a row is twice that of the global mean.
    torch.testing.assert_close(torch.cat([r["x"] for r in ranks]) / 2, alone["x"], rtol=1e-11, atol=1e-13)


def _half_norm(rank: int) -> dict[str, Tensor]:
    x = torch.randn(8, 3, 2, 2, generator=torch.Generator().manual_seed(0)) + 30
    norm: Any = synchronise(nn.Sequential(nn.BatchNorm2d(3)), torch.device("cpu"))
    y = norm(x.bfloat16()[4 * rank : 4 * rank + 4])
    return {"y": y, "mean": norm[0].running_mean}


def test_global_batch_statistics_of_half_precision_are_computed_in_full_precision() -> None:
    x = (torch.randn(8, 3, 2, 2, generator=torch.Generator().manual_seed(0)) + 30).bfloat16().double()
    ranks = on_two_ranks(_half_norm)
    unit = (x - x.mean((0, 2, 3), keepdim=True)) / (x.var((0, 2, 3), correction=0, keepdim=True) + 1e-5).sqrt()
    y = torch.cat([rank["y"] for rank in ranks])
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.double(), unit, rtol=2**-8, atol=1e-4)  # only the result is rounded
    torch.testing.assert_close(ranks[0]["mean"].double(), x.mean((0, 2, 3)) / 10, rtol=1e-6, atol=0)


def test_a_norm_that_cannot_be_made_global_is_refused() -> None:
    class Special(nn.BatchNorm2d):
        pass

    with pytest.raises(InvalidValue, match=r"set framework\.norm to local: Special cannot be made global$"):
        synchronise(nn.Sequential(Special(3)), torch.device("cpu"))
