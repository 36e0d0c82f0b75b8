"""The linear probes compared with training loops on torch's optimisers and with scikit-learn."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssl_bench.api.features import linear_probe
from ssl_bench.data.source import Images
from ssl_bench.errors import ConfigError, InvalidValue
from ssl_bench.evaluate.convex import PENALTIES, fit_convex, penalty_for, shortened
from ssl_bench.evaluate.linear import LinearProbe, fit_linear, of_each_class
from ssl_bench.evaluate.linear_images import LinearOnImages
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


def fit(x: Tensor, y: Tensor, lrs: list[float], **change: Any) -> tuple[Tensor, Tensor]:
    settings = {"num_classes": CLASSES, "epochs": 5, "batch_size": 64, "momentum": 0.9, "weight_decay": 0.01}
    return fit_linear(x, y, lrs, **(settings | change), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_training_equals_torchs_sgd_with_cosine_decay(weight_decay: float) -> None:
    x, y = data()
    weight, bias = fit(x, y, [0.3], weight_decay=weight_decay)
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
    lrs, decays = [0.001, 0.03, 1.0], [0.0, 0.5, 0.01]
    weight, bias = fit(x, y, lrs, weight_decay=decays)
    for i, (lr, decay) in enumerate(zip(lrs, decays, strict=True)):
        alone = fit(x, y, [lr], weight_decay=decay)
        torch.testing.assert_close(weight[i], alone[0][0], rtol=0, atol=1e-10)
        torch.testing.assert_close(bias[i], alone[1][0], rtol=0, atol=1e-10)
    single = fit(x.float(), y, lrs, weight_decay=decays)
    torch.testing.assert_close(single[0].double(), weight, rtol=1e-3, atol=1e-5)
    probe = LinearProbe(lrs=[1.0], weight_decay=[1.0, 0.0], epochs=5)
    metrics = dict(probe.run(raw(blobs(400, 1.0, 0), blobs(200, 1.0, 1))))
    assert metrics["weight_decay"] == 0.0 and metrics["lr"] == 1.0


def test_a_rate_that_diverges_does_not_change_the_others() -> None:
    x, y = data()
    weight, _ = fit(x, y, [0.1, 1e300], weight_decay=1e10)
    assert not weight[1].isfinite().all()
    torch.testing.assert_close(weight[0], fit(x, y, [0.1], weight_decay=1e10)[0][0], rtol=1e-9, atol=0)


def test_a_classifier_that_has_diverged_is_never_the_result() -> None:
    """Its logits are NaN, of which the largest is the first: here the class of three images in four."""
    splits = blobs(400, 1.0, 0), blobs(200, 1.0, 1)
    train, test = (Images(split.parts, torch.where(split.labels == 3, 3, 0)) for split in splits)
    metrics = dict(LinearProbe(lrs=[1e3, 0.1], weight_decay=1.0, epochs=50).run(raw(train, test)))
    assert metrics["lr"] == 0.1
    with pytest.raises(InvalidValue, match=r"^lrs=\[1000.0\]: "):
        dict(LinearProbe(lrs=[1e3], weight_decay=1.0, epochs=50).run(raw(train, test)))


def test_a_constant_dimension_is_ignored() -> None:
    x, y = data()
    constant = torch.full((len(x), 1), 7.0, dtype=x.dtype)
    constant[::2] += 1e-13
    weight, bias = fit(torch.cat([x, constant], 1), y, [0.1])
    expected = fit(x, y, [0.1])
    torch.testing.assert_close(weight[:, :, :-1], expected[0])
    torch.testing.assert_close(bias, expected[1])
    assert not weight[:, :, -1].any()


def test_fitting_on_some_images_equals_fitting_on_a_copy_of_them() -> None:
    x, y = data(width=600)  # more columns than are processed at a time
    for features in (x, x.float()):
        some = torch.randperm(len(x), generator=torch.Generator().manual_seed(2))[:150]
        before = features.clone()
        results, expected = fit(features, y, [0.1, 0.3], fitted=some), fit(features[some], y[some], [0.1, 0.3])
        for result, other in zip(results, expected, strict=True):
            assert torch.equal(result, other)
        assert torch.equal(features, before)
        std, mean = torch.std_mean(features, dim=0, correction=0)
        scale = 1 / std
        standard = fit((features - mean) * scale, y, [0.1])[0] * scale
        torch.testing.assert_close(fit(features, y, [0.1])[0], standard, rtol=1e-3, atol=1e-6)


def test_nothing_is_chosen_on_the_test_split() -> None:
    train, test = blobs(400, 2.5, 0), blobs(400, 2.5, 1)
    shuffled = Images([test.parts[0]], test.labels[torch.randperm(400, generator=torch.Generator().manual_seed(0))])
    for seed in range(2):
        kept, other = (dict(LinearProbe(epochs=5).run(raw(train, s, seed))) for s in (test, shuffled))
        assert kept["lr"] == other["lr"] and kept["val_top1"] == other["val_top1"]
        assert kept["top1"] > other["top1"] + 0.1


def test_the_held_out_tenth_is_not_fitted_on() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (400, 1, 24, 24), generator=generator, dtype=torch.uint8)
    noise = Images([images], torch.randint(0, CLASSES, (400,), generator=generator))
    metrics = dict(LinearProbe([0.1], epochs=60).run(raw(noise, noise)))
    assert metrics["val_top1"] < 0.6  # chance is 0.25
    assert metrics["top1"] == pytest.approx(0.9 + 0.1 * metrics["val_top1"])  # the other nine tenths are memorised


def test_equal_held_out_accuracies_choose_the_first_rate_and_the_seed_determines_the_rest() -> None:
    easy = blobs(200, 0.05, 0)
    assert dict(LinearProbe([0.2, 0.1, 0.3], epochs=20).run(raw(easy, easy)))["lr"] == 0.2
    train, test = blobs(300, 2.5, 0), blobs(1000, 2.5, 1)
    runs = [list(LinearProbe(epochs=3).run(raw(train, test, seed))) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]
    assert [name for name, _ in runs[0]] == ["top1", "val_top1", "lr"]


def test_unlabelled_images_and_invalid_settings_are_refused() -> None:
    train = blobs(20, 1, 0)
    unlabelled = Images([train.parts[0]], torch.where(torch.arange(20) == 3, -1, train.labels))
    for probe in (LinearProbe(), LinearOnImages(4)):
        target = raw(unlabelled, train)
        target.network = Pixels()
        with pytest.raises(ConfigError, match=r"train .*-1 to 3.*\[0, 4\)"):
            next(probe.run(target))
    refused: dict[str, Callable[[], object]] = {
        r"lrs=\[\]": lambda: LinearProbe([]),
        r"lr=0\.0": lambda: LinearOnImages(4, lr=0.0),
        "weight_decay=-1: .*0 to 1": lambda: LinearProbe(weight_decay=-1),
    }
    for named, make in refused.items():
        with pytest.raises(InvalidValue, match=f"^{named}"):
            make()


class Pixels(nn.Module):
    """Pixels as features; keeps every batch that it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(1)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.seen.append(x.clone())
        return {"backbone": self.norm(x).flatten(1), "projection": x.flatten(1)}


