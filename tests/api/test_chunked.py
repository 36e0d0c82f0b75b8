"""``ssl_bench.chunked`` against whole batches, and losses on two ranks."""

import pytest
import torch
from torch import Tensor, nn

from ssl_bench.api.chunked import chunked
from ssl_bench.api.pair_loss import PairLoss
from ssl_bench.distributed import rank
from tests.api.cases import vectors
from tests.door.door import refused
from tests.ranks import on_two_ranks


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


def test_a_queue_takes_in_the_whole_batch_once_also_under_autocast() -> None:
    """The weights are cast with gradient, although the first pass has none."""
    losses = [PairLoss("dcl", negatives="queue", k=9) for _ in range(2)]
    for seed in range(3):
        x = [*vectors(seed=seed)]
        expected = losses[0](*map(network(), x))
        torch.testing.assert_close(chunked(network(), losses[1], x, 2), expected.detach(), rtol=1e-12, atol=0)
    for found, wanted in zip(losses[1].buffers(), losses[0].buffers(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    models = [network().float() for _ in range(2)]
    with torch.autocast("cpu", torch.bfloat16):
        chunked(models[0], PairLoss("infonce"), [*vectors().float()], 2)
        value = PairLoss("infonce")(*map(models[1], vectors().float()))
    value.backward()
    found, expected = map(gradient, models)
    assert (found - expected).norm() < 0.01 * expected.norm()  # bfloat16 has 8 bits


@pytest.mark.parametrize("chunk", [0, 4, 7])
def test_a_chunk_that_does_not_divide_the_batch_is_refused(chunk: int) -> None:
    with refused(f"chunk={chunk} 6"):
        chunked(network(), PairLoss("dcl"), [*vectors()], chunk)
    with refused("encoder=Sequential"):
        chunked(network().requires_grad_(False), PairLoss("dcl"), [*vectors()], 2)


def own_images(_: int) -> Tensor:
    """The gradient of this rank without gathering, and the refusal of unequal batches."""
    z = vectors()[:, 3 * rank() : 3 * rank() + 3].requires_grad_()
    PairLoss("dclw", 0.3, gather=False)(*z).backward()  # type: ignore[union-attr]
    assert z.grad is not None
    with refused(f"size={3 + rank()} 3 4"):
        PairLoss("dcl")(*vectors(images=3 + rank()))
    return z.grad


@pytest.mark.slow
def test_two_ranks_with_their_own_images_only_and_with_unequal_batches() -> None:
    """``tests/test_invariances.py`` trains every loss and all negatives on two ranks."""
    z = vectors()
    for number, gradient in enumerate(on_two_ranks(own_images)):
        own = z[:, 3 * number : 3 * number + 3].clone().requires_grad_()
        PairLoss("dclw", 0.3)(*own).backward()  # type: ignore[union-attr]
        assert torch.equal(gradient, own.grad)  # type: ignore[arg-type]
