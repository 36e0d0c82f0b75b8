"""The linear probes compared with training loops on torch's optimisers and with scikit-learn."""

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssl_bench.data.source import Images
from ssl_bench.errors import InvalidValue
from ssl_bench.evaluate.linear import PENALTIES, LinearProbe, fit_convex, of_each_class, penalty_for
from ssl_bench.evaluate.target import Target

CLASSES = 4


def blobs(n: int, spread: float, seed: int) -> Images:
    """One Gaussian blob of 4 x 4 pixels per class."""
    centres = torch.randn(CLASSES, 1, 4, 4, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (n,), generator=generator)
    x = centres[labels] + spread * torch.randn(n, 1, 4, 4, generator=generator)
    return Images([(x * 12 + 128).round().clamp(0, 255).to(torch.uint8)], labels)


def raw(train: Images, test: Images, seed: int = 0) -> Target:
    return Target(
        None, train, test, num_classes=CLASSES, view=torch.Tensor.float, device="cpu", seed=seed, batch_size=4096
    )


def data(n: int = 300, width: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, width, generator=generator, dtype=torch.float64) * torch.rand(width, generator=generator) * 5 + 3
    return x, torch.randint(0, CLASSES, (n,), generator=generator)


def fit(
    x: Tensor, y: Tensor, lrs: list[float], decays: tuple[float, ...] = (0.01,), fitted: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Five epochs for each rate, with its decay or with the only one."""
    grid = [*zip(lrs, decays * (len(lrs) if len(decays) == 1 else 1), strict=True)]
    fitted = torch.arange(len(x)) if fitted is None else fitted
    probe = LinearProbe(epochs=5, batch_size=64)
    return probe.fit(x, y, grid, CLASSES, torch.Generator().manual_seed(7), fitted)


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_training_equals_torchs_sgd_with_cosine_decay(weight_decay: float) -> None:
    x, y = data()
    weight, bias = fit(x, y, [0.3], (weight_decay,))
    standard = (x - x.mean(0)) / x.std(0, correction=0)
    layer = nn.Linear(x.shape[1], CLASSES, dtype=torch.float64)
    nn.init.zeros_(layer.weight), nn.init.zeros_(layer.bias)
    groups: list[dict[str, Any]] = [{"params": [layer.weight], "weight_decay": weight_decay}, {"params": [layer.bias]}]
    optimizer = torch.optim.SGD(groups, 0.3, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5 * 5)
    generator = torch.Generator().manual_seed(7)
    for _ in range(5):
        for batch in torch.randperm(len(x), generator=generator).split(64):
            optimizer.zero_grad()
            F.cross_entropy(layer(standard[batch]), y[batch]).backward()
            optimizer.step()
            schedule.step()
    expected = layer(standard)
    torch.testing.assert_close(F.linear(x, weight[0], bias[0]), expected, rtol=0, atol=1e-12)


def test_rates_and_weight_decays_together_equal_each_alone() -> None:
    x, y = data()
    lrs, decays = [0.001, 0.03, 1.0], (0.0, 0.5, 0.01)
    weight, bias = fit(x, y, lrs, decays)
    for i, (lr, decay) in enumerate(zip(lrs, decays, strict=True)):
        alone = fit(x, y, [lr], (decay,))
        torch.testing.assert_close(weight[i], alone[0][0], rtol=0, atol=1e-10)
        torch.testing.assert_close(bias[i], alone[1][0], rtol=0, atol=1e-10)
    single = fit(x.float(), y, lrs, decays)
    torch.testing.assert_close(single[0].double(), weight, rtol=1e-3, atol=1e-5)
    probe = LinearProbe(lrs=[1.0], weight_decay=[1.0, 0.0], epochs=5)
    metrics = dict(probe.run(raw(blobs(400, 1.0, 0), blobs(200, 1.0, 1))))
    assert metrics["weight_decay"] == 0.0 and metrics["lr"] == 1.0


def test_a_classifier_that_has_diverged_is_never_the_result() -> None:
    """Its logits are NaN, of which the largest is the first: here the class of three images in four."""
    x, y = data()
    weight, _ = fit(x, y, [0.1, 1e300], (1e10,))
    assert not weight[1].isfinite().all()
    torch.testing.assert_close(weight[0], fit(x, y, [0.1], (1e10,))[0][0], rtol=1e-9, atol=0)
    splits = blobs(400, 1.0, 0), blobs(200, 1.0, 1)
    train, test = (Images(split.parts, torch.where(split.labels == 3, 3, 0)) for split in splits)
    metrics = dict(LinearProbe(lrs=[1e3, 0.1], weight_decay=1.0, epochs=50).run(raw(train, test)))
    assert metrics["lr"] == 0.1
    with pytest.raises(InvalidValue, match=r"^lrs=\[1000.0\]: "):
        dict(LinearProbe(lrs=[1e3], weight_decay=1.0, epochs=50).run(raw(train, test)))


def test_fitting_on_some_images_equals_fitting_on_a_copy_of_them() -> None:
    x, y = data(width=600)  # more columns than are processed at a time
    for features in (x, x.float()):
        some = torch.randperm(len(x), generator=torch.Generator().manual_seed(2))[:150]
        before = features.clone()
        results, expected = fit(features, y, [0.1, 0.3], fitted=some), fit(features[some], y[some], [0.1, 0.3])
        for result, other in zip(results, expected, strict=True):
            assert torch.equal(result, other)
        assert torch.equal(features, before)


def test_nothing_is_chosen_on_the_test_split() -> None:
    train, test = blobs(400, 2.5, 0), blobs(400, 2.5, 1)
    shuffled = Images([test.parts[0]], test.labels[torch.randperm(400, generator=torch.Generator().manual_seed(0))])
    for seed in range(2):
        kept, other = (dict(LinearProbe(epochs=5).run(raw(train, s, seed))) for s in (test, shuffled))
        assert kept["lr"] == other["lr"] and kept["val_top1"] == other["val_top1"]
        assert kept["top1"] > other["top1"] + 0.1


def test_equal_held_out_accuracies_choose_the_first_rate_and_the_seed_determines_the_rest() -> None:
    easy = blobs(200, 0.05, 0)
    assert dict(LinearProbe([0.2, 0.1, 0.3], epochs=20).run(raw(easy, easy)))["lr"] == 0.2
    train, test = blobs(300, 2.5, 0), blobs(1000, 2.5, 1)
    runs = [list(LinearProbe(epochs=3).run(raw(train, test, seed))) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]
    assert [name for name, _ in runs[0]] == ["top1", "val_top1", "lr"]


@pytest.mark.parametrize("width", [5, 300])  # fewer and more than the images
def test_a_few_labels_are_classified_as_by_scikit_learn(width: int) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(CLASSES).repeat(10)
    noise, direction = (torch.randn(n, width, generator=generator, dtype=torch.float64) for n in (40, 1))
    x = 7 + 3 * noise + y[:, None] * direction
    unit = (x - x.mean(0)).square().sum(1).mean().sqrt()
    weight, bias = fit_convex(x, y, CLASSES, 0.1)
    other = linear_model.LogisticRegression(C=10 / float(unit) ** 2, tol=1e-8, max_iter=10000)
    other.fit(x.numpy(), y.numpy())
    logits, expected = F.linear(x, weight, bias), torch.tensor(other.decision_function(x.numpy()))
    torch.testing.assert_close(logits - logits.mean(1, True), expected, rtol=1e-3, atol=1e-3)


def test_cross_validation_chooses_the_penalty_where_each_class_has_five_labels() -> None:
    """Of noise the strongest one is best, of clear classes the weakest; less than five labels give no choice."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(3).repeat(6)
    noise, clear = torch.randn(18, 20, generator=generator), 9.0 * torch.eye(3)[y]
    assert penalty_for(noise, y, 3, generator) == max(PENALTIES)
    assert penalty_for(clear, y, 3, generator) == min(PENALTIES)
    assert penalty_for(clear[:12], y[:12], 3, generator) == 0.1
    linear_model = pytest.importorskip("sklearn.linear_model")
    x = noise + 0.6 * clear[:, :1]  # classes that overlap: the choice is that of a loop on scikit-learn
    order = torch.randperm(18, generator=torch.Generator().manual_seed(5))
    members = [order[y[order] == c] for c in range(3)]
    fold = torch.empty(18, dtype=torch.int64)
    fold[torch.cat(members)] = torch.arange(18) % 5
    losses = []
    for penalty in PENALTIES:
        loss = 0.0
        for k in range(5):
            rest = x[fold != k].double()
            unit = float((rest - rest.mean(0)).square().sum(1).mean().sqrt())
            model = linear_model.LogisticRegression(C=1 / penalty / unit**2, tol=1e-8, max_iter=10000)
            model.fit(rest.numpy(), y[fold != k].numpy())
            logits = torch.tensor(model.decision_function(x[fold == k].double().numpy()))
            loss += float(F.cross_entropy(logits, y[fold == k], reduction="sum"))
        losses.append(loss)
    chosen = PENALTIES[losses.index(min(losses))]
    assert penalty_for(x, y, 3, torch.Generator().manual_seed(5)) == chosen


def test_a_tenth_of_each_class_is_held_out_and_a_class_keeps_one() -> None:
    labels = torch.tensor([0] * 11 + [1, 1, 2])
    order = torch.randperm(14, generator=torch.Generator().manual_seed(0))
    held_out, fitted = of_each_class(order, labels, None)
    assert labels[held_out].tolist() == [0, 0, 1] and labels[fitted].bincount().tolist() == [9, 1, 1]
    assert sorted([*held_out.tolist(), *fitted.tolist()]) == [*range(14)]
    copies = torch.tensor([*range(11), 11, 11, 13])  # both images of class 1 are the same
    held_out, fitted = of_each_class(order, labels, copies)
    assert labels[held_out].tolist() == [0, 0] and labels[fitted].bincount().tolist() == [9, 2, 1]


def test_what_is_held_out_is_said() -> None:
    test = blobs(50, 1.0, 1)
    few, many = raw(blobs(79, 1.0, 0), test), raw(blobs(80, 1.0, 0), test)
    fitted = LinearProbe(hold_out="none")
    (doubt,) = fitted.warnings(few)
    assert doubt.startswith("hold_out=none: ") and re.findall(r"\b\d+", doubt) == ["79", "4", "5"]
    assert list(LinearProbe().warnings(many)) == []
    (doubt,) = LinearProbe().warnings(few)
    assert doubt.startswith("hold_out=images: ") and re.findall(r"\d+", doubt) == ["79", "4"] and "none" in doubt
    assert dict(fitted.run(few)).keys() == {"top1", "penalty"} and "val_top1" in dict(LinearProbe().run(few))
    with pytest.raises(InvalidValue, match=r"^hold_out=images: .*none.* 1 "):
        LinearProbe().check(raw(blobs(1, 1.0, 0), test))
