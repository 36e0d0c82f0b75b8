"""PairLoss: its defaults, directions, state, number formats, and what it refuses.

tests/objective/test_losses.py compares its values and gradients with the formulas of the losses.
"""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ssl_bench.api import options
from ssl_bench.api.chunked import chunked
from ssl_bench.api.pair_loss import PairLoss
from ssl_bench.config.build import find_target, has_argument
from ssl_bench.distributed import rank
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss
from ssl_bench.objective.losses import DCL
from ssl_bench.objective.negatives import CrossView
from ssl_bench.objective.temperature import Fixed
from tests.door.door import refused
from tests.ranks import on_two_ranks

# The normaliser of nce depends on all anchors of the first batch: tests/methods/test_cld.py has its formula.
_NODES = {name: options.node("loss", name) for name in options.names("loss") if name != "nce"}
LOSSES: dict[str, dict[str, Any]] = {
    name: {"instances": 100} if has_argument(node, "loss", "instances") else {} for name, node in _NODES.items()
}
_NEEDS = {name: find_target(_NODES[name], "loss").needs for name in LOSSES}


def labels(name: str) -> dict[str, Tensor]:
    """The argument ``labels`` of a call, where the loss takes it, for six images."""
    return {"labels": torch.tensor([0, 1, 0, -1, 2, 1])} if "labels" in _NEEDS[name] else {}


def vectors(views: int = 2, images: int = 6, width: int = 5, seed: int = 0) -> Tensor:
    """[views, images, width] in double precision; the views of an image are correlated, and no vector has length 1."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(images, width, generator=generator, dtype=torch.float64)
    return 3 * centres + torch.randn(views, images, width, generator=generator, dtype=torch.float64)


TAU, IDS = 0.25, torch.arange(6)
OF_LENGTHS = {"vicreg", "barlow_twins", "sigreg"}  # losses of vectors that are not normalised
LABELS = labels("supcon")["labels"]


def same(found: Any, expected: Any, tolerance: float = 1e-12) -> None:
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "swd"])
def test_vectors_have_any_length_and_a_reduction_is_one_of_the_anchors(name: str) -> None:
    z = vectors()
    given, each = {"ids": IDS, **labels(name)}, PairLoss(name, TAU, reduction="none", **LOSSES[name]).eval()
    expected: Any = each(*z, **given)
    assert expected.shape == (2, 6)
    for reduction, value in {"none": expected, "mean": expected.mean(), "sum": expected.sum()}.items():
        loss = PairLoss(name, TAU, reduction=reduction, **LOSSES[name])  # type: ignore[arg-type]
        same(loss([*((1 if name in OF_LENGTHS else 7) * z)], **given), value)


def test_the_defaults_are_those_of_conf() -> None:
    loss = PairLoss("eqco")
    assert loss.loss.alpha == 256 and isinstance(loss.temperature, Fixed) and loss.temperature.tau == 0.2
    assert PairLoss("dcl", negatives="queue", dim=1).negatives.k == 65536  # type: ignore[union-attr]


def test_only_the_first_view_is_an_anchor_beside_a_queue() -> None:
    """The second one is of a momentum network."""
    for negatives, count in (("queue", 1), ("in_batch", 2)):
        assert len(PairLoss("dcl", negatives=negatives, reduction="none")(*vectors())) == count


class Halves(Loss):
    """A loss of one's own."""

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        return (1 - contrast.pos) / 2


def test_objects_are_taken_as_they_are() -> None:
    z, parts = vectors(), (DCL(), Fixed(TAU), CrossView())
    loss = PairLoss(*parts)
    assert (loss.loss, loss.temperature, loss.negatives) == parts
    assert torch.equal(loss(*z), PairLoss("dcl", TAU, "cross_view")(*z))
    same(PairLoss(Halves())(*z), ((normalize(z[0], dim=1) - normalize(z[1], dim=1)) ** 2).sum(1).mean() / 4)


