"""The linear probes against torch's optimiser, written out plainly, and against scikit-learn."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from ssl_bench import parts as assemble
from ssl_bench.config.compose import load
from ssl_bench.data.arrays import Images
from ssl_bench.evaluate.linear import LinearProbe, accuracy, fit_linear
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
def test_training_is_that_of_torch_s_sgd_with_cosine_decay(weight_decay: float) -> None:
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


def test_rates_side_by_side_are_the_rates_alone() -> None:
    x, y = data()
    lrs = [0.001, 0.03, 1.0]
    weight, bias = fit(x, y, lrs)
    for i, lr in enumerate(lrs):
        alone = fit(x, y, [lr])
        torch.testing.assert_close(weight[i], alone[0][0], rtol=0, atol=1e-10)
        torch.testing.assert_close(bias[i], alone[1][0], rtol=0, atol=1e-10)
    single = fit(x.float(), y, lrs)
    torch.testing.assert_close(single[0].double(), weight, rtol=1e-3, atol=1e-5)


def test_a_rate_that_diverges_leaves_the_others_alone() -> None:
    x, y = data()
    weight, _ = fit(x, y, [0.1, 1e300], weight_decay=1e10)
    assert not weight[1].isfinite().all()
    torch.testing.assert_close(weight[0], fit(x, y, [0.1], weight_decay=1e10)[0][0], rtol=1e-9, atol=0)


def test_a_dimension_that_never_varies_is_ignored() -> None:
    x, y = data()
    constant = torch.full((len(x), 1), 7.0, dtype=x.dtype)
    constant[::2] += 1e-13
    weight, bias = fit(torch.cat([x, constant], 1), y, [0.1])
    expected = fit(x, y, [0.1])
    torch.testing.assert_close(weight[:, :, :-1], expected[0])
    torch.testing.assert_close(bias, expected[1])
    assert not weight[:, :, -1].any()


def test_some_of_the_images_are_fitted_on_as_if_they_were_all() -> None:
    x, y = data(width=600)  # more columns than are gathered at a time
    for features in (x, x.float()):
        some = torch.randperm(len(x), generator=torch.Generator().manual_seed(2))[:150]
        before = features.clone()
        found, expected = fit(features, y, [0.1, 0.3], fitted=some), fit(features[some], y[some], [0.1, 0.3])
        for each, other in zip(found, expected, strict=True):
            assert torch.equal(each, other)
        assert torch.equal(features, before)
        std, mean = torch.std_mean(features, dim=0, correction=0)
        scale = 1 / std
        standard = fit((features - mean) * scale, y, [0.1])[0] * scale
        torch.testing.assert_close(fit(features, y, [0.1])[0], standard, rtol=1e-3, atol=1e-6)


def test_accuracy_counts_every_image_once() -> None:
    weight, bias = torch.eye(CLASSES)[None].repeat(2, 1, 1), torch.zeros(2, CLASSES)
    weight[1] = weight[1].flip(0)
    y = torch.arange(9001) % CLASSES
    x = F.one_hot(torch.where(torch.arange(9001) < 9000, y, (y + 1) % CLASSES), CLASSES).float()
    assert accuracy(x, y, weight, bias) == pytest.approx([9000 / 9001, 0])


@pytest.mark.parametrize("spread", [0.3, 1.2, 2.5])
def test_accuracy_is_that_of_logistic_regression(spread: float) -> None:
    target = raw(blobs(4000, spread, 0), blobs(40000, spread, 1))
    metrics = dict(LinearProbe(epochs=40, batch_size=256).run(target))
    x, test = (target.features(name)["backbone"].double().numpy() for name in ("train", "test"))
    peer = LogisticRegression(C=1e4, max_iter=1000).fit(x, target.train.labels.numpy())
    assert metrics["top1"] == pytest.approx(peer.score(test, target.test.labels.numpy()), abs=0.003)
    assert metrics["val_top1"] == pytest.approx(metrics["top1"], abs=0.05)
    assert (spread == 0.3) == (metrics["top1"] > 0.999)


def test_nothing_is_chosen_on_the_test_split() -> None:
    train, test = blobs(400, 2.5, 0), blobs(400, 2.5, 1)
    shuffled = Images([test.parts[0]], test.labels[torch.randperm(400, generator=torch.Generator().manual_seed(0))])
    for seed in range(4):
        kept, other = (dict(LinearProbe(epochs=5).run(raw(train, s, seed))) for s in (test, shuffled))
        assert kept["lr"] == other["lr"] and kept["val_top1"] == other["val_top1"]
        assert kept["top1"] > other["top1"] + 0.1


def test_the_held_out_tenth_is_not_fitted_on() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (400, 1, 24, 24), generator=generator, dtype=torch.uint8)
    noise = Images([images], torch.randint(0, CLASSES, (400,), generator=generator))
    metrics = dict(LinearProbe([0.1], epochs=60).run(raw(noise, noise)))
    assert metrics["val_top1"] < 0.6  # chance is 0.25
    assert metrics["top1"] == pytest.approx(0.9 + 0.1 * metrics["val_top1"])  # the other nine tenths are known by heart


def test_equal_held_out_accuracies_take_the_first_rate_and_the_seed_decides_all() -> None:
    easy = blobs(200, 0.05, 0)
    assert dict(LinearProbe([0.2, 0.1, 0.3], epochs=20).run(raw(easy, easy)))["lr"] == 0.2
    train, test = blobs(300, 2.5, 0), blobs(1000, 2.5, 1)
    runs = [list(LinearProbe(epochs=3).run(raw(train, test, seed))) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]
    assert [name for name, _ in runs[0]] == ["top1", "val_top1", "lr"]


def test_unlabelled_images_and_senseless_settings_are_refused() -> None:
    train = blobs(20, 1, 0)
    unlabelled = Images([train.parts[0]], torch.where(torch.arange(20) == 3, -1, train.labels))
    for probe in (LinearProbe(), LinearOnImages(4)):
        target = raw(unlabelled, train)
        target.network = Pixels()
        with pytest.raises(ValueError, match=r"train labels must lie in \[0, 4\), found -1"):
            next(probe.run(target))
    with pytest.raises(ValueError, match="at least 2 images"):
        next(LinearProbe().run(raw(blobs(1, 1, 0), train)))
    with pytest.raises(ValueError, match="lrs must be"):
        LinearProbe([])
    with pytest.raises(ValueError, match="lrs must be"):
        LinearProbe([0.1, 0.0])
    with pytest.raises(ValueError, match="epochs and batch_size"):
        LinearProbe(epochs=0)
    with pytest.raises(ValueError, match="epochs and batch_size"):
        LinearOnImages(4, batch_size=0)
    with pytest.raises(ValueError, match="lr must be above 0"):
        LinearOnImages(4, lr=0.0)


class Pixels(nn.Module):
    """Pixels as features, and a count of what came through."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(1)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.seen.append(x.clone())
        return {"backbone": self.norm(x).flatten(1), "projection": x.flatten(1)}


