"""PairLoss: its defaults, directions, state, number formats, and what it refuses.

tests/objective/test_losses.py compares its values and gradients with the formulas of the losses.
"""

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ssl_bench.api.pair_loss import PairLoss
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss
from ssl_bench.objective.losses import DCL
from ssl_bench.objective.negatives import CrossView
from ssl_bench.objective.temperature import Fixed
from tests.api.cases import LOSSES, MADE_FOR, labels, vectors
from tests.door.door import refused
from tests.formulas import anchors

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


@pytest.mark.parametrize("name", LOSSES)
def test_the_negatives_are_those_that_a_loss_is_made_for(name: str) -> None:
    explicit = PairLoss(name, TAU, MADE_FOR.get(name, "in_batch"), **LOSSES[name])
    both = (PairLoss(name, TAU, **LOSSES[name]), explicit)
    found, expected = (loss(*vectors(), ids=IDS, **labels(name)) for loss in both)
    assert torch.equal(found, expected)


def test_the_defaults_are_those_of_conf() -> None:
    loss = PairLoss("eqco")
    assert loss.loss.alpha == 256 and isinstance(loss.temperature, Fixed) and loss.temperature.tau == 0.2
    assert PairLoss("dcl", negatives="queue", dim=1).negatives.k == 65536  # type: ignore[union-attr]


def test_only_the_first_view_is_an_anchor_beside_a_queue() -> None:
    """The second one is of a momentum network."""
    for negatives, count in (("queue", 1), ("in_batch", 2)):
        assert len(PairLoss("dcl", negatives=negatives, reduction="none")(*vectors())) == count


def test_objects_are_taken_as_they_are() -> None:
    parts = DCL(), Fixed(TAU), CrossView()
    loss = PairLoss(*parts)
    assert (loss.loss, loss.temperature, loss.negatives) == parts
    assert torch.equal(loss(*vectors()), PairLoss("dcl", TAU, "cross_view")(*vectors()))


@pytest.mark.parametrize("negatives", ["in_batch", "cross_view", "own_view"])
def test_one_direction_is_the_first_row_of_two(negatives: str) -> None:
    both, one = (PairLoss("dcl", TAU, negatives, symmetric=s, reduction="none") for s in (True, False))
    same(one(*vectors()), both(*vectors())[:1])


def test_the_statistics_of_a_batch() -> None:
    z = vectors()
    loss = PairLoss("dcl", TAU, reduction="none")
    u, stats = loss(*z, return_stats=True)
    assert torch.equal(u, loss(*z))
    same(stats["npc/mean"], u.sigmoid().mean())
    same(stats["information"], math.log(11) - (1 + u.exp()).log().mean())
    weights = [a.k.div(TAU).exp() for view in anchors(z, TAU) for a in view]
    same(stats["negatives/effective"], sum(w.sum() ** 2 / (w**2).sum() for w in weights) / 12, 1e-6)
    same(stats["tau"], TAU)


@pytest.mark.parametrize(
    ("name", "odds"), [("arctanh", lambda s: (1 + s) / (1 - s)), ("student", lambda s: (3 - 2 * s) ** -2)]
)
def test_dcl_of_a_similarity_at_half_a_temperature(name: Any, odds: Callable[[Tensor], Tensor]) -> None:
    z = vectors()
    expected = torch.stack([(odds(a.k).sum() / odds(a.s)).log() for view in anchors(z, 0.5) for a in view])
    same(PairLoss("dcl", 0.5, similarity=name, reduction="none")(*z), expected.view(2, 6))


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


@pytest.mark.parametrize(
    "given",
    [
        {"loss": "dcl", "negatives": "queue", "k": 20},
        {"loss": "dcl", "negatives": "random_k", "k": 3},
        {"loss": "isogclr", "instances": 6},
    ],
)
def test_only_calls_that_train_change_the_state(given: dict[str, Any]) -> None:
    z, loss = vectors(), PairLoss(temperature=TAU, **given)
    loss(*z, ids=IDS)
    before = copy.deepcopy(loss.state_dict())
    with torch.no_grad():
        loss(*z, ids=IDS)
    loss.eval()(*z, ids=IDS, return_stats=True)
    assert str(loss.state_dict()) == str(before)
    loss.train()(*z, ids=IDS)
    assert str(loss.state_dict()) != str(before)