@pytest.mark.parametrize("negatives", ["in_batch", "cross_view", "own_view"])
def test_one_direction_is_the_first_row_of_two(negatives: str) -> None:
    both, one = (PairLoss("dcl", TAU, negatives, symmetric=s, reduction="none") for s in (True, False))
    same(one(*vectors()), both(*vectors())[:1])


# ---- state


def test_two_calls_can_share_one_backward_pass() -> None:
    """The queue that the first call has seen is not overwritten by the second one."""
    z = [vectors(seed=s) for s in (0, 1)]
    grads = []
    for together in (True, False):
        loss, q = PairLoss("dcl", TAU, "queue", k=9), [x[0].clone().requires_grad_() for x in z]
        values = []
        for x, (_, k) in zip(q, z, strict=True):
            values.append(loss(x, k))
            if not together:
                values[-1].backward()
        if together:
            sum(values).backward()  # type: ignore[union-attr]
        grads.append(torch.stack([x.grad for x in q]))  # type: ignore[misc]
    assert torch.equal(*grads)


STATES: list[dict[str, Any]] = [{"negatives": "queue", "k": k} for k in (4, 20)]
STATES += [{"negatives": "memory_bank", "instances": 9, "k": 4}, {"negatives": "random_k", "k": 3}, {"loss": "swd"}]
STATES += [{"loss": "isogclr", "instances": 6}, {"positives": {"name": "nearest", "k": 20}}, {"temperature": "learned"}]


@pytest.mark.parametrize("given", STATES)
def test_a_saved_state_goes_on_alike_and_only_calls_that_train_change_it(given: dict[str, Any]) -> None:
    """Also into a module that has not seen a vector yet and so has no queue."""
    loss, restored = (PairLoss(**{"loss": "dcl", **given}) for _ in range(2))
    for seed in (0, 1):
        loss(*vectors(seed=seed).requires_grad_(), ids=IDS)
    before = copy.deepcopy(loss.state_dict())
    with torch.no_grad():
        loss(*vectors(), ids=IDS)
    loss.eval()(*vectors(), ids=IDS, return_stats=True)
    assert str(loss.train().state_dict()) == str(before)
    restored.load_state_dict(before)
    for seed in (2, 3):
        assert torch.equal(*(x(*vectors(seed=seed), ids=IDS) for x in (loss, restored)))
    assert (str(loss.state_dict()) != str(before)) == ("temperature" not in given)


def test_the_seed_decides_the_draws() -> None:
    z = vectors()
    first, again, other = (float(PairLoss("dcl", TAU, "random_k", k=3, seed=s)(*z)) for s in (1, 1, 2))
    assert first == again != other


KEPT: list[dict[str, Any]] = [{"negatives": "queue", "k": 8}, {"negatives": "memory_bank", "instances": 9, "k": 8}]
KEPT += [{"positives": {"name": "nearest", "k": 8}}]


@pytest.mark.parametrize("given", KEPT)
@pytest.mark.parametrize("kinds", [(torch.float16, torch.float64), (torch.float64, torch.float32)])
def test_what_is_kept_takes_the_type_of_the_vectors(given: dict[str, Any], kinds: tuple[torch.dtype, ...]) -> None:
    """After vectors of another type, after a cast of the network that the loss is a part of, and in inference mode."""
    values = []
    for first, second in (kinds, (torch.float64,) * 2):
        loss = PairLoss("dcl", 0.5, **given)
        with torch.inference_mode():
            loss(*vectors(), ids=IDS.numpy())
        loss(*vectors().to(first), ids=IDS.int())
        loss.to(second)
        loss(*vectors(seed=1).float(), ids=IDS)
        values.append(loss(*vectors(seed=2).to(second), ids=IDS))
    same(values[0], values[1], 5e-3)  # float16 rounded the keys


# ---- number formats and temperatures


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_ends_at_the_loss(name: str, half: torch.dtype) -> None:
    z = vectors().to(half)
    loss, reference = (PairLoss(name, 0.1, **LOSSES[name]) for _ in range(2))
    with torch.autocast("cpu", half):
        value = loss(*z.requires_grad_(), ids=IDS, **labels(name))
    assert value.dtype == torch.float32
    assert torch.equal(value, reference(*z.detach().float(), ids=IDS, **labels(name)))
    value.backward()
    assert z.grad is not None and z.grad.dtype == half and z.grad.isfinite().all() and z.grad.any()