def imaged(train: Images, test: Images) -> Target:
    return Target(Pixels(), train, test, num_classes=CLASSES, view=lambda x: x.float() / 255, device="cpu", seed=5)


def test_training_on_images_is_plain_sgd_with_milestones() -> None:
    target = imaged(blobs(60, 1.2, 0), blobs(50, 1.2, 1))
    probe = LinearOnImages(
        4, scale=(1, 1), ratio=(1, 1), flip=0, epochs=6, batch_size=100, lr=0.5, milestones=[2, 4], weight_decay=0.01
    )
    weight, bias, _ = probe._fit(target)[""]
    x, y = target.features("train")["backbone"], target.train.labels  # such crops are the images themselves
    w = torch.empty(CLASSES, 16).normal_(std=0.01, generator=torch.Generator().manual_seed(5)).requires_grad_()
    b = torch.zeros(CLASSES, requires_grad=True)
    momentum = [torch.zeros_like(w), torch.zeros_like(b)]
    for lr in (0.5, 0.5, 0.05, 0.05, 0.005, 0.005):
        gradients = torch.autograd.grad(F.cross_entropy(F.linear(x, w, b), y), [w, b])
        with torch.no_grad():
            for p, g, m in zip((w, b), gradients, momentum, strict=True):
                p -= lr * m.mul_(0.9).add_(g + 0.01 * p)
    torch.testing.assert_close(weight, w.detach(), rtol=0, atol=1e-5)
    torch.testing.assert_close(bias, b.detach(), rtol=0, atol=1e-5)


