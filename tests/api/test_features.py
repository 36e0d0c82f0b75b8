"""kNN, linear probe, alignment and uniformity on tensors."""

import math
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

from ssl_bench.api.features import alignment_uniformity, knn, linear_probe
from ssl_bench.errors import InvalidValue
from ssl_bench.evaluate.linear import accuracy, fit_linear
from tests.api.cases import vectors

GENERATOR = torch.Generator().manual_seed(0)
FEATURES, QUERIES = torch.randn(90, 6, generator=GENERATOR), torch.randn(30, 6, generator=GENERATOR)
LABELS, QUERY_LABELS = torch.arange(90) % 3, torch.arange(30) % 3


def test_knn_counts_the_classes_and_refuses_k() -> None:
    assert knn(FEATURES, LABELS, QUERIES, k=1, num_classes=5).shape == (30, 5)
    with pytest.raises(InvalidValue, match="k=200: set k to a number from 1 to 90"):
        knn(FEATURES, LABELS, QUERIES)
    with pytest.raises(InvalidValue, match=r"features, labels, queries=\[\[90,6\],\[90\],\[30,5\]\]: set"):
        knn(FEATURES, LABELS, QUERIES[:, :5], k=1)


def test_a_linear_probe_is_the_fit_on_nine_tenths() -> None:
    lrs = (0.01, 0.3)
    found = linear_probe(FEATURES, LABELS, QUERIES, QUERY_LABELS, lrs=lrs, epochs=4, seed=3)
    generator = torch.Generator().manual_seed(3)
    order = torch.randperm(90, generator=generator)
    settings: dict[str, Any] = {"num_classes": 3, "epochs": 4, "batch_size": 512, "momentum": 0.9, "weight_decay": 0.0}
    fit = fit_linear(FEATURES, LABELS, lrs, **settings, generator=generator, fitted=order[9:])
    held_out = accuracy(FEATURES[order[:9]], LABELS[order[:9]], *fit)
    best = held_out.index(max(held_out))
    top1 = accuracy(QUERIES, QUERY_LABELS, *fit)[best]
    assert found == {"top1": top1, "val_top1": held_out[best], "lr": lrs[best]}
    with pytest.raises(InvalidValue, match="epochs=0: set epochs to 1 or more"):
        linear_probe(FEATURES, LABELS, QUERIES, QUERY_LABELS, epochs=0)


def test_alignment_and_uniformity_are_their_formulas() -> None:
    z1, z2 = vectors()
    f, g = (normalize(z, dim=1) for z in (z1, z2))
    alignment = sum(float((a - b).norm()) ** 3 for a, b in zip(f, g, strict=True)) / 6
    pairs = [[math.exp(-1.5 * float((x[i] - x[j]).norm()) ** 2) for i in range(6) for j in range(i)] for x in (f, g)]
    uniformity = sum(math.log(sum(each) / 15) for each in pairs) / 2
    assert alignment_uniformity(z1, z2, gamma=3, t=1.5) == pytest.approx((alignment, uniformity), rel=1e-12)
    for bad in ({"gamma": 0}, {"t": -1}):
        with pytest.raises(InvalidValue, match=r"set .* to a positive number"):
            alignment_uniformity(z1, z2, **bad)
    with pytest.raises(InvalidValue, match=r"views=\[\[6,5\],\[5,5\]\]: set views to two tensors of one shape"):
        alignment_uniformity(z1, z2[:5])
