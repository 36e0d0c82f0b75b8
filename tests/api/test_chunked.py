"""``ssl_bench.chunked``: a batch in chunks against the whole batch; two ranks are in test_ranks.py, every loss in
``tests/test_invariances.py``."""

import copy

import pytest
import torch
from torch import Tensor, nn

from ssl_bench.api.chunked import chunked
from ssl_bench.api.pair_loss import PairLoss
from ssl_bench.errors import InvalidValue
from tests.api.cases import vectors


def network(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), *layers, nn.Tanh(), nn.Linear(7, 4)).double()


def gradient(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_any_function_of_the_vectors_can_be_the_loss() -> None:
    """Three views, a scaled loss, and a gradient that was there before."""
    x = [*vectors(3)]
    whole, parts = network(), network()

    def loss(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return (a @ b.T).logsumexp(1).mean() - (a * c).sum(1).mean()

    for _ in range(2):
        (8 * loss(*map(whole, x))).backward()
        chunked(parts, loss, x, 2, scale=lambda value: 8 * value)
    torch.testing.assert_close(gradient(parts), gradient(whole), rtol=1e-12, atol=1e-12)


def test_a_queue_takes_in_the_whole_batch_once() -> None:
    losses = [PairLoss("dcl", negatives="queue", k=9) for _ in range(2)]
    for seed in range(3):
        x = [*vectors(seed=seed)]
        expected = losses[0](*map(network(), x))
        torch.testing.assert_close(chunked(network(), losses[1], x, 2), expected.detach(), rtol=1e-12, atol=0)
    for found, wanted in zip(losses[1].buffers(), losses[0].buffers(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_batch_statistics_are_those_of_a_chunk() -> None:
    """The chunks of the first and of the second image of every two: their statistics, each once."""
    x = [*vectors()]
    model = network(nn.BatchNorm1d(7))
    reference = copy.deepcopy(model)
    outputs = [[reference(view[first::2]) for view in x] for first in (0, 1)]
    z = [torch.stack([a, b], 1).flatten(0, 1) for a, b in zip(*outputs, strict=True)]
    PairLoss("dcl")(*z).backward()
    chunked(model, PairLoss("dcl"), x, 3)
    torch.testing.assert_close(gradient(model), gradient(reference), rtol=1e-12, atol=1e-12)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(model.get_buffer(f"1.{name}"), reference.get_buffer(f"1.{name}"))


def test_chunks_under_autocast() -> None:
    """The weights are cast with gradient, although the first pass has none."""
    x = [*vectors().float()]
    models = [network().float() for _ in range(2)]
    with torch.autocast("cpu", torch.bfloat16):
        chunked(models[0], PairLoss("infonce"), x, 2)
        value = PairLoss("infonce")(*map(models[1], x))
    value.backward()
    found, expected = map(gradient, models)
    assert (found - expected).norm() < 0.01 * expected.norm()  # bfloat16 has 8 bits


def test_a_network_without_weights_to_train_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"^encoder=Sequential: "):
        chunked(network().requires_grad_(False), PairLoss("dcl"), [*vectors()], 2)


@pytest.mark.parametrize("chunk", [0, 4, 7])
def test_a_chunk_that_does_not_divide_the_batch_is_refused(chunk: int) -> None:
    with pytest.raises(InvalidValue) as refusal:
        chunked(network(), PairLoss("dcl"), [*vectors()], chunk)
    assert str(refusal.value) == f"chunk={chunk}: set chunk to a divisor of 6, the images of every view"
