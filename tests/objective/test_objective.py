"""The objective against naive loops in double precision, closed-form gradients, and two processes against one."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ssl_bench.distributed import gather, global_mean
from ssl_bench.objective.contrast import Bank, Contrast, Embedded
from ssl_bench.objective.diagnostics import diagnose
from ssl_bench.objective.losses import InfoNCE
from ssl_bench.objective.method import Method
from ssl_bench.objective.negatives import InBatch
from ssl_bench.objective.temperature import Fixed
from tests.ranks import on_two_ranks


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit(*shape: int, seed: int = 0) -> Tensor:
    return nn.functional.normalize(draw(*shape, seed=seed), dim=-1)


def naive_infonce(pos: Tensor, neg: Tensor, valid: Tensor, tau: Tensor) -> Tensor:
    """-log(e^{s/tau} / (e^{s/tau} + sum_k e^{s_k/tau})), one anchor at a time."""
    out = torch.zeros_like(pos)
    for v, b in itertools.product(*map(range, pos.shape)):
        t = float(tau.expand_as(pos)[v, b])
        others = sum(math.exp(float(s) / t) for s, ok in zip(neg[v, b], valid[v, b], strict=True) if ok)
        top = math.exp(float(pos[v, b]) / t)
        out[v, b] = -math.log(top / (top + others))
    return out


LOSSES: dict[str, tuple[nn.Module, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]]] = {
    "infonce": (InfoNCE(), naive_infonce),
}
# d loss / d u of each, as a function of the log-odds u
GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {"infonce": torch.sigmoid}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("per_anchor", [False, True])
def test_a_loss_is_its_formula(name: str, masked: bool, per_anchor: bool) -> None:
    loss, naive = LOSSES[name]
    pos, neg = draw(2, 5).tanh(), draw(2, 5, 7, seed=1).tanh()
    valid = torch.rand(5, 7, generator=torch.Generator().manual_seed(2)) < 0.6 if masked else None
    tau = draw(2, 5, seed=3).exp() / 3 if per_anchor else torch.tensor(0.13, dtype=torch.float64)
    everything = torch.ones(2, 5, 7, dtype=torch.bool) if valid is None else valid.expand(2, 5, 7)
    expected = naive(pos, neg, everything, tau)
    torch.testing.assert_close(loss(Contrast.dense(pos, neg, valid), tau), expected, rtol=1e-12, atol=1e-12)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(4))
    shuffled = Contrast.dense(pos, neg[..., order], None if valid is None else valid[:, order])
    torch.testing.assert_close(loss(shuffled, tau), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_a_gradient_is_its_closed_form(name: str) -> None:
    """d loss / d s = -f(u) / tau for the positive and f(u) p_k / tau for negative k, p their softmax."""
    pos, neg = draw(2, 5).tanh().requires_grad_(), draw(2, 5, 7, seed=1).tanh().requires_grad_()
    tau = torch.tensor(0.2, dtype=torch.float64)
    contrast = Contrast.dense(pos, neg)
    by_pos, by_neg = torch.autograd.grad(LOSSES[name][0](contrast, tau).sum(), [pos, neg])
    slope = GRADIENTS[name](contrast.log_odds(tau)).detach()
    torch.testing.assert_close(by_pos, -slope / tau, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(by_neg, slope[..., None] * (neg / tau).softmax(-1) / tau, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("tau", [0.01, 0.07, 1.0])
def test_extreme_cosines_stay_finite(name: str, tau: float) -> None:
    """In float32, as under autocast, and with a learned temperature beside masked candidates."""
    pos = torch.tensor([[1.0, -1.0, 1.0]], requires_grad=True)
    neg = torch.tensor([[[1.0, 1.0], [1.0, 1.0], [-1.0, -1.0]]], requires_grad=True)
    temperature = torch.tensor(tau, requires_grad=True)
    valid = torch.tensor([[True, False], [True, True], [True, True]])
    value = LOSSES[name][0](Contrast.dense(pos, neg, valid), temperature)
    assert value.isfinite().all()
    for gradient in torch.autograd.grad(value.sum(), [pos, neg, temperature]):
        assert gradient.isfinite().all()


def test_no_negatives_is_told() -> None:
    e = Embedded(unit(2, 3, 4), unit(2, 3, 4), draw(2, 3, 4), torch.arange(3))
    with pytest.raises(ValueError, match="set negatives to an option"):
        Contrast.of(e, None).lse(torch.tensor(0.1))


def test_in_batch_negatives_are_all_views_of_all_other_images() -> None:
    z = unit(2, 4, 8)
    e = Embedded(z, z.flip(0), z, torch.tensor([30, 10, 20, 40]))
    negatives = InBatch()
    contrast = Contrast.of(e, negatives.bank(e))
    tau = torch.tensor(0.3, dtype=torch.float64)
    flat = z.flatten(0, 1)  # row v B + b
    for v, b in itertools.product(range(2), range(4)):
        others = [float(flat[v * 4 + b] @ flat[j]) for j in range(8) if j % 4 != b]
        assert len(others) == negatives.count(4) == int(contrast.count.expand(2, 4)[v, b]) == 6
        expected = math.log(sum(math.exp(s / 0.3) for s in others))
        assert float(contrast.lse(tau)[v, b]) == pytest.approx(expected, rel=1e-12)
        assert float(contrast.pos[v, b]) == pytest.approx(float(z[0, b] @ z[1, b]), rel=1e-12)


def test_nt_xent_is_the_cross_entropy_of_the_similarity_matrix() -> None:
    """The form in which most codes write it: a 2N x 2N matrix without its diagonal, the other view as the class."""
    z = unit(2, 6, 16)
    e = Embedded(z, z.flip(0), z, torch.arange(6))
    loss = InfoNCE()(Contrast.of(e, InBatch().bank(e)), torch.tensor(0.2, dtype=torch.float64)).mean()
    flat = z.flatten(0, 1)
    logits = (flat @ flat.T / 0.2).fill_diagonal_(-torch.inf)
    expected = nn.functional.cross_entropy(logits, torch.arange(12).roll(6))
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)


def test_candidates_without_an_image_are_never_excluded() -> None:
    e = Embedded(unit(1, 3, 4), unit(1, 3, 4, seed=1), draw(1, 3, 4), torch.tensor([0, 1, 2]))
    bank = Bank(unit(5, 4, seed=2), torch.tensor([-1, 0, 1, 1, -1]))
    assert Contrast.of(e, bank).count.tolist() == [[4, 3, 5]]


def test_diagnostics() -> None:
    pos, neg, tau = draw(2, 5).tanh(), draw(2, 5, 7, seed=1).tanh(), torch.tensor(0.5, dtype=torch.float64)
    found = diagnose(Contrast.dense(pos, neg), tau)
    share = (pos / tau).exp() / ((pos / tau).exp() + (neg / tau).exp().sum(-1))  # of the positive
    torch.testing.assert_close(found["npc/mean"], (1 - share).mean())
    torch.testing.assert_close(found["npc/std"], (1 - share).std(correction=0))
    torch.testing.assert_close(found["positive"], pos.mean())


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"pos must be \[V, B\] and neg \[V, B, C\], got \(3,\) and \(3, 4\)"):
        Contrast.dense(torch.zeros(3), torch.zeros(3, 4))
    with pytest.raises(ValueError, match="tau=0 must be positive"):
        Fixed(0)

    class Nothing(InBatch):
        gives = frozenset()

    with pytest.raises(ValueError, match="the loss needs negatives, which the negatives do not give"):
        Method(nn.Module(), Nothing(), Fixed(0.1), InfoNCE())  # type: ignore[arg-type]


# ---- two processes


def _gradient(weight: Tensor, images: Tensor, ids: Tensor) -> Tensor:
    """Of the mean NT-Xent of a linear encoder on two views, in the convention of DistributedDataParallel."""
    weight = weight.clone().requires_grad_()
    z = nn.functional.normalize(images @ weight, dim=-1)  # [2, B, D]
    e = Embedded(z, z.flip(0), z, ids)
    loss = InfoNCE()(Contrast.of(e, InBatch().bank(e)), torch.tensor(0.1, dtype=torch.float64)).mean()
    # A statistic of the batch enters too, as in losses that weight by one.
    loss = loss * global_mean(z.square().sum(-1).sqrt() + z[..., 0], dim=1).mean()
    (gradient,) = torch.autograd.grad(loss, weight)
    return gradient


def _rank_gradient(rank: int) -> Tensor:
    weight, images, ids = draw(8, 4), draw(2, 6, 8, seed=1), torch.tensor([5, 3, 9, 0, 7, 1])
    mine = slice(3 * rank, 3 * rank + 3)
    gradient = _gradient(weight, images[:, mine], ids[mine])
    dist.all_reduce(gradient)
    return gradient / 2  # as DDP averages


def _rank_gather(rank: int) -> Tensor:
    x = torch.full((2, 1), float(rank + 1), requires_grad=True)
    (gathered := gather(x, dim=1)).mul(torch.tensor([1.0, 10.0])).sum().mul(rank + 1).backward()
    assert gathered.tolist() == [[1.0, 2.0], [1.0, 2.0]]
    assert x.grad is not None
    return x.grad


def test_the_gradient_on_two_ranks_is_that_on_one() -> None:
    weight, images, ids = draw(8, 4), draw(2, 6, 8, seed=1), torch.tensor([5, 3, 9, 0, 7, 1])
    alone = _gradient(weight, images, ids)
    for gradient in on_two_ranks(_rank_gradient):
        assert float((gradient - alone).norm() / alone.norm()) < 1e-14


def test_gathers_backward_sums_what_every_rank_did_with_a_slice() -> None:
    first, second = on_two_ranks(_rank_gather)
    assert first.tolist() == [[3.0], [3.0]]  # weight 1 of rank 0's loss and 2 of rank 1's
    assert second.tolist() == [[30.0], [30.0]]