@pytest.mark.parametrize(
    "given",
    [
        {"loss": "dcl", "negatives": "queue", "k": 4},
        {"loss": "dcl", "negatives": "queue", "k": 20},
        {"loss": "dcl", "negatives": "memory_bank", "instances": 9, "k": 4},
        {"loss": "dcl", "negatives": "random_k", "k": 3},
        {"loss": "swd"},
        {"loss": "isogclr", "instances": 6},
        {"loss": "dcl", "positives": {"name": "nearest", "k": 20}},
        {"loss": "dcl", "temperature": "learned"},
    ],
)
def test_a_saved_state_goes_on_alike(given: dict[str, Any]) -> None:
    """Also into a module that has not seen a vector yet and so has no queue."""
    loss, restored = PairLoss(**given), PairLoss(**given)
    for seed in (0, 1):
        loss(*vectors(seed=seed).requires_grad_(), ids=IDS)
    restored.load_state_dict(loss.state_dict())
    for seed in (2, 3):
        assert torch.equal(*(x(*vectors(seed=seed), ids=IDS) for x in (loss, restored)))


def test_the_seed_decides_the_draws() -> None:
    z = vectors()
    first, again, other = (float(PairLoss("dcl", TAU, "random_k", k=3, seed=s)(*z)) for s in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    "given",
    [
        {"negatives": "queue", "k": 8},
        {"negatives": "memory_bank", "instances": 9, "k": 8},
        {"positives": {"name": "nearest", "k": 8}},
    ],
)
@pytest.mark.parametrize("kinds", [*itertools.permutations([torch.float16, torch.float32, torch.float64], 2)])
def test_what_is_kept_takes_the_type_of_the_vectors(given: dict[str, Any], kinds: tuple[torch.dtype, ...]) -> None:
    """After vectors of another type, and after a cast of the network that the loss is a part of."""
    values = []
    for first, second in (kinds, (torch.float64,) * 2):
        loss = PairLoss("dcl", 0.5, **given)
        loss(*vectors().to(first), ids=IDS)
        loss.to(second)
        loss(*vectors(seed=1).float(), ids=IDS)
        values.append(loss(*vectors(seed=2).to(second), ids=IDS))
    same(values[0], values[1], 5e-3)  # float16 rounded the keys


def test_a_first_call_in_inference_mode() -> None:
    """As a check of the validation before a training is: what is made there is trained with later."""
    values = []
    for mode in (torch.inference_mode, torch.no_grad):
        loss = PairLoss("dcl", TAU, "queue", k=9)
        with mode():
            loss(*vectors())
        z = vectors(seed=1).requires_grad_()
        loss(*z).backward()  # type: ignore[union-attr]
        values.append(torch.cat([z.grad.flatten(), loss(*vectors()).detach()[None]]))  # type: ignore[union-attr]
    assert torch.equal(*values)


