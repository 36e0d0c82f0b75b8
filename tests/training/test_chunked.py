"""Methods with their own objective: a batch in chunks gives the gradient of the whole batch."""

import contextlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ssl_bench.data.batch import Batch
from ssl_bench.methods.base import Method
from ssl_bench.methods.exemplar import Exemplar
from ssl_bench.methods.vae import VAE
from ssl_bench.networks.heads import MLP
from ssl_bench.training import chunked

IMAGES, SIZE = 8, 6


def networks() -> tuple[nn.Module, MLP]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(SIZE**2, 7), nn.Tanh()), MLP(7, 1, None, 6, False, "none")


MAKERS: dict[str, Callable[[], Method]] = {
    "exemplar": lambda: Exemplar(*networks(), IMAGES, "sync"),
    "vae": lambda: VAE(*networks(), 2, 1, SIZE, (0.0,), (1.0,), 1.0, "once", 0),
}


def gradients(method: Method, chunk: int | None) -> list[Tensor]:
    """Gradients of all parameters for one batch, in chunks of ``chunk`` images or at once."""
    pixels = torch.rand(2, IMAGES, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(1)).double()

    def part(rows: slice) -> Batch:
        ids = torch.arange(IMAGES)[rows]
        return Batch([view[rows] for view in pixels], ids, torch.full_like(ids, -1))

    if chunk is None:
        method(part(slice(None)), 0.0).loss.backward()
    else:
        chunked.backward(method, part, IMAGES, chunk, 0.0, True, contextlib.nullcontext, lambda loss: loss)
    return [p.grad for p in method.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", MAKERS)
def test_chunks_give_the_gradient_of_the_batch(name: str) -> None:
    """These networks have no batch statistics; the decoder of the VAE sees the whole batch."""
    whole, parts = (gradients(MAKERS[name]().double(), chunk) for chunk in (None, 2))
    assert len(whole) == len(parts) == len(list(MAKERS[name]().parameters()))
    for expected, computed in zip(whole, parts, strict=True):
        torch.testing.assert_close(computed, expected, rtol=1e-11, atol=1e-13)