def test_a_temperature_by_name_mapping_and_number() -> None:
    z = vectors()
    at = {tau: PairLoss("dcl", tau)(*z) for tau in (0.1, 0.2, 0.3, 0.5)}
    assert torch.equal(PairLoss("dcl", {"name": "fixed", "tau": 0.3})(*z), at[0.3])
    cosine = PairLoss("dcl", "cosine")  # from 0.5 to 0.1 in conf/
    for progress, tau in ((0.0, 0.5), (0.5, 0.3), (1.0, 0.1), (torch.tensor(0.5, dtype=torch.float64), 0.3)):
        same(cosine(*z, progress=progress), at[tau])
    linear = PairLoss("dcl", {"name": "linear", "tau": 0.1, "slope": 0.01, "epochs": 20})
    same(linear(*z, progress=0.5), at[0.2])
    alignment = (normalize(z[0], dim=1) * normalize(z[1], dim=1)).sum(1).mean()
    found = PairLoss("dcl", {"name": "macl_a", "tau": 0.1, "alpha": 2.0})(*z)
    same(found, PairLoss("dcl", float(0.1 * 2**alignment))(*z))
    same(PairLoss("dcl", {"name": "learned", "tau": 0.2}).double()(*z), at[0.2], 1e-7)


# ---- batches that do not fit; refusals.yaml has settings that cannot work

CALLS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"z1": torch.ones(1, 5), "z2": torch.ones(1, 5)}, "size=1 2"),
    ({}, {"ids": torch.arange(4)}, "ids=torch.int64 [4] [6]"),
    ({"negatives": "memory_bank", "instances": 9}, {}, "ids=null 0"),
    ({"loss": "sogclr", "instances": 9}, {}, "ids=null 0"),
    ({"temperature": "cosine"}, {}, "progress=null"),
    ({"negatives": "random_k", "k": 2, "final": 4, "schedule": "linear"}, {}, "progress=null 0 1 RandomK"),
    ({"temperature": "cosine"}, {"progress": 1.5}, "progress=1.5 0 1"),
    ({}, {"z2": None}, "views=torch.float64 [6, 5] two"),
    ({"negatives": "queue", "k": 3, "dim": 4}, {}, "views=[B, 5] 4"),
    ({"loss": "supcon"}, {}, "labels=null -1"),
    ({"loss": "supcon"}, {"labels": torch.arange(4)}, "labels=torch.int64 [4] [6]"),
    ({}, {"labels": torch.arange(6)}, "labels=given null positives=label"),
    ({}, {"z1": torch.ones(2, 6, 5).long(), "z2": None}, "views=torch.int64 [2, 6, 5]"),
    ({"loss": "vicreg"}, {"z1": torch.ones(1, 5), "z2": torch.ones(1, 5)}, "size=1 2"),
    ({}, {"ids": IDS > 2}, "ids=torch.bool [6]"),
    ({}, {"ids": torch.zeros_like(IDS)}, "ids="),
    ({"loss": "supcon"}, {"labels": LABELS / 2}, "labels=torch.float32 [6]"),
    *(
        ({"instances": 9, **given}, {"ids": IDS + first}, f"ids={first} {first + 5} 0 8")
        for given in ({"loss": "sogclr"}, {"loss": "isogclr"}, {"negatives": "memory_bank"})
        for first in (-1, 4)
    ),
    ({"loss": "swd"}, {"z1": [*vectors(3)], "z2": None}, "SWD two"),
]


@pytest.mark.parametrize(("given", "call", "names"), CALLS)
def test_a_batch_that_does_not_fit_is_refused(given: dict[str, Any], call: dict[str, Any], names: str) -> None:
    z1, z2 = vectors()
    with refused(names):
        PairLoss(**{"loss": "dcl", **given})(**{"z1": z1, "z2": z2, **call})


# ---- chunked() against whole batches, and losses on two ranks


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
