"""Training steps on random images in memory: SimCLR with networks of three sizes, as ``ssl-bench train`` runs it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ssl_bench.config.compose import load
from ssl_bench.data.arrays import Dataset, ImageBatch, Images, Source
from ssl_bench.training.engine import Training

DISTINCT = 256  # images that exist; the others repeat them

# The options of each network, and the sides of the stored images.
NETWORKS = {
    "resnet18 32px": (["dataset=cifar10"], 32),
    "resnet18 96px": (["dataset=stl10"], 96),
    "resnet50 224px": (["dataset=imagenet"], 256),
}
# How steps are carried out, as the keys of the configuration say it.
MODES = {
    "eager": ["compile=false", "compile_views=false", "graph=false"],
    "graph": ["compile=false", "compile_views=false", "graph=true"],
    "compiled": ["compile=true", "compile_views=true", "graph=false"],
    "compiled graph": ["compile=true", "compile_views=true", "graph=true"],
}


class RepeatedImages(Source):
    """Random images of which only ``DISTINCT`` differ: image i is the image i mod ``DISTINCT``.

    Args:
        count: N.
        side: height and width.
    """

    def __init__(self, count: int, channels: int, side: int) -> None:
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randint(256, (DISTINCT, side, side, channels), generator=generator, dtype=torch.uint8)
        self._images = Images([pixels.permute(0, 3, 1, 2)], torch.zeros(DISTINCT, dtype=torch.int64))
        self.labels = torch.zeros(count, dtype=torch.int64)
        self.nbytes = self._images.nbytes

    def take(self, ids: Tensor) -> ImageBatch:
        return self._images.take(ids % DISTINCT)

    def to(self, device: torch.device) -> "RepeatedImages":
        copy = object.__new__(RepeatedImages)
        copy._images, copy.labels, copy.nbytes = self._images.to(device), self.labels.to(device), self.nbytes
        return copy


class RandomDataset(Dataset):
    """A dataset without files: 50,000 random images.

    Args:
        side: of the stored images; ``size`` is that of the views.
    """

    def __init__(self, side: int, **common: Any) -> None:
        super().__init__(**common)
        self.side = side

    def check(self) -> int:
        return 50_000

    def pretrain(self) -> Source:
        return RepeatedImages(self.check(), self.channels, self.side)


@dataclass(frozen=True)
class Workload:
    """Settings of a measured step.

    Attributes:
        network: a key of ``NETWORKS``.
        batch: images of all ranks together.
        precision: fp32, bf16 or fp16.
        mode: a key of ``MODES``.
        devices: ranks; this process must be one of them if there are several.
    """

    network: str
    batch: int
    precision: str
    mode: str = "eager"
    devices: int = 1

    def __str__(self) -> str:
        return f"{self.network} B={self.batch} {self.precision} {self.mode}"

    def config(self) -> dict[str, Any]:
        """The configuration of a run on random images."""
        options, side = NETWORKS[self.network]
        carried_out = [f"precision={self.precision}", f"devices={self.devices}", *MODES[self.mode]]
        others = ["tracking=off", "evaluate=[]", "evaluate.baselines=[]", "images_on=device", "batch_size.chunk=null"]
        config = load([*options, f"batch_size.size={self.batch}", *carried_out, *others])
        kept = ("size", "channels", "num_classes", "mean", "std")
        target = f"{RandomDataset.__module__}.{RandomDataset.__name__}"
        config["dataset"] = {"_target_": target, "side": side} | {key: config["dataset"][key] for key in kept}
        return config

    def training(self, folder: Path, device: torch.device) -> Training:
        """Build the run; nothing is written to ``folder``."""
        training = Training(self.config(), "check", folder, device)
        training.state.method.train()
        return training

    def step(self, folder: Path, device: torch.device) -> Callable[[], object]:
        """Function that carries out the next step: views, forward, objective, backward, optimiser."""
        step = self.training(folder, device).stepper()
        return lambda: step(False)


def warm_up(mode: str) -> int:
    """Steps of a mode before its speed is that of a long run: libraries choose algorithms, a graph is recorded."""
    return 6 if "graph" in mode else 3