def test_every_epoch_sees_new_crops_and_the_last_one_is_tested() -> None:
    target = imaged(blobs(300, 0.5, 0), blobs(200, 0.5, 1))
    metrics = dict(LinearOnImages(4, scale=(0.9, 1), flip=0, epochs=8, batch_size=64, lr=0.3).run(target))
    assert list(metrics) == ["top1"] and metrics["top1"] > 0.95
    network = target.network
    assert isinstance(network, Pixels) and network.training and network.norm.num_batches_tracked == 0
    assert sum(len(x) for x in network.seen) == 200 + 8 * 300
    first, second = (torch.cat(network.seen[1 + 5 * epoch : 6 + 5 * epoch]) for epoch in (0, 1))
    assert not torch.isclose(first.flatten(1).sum(1).sort().values, second.flatten(1).sum(1).sort().values).all()
    again = imaged(blobs(300, 0.5, 0), blobs(200, 0.5, 1))
    assert metrics == dict(LinearOnImages(4, scale=(0.9, 1), flip=0, epochs=8, batch_size=64, lr=0.3).run(again))


def test_raw_pixels_are_not_trained_on_as_images() -> None:
    assert list(LinearOnImages(4).run(raw(blobs(20, 1, 0), blobs(20, 1, 1)))) == []


@pytest.mark.parametrize("name", ["linear", "linear_moco"])
def test_configuration_names_every_setting(name: str) -> None:
    target = {"linear": LinearProbe, "linear_moco": LinearOnImages}[name]
    node = yaml.safe_load((Path(__file__).parents[2] / f"conf/evaluate/{name}.yaml").read_text())[name]
    assert node.pop("_target_") == f"{target.__module__}.{target.__name__}"
    defaults = {key: value.default for key, value in inspect.signature(target).parameters.items()}
    defaults.pop("jitter_p", None)  # of a jitter that it has not
    assert list(node) == list(defaults)
    for key, value in node.items():
        given = tuple(value) if isinstance(value, list) else value
        assert (isinstance(given, str) and given.startswith("${dataset.")) or given == defaults[key]


def test_decays_are_chosen_beside_the_rates() -> None:
    x, y = data()
    weight, _ = fit(x, y, [0.1, 0.1], weight_decay=[0.0, 0.5])
    for i, decay in enumerate((0.0, 0.5)):
        alone = fit(x, y, [0.1], weight_decay=decay)
        torch.testing.assert_close(weight[i], alone[0][0], rtol=0, atol=1e-10)
    metrics = dict(
        LinearProbe(lrs=[0.1], weight_decay=[100.0, 0.0], epochs=5).run(raw(blobs(400, 1.0, 0), blobs(200, 1.0, 1)))
    )
    assert metrics["weight_decay"] == 0.0 and metrics["lr"] == 0.1


def test_the_accuracy_of_each_class() -> None:
    target = raw(blobs(400, 2.0, 0), blobs(500, 2.0, 1))
    metrics = dict(LinearProbe(epochs=10, per_class=True).run(target))
    shares = target.test.labels.bincount(minlength=CLASSES) / 500
    assert sum(float(shares[c]) * metrics[f"top1_class{c}"] for c in range(CLASSES)) == pytest.approx(metrics["top1"])


