"""Object detection from an exported backbone, on COCO or anything in its format: EqCo (arXiv:2010.01929), appendix B.5.

    ssl-bench evaluate RUN_DIR export=torchvision
    torchrun --nproc-per-node 8 scripts/finetune_detection.py RUN_DIR/export/backbone_torchvision.json --data COCO

COCO is the folder with ``train2017/``, ``val2017/`` and ``annotations/``. FPN, a box head of four convolutions and one
Linear, BN in both, every layer trained with batch statistics over the ranks, 12 epochs, rate x 0.1 after 7 and 11,
short side from 640 to 800 in training and 800 in the test. The paper's rate is 0.2 and its batch is not given: 0.02 for
16 images, the usual rule, is 0.2 for 160. Sizes in steps of 32, flips, weight decay and the warm-up are Detectron2's.
AP needs ``pip install ssl-bench[detection]``. Anything less than all of this is recorded as ``scale: smoke``.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
from torchvision.models import get_model
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead

from ssl_bench import files
from ssl_bench.data.coco import Boxes, Example
from ssl_bench.distributed import leave, rank, world
from ssl_bench.errors import ConfigError, RunError
from ssl_bench.hardware import local_device
from ssl_bench.networks.export import read
from ssl_bench.record import checkpoint

DROPS = (7, 11)  # epochs after which the rate is divided by 10
FULL = {"epochs": 12, "sizes": [640, 800], "max_steps": None}
COCO_TRAIN = 117_266  # photos of train2017 with an object
AP = ("AP", "AP50", "AP75", "APs", "APm", "APl")


def detector(export: Path, num_classes: int, sizes: Sequence[int]) -> FasterRCNN:
    """Faster R-CNN with FPN on the exported backbone, every layer to be trained.

    Args:
        num_classes: of objects; the background is one more.
        sizes: lengths of the short side, of which each photo draws one in training; the last one is the test's.

    Raises:
        ConfigError: the export is none of a ResNet of torchvision's for RGB photos.
    """
    facts, weights = read(export)
    if facts["library"] != "torchvision" or facts["stem"] != "imagenet" or facts["in_channels"] != 3:
        raise ConfigError(
            f"{export} is {facts['name']} for {facts['library']} with stem={facts['stem']} and in_channels="
            f"{facts['in_channels']}: export=torchvision of a run with stem=imagenet and in_channels=3 is needed"
        )
    resnet = get_model(facts["name"], weights=None)
    if not hasattr(resnet, "layer4"):
        raise ConfigError(f"{export} is {facts['name']}: an FPN is built on a ResNet here, export one")
    resnet.fc = nn.Identity()
    resnet.load_state_dict(weights)
    layers = {f"layer{i}": str(i - 1) for i in range(1, 5)}
    widths = [resnet.inplanes // 2**i for i in (3, 2, 1, 0)]
    fpn = BackboneWithFPN(resnet, layers, widths, 256, norm_layer=nn.BatchNorm2d)
    head = FastRCNNConvFCHead((256, 7, 7), [256] * 4, [1024], norm_layer=nn.BatchNorm2d)
    pixels = {"min_size": tuple(sizes), "image_mean": facts["mean"], "image_std": facts["std"]}
    return FasterRCNN(fpn, num_classes + 1, box_head=head, **pixels)


def rate(base: float, epoch: int, step: int, warmup: int) -> float:
    """The learning rate of a step, counted from the start, in an epoch, counted from 0."""
    return base * min(1.0, (step + 1) / warmup) * 0.1 ** sum(epoch >= drop for drop in DROPS)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: list[Example], device: torch.device) -> float:
    """One step on this rank's photos; gives the loss. Raises RunError if it is not finite."""
    images = [image.to(device) for image, _ in batch]
    targets = [{name: value.to(device) for name, value in target.items()} for _, target in batch]
    loss = torch.stack(list(model(images, targets).values())).sum()
    if not loss.isfinite():
        raise RunError(f"the loss is {loss.item()}: set a smaller --lr or a longer --warmup")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def evaluate(model: nn.Module, photos: Boxes, annotations: Path, device: torch.device) -> dict[str, float]:
    """COCO's average precision of boxes, with the photos divided over the ranks; every rank has it."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    for buffer in model.buffers() if world() > 1 else ():
        dist.broadcast(buffer, 0)  # on CPUs the ranks' batch statistics differ
    model.eval()
    mine: list[dict[str, Any]] = []
    with torch.no_grad():
        for index in range(rank(), len(photos), world()):
            image, target = photos[index]
            (found,) = model([image.to(device)])
            boxes, scores, labels = (found[name].cpu() for name in ("boxes", "scores", "labels"))
            boxes[:, 2:] -= boxes[:, :2]
            for box, score, label in zip(boxes.tolist(), scores.tolist(), labels.tolist(), strict=True):
                category = photos.categories[label - 1]
                mine.append({"image_id": int(target["image_id"]), "category_id": category, "bbox": box, "score": score})
    everyone: list[Any] = [mine]
    if world() > 1:
        everyone = [None] * world()
        dist.all_gather_object(everyone, mine)
    results = [result for share in everyone for result in share]
    if not results:
        return dict.fromkeys(AP, 0.0)
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(annotations))
        judged = COCOeval(truth, truth.loadRes(results), "bbox")
        judged.evaluate(), judged.accumulate(), judged.summarize()
    return {name: float(value) for name, value in zip(AP, judged.stats[:6], strict=True)}


def finetune(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Trains and evaluates, going on after the last epoch that was saved; gives the record."""
    if importlib.util.find_spec("pycocotools") is None:  # said before hours of training, not after
        raise ConfigError("average precision needs pycocotools: pip install ssl-bench[detection]")
    if options.batch % world() or options.batch < 2 * world():  # BN in the box head needs more than one place
        raise ConfigError(f"--batch={options.batch}: set a multiple of {world()} ranks, two photos or more on each")
    truth = {split: options.data / "annotations" / f"instances_{split}2017.json" for split in ("train", "val")}
    folders = {split: options.data / options.images / f"{split}2017" for split in truth}
    photos = {split: Boxes(folders[split], truth[split], split == "train") for split in truth}
    if options.batch > len(photos["train"]):
        raise ConfigError(f"--batch={options.batch} is more than the {len(photos['train'])} photos: set fewer")
    low, high = options.sizes
    torch.manual_seed(options.seed)
    categories = photos["train"].categories
    model = detector(options.export, len(categories), (*range(low, high, 32), high)).to(device)
    if device.type == "cuda" and world() > 1:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # on CPUs each rank has its own statistics
    base = options.lr or 0.02 * options.batch / 16
    optimizer = torch.optim.SGD(model.parameters(), base, momentum=0.9, weight_decay=1e-4)
    parallel: nn.Module = model
    if world() > 1:
        parallel = nn.parallel.DistributedDataParallel(model, [device.index] if device.type == "cuda" else None)
    settings = {name: str(v) if isinstance(v, Path) else v for name, v in sorted(vars(options).items())}
    weights = files.read_json(options.export)["sha256"]
    told = {k: v for k, v in settings.items() if k not in ("export", "data", "out", "workers")} | {"sha256": weights}
    identity = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:10]
    epoch, step, losses = 0, 0, []
    if (state := checkpoint.load(options.out / "checkpoints", identity)) is not None:
        model.load_state_dict(state["model"]), optimizer.load_state_dict(state["optimizer"])
        epoch, step = state["epoch"], state["step"]
    while epoch < options.epochs and step != options.max_steps:
        torch.manual_seed(hash((options.seed, epoch, rank())))  # numbers only: the same in every process
        parallel.train()
        for batch in _epoch(photos["train"], options, epoch):
            for group in optimizer.param_groups:
                group["lr"] = rate(base, epoch, step, options.warmup)
            losses.append(train_step(parallel, optimizer, batch, device))
            step += 1
            if rank() == 0 and (step % 50 == 0 or step == options.max_steps):
                print(f"epoch {epoch + 1}/{options.epochs}  step {step}  loss {losses[-1]:.4f}", flush=True)
            if step == options.max_steps:
                break
        epoch += 1
        if rank() == 0:
            kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            checkpoint.save(options.out / "checkpoints", {"run_id": identity, "epoch": epoch, "step": step, **kept})
    full = all(settings[name] == value for name, value in FULL.items()) and len(photos["train"]) >= COCO_TRAIN
    metrics = evaluate(model, photos["val"], truth["val"], device)
    count = {f"{split}_photos": len(photos[split]) for split in photos}
    record = {"scale": "full" if full else "smoke", "metrics": metrics, "steps": step, "lr": base, **count}
    return record | {"losses": losses[-50:], "settings": settings, "weights_sha256": weights, "ranks": world()}


