"""Anchors, positives and the momentum network of the Siamese framework; supervised training."""

import copy
import functools
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ssl_bench.data.batch import Batch
from ssl_bench.distributed import world
from ssl_bench.errors import InvalidValue
from ssl_bench.methods.siamese import Siamese
from ssl_bench.methods.supervised import Supervised
from ssl_bench.networks.heads import MLP
from ssl_bench.networks.norm import group_statistics
from ssl_bench.objective.contrast import Embedded
from tests.door.door import refused
from tests.ranks import on_ranks, on_two_ranks


class Flat(nn.Module):
    """A network without batch statistics, or with them."""

    num_features = 6

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(25, 6), *([nn.BatchNorm1d(6)] if norm else []), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def _siamese(bn: bool = True, **settings: Any) -> Siamese:
    torch.manual_seed(0)
    head = MLP(6, 2, None, 8) if bn else MLP(6, 2, 5, 8, norm=False, final_norm="none")
    return Siamese(Flat(bn), head, **settings).double()


def _batch(images: int = 6, rows: slice = slice(None)) -> Batch:
    """Two views, the second with other statistics."""
    generator = torch.Generator().manual_seed(1)
    views = [torch.randn(images, 1, 5, 5, generator=generator, dtype=torch.float64) * (1 + v) + v for v in range(2)]
    return Batch([view[rows] for view in views], torch.arange(images)[rows], torch.zeros(images)[rows])


def _embed(framework: Siamese, batch: Batch) -> Embedded:
    (term,) = framework.embed(framework.trained_outputs(batch) | framework.momentum_outputs(batch), batch.ids)
    return term.e


def _moved(framework: Siamese) -> Siamese:
    """The framework after a change of the trained network's weights."""
    with torch.no_grad():
        for parameter in framework.encoder.parameters():
            parameter.add_(torch.randn(parameter.shape, dtype=parameter.dtype), alpha=0.3)
    return framework


def test_a_positive_is_the_other_view_and_anchors_are_unit_vectors() -> None:
    framework = _siamese(views_forward="separate")
    e = _embed(framework, _batch())
    torch.testing.assert_close(e.q.norm(dim=-1), torch.ones(2, 6, dtype=torch.float64))
    assert torch.equal(e.p, e.q.flip(0)) and e.p.requires_grad
    separate = [framework.encoder(view)["projection"] for view in _batch().views[:2]]
    torch.testing.assert_close(e.raw, torch.stack(separate))
    assert framework.gives == {"both_views", "two_views"} and framework.momentum_outputs(_batch()) == {}


def test_joint_batch_statistics_are_over_both_views() -> None:
    joint, separate = (_embed(_siamese(views_forward=kind), _batch()) for kind in ("joint", "separate"))
    both = _siamese().encoder(torch.cat(_batch().views[:2]))["projection"].unflatten(0, (2, 6))
    assert torch.equal(joint.raw, both)
    assert float(((joint.raw - separate.raw).norm() / separate.raw.norm()).detach()) > 0.01


def test_vectors_are_never_normalised_in_half_precision() -> None:
    framework, z = _siamese(momentum=0.9), torch.randn(2, 3, 8)
    e = framework.embed({"z": z.bfloat16(), "key": z.half()}, torch.arange(3))[0].e
    assert e.q.dtype == e.p.dtype == e.raw.dtype == torch.float32
    torch.testing.assert_close(e.q.norm(dim=-1), torch.ones(2, 3))


def test_one_network_in_one_direction() -> None:
    """The first view is the anchor, the second its positive, both with gradient."""
    framework = _siamese(symmetric=False)
    e = _embed(framework, _batch())
    first, second = framework.encoder(torch.cat(_batch().views[:2]))["projection"].unflatten(0, (2, 6))
    torch.testing.assert_close(e.q, normalize(first, dim=-1)[None])
    torch.testing.assert_close(e.p, normalize(second, dim=-1)[None])
    assert e.p.requires_grad and torch.equal(e.raw[0], first) and framework.gives == frozenset()


def test_moco_is_a_query_of_the_first_view_and_a_key_of_the_second() -> None:
    framework = _moved(_siamese(momentum=0.9, symmetric=False, views_forward="separate"))
    assert framework.target is not None
    e = _embed(framework, _batch())
    first, second = _batch().views[:2]
    assert e.q.shape == e.p.shape == e.raw.shape == (1, 6, 8)
    torch.testing.assert_close(e.q[0], normalize(framework.encoder(first)["projection"], dim=-1))
    torch.testing.assert_close(e.p[0], normalize(framework.target(second)["projection"], dim=-1))
    assert e.q.requires_grad and not e.p.requires_grad and framework.gives == frozenset()
    (e.q * e.p).sum().backward()
    assert all(p.grad is None and not p.requires_grad for p in framework.target.parameters())


