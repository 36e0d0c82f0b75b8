"""Networks that lightly and timm have trained for an epoch and saved: their features here are those there.

The files of other libraries, made by hand, are in tests/commands/test_weights.py.
"""

import argparse
import copy
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from timm.utils import CheckpointSaver, ModelEmaV3
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import ssl_bench
from ssl_bench.commands.evaluate import main
from tests.conftest import only_run

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

README = Path(__file__).parents[2] / "ssl_bench/networks/README.md"
PIXELS = np.random.default_rng(0).integers(0, 256, (64, 32, 32, 3), dtype=np.uint8)
LABELS = torch.arange(64) % 10
MEAN, STD = (torch.tensor(each)[:, None, None] for each in ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]))
IMAGES = (torch.from_numpy(PIXELS).permute(0, 3, 1, 2) / 255 - MEAN) / STD
RESNET = ["backbone=resnet18"]
VIT = ["backbone=timm", "backbone.name=test_vit", "backbone.args={img_size: 32, patch_size: 8}"]

Networks = tuple[nn.Module, nn.Module | None]  # the one that is evaluated, and the other one of the file


def resnet() -> nn.Module:
    return torchvision.models.resnet18()


def vit() -> nn.Module:
    return timm.create_model("test_vit", img_size=32, patch_size=8, num_classes=0)


def batches() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Two views of 32 images, and their classes."""
    for rows in torch.randperm(64).split(32):
        x, y = IMAGES[rows] + 0.1 * torch.randn(2, 32, 3, 32, 32)
        yield x, y, LABELS[rows]


def fitted(parts: dict[str, nn.Module], loss: Callable[[Any, Tensor, Tensor], Tensor]) -> Any:
    """A module of Lightning with these parts that Lightning trains for an epoch and saves."""
    lightning: Any = pytest.importorskip("pytorch_lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD((p for p in self.parameters() if p.requires_grad), 0.05, momentum=0.9)

        def training_step(self, batch: Any, _: int) -> Tensor:
            return loss(self, *batch[:2])

    module = Module()
    for name, part in parts.items():
        setattr(module, name, part)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, **quiet)
    drawn: Any = list(batches())
    trainer.fit(module, torch.utils.data.DataLoader(drawn, batch_size=None))
    trainer.save_checkpoint("file.pth")
    return module


def lightly_moco() -> Networks:
    pytest.importorskip("lightly")
    from lightly.loss import NTXentLoss
    from lightly.models.modules.heads import MoCoProjectionHead
    from lightly.models.utils import update_momentum

    backbone, head = nn.Sequential(*list(resnet().children())[:-1]), MoCoProjectionHead(512, 512, 128)
    momentum, momentum_head = (copy.deepcopy(part).requires_grad_(False) for part in (backbone, head))
    parts = {"backbone": backbone, "projection_head": head, "backbone_momentum": momentum}
    parts |= {"projection_head_momentum": momentum_head, "criterion": NTXentLoss(memory_bank_size=(64, 128))}

    def loss(module: Any, x: Tensor, y: Tensor) -> Any:
        update_momentum(backbone, momentum, m=0.9)
        update_momentum(head, momentum_head, m=0.9)
        keys = momentum_head(momentum(y).flatten(1)).detach()
        return module.criterion(head(backbone(x).flatten(1)), keys)

    fitted(parts, loss)
    return backbone, momentum


def lightly_vit() -> Networks:
    pytest.importorskip("lightly")
    from lightly.loss import NTXentLoss
    from lightly.models.modules import MaskedVisionTransformerTIMM
    from lightly.models.modules.heads import SimCLRProjectionHead

    backbone, head = MaskedVisionTransformerTIMM(vit=vit()), SimCLRProjectionHead(64, 64, 32)

    def loss(module: Any, x: Tensor, y: Tensor) -> Any:
        return module.criterion(*(head(backbone(view)) for view in (x, y)))

    fitted({"backbone": backbone, "projection_head": head, "criterion": NTXentLoss()}, loss)
    return backbone, None


def timm_trainer() -> Networks:
    """With timm's own average of the weights and its own saver; the file has both, and timm evaluates either."""
    model = timm.create_model("resnet18", num_classes=10)
    average = ModelEmaV3(model, decay=0.5)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for x, _, labels in batches():
        optimizer.zero_grad()
        cross_entropy(model(x), labels).backward()
        optimizer.step()
        average.update(model)
    saver = CheckpointSaver(model, optimizer, argparse.Namespace(model="resnet18"), average, checkpoint_dir=".")
    saver.save_checkpoint(1, 0.5)
    Path("last.pth.tar").rename("file.pth")
    networks: list[Any] = [model, average.module]
    for network in networks:
        network.reset_classifier(0)
    return model, average.module


LAYOUTS: dict[str, tuple[Callable[[], Networks], list[str]]] = {
    "lightly, MoCo": (lightly_moco, RESNET),
    "lightly, a ViT of timm's": (lightly_vit, VIT),
    "timm, `which=trained`": (timm_trainer, RESNET),
}


def features(network: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = network.eval()(IMAGES).flatten(1)
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_network_of_one_epoch_has_the_features_of_its_library(layout: str, capfd: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    train, backbone = LAYOUTS[layout]
    Path("data/cifar10").mkdir(parents=True)
    words = ["--weights", "file.pth", *backbone, "dataset=cifar10", "paths.data=data", "tracking=off", "evaluate=knn"]
    for split in ("train", "test"):
        np.save(f"data/cifar10/{split}_images.npy", PIXELS)
        np.save(f"data/cifar10/{split}_labels.npy", LABELS.numpy())
    network, other = train()
    if "which=trained" in layout:
        assert main(words) == 2
        assert "which to trained or momentum" in capfd.readouterr().err
        words += ["which=trained"]
    assert main([*words, "evaluate.knn.k=5"]) == 0
    run = only_run()
    torch.testing.assert_close(features(ssl_bench.load(run)), features(network), rtol=0, atol=1e-6)
    if other is not None:
        mine = timm.create_model("resnet18", num_classes=0)
        ssl_bench.load_weights(mine, "file.pth", "momentum")
        torch.testing.assert_close(features(mine), features(other), rtol=0, atol=1e-6)
        assert (features(other) - features(network)).abs().max() > 1e-3
    taken, left_out = json.loads((run / "results.json").read_text())["facts"]["init"].split(" are taken; left out: ")
    assert f"| {layout} | {taken} | {left_out.partition('; which=')[0]} |\n" in README.read_text()