def _epoch(photos: Boxes, options: argparse.Namespace, epoch: int) -> Iterator[list[Example]]:
    """This rank's share of every batch of an epoch; the last photos that fill no batch wait for another order."""
    order = torch.randperm(len(photos), generator=torch.Generator().manual_seed(options.seed + epoch)).tolist()
    starts = range(0, len(order) - options.batch + 1, options.batch)
    shares = [order[start + rank() : start + options.batch : world()] for start in starts]
    return iter(DataLoader(photos, batch_sampler=shares, num_workers=options.workers, collate_fn=list))


def main(arguments: Sequence[str]) -> int:
    """Writes ``OUT/detection.json``; 0, 1 for a run that failed, 2 for what cannot be run."""
    parser = argparse.ArgumentParser("finetune_detection", description="Fine-tune a detector on an exported backbone.")
    parser.add_argument("export", type=Path, help="RUN_DIR/export/backbone_torchvision.json")
    parser.add_argument("--data", type=Path, required=True, help="folder with annotations/ and the photos")
    parser.add_argument("--images", default=".", help="folder in it with train2017/ and val2017/")
    parser.add_argument("--out", type=Path, default=Path("outputs/detection"))
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16, help="photos of all ranks together")
    parser.add_argument("--lr", type=float, help="0.02 for every 16 photos, unless given")
    parser.add_argument("--warmup", type=int, default=1000, help="steps")
    parser.add_argument(
        "--sizes", type=int, nargs=2, default=[640, 800], help="short side in training; the second in the test"
    )
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    device = local_device(int(os.environ.get("LOCAL_RANK", 0)))
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        record = finetune(options, device)
        if rank() == 0:
            options.out.mkdir(parents=True, exist_ok=True)
            files.write_json(options.out / "detection.json", record)
            print(json.dumps({"scale": record["scale"], **record["metrics"]}), options.out / "detection.json")
        return 0
    except (ConfigError, RunError, OSError) as error:
        print(f"finetune_detection: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    finally:
        if dist.is_initialized():
            leave()