def test_the_momentum_key_of_either_view_is_the_positive_of_the_other() -> None:
    framework = _moved(_siamese(bn=False, momentum=0.9))
    assert framework.target is not None
    e = _embed(framework, _batch())
    for view in range(2):
        key = framework.target(_batch().views[1 - view])["projection"]
        torch.testing.assert_close(e.p[view], normalize(key, dim=-1))
    assert framework.gives == {"both_views"}


def test_the_predictor_is_applied_to_anchors_only() -> None:
    framework = _moved(_siamese(bn=False, momentum=0.9, predictor=7))
    assert framework.target is not None and framework.predictor is not None
    e = _embed(framework, _batch())
    for view, other in ((0, 1), (1, 0)):
        raw = framework.predictor.layers(torch.cat([framework.encoder(x)["projection"] for x in _batch().views[:2]]))
        torch.testing.assert_close(e.raw[view], raw.unflatten(0, (2, 6))[view])
        torch.testing.assert_close(e.q[view], normalize(e.raw[view], dim=-1))
        key = framework.target(_batch().views[other])["projection"]
        torch.testing.assert_close(e.p[view], normalize(key, dim=-1))
    kinds = [type(m).__name__ for m in framework.predictor.layers]
    assert kinds == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert framework.predictor.layers[0].out_features == 7 and framework.predictor.num_features == 8


def test_a_predictor_without_a_momentum_network_does_not_change_the_positives() -> None:
    for symmetric in (True, False):
        framework = _siamese(bn=False, predictor=7, symmetric=symmetric)
        e = _embed(framework, _batch())
        z = normalize(torch.stack([framework.encoder(x)["projection"] for x in _batch().views[:2]]), dim=-1)
        torch.testing.assert_close(e.p, z.flip(0) if symmetric else z[1:])
        assert len(e.q) == len(e.p) and e.p.requires_grad and "two_views" not in framework.gives


def test_simsiam_is_byol_with_a_momentum_of_zero() -> None:
    """Stop-gradient gives the positives and the gradients of a momentum network that always equals the trained one."""
    found = []
    for settings in ({"stop_gradient": True}, {"momentum": 0.0}):
        framework = _siamese(predictor=7, views_forward="separate", **settings)
        e = _embed(framework, _batch())
        (2 - 2 * e.q * e.p).sum().backward()  # type: ignore[no-untyped-call]
        assert not e.p.requires_grad and framework.gives == {"both_views"}
        found.append([e.q, e.p, *(p.grad for p in framework.parameters() if p.grad is not None)])
    assert len(found[0]) == len(found[1])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


# ---- the momentum network


@pytest.mark.parametrize("momentum", [0.0, 0.9, 1.0])
def test_the_momentum_network_moves_towards_the_trained_one(momentum: float) -> None:
    """k <- m k + (1 - m) q (MoCo, eq. 2) for the parameters; buffers are not averaged."""
    framework = _moved(_siamese(momentum=momentum))
    assert framework.target is not None
    e = _embed(framework, _batch())  # both networks see a batch, so their batch statistics differ
    before, trained = copy.deepcopy(framework.target.state_dict()), framework.encoder.state_dict()
    for progress in (0.2, 0.9):
        framework.update(e, progress)
        parameters = dict(framework.target.named_parameters())
        for name, value in framework.target.state_dict().items():
            if name in parameters:
                torch.testing.assert_close(value, momentum * before[name] + (1 - momentum) * trained[name])
            else:
                assert torch.equal(value, before[name])
                assert "num_batches" in name or not torch.equal(value, trained[name])
        before = copy.deepcopy(framework.target.state_dict())


@pytest.mark.parametrize(("progress", "momentum"), [(0.0, 0.996), (0.25, None), (0.5, 0.998), (1.0, 1.0)])
def test_the_momentum_of_byol_ends_at_one(progress: float, momentum: float | None) -> None:
    """1 - (1 - m) (cos(pi k / K) + 1) / 2 (BYOL, appendix C.2)."""
    expected = 1 - (1 - 0.996) * (math.cos(math.pi * progress) + 1) / 2
    assert momentum is None or momentum == pytest.approx(expected, rel=1e-15)
    framework = _moved(_siamese(momentum=0.996, final_momentum=1.0, predictor=7))
    assert framework.target is not None
    k, q = (next(network.parameters()).detach().clone() for network in (framework.target, framework.encoder))
    framework.update(_embed(framework, _batch()), progress)
    found = next(framework.target.parameters())
    torch.testing.assert_close(found, expected * k + (1 - expected) * q, rtol=1e-14, atol=1e-16)
    assert (progress == 1) == torch.equal(found, k)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"momentum": 1.5}, "null 0 1"),
        ({"momentum": 0.9, "final_momentum": -0.1}, "null 0 1"),
        ({"final_momentum": 1.0}, "null framework.momentum 0 1"),
        ({"predictor_norm": "plain"}, "none framework.predictor"),
        ({"norm": "shuffle"}, "sync local framework.momentum 0 1"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], names: str) -> None:
    with refused(f"{[*settings][-1]} {names}", InvalidValue):
        _siamese(**settings)


