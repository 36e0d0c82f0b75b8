"""``ssl_bench.knn``, ``linear_probe`` and ``alignment_uniformity``: their numbers on tensors, and what they refuse."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ssl_bench.api.features import alignment_uniformity, knn, linear_probe
from ssl_bench.evaluate.linear import LinearProbe, accuracy
from tests.api.test_pair_loss import vectors
from tests.door.door import refused

GENERATOR = torch.Generator().manual_seed(0)
FEATURES, QUERIES = torch.randn(90, 6, generator=GENERATOR), torch.randn(30, 6, generator=GENERATOR)
LABELS, QUERY_LABELS = torch.arange(90) % 3, torch.arange(30) % 3


def test_a_linear_probe_is_the_fit_on_nine_tenths() -> None:
    lrs = (0.01, 0.3)
    found = linear_probe(FEATURES, LABELS, QUERIES, QUERY_LABELS, lrs=lrs, epochs=4, seed=3)
    generator = torch.Generator().manual_seed(3)
    order = torch.randperm(90, generator=generator)
    fit = LinearProbe(epochs=4).fit(FEATURES, LABELS, [(lr, 0.0) for lr in lrs], 3, generator, order[9:])
    held_out = accuracy(FEATURES, order[:9], LABELS, *fit).tolist()
    best = held_out.index(max(held_out))
    top1 = accuracy(QUERIES, torch.arange(30), QUERY_LABELS, *fit)[best].item()
    assert (found.top1, found.top5, found.chosen) == (top1, None, {"val_top1": held_out[best], "lr": lrs[best]})
    assert (found.predictions == QUERY_LABELS).double().mean().item() == top1
    assert linear_probe(FEATURES, LABELS, QUERIES, QUERY_LABELS + 3, epochs=2).top1 == 0  # no image of these classes


def test_alignment_and_uniformity_are_their_formulas() -> None:
    z1, z2 = vectors()
    f, g = (normalize(z, dim=1) for z in (z1, z2))
    alignment = sum(float((a - b).norm()) ** 3 for a, b in zip(f, g, strict=True)) / 6
    pairs = [[math.exp(-1.5 * float((x[i] - x[j]).norm()) ** 2) for i in range(6) for j in range(i)] for x in (f, g)]
    uniformity = sum(math.log(sum(each) / 15) for each in pairs) / 2
    assert alignment_uniformity(z1, z2, gamma=3, t=1.5) == pytest.approx((alignment, uniformity), rel=1e-12)


def measure(features: Any, labels: Any, queries: Any, query_labels: Any) -> tuple[Any, ...]:
    """The results of all functions."""
    neighbours = knn(features, labels, queries, query_labels, k=5)
    probe = linear_probe(features, labels, queries, query_labels, epochs=2)
    assert neighbours.chosen == {"k": 5, "temperature": 0.1}
    return (
        (neighbours.top1, neighbours.ranking.tolist()),
        (probe.top1, probe.chosen, probe.predictions.tolist()),
        alignment_uniformity(queries, queries[::-1] if isinstance(queries, np.ndarray) else queries.flip(0)),
    )


EXPECTED = measure(FEATURES, LABELS, QUERIES, QUERY_LABELS)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_autocast_changes_nothing(kind: torch.dtype, mode: Callable[[], Any]) -> None:
    """With and without gradients, of features in memory of any order, and of those in half precision."""
    strided = QUERIES.repeat_interleave(2, 1)[:, ::2].requires_grad_()
    given = FEATURES.T.contiguous().T, LABELS, strided, QUERY_LABELS
    half = FEATURES.to(kind), LABELS, QUERIES.to(kind), QUERY_LABELS
    rounded = measure(half[0].float(), LABELS, half[2].float(), QUERY_LABELS)
    with mode(), torch.autocast("cpu", kind):
        assert measure(*given) == EXPECTED
        assert measure(*half) == rounded


@pytest.mark.parametrize(
    "kind",
    [
        lambda x: x.numpy(),
        lambda x: np.broadcast_to(x.numpy(), x.shape),  # cannot be written
        lambda x: x if x.is_floating_point() else x.int(),
        lambda x: x if x.is_floating_point() else x.numpy().astype(np.uint16),
        lambda x: x.double() if x.shape == (90, 6) else x,  # features of one type, queries of another one
    ],
)
def test_arrays_are_as_good_as_tensors(kind: Callable[[Tensor], Any]) -> None:
    neighbours, probe, (alignment, uniformity) = measure(*map(kind, (FEATURES, LABELS, QUERIES, QUERY_LABELS)))
    assert neighbours == EXPECTED[0] and probe == EXPECTED[1]
    assert (alignment, uniformity) == pytest.approx(EXPECTED[2], rel=1e-6)


def changed(x: Tensor, value: float) -> Tensor:
    x = x.clone()
    x[3] = value
    return x


GIVEN = {"features": FEATURES, "labels": LABELS, "queries": QUERIES, "query_labels": QUERY_LABELS}
OF_BOTH: list[tuple[dict[str, Any], str]] = [
    ({"features": LABELS}, "=[[90],[30,6]]"),
    ({"queries": QUERIES[:, :5]}, "=[[90,6],[30,5]]"),
    ({"features": FEATURES[:0], "labels": LABELS[:0]}, "=[[0,6],[30,6]]"),
    ({"queries": QUERIES[:0], "query_labels": LABELS[:0]}, "=[[90,6],[0,6]]"),
    ({"labels": LABELS[:, None]}, "labels=torch.int64 [90, 1] [90]"),
    ({"features": changed(FEATURES, math.nan)}, "features 1 90"),
    ({"queries": changed(QUERIES, -math.inf)}, "queries 1 30"),
    ({"labels": LABELS.float()}, "labels=torch.float32 [90]"),
    ({"labels": LABELS - 1}, "labels=-1 0"),
    ({"labels": LABELS * 0}, "labels=0 two"),
]
OF_PROBE: list[tuple[dict[str, Any], str]] = [
    ({"query_labels": QUERY_LABELS - 1}, "query_labels=-1 0"),
    ({"query_labels": QUERY_LABELS.double()}, "query_labels=torch.float64 [30]"),
    ({"query_labels": QUERY_LABELS[:7]}, "query_labels=torch.int64 [7] [30]"),
    ({"lr": 0.1}, "lr lrs"),
    ({"epochs": 1.5}, "epochs=1.5"),
    ({"epochs": 0}, "epochs=0 1"),
    ({"seed": "a"}, "seed=a"),
    ({"lrs": [1e3], "weight_decay": 1.0}, "lrs=[1000.0]"),
]
Cases = list[tuple[dict[str, Any], str]]
OF_KNN: Cases = [({"k": 91}, "k=91 1 90"), ({"k": 1.5}, "k=1.5"), ({"temperature": "low"}, "temperature=low")]
OF_UNIFORMITY: Cases = [
    ({"z1": changed(QUERIES, math.nan)}, "z1=NaN 1 30"),
    ({"z2": QUERIES[:5]}, "views=[[30,6],[5,6]]"),
]
OF_UNIFORMITY += [({"gamma": 0.0}, "gamma=0.0"), ({"t": -1}, "t"), ({"t": 1e6}, "t=1000000.0 100")]
REFUSED: list[tuple[Any, dict[str, Any], str]] = [(linear_probe, *case) for case in OF_BOTH + OF_PROBE] + [
    (knn, *case) for case in OF_BOTH + OF_KNN
]
REFUSED += [(alignment_uniformity, *case) for case in OF_UNIFORMITY]


@pytest.mark.parametrize(("call", "change", "names"), REFUSED)
def test_what_cannot_be_computed_is_refused(call: Any, change: dict[str, Any], names: str) -> None:
    given = {"z1": QUERIES, "z2": QUERIES} if call is alignment_uniformity else GIVEN
    given = {key: value for key, value in (given | change).items() if call is not knn or key != "query_labels"}
    with refused(names):
        call(**({"k": 5} if call is knn and "k" not in change else {}), **given)