def test_numbers_of_images_and_classes_are_tensors_or_arrays() -> None:
    kinds: list[Callable[[Tensor], Any]] = [Tensor.numpy, Tensor.int, Tensor.short]
    cases: list[tuple[str, dict[str, Any]]] = [("dcl", {}), ("supcon", {}), ("sogclr", {"instances": 9})]
    for name, more in cases:
        loss = PairLoss(name, TAU, **more)
        expected = loss.eval()(*vectors(), ids=IDS + 2, **labels(name))
        for kind in kinds:
            given = {key: kind(value) for key, value in labels(name).items()}
            assert torch.equal(loss(*vectors(), ids=kind(IDS + 2), **given), expected)
            PairLoss(name, TAU, **more)(*vectors(), ids=kind(IDS + 2), **given)  # and may be kept


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


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", [name for name in LOSSES if name not in ("swd", "sigreg")])  # draws depend on it
def test_a_zero_vector_has_no_gradient_and_spoils_no_other(name: str, kind: torch.dtype) -> None:
    """As in double precision, in which the losses of lengths have a gradient for it."""
    grads = []
    for each in (kind, torch.float64):
        z = vectors().to(kind)
        z[0, 2], z[1, 3] = 0, z[1, 3] * 1e-4
        z = z.to(each).requires_grad_()
        loss = PairLoss(name, 0.5, **LOSSES[name])(*z, ids=IDS, **labels(name))
        loss.backward()  # type: ignore[union-attr]
        assert z.grad is not None and (name in OF_LENGTHS or not z.grad[0, 2].any())
        grads.append(z.grad.double())
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-3}[kind]
    largest = grads[1].abs().amax(2, keepdim=True)  # of each vector
    assert ((grads[0] - grads[1]).abs() <= tolerance * largest + 1e-5).all()


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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's compiler looks at it
@pytest.mark.parametrize(
    "given",
    [
        {"loss": "dcl", "negatives": "queue", "k": 40, "dim": 5},
        pytest.param({"loss": "dclw"}, marks=pytest.mark.exhaustive),
    ],
)
def test_a_loss_is_compiled_without_a_break(given: dict[str, Any]) -> None:
    """The same bits as without; ``swd`` and ``random_k``, which draw from a generator, break the graph."""
    torch._dynamo.reset()
    eager = PairLoss(temperature="macl_a", **given)
    compiled: Any = torch.compile(PairLoss(temperature="macl_a", **given), fullgraph=True, backend="aot_eager")
    for seed in range(3):
        pair = [vectors(seed=seed).float().requires_grad_() for _ in range(2)]
        values = [loss(*z) for loss, z in zip((eager, compiled), pair, strict=True)]
        assert torch.equal(*values)
        for value in values:
            value.backward()
        assert pair[0].grad is not None and pair[1].grad is not None and torch.equal(pair[0].grad, pair[1].grad)


# ---- refusals


class Halves(Loss):
    """A loss of one's own."""

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        return (1 - contrast.pos) / 2


def test_a_loss_of_ones_own() -> None:
    z = vectors()
    same(PairLoss(Halves())(*z), ((normalize(z[0], dim=1) - normalize(z[1], dim=1)) ** 2).sum(1).mean() / 4)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"loss": "dlc"}, "loss=dlc dcl"),
    ({"loss": "DCL"}, "loss=DCL dcl"),
    ({"loss": "NT-Xent"}, "loss=NT-Xent infonce"),
    ({"loss": 3}, "loss=3 dcl infonce"),
    ({"loss": "eqco", "alhpa": 3}, "alhpa loss=eqco negatives=in_batch alpha"),
    ({"loss": "dcl", "negatives": "queue", "k": "many"}, "k=many"),
    ({"loss": "dcl", "negatives": "memory_bank"}, "instances"),
    ({"loss": "dcl", "negatives": "none"}, "DCL negatives"),
    ({"loss": "dcl", "temperature": 0}, "tau=0.0"),
    ({"loss": "dcl", "temperature": {"tau": 1}}, "temperature=null fixed cosine"),
    ({"loss": "dcl", "temperature": {"name": "cosine", "end": 1}}, "end temperature=cosine tau final cycles"),
    ({"loss": "byol", "temperature": "learned"}, "Learned temperature=fixed"),
    ({"loss": "relic", "negatives": "in_batch"}, "ReLIC negatives=cross_view"),
    ({"loss": "swd", "symmetric": False}, "SWD symmetric=true"),
    ({"loss": "byol", "similarity": "student"}, "BYOL similarity=cosine"),
    ({"loss": "relic", "similarity": "arctanh"}, "ReLIC similarity=cosine"),
    ({"loss": "swd", "positives": "nearest"}, "SWD positives"),
    ({"loss": "sincere", "positives": "view"}, "SINCERE positives=label"),
    ({"loss": "dcl", "positives": "label"}, "SameLabel loss=supcon sincere positives=view"),
    ({"loss": "dcl", "positives": 3}, "positives=3 view"),
    ({"loss": "dcl", "symmetric": "no"}, "symmetric=no true false null"),
    ({"loss": "dcl", "reduction": "max"}, "reduction=max mean sum none"),
]


@pytest.mark.parametrize(("given", "names"), REFUSED)
def test_what_cannot_work_is_refused(given: dict[str, Any], names: str) -> None:
    with refused(names):
        PairLoss(**given)


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
    *(
        ({"loss": name}, {"z1": torch.ones(1, 5), "z2": torch.ones(1, 5)}, "size=1 2")
        for name in ("vicreg", "barlow_twins", "swd", "sigreg")
    ),
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