def _shuffled(rank: int = 0) -> dict[str, Tensor]:
    """Keys of this rank's share of 12 images, for each setting of the batch statistics."""
    share, found = 12 // world(), {}
    batch = _batch(12, slice(share * rank, share * rank + share))
    for setting in SHUFFLES:
        bn, symmetric, norm, views_forward, groups = setting
        settings = {"symmetric": symmetric, "norm": norm, "groups": groups, "views_forward": views_forward}
        framework = _siamese(bn, momentum=0.9, **settings)
        if groups % world() == 0:
            group_statistics(framework, groups)
            found[str(setting)] = framework.momentum_outputs(batch)["key"]
    return found


SHUFFLES = [
    (bn, symmetric, norm, views_forward, groups)
    for bn in (False, True)
    for symmetric in (False, True)
    for norm in ("shuffle", "local")
    for views_forward in ("separate", "joint")
    for groups in (2, 4)
]


def _check_shuffled(ranks: list[dict[str, Tensor]]) -> None:
    """Group k of G has the images k, k + G, ... under shuffle; the keys are in the order of the images."""
    for setting in SHUFFLES:
        bn, symmetric, norm, views_forward, groups = setting
        if groups % len(ranks):
            continue  # each rank has at least one group
        keys = torch.cat([found[str(setting)] for found in ranks], 1)  # [V, 12, D]
        views = torch.stack(_batch(12).views[:2] if symmetric else _batch(12).views[1:2])
        size = 12 // groups
        shuffle = norm == "shuffle"
        together = [slice(k, None, groups) if shuffle else slice(size * k, size * k + size) for k in range(groups)]
        target = _siamese(bn, momentum=0.9).target
        assert target is not None and keys.shape == (len(views), 12, 8)
        for rows in together:
            part = views[:, rows]
            joint = target(part.flatten(0, 1))["projection"].unflatten(0, part.shape[:2])
            separate = torch.stack([target(view)["projection"] for view in part])
            expected = joint if views_forward == "joint" else separate
            torch.testing.assert_close(keys[:, rows], expected.detach(), rtol=1e-12, atol=1e-13)


def test_shuffled_keys_return_to_their_images() -> None:
    _check_shuffled([_shuffled()])


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_shuffled_keys_return_to_the_ranks_of_their_images(ranks: int) -> None:
    """Four groups do not divide the six or three images of a rank: ranks exchange unequal numbers."""
    _check_shuffled(on_ranks(_shuffled, ranks))


# ---- with labels

LABELS = torch.tensor([2, -1, 0, 1, -1, -1, -1, 2])  # three labels on the first of two ranks, one on the second


def _supervised(rank: int | None = None, labels: Tensor = LABELS, views: int = 2) -> dict[str, Tensor]:
    torch.manual_seed(0)
    method = Supervised(Flat(), MLP(6, 1, None, 3, norm=False, final_norm="none")).double()
    rows = slice(None) if rank is None else slice(4 * rank, 4 * rank + 4)
    batch = _batch(8, rows)
    loss, diagnostics, _ = method(Batch(batch.views[:views], batch.ids, labels[rows]), 0.5, True)
    loss.backward()
    found = {name: p.grad for name, p in method.named_parameters() if p.grad is not None}
    return found | {"loss": loss.detach(), "top1": diagnostics["train/top1"]}


def test_supervised_is_the_mean_over_both_views_of_the_labelled_images() -> None:
    torch.manual_seed(0)
    encoder = Supervised(Flat(), MLP(6, 1, None, 3, norm=False, final_norm="none")).double().encoder
    values, correct = [], []
    for view, image in itertools.product(_batch(8).views[:2], range(8)):
        if (label := int(LABELS[image])) >= 0:
            logits = encoder(view[image : image + 1])["projection"][0]
            values.append(-logits.log_softmax(0)[label])
            correct.append(float(int(logits.argmax()) == label))
    expected = torch.stack(values).mean()
    found = _supervised()
    torch.testing.assert_close(found["loss"], expected.detach(), rtol=1e-12, atol=0)
    assert float(found["top1"]) == pytest.approx(sum(correct) / 8, rel=1e-12) and len(values) == 8
    for (name, _), gradient in zip(
        encoder.named_parameters(), torch.autograd.grad(expected, list(encoder.parameters())), strict=True
    ):
        torch.testing.assert_close(found[f"encoder.{name}"], gradient, rtol=1e-12, atol=1e-14)


def test_supervised_on_ranks_with_unequal_numbers_of_labels() -> None:
    """With the average of DistributedDataParallel, labelled images have equal weights; the accuracy is global."""
    single = functools.partial(_supervised, labels=torch.tensor([-1] * 7 + [2]), views=1)
    for supervised in (_supervised, single):
        alone, ranks = supervised(), on_two_ranks(supervised)
        for name, value in alone.items():
            found = torch.stack([rank[name] for rank in ranks])
            torch.testing.assert_close(found.mean(0), value, rtol=1e-12, atol=1e-14)
            assert name != "top1" or torch.equal(found[0], found[1])
