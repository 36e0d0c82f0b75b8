"""Networks of one epoch in other libraries, in files as those save them: their features here are those there.

lightly and timm train with their own modules and checkpoints. The steps of solo-learn, MoCo, DINO and torchvision's
reference are short copies, with the names that their code has (solo/methods/base.py of vturrisi/solo-learn,
moco/builder.py and main_moco.py of facebookresearch/moco, utils.py and main_dino.py of facebookresearch/dino,
references/classification/train.py of pytorch/vision).
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
import torch.distributed as dist
import torchvision
from timm.utils import CheckpointSaver, ModelEmaV3
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel

import ssl_bench
from ssl_bench.commands.evaluate import main
from tests.conftest import only_run

pl = pytest.importorskip("pytorch_lightning")
lightly = pytest.importorskip("lightly")

from lightly.loss import DINOLoss, NTXentLoss  # noqa: E402
from lightly.models.modules import MaskedVisionTransformerTIMM  # noqa: E402
from lightly.models.modules.heads import DINOProjectionHead, MoCoProjectionHead, SimCLRProjectionHead  # noqa: E402
from lightly.models.utils import update_momentum  # noqa: E402

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


def without_fc(network: Any) -> nn.Module:
    network.fc = nn.Identity()
    return network


def vit() -> nn.Module:
    return timm.create_model("test_vit", img_size=32, patch_size=8, num_classes=0)


def batches() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Two views of 32 images, and their classes."""
    for rows in torch.randperm(64).split(32):
        x, y = IMAGES[rows] + 0.1 * torch.randn(2, 32, 3, 32, 32)
        yield x, y, LABELS[rows]


def epoch(parameters: Any, loss: Callable[..., Tensor], after: Callable[[], None] = lambda: None) -> Any:
    """Train for an epoch in a plain loop; return the optimiser."""
    optimizer = torch.optim.SGD(parameters, 0.05, momentum=0.9)
    for batch in batches():
        optimizer.zero_grad()
        loss(*batch).backward()
        optimizer.step()
        after()
    return optimizer


