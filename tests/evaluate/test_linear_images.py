"""OpenSelfSup's classifiers on the stages of a network, compared with one written with torch's modules."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssl_bench.config.compose import load
from ssl_bench.data.source import Images
from ssl_bench.errors import InvalidValue
from ssl_bench.evaluate.target import Target
from ssl_bench.evaluate.trained import LinearOnImages
from ssl_bench.training import build

CLASSES, SIDE = 3, 12
LAYERS, WINDOWS = ["first", "second"], [[5, 2], [4, 1]]  # on 10 x 10 and 5 x 5 cells: 3 x 3 and 2 x 2 windows
SETTINGS: dict[str, Any] = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.25, 0.3), "scale": (0.5, 1.0), "layers": LAYERS}
SETTINGS |= {"jitter": (0.4, 0.4, 0.4, 0.0), "jitter_p": 1.0, "lighting": 0.1, "epochs": 4, "batch_size": 16}
SETTINGS |= {"lr": 0.05, "nesterov": True, "weight_decay": 0.01, "milestones": [2, 3], "windows": WINDOWS}


class TwoStages(nn.Module):
    """A network with maps of 6 channels and 10 x 10 cells, and of 4 channels and 5 x 5 cells."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(6, 4, 2, 2), nn.ReLU())

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.second(self.first(x)).mean((2, 3))
        return {"backbone": features, "projection": features}


def images(count: int, seed: int, colours: int = 3) -> Images:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    pixels = (
        torch.randint(0, 256, (count, colours, SIDE, SIDE), generator=generator) // 2 + 60 * labels[:, None, None, None]
    )
    return Images([pixels.clamp(max=255).to(torch.uint8)], labels)


def make_target(train: int = 40, test: int = 21) -> Target:
    view = LinearOnImages(SIDE, **SETTINGS).views.normalize
    splits = images(train, 1), images(test, 2)
    return Target(TwoStages(), *splits, num_classes=CLASSES, view=lambda x: view(x.float() / 255), device="cpu", seed=3)


class Reference(nn.Module):
    """OpenSelfSup's MultiClsHead: average pooling, BN without parameters, linear; float64."""

    def __init__(self) -> None:
        super().__init__()
        self.pools = [nn.AvgPool2d(size, stride) for size, stride in WINDOWS]
        self.norms = [nn.BatchNorm2d(channels, affine=False, momentum=0.1).double() for channels in (6, 4)]
        self.states = nn.ModuleList(self.norms)
        self.linear = [nn.Linear(6 * 9, CLASSES).double(), nn.Linear(4 * 4, CLASSES).double()]
        self.heads = nn.ModuleList(self.linear)

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        parts = zip(self.pools, self.norms, self.linear, maps, strict=True)
        return [linear(norm(pool(x.double())).flatten(1)) for pool, norm, linear, x in parts]


def train_reference(target: Target, probe: LinearOnImages) -> Reference:
    """Train on the views of ``probe`` with torch's SGD and MultiStepLR."""
    network, head = target.network, Reference()
    assert isinstance(network, TwoStages)
    generator = torch.Generator().manual_seed(target.seed)
    for linear in head.linear:
        linear.weight.data.copy_(torch.empty(linear.weight.shape).normal_(std=0.01, generator=generator))
        linear.bias.data.zero_()
    optimizer = torch.optim.SGD(head.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 3])
    for _ in range(4):
        for batch in torch.randperm(40, generator=generator).split(16):
            with torch.no_grad():
                first = network.first(probe._views(target.load(target.train, batch), len(batch), generator))
                maps = [first, network.second(first)]
            optimizer.zero_grad()
            losses = [F.cross_entropy(logits, target.labels("train")[batch]) for logits in head(maps)]
            (losses[0] + losses[1]).backward()
            optimizer.step()
        schedule.step()
    return head.eval()


def test_classifiers_on_pooled_and_normalised_maps_equal_those_of_torchs_modules() -> None:
    target, probe = make_target(), LinearOnImages(SIDE, **SETTINGS)
    fitted, reference = probe.fitted(target), train_reference(target, probe)
    parts = zip(fitted.values(), reference.linear, reference.norms, strict=True)
    for head, linear, bn in parts:
        assert bn.running_mean is not None and bn.running_var is not None
        torchs = (linear.weight, linear.bias, bn.running_mean, bn.running_var)
        for ours, wanted in zip((head.weight, head.bias, head.mean, head.var), torchs, strict=True):
            torch.testing.assert_close(
                ours.detach().double().flatten(), wanted.detach().flatten(), rtol=1e-4, atol=1e-5
            )
    metrics = dict(probe.run(target))
    network = target.network
    assert isinstance(network, TwoStages)
    with torch.no_grad():
        first = network.first(target.view(target.test.take(torch.arange(21))))
        scores = reference([first, network.second(first)])
    right = [(logits.argmax(1) == target.labels("test")).double().mean() for logits in scores]
    assert [metrics["first_top1"], metrics["second_top1"]] == pytest.approx([float(share) for share in right])
    assert metrics["first_top1"] > 0.6