def with_network(train: Images, test: Images) -> Target:
    return Target(Pixels(), train, test, num_classes=CLASSES, view=lambda x: x.float() / 255, device="cpu", seed=5)


def test_every_epoch_sees_new_crops_and_the_last_one_is_tested() -> None:
    target = with_network(blobs(300, 0.5, 0), blobs(200, 0.5, 1))
    metrics = dict(LinearOnImages(4, scale=(0.9, 1), flip=0, epochs=8, batch_size=64, lr=0.3).run(target))
    assert list(metrics) == ["top1"] and metrics["top1"] > 0.95
    network = target.network
    assert isinstance(network, Pixels) and network.training and network.norm.num_batches_tracked == 0
    assert sum(len(x) for x in network.seen) == 200 + 8 * 300
    first, second = (torch.cat(network.seen[1 + 5 * epoch : 6 + 5 * epoch]) for epoch in (0, 1))
    assert not torch.isclose(first.flatten(1).sum(1).sort().values, second.flatten(1).sum(1).sort().values).all()
    again = with_network(blobs(300, 0.5, 0), blobs(200, 0.5, 1))
    assert metrics == dict(LinearOnImages(4, scale=(0.9, 1), flip=0, epochs=8, batch_size=64, lr=0.3).run(again))


def test_no_classifier_is_trained_on_crops_of_raw_pixels() -> None:
    assert list(LinearOnImages(4).run(raw(blobs(20, 1, 0), blobs(20, 1, 1)))) == []


