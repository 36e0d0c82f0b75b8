"""A target: its network is frozen and computes every image once, in order."""

import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ssl_bench.config.build import build
from ssl_bench.config.compose import load
from ssl_bench.data.digits import scatter
from ssl_bench.data.source import Images
from ssl_bench.errors import ConfigError, InvalidValue, RunError
from ssl_bench.evaluate.few_labels import FewLabels
from ssl_bench.evaluate.geometry import Projections
from ssl_bench.evaluate.knn import KNN
from ssl_bench.evaluate.run import check_evaluators, run_evaluators
from ssl_bench.evaluate.target import Target
from tests.ranks import on_two_ranks

CLASSES = 6


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.Dropout(0.5)
        self.head = nn.Linear(5 * 16, 3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) / 4)
        self.seen: list[int] = []
        self.modes: set[bool] = set()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.seen.append(len(x))
        self.modes |= {module.training for module in self.modules()}
        hidden = self.drop(self.norm(self.conv(x)).relu()).flatten(1)
        return {"backbone": hidden, "projection": self.head(hidden)}


def split(n: int, seed: int = 0) -> Images:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (n,), generator=generator)
    images = torch.randint(0, 120, (n, 1, 6, 6), generator=generator, dtype=torch.uint8)
    images[torch.arange(n), 0, labels] += 50
    return Images([images], labels)


def scaled(images: Tensor) -> Tensor:
    return images.float() / 255


def make_target(network: nn.Module | None, train: Images, test: Images, **change: Any) -> Target:
    settings: dict[str, Any] = {"num_classes": CLASSES, "view": scaled, "device": "cpu", "seed": 3, "batch_size": 4}
    return Target(network, train, test, **(settings | change))


def test_features_are_in_the_order_of_the_split_and_every_image_passes_once() -> None:
    network, train = Net(), split(11)
    target = make_target(network, train, split(5, 1))
    features = target.features("train")
    assert target.features("train") is features
    assert network.seen == [4, 4, 3]
    assert {name: tuple(x.shape) for name, x in features.items()} == {"backbone": (11, 80), "projection": (11, 3)}
    with torch.no_grad():
        expected = network.eval()(scaled(train.parts[0]))
    for name, value in features.items():
        torch.testing.assert_close(value, expected[name])
        assert value.dtype == torch.float32 and not value.requires_grad and not value.is_inference()
    assert len(target.features("test")["backbone"]) == 5


def test_the_network_is_in_evaluation_mode_and_its_modes_are_restored() -> None:
    network = Net()
    network.norm.eval()  # one module stays in evaluation mode while its parent trains
    make_target(network, split(9), split(5)).features("train")
    assert network.modes == {False} and network.norm.num_batches_tracked == 0
    assert network.training and network.drop.training and not network.norm.training


def test_mixed_and_double_precision_end_in_float32() -> None:
    exact = make_target(Net(), split(9), split(5)).features("train")["backbone"]
    mixed = make_target(Net(), split(9), split(5), autocast=torch.bfloat16).features("train")["backbone"]
    assert mixed.dtype == torch.float32 and not torch.equal(mixed, exact)
    torch.testing.assert_close(mixed, exact, rtol=0.05, atol=0.05)
    double = make_target(Net().double(), split(9), split(5)).features("train")["backbone"]
    assert double.dtype == torch.float32
    torch.testing.assert_close(double, exact)


def test_refusals() -> None:
    images = torch.zeros(3, 1, 6, 6, dtype=torch.uint8)
    with pytest.raises(ConfigError, match=r"test .*0 to 6.*\[0, 6\)"):
        make_target(None, split(4), Images([images], torch.tensor([0, 1, 6]))).labels("test")


def test_refusals_name_the_evaluator() -> None:
    target = make_target(None, split(11), split(5))
    both = {"knn": KNN(k=5), "projections": Projections()}  # which raw pixels do not have
    assert list(run_evaluators(both, [("_raw/", target)])[0]) == ["knn_raw/top1", "knn_raw/top5"]
    with pytest.raises(InvalidValue, match=r"^evaluate\.near\.k=12: .*1 to 11"):
        run_evaluators({"near": KNN(k=12)}, [("/", target)])
    with pytest.raises(InvalidValue, match=r"^evaluate\.near\.k=12: .*1 to 11"):
        check_evaluators({"other": Projections(), "near": KNN(k=12)}, [("/", target)])
    unlabelled = make_target(None, split(11), Images([split(1).parts[0]], torch.tensor([-1])))
    with pytest.raises(ConfigError, match=r"^evaluate\.knn: .*-1 to -1.*\[0, 6\)"):
        check_evaluators({"knn": KNN(k=5)}, [("/", unlabelled)])


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 1e25])
def test_features_without_a_finite_length_are_not_evaluated(value: float) -> None:
    """The square of the last one is infinite in float32."""
    network = Net()
    with torch.no_grad():
        network.head.bias[1] = value
    with pytest.raises(RunError, match=r"projection.*finite"):
        dict(KNN(k=3).run(make_target(network, split(20), split(10))))


# ---- accuracies of every protocol on the features of fixed random filters: goldens.yaml


GOLDENS = yaml.safe_load(Path(__file__).with_name("goldens.yaml").read_text())
DIGITS = {name: numbers for name, (*_, numbers) in GOLDENS.items()}


class Filters(nn.Module):
    """Two stages of random filters on grey images, with 64 features and a projection of 16."""

    def __init__(self) -> None:
        super().__init__()
        stages = [nn.Conv2d(1, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 1)]
        self.backbone = nn.Sequential(*stages, nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = nn.Linear(64, 16)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if weight.ndim > 1:
                    weight.copy_(torch.randn(weight.shape, generator=generator) / weight[0].numel() ** 0.5)
                elif name.endswith("bias"):
                    weight.zero_()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.backbone(x)
        return {"backbone": features, "projection": self.head(features)}


class Permutations(TorchDispatchMode):
    """A checksum of all permutations that are drawn in this thread from a generator of their own."""

    crc = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.randperm.generator:
            self.crc = zlib.crc32(result.numpy().tobytes(), self.crc)
        return result


def of_digits(_: int = 0) -> dict[str, str]:
    """Numbers as in goldens.yaml: correct predictions of test images, four digits of settings and held-out images."""
    images, labels = scatter(20)
    splits = Images([images[:1347]], labels[:1347]), Images([images[1347:]], labels[1347:])
    target = Target(Filters(), *splits, num_classes=10, view=_scaled, device="cpu", seed=5, batch_size=100)
    options = load([f"evaluate=[{','.join(sorted({option for option, *_ in GOLDENS.values()}))}]"])["evaluate"]
    of_images, lines = {"size": 20, "mean": [0.5], "std": [0.25]}, {}
    for name, (option, changes, share, _) in GOLDENS.items():
        node = options[option] | ({} if "size" not in options[option] else of_images) | changes
        with Permutations() as drawn:
            metrics: dict[str, Any] = dict(build(node, f"evaluate.{option}").run(FewLabels.of(target, share)))
        counted = {metric: "top" in metric and "val" not in metric + name for metric in metrics}
        numbers = [f"{450 * value:.0f}" if counted[metric] else f"{value:.4g}" for metric, value in metrics.items()]
        lines[name] = " ".join([f"{drawn.crc:08x}", *numbers])
    return lines


def _scaled(images: Tensor) -> Tensor:
    return (images.float() / 255 - 0.5) / 0.25


def test_digits() -> None:
    assert of_digits() == DIGITS


@pytest.mark.slow
def test_digits_on_two_ranks() -> None:
    assert on_two_ranks(of_digits) == [DIGITS, DIGITS]