class Lightning(pl.LightningModule):  # type: ignore[misc, name-defined]
    """A module that Lightning trains for an epoch and saves."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD((p for p in self.parameters() if p.requires_grad), 0.05, momentum=0.9)

    def training_step(self, batch: Any, _: int) -> Tensor:
        return self.loss(*batch)  # type: ignore[no-any-return]

    def on_train_batch_end(self, *_: Any) -> None:
        self.after()

    def after(self) -> None: ...

    def fit(self) -> None:
        logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = pl.Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, **quiet)
        drawn: Any = list(batches())
        trainer.fit(self, torch.utils.data.DataLoader(drawn, batch_size=None))
        trainer.save_checkpoint("file.pth")


def ema(network: nn.Module, follower: nn.Module) -> None:
    for value, other in zip(network.parameters(), follower.parameters(), strict=True):
        other.data = 0.9 * other.data + 0.1 * value.data


def lightly_simclr() -> Networks:
    class SimCLR(Lightning):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.Sequential(*list(resnet().children())[:-1])
            self.projection_head = SimCLRProjectionHead(512, 512, 128)
            self.criterion = NTXentLoss()

        def loss(self, x: Tensor, y: Tensor, _: Tensor) -> Any:
            return self.criterion(*(self.projection_head(self.backbone(view).flatten(1)) for view in (x, y)))

    model = SimCLR()
    model.fit()
    return model.backbone, None


def lightly_moco() -> Networks:
    class MoCo(Lightning):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.Sequential(*list(resnet().children())[:-1])
            self.projection_head = MoCoProjectionHead(512, 512, 128)
            self.backbone_momentum = copy.deepcopy(self.backbone).requires_grad_(False)
            self.projection_head_momentum = copy.deepcopy(self.projection_head).requires_grad_(False)
            self.criterion = NTXentLoss(memory_bank_size=(64, 128))

        def loss(self, x: Tensor, y: Tensor, _: Tensor) -> Any:
            update_momentum(self.backbone, self.backbone_momentum, m=0.9)
            update_momentum(self.projection_head, self.projection_head_momentum, m=0.9)
            keys = self.projection_head_momentum(self.backbone_momentum(y).flatten(1)).detach()
            return self.criterion(self.projection_head(self.backbone(x).flatten(1)), keys)

    model = MoCo()
    model.fit()
    return model.backbone, model.backbone_momentum


def lightly_dino() -> Networks:
    class DINO(Lightning):
        def __init__(self) -> None:
            super().__init__()
            self.student_backbone = nn.Sequential(*list(resnet().children())[:-1])
            self.student_head = DINOProjectionHead(512, 64, 32, 128, freeze_last_layer=0)
            self.teacher_backbone = copy.deepcopy(self.student_backbone).requires_grad_(False)
            self.teacher_head = DINOProjectionHead(512, 64, 32, 128).requires_grad_(False)
            self.criterion = DINOLoss(output_dim=128)

        def loss(self, x: Tensor, y: Tensor, _: Tensor) -> Any:
            update_momentum(self.student_backbone, self.teacher_backbone, m=0.9)
            update_momentum(self.student_head, self.teacher_head, m=0.9)
            student = [self.student_head(self.student_backbone(view).flatten(1)) for view in (x, y)]
            return self.criterion([self.teacher_head(self.teacher_backbone(y).flatten(1))], student, epoch=0)

    model = DINO()
    model.fit()
    return model.teacher_backbone, model.student_backbone


def lightly_vit() -> Networks:
    class ViT(Lightning):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = MaskedVisionTransformerTIMM(vit=vit())
            self.projection_head = SimCLRProjectionHead(64, 64, 32)
            self.criterion = NTXentLoss()

        def loss(self, x: Tensor, y: Tensor, _: Tensor) -> Any:
            return self.criterion(*(self.projection_head(self.backbone(view)) for view in (x, y)))

    model = ViT()
    model.fit()
    return model.backbone, None


def solo_learn() -> Networks:
    class MoCoV2Plus(Lightning):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.momentum_backbone = without_fc(resnet()), without_fc(resnet()).requires_grad_(False)
            self.momentum_backbone.load_state_dict(self.backbone.state_dict())
            self.classifier = nn.Linear(512, 10)
            self.projector = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 32))
            self.momentum_projector = copy.deepcopy(self.projector).requires_grad_(False)
            self.register_buffer("queue", normalize(torch.randn(2, 32, 64), dim=1))

        def loss(self, x: Tensor, y: Tensor, labels: Tensor) -> Tensor:
            features = self.backbone(x)
            online = cross_entropy(self.classifier(features.detach()), labels)
            keys = self.momentum_projector(self.momentum_backbone(y))
            return online + info_nce(self.projector(features), keys, self.queue[0])

        def after(self) -> None:
            ema(self.backbone, self.momentum_backbone)
            ema(self.projector, self.momentum_projector)

    model = MoCoV2Plus()
    model.fit()
    return model.backbone, model.momentum_backbone


def info_nce(q: Tensor, k: Tensor, queue: Tensor) -> Tensor:
    q, k = normalize(q, dim=1), normalize(k, dim=1)
    return cross_entropy(torch.cat([(q * k).sum(1, keepdim=True), q @ queue], 1) / 0.2, torch.zeros(len(q)).long())


def moco() -> Networks:
    class MoCo(nn.Module):
        queue: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.encoder_q, self.encoder_k = (torchvision.models.resnet18(num_classes=32) for _ in range(2))
            for encoder in (self.encoder_q, self.encoder_k):
                encoder.fc = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), encoder.fc)
            self.encoder_k.load_state_dict(self.encoder_q.state_dict())
            self.encoder_k.requires_grad_(False)
            self.register_buffer("queue", normalize(torch.randn(32, 64), dim=0))
            self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            ema(self.encoder_q, self.encoder_k)
            return info_nce(self.encoder_q(x), self.encoder_k(y), self.queue.clone())

    model = MoCo()
    with ddp(model) as wrapped:
        optimizer = epoch(model.encoder_q.parameters(), lambda x, y, _: wrapped(x, y))
        state = {"state_dict": wrapped.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({"epoch": 1, "arch": "resnet18", **state}, "file.pth")
    return without_fc(model.encoder_q), without_fc(model.encoder_k)


class ddp:
    """A network in DistributedDataParallel, on one rank."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def __enter__(self) -> nn.Module:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        return DistributedDataParallel(self.network)

    def __exit__(self, *_: object) -> None:
        dist.destroy_process_group()