def test_the_windows_of_a_resnet_at_224_pixels_are_those_of_openselfsup() -> None:
    """Maps of 56, 28, 14 and 7 cells give the 9216, 8192, 9216 and 8192 numbers of its POOL_DIMS."""
    config = load(["evaluate=linear_opensel", "dataset=imagenet", "backbone=resnet50"])
    (probe,) = build.evaluators(config).values()
    assert isinstance(probe, LinearOnImages) and probe.windows is not None and probe.views.size == 224
    adaptive = LinearOnImages(224, layers=probe.layers)
    shapes = zip((256, 512, 1024, 2048), (56, 28, 14, 7), (9216, 8192, 9216, 8192), strict=True)
    for i, (channels, side, numbers) in enumerate(shapes, 1):
        pooled = probe._pooled(f"layer{i}", torch.ones(1, channels, side, side))
        assert pooled.numel() == numbers and torch.equal(pooled, torch.ones_like(pooled))
        assert adaptive._pooled(f"layer{i}", torch.ones(1, channels, side, side)).numel() == numbers
    plain = (probe.epochs, probe.lr, probe.momentum, probe.nesterov, probe.weight_decay, probe.milestones, probe.gamma)
    assert plain == (90, 0.01, 0.9, True, 1e-4, [30, 60], 0.1) and probe.lighting == 0.1
    assert probe._pooled("layer1", torch.arange(32.0).view(1, 2, 4, 4)).flatten().tolist() == [7.5, 23.5]


def test_lighting_adds_the_principal_components_before_the_normalisation() -> None:
    target = make_target()
    plain = LinearOnImages(SIDE, **SETTINGS | {"lighting": 0.0})
    lit = LinearOnImages(SIDE, **SETTINGS)
    batch = torch.arange(20)
    without, with_noise = (
        probe._views(target.load(target.train, batch), len(batch), torch.Generator().manual_seed(7))
        for probe in (plain, lit)
    )
    noise = (with_noise - without) * torch.tensor(SETTINGS["std"]).view(3, 1, 1)  # of pixels in [0, 1]
    torch.testing.assert_close(noise, noise[..., :1, :1].expand_as(noise), rtol=0, atol=1e-5)
    (generator := torch.Generator().manual_seed(7)), plain.views.uniform(20, generator)
    alpha = 0.1 * torch.randn(20, 3, generator=generator)
    vectors = torch.tensor([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])
    expected = alpha * torch.tensor([0.2175, 0.0188, 0.0045]) @ vectors.T
    torch.testing.assert_close(noise[..., 0, 0], expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(vectors.T @ vectors, torch.eye(3), rtol=0, atol=1e-3)


def test_lighting_leaves_gray_images_as_they_are() -> None:
    gray = images(8, 1, colours=1)
    probes = (LinearOnImages(SIDE, lighting=strength) for strength in (0.0, 0.1))
    a, b = (probe._views(gray.parts[0], 8, torch.Generator().manual_seed(1)) for probe in probes)
    assert torch.equal(a, b)


def test_layers_and_windows_that_do_not_fit_are_refused() -> None:
    for wrong in ([[5, 2]], [[5, 2], [4]], [[5, 2], [0, 1]]):
        with pytest.raises(InvalidValue, match=r"^windows="):
            LinearOnImages(SIDE, **SETTINGS | {"windows": wrong})
    LinearOnImages(SIDE, **SETTINGS).check(make_target())
    with pytest.raises(InvalidValue, match=r"^layers=\[first,layer1\]: .* second\b.*layer1"):
        LinearOnImages(SIDE, **SETTINGS | {"layers": ["first", "layer1"]}).check(make_target())


@pytest.mark.parametrize("cause", ["rate", "maps"])
def test_a_classifier_without_finite_outputs_has_no_accuracy(cause: str) -> None:
    """At a rate that diverges, or on maps of a layer that overflow though the features behind it are finite."""
    target = make_target()
    if cause == "maps":
        assert isinstance(target.network, TwoStages)
        target.network.first.register_forward_hook(lambda *_: _[2] * float("inf"))
        target.network.second.register_forward_pre_hook(lambda _, inputs: (inputs[0].nan_to_num(0, 0, 0),))
    probe = LinearOnImages(SIDE, **(SETTINGS | ({"lr": 1e38} if cause == "rate" else {})))
    with pytest.raises(InvalidValue, match=r"^lr=.*finite"):
        dict(probe.run(target))