class Stages(nn.Module):
    """Maps that say the class after the second stage only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.AdaptiveAvgPool2d(1), nn.Identity()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        blurred = self.first(x)
        found = self.second(x)
        return {"backbone": (blurred + found).flatten(1), "projection": found.flatten(1)}


def test_a_classifier_on_each_stage() -> None:
    target = Target(
        Stages(), blobs(400, 0.5, 0), blobs(200, 0.5, 1), num_classes=CLASSES, view=scaled, device="cpu", seed=0
    )
    settings: dict[str, Any] = {"flip": 0, "scale": (1, 1), "ratio": (1, 1), "epochs": 20, "batch_size": 50, "lr": 0.1}
    probe = LinearOnImages(4, layers=["first", "second"], nesterov=True, schedule="cosine", init_std=0.0, **settings)
    metrics = dict(probe.run(target))
    assert list(metrics) == ["first_top1", "second_top1"]
    assert metrics["second_top1"] > 0.98 > 0.8 > metrics["first_top1"]
    assert set(dict(LinearOnImages(4, layers=["second"], cells=4, **settings).run(target))) == {"second_top1"}
    weight, _, norm = LinearOnImages(4, layers=["second"], cells=4, **settings)._fit(target)["second"]
    assert weight.shape == (CLASSES, 4)  # the 4 x 4 map averaged to 2 x 2
    x = F.adaptive_avg_pool2d(scaled(blobs(400, 0.5, 0).parts[0]), 2).flatten(1)
    torch.testing.assert_close(norm.mean, x.mean(0), atol=0.02, rtol=0)
    torch.testing.assert_close(norm.var, x.var(0), atol=0.01, rtol=0.2)


def test_a_compiled_network_is_tapped_too() -> None:
    def target(compiled: bool) -> Target:
        network, train, test = Stages(), blobs(100, 0.5, 0), blobs(50, 0.5, 1)
        if compiled:
            network.compile(backend="eager")
        judged = Target(network, train, test, num_classes=CLASSES, view=scaled, device="cpu", seed=0)
        judged.features("test")  # as other evaluators do before
        return judged

    probe = LinearOnImages(4, flip=0, layers=["first", "second"], epochs=2, batch_size=50, lr=0.1)
    plain, compiled = target(False), target(True)
    metrics = dict(probe.run(compiled))
    assert metrics == dict(probe.run(plain)) and list(metrics) == ["first_top1", "second_top1"]
    assert compiled.network is not None and compiled.network._compiled_call_impl is not None


def test_every_image_is_jittered_where_the_recipe_says_so() -> None:
    for name, chance in {"linear_opensel": 1.0, "linear_macl": 0.8}.items():
        (probe,) = assemble.evaluators(load([f"evaluate={name}"])).values()
        assert probe.views.jitter_p == chance
        draw = probe.views.parameters(probe.views.uniform(1000, torch.Generator().manual_seed(0)), 32, 32)
        assert float(draw.jitter.double().mean()) == pytest.approx(chance, abs=0.05 if chance < 1 else 0)


def test_layers_that_the_backbone_has_not_are_refused() -> None:
    target = imaged(blobs(20, 1, 0), blobs(20, 1, 1))
    LinearOnImages(4, layers=["norm"]).check(target)
    with pytest.raises(ValueError, match="layers: the backbone has no layer1; set layers to some of norm"):
        next(LinearOnImages(4, layers=["norm", "layer1"]).run(target))


def scaled(images: Tensor) -> Tensor:
    return images.float() / 255


def test_rates() -> None:
    names = ("cosine", "linear", "constant", "step")
    cosine, linear, constant, step = (LinearOnImages(4, schedule=s)._factor for s in names)  # type: ignore[arg-type]
    assert [cosine(0, p) for p in (0, 0.5, 1)] == pytest.approx([1, 0.5, 0])
    assert [linear(0, p) for p in (0, 0.25, 1)] == pytest.approx([1, 0.75, 0])
    assert constant(99, 0.9) == 1 and [step(e, 0) for e in (59, 60, 80)] == pytest.approx([1, 0.1, 0.01])


def test_adam_trains_as_torchs_own() -> None:
    data = blobs(59, 0.5, 0)  # with as many images in each class the gradient of the bias would be rounding alone
    target = Target(Stages(), data, data, num_classes=CLASSES, view=scaled, device="cpu", seed=0)
    settings: dict[str, Any] = {"flip": 0, "scale": (1, 1), "ratio": (1, 1), "epochs": 3, "batch_size": 59}
    probe = LinearOnImages(4, optimizer="adam", lr=0.1, schedule="linear", init_std=0.0, weight_decay=0.1, **settings)
    weight, bias, _ = probe._fit(target)[""]
    x = target.embed(probe._views(target, torch.arange(59), torch.Generator()))["backbone"].double()
    parameters = [torch.zeros(*shape, dtype=torch.float64, requires_grad=True) for shape in (weight.shape, bias.shape)]
    optimizer = torch.optim.Adam(parameters, weight_decay=0.1)
    for step in range(3):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / 3)
        optimizer.zero_grad()
        F.cross_entropy(F.linear(x, *parameters), data.labels).backward()
        optimizer.step()
    torch.testing.assert_close(weight.double(), parameters[0].detach(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(bias.double(), parameters[1].detach(), atol=1e-5, rtol=1e-4)