def dino() -> Networks:
    class MultiCropWrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = vit(), DINOProjectionHead(64, 64, 32, 128, freeze_last_layer=0)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.backbone(x))  # type: ignore[no-any-return]

    network, teacher, criterion = MultiCropWrapper(), MultiCropWrapper().requires_grad_(False), DINOLoss(output_dim=128)
    teacher.load_state_dict(network.state_dict())
    with ddp(network) as student:

        def loss(x: Tensor, y: Tensor, _: Tensor) -> Any:
            return criterion([teacher(y)], [student(x), student(y)], epoch=0)

        optimizer = epoch(network.parameters(), loss, lambda: ema(network, teacher))
        content: dict[str, Any] = {"student": student.state_dict(), "teacher": teacher.state_dict()}
    content |= {"optimizer": optimizer.state_dict(), "epoch": 1, "args": argparse.Namespace(arch="vit")}
    torch.save(content | {"dino_loss": criterion.state_dict()}, "file.pth")
    return teacher.backbone, network.backbone


def torchvision_reference() -> Networks:
    model = torchvision.models.resnet18(num_classes=10)
    optimizer = epoch(model.parameters(), lambda x, _, labels: cross_entropy(model(x), labels))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 30)
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "lr_scheduler": schedule.state_dict()}
    torch.save({**states, "epoch": 1, "args": argparse.Namespace(model="resnet18", lr=0.05)}, "file.pth")
    return without_fc(model), None


def timm_trainer() -> Networks:
    """With timm's own average of the weights and its own saver; the file has both, and timm evaluates either."""
    model = timm.create_model("resnet18", num_classes=10)
    average = ModelEmaV3(model, decay=0.5)
    optimizer = epoch(
        model.parameters(), lambda x, _, labels: cross_entropy(model(x), labels), lambda: average.update(model)
    )
    saver = CheckpointSaver(model, optimizer, argparse.Namespace(model="resnet18"), average, checkpoint_dir=".")
    saver.save_checkpoint(1, 0.5)
    Path("last.pth.tar").rename("file.pth")
    networks: list[Any] = [model, average.module]
    for network in networks:
        network.reset_classifier(0)
    return model, average.module


LAYOUTS: dict[str, tuple[Callable[[], Networks], list[str]]] = {
    "lightly, SimCLR": (lightly_simclr, RESNET),
    "lightly, MoCo": (lightly_moco, RESNET),
    "lightly, DINO": (lightly_dino, RESNET),
    "lightly, a ViT of timm's": (lightly_vit, VIT),
    "solo-learn, MoCo v2+": (solo_learn, RESNET),
    "MoCo v2": (moco, RESNET),
    "DINO, a ViT": (dino, VIT),
    "torchvision's reference": (torchvision_reference, RESNET),
    "timm, `which=trained`": (timm_trainer, RESNET),
}


def features(network: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = network.eval()(IMAGES).flatten(1)
    return found


# The rest of the networks and of the layouts of their files are close to these.
USUAL = ("lightly, MoCo", "DINO, a ViT")
MARKED = [pytest.param(layout, marks=[] if layout in USUAL else pytest.mark.exhaustive) for layout in LAYOUTS]


@pytest.mark.parametrize("layout", MARKED)
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
        assert "or init.which to trained or momentum" in capfd.readouterr().err
        words += ["which=trained"]
    assert main([*words, "evaluate.knn.k=5"]) == 0
    run = only_run()
    torch.testing.assert_close(features(ssl_bench.load(run)), features(network), rtol=0, atol=1e-6)
    if other is not None:
        mine = timm.create_model("resnet18", num_classes=0) if backbone is RESNET else vit()
        ssl_bench.load_weights(mine, "file.pth", "trained" if "DINO" in layout else "momentum")
        torch.testing.assert_close(features(mine), features(other), rtol=0, atol=1e-6)
        assert (features(other) - features(network)).abs().max() > 1e-3
    taken, left_out = json.loads((run / "results.json").read_text())["facts"]["init"].split(" are taken; left out: ")
    assert f"| {layout} | {taken} | {left_out.partition('; which=')[0]} |\n" in README.read_text()
