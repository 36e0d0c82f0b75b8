"""``ssl-bench detect``: fine-tune a detector on an exported backbone, on COCO or data in its format.

    ssl-bench evaluate RUN_DIR export=torchvision
    torchrun --nproc-per-node 8 -m ssl_bench detect RUN_DIR/export/backbone_torchvision.json --data COCO

COCO is a folder with ``train2017/``, ``val2017/`` and ``annotations/``. The recipe is that of EqCo (arXiv 2010.01929),
appendix B.5: FPN, a box head of four convolutions and one Linear, BN in both, all layers trained with batch statistics
over the ranks, 12 epochs, rate x 0.1 after epochs 7 and 11, short side 640 to 800 in training and 800 in the test. The
paper's rate is 0.2 and its batch size is not given: by the usual rule, 0.02 for 16 images, 0.2 belongs to 160. Sizes in
steps of 32, flips, weight decay and warm-up are Detectron2's. AP needs ``pip install ssl-bench[detection]``. A run that
is smaller in any respect is recorded as ``scale: smoke``.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import io
import json
import math
import os
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
from ssl_bench.commands.arguments import Parser, refuse
from ssl_bench.data.coco import Boxes, Example
from ssl_bench.distributed import leave, rank, world
from ssl_bench.errors import ConfigError, RunError, require
from ssl_bench.hardware import local_device
from ssl_bench.networks.export import read
from ssl_bench.record import checkpoint

DROPS = (7, 11)  # epochs after which the rate is divided by 10
FULL = {"epochs": 12, "sizes": [640, 800], "max_steps": None}
COCO_TRAIN = 117_266  # photos of train2017 with an object
AP = ("AP", "AP50", "AP75", "APs", "APm", "APl")


def detector(export: Path, num_classes: int, sizes: Sequence[int]) -> FasterRCNN:
    """Build a Faster R-CNN with FPN on the exported backbone, with all layers trainable.

    Args:
        num_classes: classes of objects, without the background.
        sizes: lengths of the short side; training draws one per photo, the test uses the last.

    Raises:
        ConfigError: the export is not a torchvision ResNet for RGB photos.
    """
    facts, weights = read(export)
    if facts["library"] != "torchvision" or facts["stem"] != "imagenet" or facts["in_channels"] != 3:
        raise ConfigError(
            f"{export} is {facts['name']} for {facts['library']} with stem={facts['stem']} and in_channels="
            f"{facts['in_channels']}: export=torchvision of a run with stem=imagenet and in_channels=3 is needed"
        )
    resnet = get_model(facts["name"], weights=None)
    if not hasattr(resnet, "layer4"):
        raise ConfigError(f"{export} is {facts['name']}: the FPN needs a ResNet: export one")
    resnet.fc = nn.Identity()
    resnet.load_state_dict(weights)
    layers = {f"layer{i}": str(i - 1) for i in range(1, 5)}
    widths = [resnet.inplanes // 2**i for i in (3, 2, 1, 0)]
    fpn = BackboneWithFPN(resnet, layers, widths, 256, norm_layer=nn.BatchNorm2d)
    head = FastRCNNConvFCHead((256, 7, 7), [256] * 4, [1024], norm_layer=nn.BatchNorm2d)
    pixels = {"min_size": tuple(sizes), "image_mean": facts["mean"], "image_std": facts["std"]}
    return FasterRCNN(fpn, num_classes + 1, box_head=head, **pixels)


def rate(base: float, epoch: int, step: int, warmup: int) -> float:
    """Learning rate at ``step`` of the training, in ``epoch``, both counted from 0."""
    return base * min(1.0, (step + 1) / warmup) * 0.1 ** sum(epoch >= drop for drop in DROPS)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: list[Example], device: torch.device) -> float:
    """Train one step on this rank's photos; return the loss. Raises RunError if it is not finite."""
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
    """COCO's average precision of boxes. The photos are divided over the ranks; all ranks return the result."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    for buffer in model.buffers() if world() > 1 else ():
        dist.broadcast(buffer, 0)  # on CPUs the running statistics differ between the ranks
    model.eval()
    local: list[dict[str, Any]] = []
    with torch.no_grad():
        for index in range(rank(), len(photos), world()):
            image, target = photos[index]
            (found,) = model([image.to(device)])
            boxes, scores, labels = (found[name].cpu() for name in ("boxes", "scores", "labels"))
            boxes[:, 2:] -= boxes[:, :2]
            for box, score, label in zip(boxes.tolist(), scores.tolist(), labels.tolist(), strict=True):
                category = photos.categories[label - 1]
                local.append(
                    {"image_id": int(target["image_id"]), "category_id": category, "bbox": box, "score": score}
                )
    everyone: list[Any] = [local]
    if world() > 1:
        everyone = [None] * world()
        dist.all_gather_object(everyone, local)
    results = [result for share in everyone for result in share]
    if not results:
        return dict.fromkeys(AP, 0.0)
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(annotations))
        scores = COCOeval(truth, truth.loadRes(results), "bbox")
        scores.evaluate(), scores.accumulate(), scores.summarize()
    return {name: float(value) for name, value in zip(AP, scores.stats[:6], strict=True)}


def finetune(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Train and evaluate, resuming after the last saved epoch; return the record."""
    if options.batch % world() or options.batch < 2 * world():  # BN in the box head needs several values
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
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # there is no synchronised BN on CPUs
    base = options.lr or 0.02 * options.batch / 16
    optimizer = torch.optim.SGD(model.parameters(), base, momentum=0.9, weight_decay=1e-4)
    parallel: nn.Module = model
    if world() > 1:
        parallel = nn.parallel.DistributedDataParallel(model, [device.index] if device.type == "cuda" else None)
    given = {name: v for name, v in sorted(vars(options).items()) if name != "overrides"}
    settings = {name: str(v) if isinstance(v, Path) else v for name, v in given.items()}
    weights = read(options.export)[0]["sha256"]
    places = ("export", "data", "out", "workers")
    identifying = {k: v for k, v in settings.items() if k not in places} | {"sha256": weights}
    identity = hashlib.sha256(json.dumps(identifying).encode()).hexdigest()[:10]
    epoch, step, losses = 0, 0, []
    if (state := checkpoint.load(options.out / "checkpoints", identity)) is not None:
        model.load_state_dict(state["model"]), optimizer.load_state_dict(state["optimizer"])
        epoch, step = state["epoch"], state["step"]
    while epoch < options.epochs and step != options.max_steps:
        torch.manual_seed(hash((options.seed, epoch, rank())))  # a hash of numbers is the same in every process
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
    """This rank's share of every batch of an epoch; photos that do not fill a last batch are left out."""
    order = torch.randperm(len(photos), generator=torch.Generator().manual_seed(options.seed + epoch)).tolist()
    starts = range(0, len(order) - options.batch + 1, options.batch)
    shares = [order[start + rank() : start + options.batch : world()] for start in starts]
    return iter(DataLoader(photos, batch_sampler=shares, num_workers=options.workers, collate_fn=list))