def test_the_accuracy_of_each_class() -> None:
    target = raw(blobs(400, 2.0, 0), blobs(500, 2.0, 1))
    metrics = dict(LinearProbe(epochs=10, per_class=True).run(target))
    shares = target.test.labels.bincount(minlength=CLASSES) / 500
    assert sum(float(shares[c]) * metrics[f"top1_class{c}"] for c in range(CLASSES)) == pytest.approx(metrics["top1"])


class Stages(nn.Module):
    """Maps that show the class after the second stage only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.AdaptiveAvgPool2d(1), nn.Identity()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        blurred = self.first(x)
        sharp = self.second(x)
        return {"backbone": (blurred + sharp).flatten(1), "projection": sharp.flatten(1)}


def test_layers_that_the_backbone_lacks_are_refused() -> None:
    target = with_network(blobs(20, 1, 0), blobs(20, 1, 1))
    LinearOnImages(4, layers=["norm"]).check(target)
    with pytest.raises(InvalidValue, match=r"^layers=\[norm,layer1\]: .* norm\b.* layer1"):
        next(LinearOnImages(4, layers=["norm", "layer1"]).run(target))


def scaled(images: Tensor) -> Tensor:
    return images.float() / 255


def test_learning_rate_schedules() -> None:
    names = ("cosine", "linear", "constant", "step")
    cosine, linear, constant, step = (LinearOnImages(4, schedule=s).share_of_rate for s in names)  # type: ignore[arg-type]
    assert [cosine(0, p, 4) for p in (0, 2, 4)] == pytest.approx([1, 0.5, 0])
    assert [linear(0, p, 4) for p in (0, 1, 4)] == pytest.approx([1, 0.75, 0])
    assert constant(99, 9, 10) == 1 and [step(e, 0, 4) for e in (59, 60, 80)] == pytest.approx([1, 0.1, 0.01])


def test_training_equals_torchs_adam() -> None:
    data = blobs(59, 0.5, 0)  # unequal classes: with equal ones the gradient of the bias would be rounding error
    target = Target(Stages(), data, data, num_classes=CLASSES, view=scaled, device="cpu", seed=0)
    settings: dict[str, Any] = {"flip": 0, "scale": (1, 1), "ratio": (1, 1), "epochs": 3, "batch_size": 59}
    probe = LinearOnImages(4, optimizer="adam", lr=0.1, schedule="linear", init_std=0.0, weight_decay=0.1, **settings)
    weight, bias = (p.detach() for p in probe.fitted(target)[""].parameters())
    x = target.embed(probe._views(target.load(data, torch.arange(59)), 59, torch.Generator(), target.device))[
        "backbone"
    ].double()
    parameters = [torch.zeros(*shape, dtype=torch.float64, requires_grad=True) for shape in (weight.shape, bias.shape)]
    optimizer = torch.optim.Adam(parameters, weight_decay=0.1)
    for step in range(3):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / 3)
        optimizer.zero_grad()
        F.cross_entropy(F.linear(x, *parameters), data.labels).backward()
        optimizer.step()
    torch.testing.assert_close(weight.double(), parameters[0].detach(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(bias.double(), parameters[1].detach(), atol=1e-5, rtol=1e-4)


def test_a_few_labels_give_the_minimum_of_the_penalised_loss() -> None:
    """For two images the solution is known: the weights are opposite, and lie on the line between the images."""
    x = torch.tensor([[1.0, 5.0, 2.0], [3.0, 5.0, 2.0]], dtype=torch.float64)
    weight, bias = fit_convex(x, torch.tensor([0, 1]), 2, 0.1)
    # The centred images are -1 and 1 of length 1. Of the loss 2 log(1 + exp(-2 w)) + 0.1 w^2 the derivative is 0 here:
    w = -float(weight[0, 0])
    assert -4 / (1 + math.exp(2 * w)) + 0.2 * w == pytest.approx(0, abs=1e-5) and w > 1
    torch.testing.assert_close(weight, torch.tensor([[-w, 0, 0], [w, 0, 0]], dtype=torch.float64), rtol=0, atol=1e-6)
    torch.testing.assert_close(bias, torch.tensor([2 * w, -2 * w], dtype=torch.float64), rtol=0, atol=1e-5)
    scaled, _ = fit_convex(1000 * x, torch.tensor([0, 1]), 2, 0.1)
    torch.testing.assert_close(1000 * scaled, weight, rtol=1e-4, atol=1e-8)


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


@pytest.mark.parametrize(("classes", "each"), [(10, 1), (10, 2), (100, 1), (100, 5)])
def test_separable_classes_of_few_labels_are_all_right(classes: int, each: int) -> None:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, 64, generator=generator) * 4
    y, wanted = (torch.arange(classes).repeat_interleave(n) for n in (each, 5))
    x, queries = (centres[of] + 0.3 * torch.randn(len(of), 64, generator=generator) for of in (y, wanted))
    with torch.inference_mode():
        probe = linear_probe(x, y, queries, wanted)
    assert probe.top1 == 1 and probe.chosen == {"penalty": 0.1 if each < 5 else 0.03}


def test_lengths_are_divided_by_their_square_roots() -> None:
    x = torch.tensor([[0.0, 4.0], [3.0, 4.0], [0.0, 0.0], [-1e-6, 0.0]], dtype=torch.float64)
    expected = [[0, 2], [3 / 5**0.5, 4 / 5**0.5], [0, 0], [-1e-3, 0]]
    torch.testing.assert_close(shortened(x), torch.tensor(expected, dtype=torch.float64))


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


def test_the_features_of_a_rare_class_are_fitted() -> None:
    """Of 201 labels one is of the third class, which the drawn tenth has with one of ten seeds."""
    generator = torch.Generator().manual_seed(0)
    y = torch.tensor([0] * 100 + [1] * 100 + [2])
    x = 5 * torch.eye(3)[y] + 0.1 * torch.randn(201, 3, generator=generator)
    queries, wanted = 5 * torch.eye(3), torch.arange(3)
    drawn = [linear_probe(x, y, queries, wanted, seed=seed, epochs=20, hold_out="images").top1 for seed in range(20)]
    assert any(top1 != 1 for top1 in drawn)
    assert all(linear_probe(x, y, queries, wanted, seed=seed, epochs=20).top1 == 1 for seed in range(20))


def test_what_is_held_out_is_said() -> None:
    test = blobs(50, 1.0, 1)
    few, many = raw(blobs(79, 1.0, 0), test), raw(blobs(80, 1.0, 0), test)
    fitted = LinearProbe(hold_out="none")
    (doubt,) = fitted.doubts(few)
    assert doubt.startswith("hold_out=none: ") and re.findall(r"\b\d+", doubt) == ["79", "4", "5"]
    assert list(LinearProbe().doubts(many)) == []
    (doubt,) = LinearProbe().doubts(few)
    assert doubt.startswith("hold_out=images: ") and re.findall(r"\d+", doubt) == ["79", "4"] and "none" in doubt
    assert dict(fitted.run(few)).keys() == {"top1", "penalty"} and "val_top1" in dict(LinearProbe().run(few))
    with pytest.raises(InvalidValue, match=r"^hold_out=images: .*none.* 1 "):
        LinearProbe().check(raw(blobs(1, 1.0, 0), test))
    train = blobs(80, 1.0, 0)
    train.labels[:] = torch.arange(80) % 3
    train.labels[torch.randperm(80, generator=torch.Generator().manual_seed(0))[0]] = 3
    (doubt,) = LinearProbe().doubts(raw(train, test))
    assert doubt.startswith("hold_out=images: ") and " 1 of 4 classes (3) " in doubt and "hold_out to classes" in doubt
    assert list(LinearProbe(hold_out="classes").doubts(raw(train, test))) == []