def _check(options: argparse.Namespace) -> None:
    """Refuse invalid flags, before a process group or a GPU is used."""
    least = {"epochs": 1, "batch": 1, "warmup": 1, "max_steps": 1, "workers": 0, "seed": 0}
    for name, smallest in least.items():
        value = getattr(options, name)
        require(value is None or value >= smallest, f"--{name.replace('_', '-')}", value, f"{smallest} or more")
    require(options.lr is None or 0 < options.lr < math.inf, "--lr", options.lr, "a positive number")
    require(0 < options.sizes[0] <= options.sizes[1], "--sizes", options.sizes, "two lengths, the shorter one first")
    require(options.export.is_file(), "export", options.export, "the .json file of `ssl-bench evaluate ... export=...`")
    if importlib.util.find_spec("pycocotools") is None:  # refused before hours of training
        raise ConfigError("average precision needs pycocotools: pip install ssl-bench[detection]")
    require(options.data.is_dir(), "--data", options.data, "a folder that exists")


def main(arguments: Sequence[str]) -> int:
    """Write ``OUT/detection.json``; 0, 1 for a run that failed, 2 for wrong arguments or data."""
    parser = Parser("detect", "Fine-tune a detector on an exported backbone.")
    parser.add_argument("export", type=Path, help="RUN_DIR/export/backbone_torchvision.json")
    parser.add_argument("--data", type=Path, required=True, help="folder with annotations/ and the photos")
    parser.add_argument("--images", default=".", help="folder in it with train2017/ and val2017/")
    parser.add_argument("--out", type=Path, default=Path("outputs/detection"))
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16, help="photos of all ranks together")
    parser.add_argument("--lr", type=float, help="default: 0.02 for every 16 photos")
    parser.add_argument("--warmup", type=int, default=1000, help="steps")
    parser.add_argument(
        "--sizes",
        type=int,
        nargs=2,
        default=[640, 800],
        help="short side in training, from the first to the second; the second in the test",
    )
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.read(arguments)
    if options.overrides:
        return refuse(f"{options.overrides[0]}: detect takes --flags only, see ssl-bench detect --help", 2)
    try:
        _check(options)
    except ConfigError as error:
        return refuse(error)
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
        return refuse(error, getattr(error, "exit_code", 1))
    finally:
        if dist.is_initialized():
            leave()
