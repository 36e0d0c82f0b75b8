"""Object detection on COCO, or data in its format, with the backbone in a Faster R-CNN.

The recipe is that of EqCo (Zhu et al., arXiv 2010.01929), appendix B.5; conf/evaluate/detection.yaml tells which
settings the paper states and which are assumed.

Shapes: H, W of a photo, n boxes of a photo.
"""

import contextlib
import copy
import importlib.util
import io
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead

from ssl_bench.config.ranges import Count, Positive
from ssl_bench.data.coco import Boxes, Example
from ssl_bench.distributed import rank, world
from ssl_bench.errors import ConfigError, RunError, require
from ssl_bench.evaluate.metric import Declared, Metric
from ssl_bench.evaluate.target import Evaluator, Target
from ssl_bench.hardware import cores_per_process, move
from ssl_bench.networks.norm import GroupedBatchNorm
from ssl_bench.seeding import stream
from ssl_bench.signals import stop_if_asked

log = logging.getLogger(__name__)

AP = ("ap", "ap50", "ap75", "ap_s", "ap_m", "ap_l")
AHEAD = 2  # batches read in advance


class Detection(Evaluator):
    """Average precision of boxes on COCO's val2017, in percent, after fine-tuning on train2017.

    All layers are trained, with batch statistics over the photos of all GPUs; the network of the target is not changed.
    Yields ``ap`` (over intersections over union from 0.5 to 0.95), ``ap50``, ``ap75``, and ``ap_s``, ``ap_m``, ``ap_l``
    for small, medium and large objects, where there are any. Yields nothing for raw pixels.

    Unlike those of other evaluators, its numbers depend on the number of ranks, as they do on the seed: each rank pads
    its photos to one size and draws its boxes. On several CPU processes, each has batch statistics of its own photos.
    If a run is killed during it, the fine-tuning starts again.

    Args:
        mean, std: of the images that the network was trained on, three channels each.
        data: folder with ``annotations/instances_{train,val}2017.json``.
        images: folder in it with the photos, ``train2017/`` and ``val2017/``.
        epochs: of the training.
        drops: epochs after which the rate is divided by 10.
        batch_size: photos of all ranks in a step.
        lr: rate for 16 photos.
        warmup: steps in which the rate rises linearly from 0.
        sizes: length of the short side in pixels. Each training photo has one of the first, the first + 32 ... the
            second; test photos have the second. The long side has at most 1,333.
    """

    metrics: ClassVar[Declared] = {"ap*": Metric("number", "high", "objects")}

    needs_network = True
    mean: Sequence[float]
    std: Sequence[float]
    data: str
    images: str = "."
    epochs: Count = 12
    drops: Sequence[int] = (7, 11)
    batch_size: Count = 16
    lr: Positive = 0.02
    warmup: Count = 1000
    sizes: tuple[Count, Count] = (640, 800)

    def __post_init__(self) -> None:
        shortest, longest = self.sizes
        require(shortest <= longest, "sizes", self.sizes, "two lengths, the shorter one first")
        self.sides = (*range(shortest, longest, 32), longest)

    def check(self, target: Target) -> None:
        if importlib.util.find_spec("pycocotools") is None:
            raise ConfigError("average precision needs pycocotools: pip install 'ssl-bench[detection]'")
        for path in (*self.files("train"), *self.files("val")):
            require(path.exists(), "data", self.data, f"a folder with COCO's photos and annotations: no {path}")
        check_backbone(getattr(target.network, "backbone", None))

    def files(self, split: str) -> tuple[Path, Path]:
        """The folder of the photos of ``train`` or ``val``, and their instance file."""
        data = Path(self.data)
        return data / self.images / f"{split}2017", data / "annotations" / f"instances_{split}2017.json"

    def run(self, target: Target) -> Iterator[tuple[str, float]]:
        assert target.network is not None
        training = FineTuning(self, target.network.get_submodule("backbone"), target.device, target.seed)
        while training.epoch < self.epochs:
            training.train_epoch()
        yield from training.average_precision().items()

    def lr_at(self, epoch: int, step: int) -> float:
        """Learning rate at ``step`` of the training, in ``epoch``, both counted from 0."""
        base = self.lr * self.batch_size / 16
        return base * min(1.0, (step + 1) / self.warmup) * 0.1 ** sum(epoch >= drop for drop in self.drops)


class FineTuning:
    """A detector with its optimiser and photos, on every rank. It is trained by epochs.

    Args:
        recipe: settings, of which :meth:`Detection.check` accepts the files.
        backbone: is copied.
        device: of this rank.
        seed: of new weights, the order of the photos and all other draws.

    Attributes:
        epoch, step: done so far.
        losses: of this rank, by step.

    Raises:
        ConfigError: the backbone or the annotations cannot be used, or a batch is not between the ranks and the photos.
    """

    def __init__(self, recipe: Detection, backbone: nn.Module, device: torch.device, seed: int) -> None:
        self.recipe, self.device, self.seed = recipe, device, seed
        self.photos = {split: Boxes(*recipe.files(split), split == "val") for split in ("train", "val")}
        count, size = len(self.photos["train"]), recipe.batch_size
        remedy = f"{world()} to {count}: a photo or more on each rank, of {count} photos"
        require(world() <= size <= count, "batch_size", size, remedy)
        categories = self.photos["train"].categories
        require(self.photos["val"].categories == categories, "data", recipe.data, "files with the same categories")
        with self._draws():
            model = detector(backbone, len(categories), recipe.sides, recipe.mean, recipe.std)
        if device.type == "cuda" and world() > 1:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # there is no synchronised BN on CPUs
        self.model: FasterRCNN = move(model, device)  # type: ignore[assignment]
        self.optimizer = torch.optim.SGD(model.parameters(), recipe.lr, momentum=0.9, weight_decay=1e-4)
        self._parallel: nn.Module = self.model
        if world() > 1:
            local = [device.index] if device.type == "cuda" else None
            self._parallel = nn.parallel.DistributedDataParallel(self.model, local)
        self.epoch, self.step, self.losses = 0, 0, list[float]()

    def train_epoch(self) -> None:
        """Train on every photo once, without an incomplete last batch. Raises RunError if the loss is not finite."""
        self._parallel.train()
        with self._draws(self.epoch, rank()):
            for batch in self._batches():
                for group in self.optimizer.param_groups:
                    group["lr"] = self.recipe.lr_at(self.epoch, self.step)
                images = [image.to(self.device) for image, _ in batch]
                targets = [{name: value.to(self.device) for name, value in target.items()} for _, target in batch]
                loss = torch.stack(list(self._parallel(images, targets).values())).sum()
                if not loss.isfinite():
                    raise RunError(f"the loss of the detector is {loss.item()}: set a smaller lr or a longer warmup")
                self.optimizer.zero_grad()
                # The gradients are averaged over the ranks, whose shares of a batch can differ by a photo.
                (loss * (len(batch) * world() / self.recipe.batch_size)).backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
                self.losses.append(loss.item())
                self.step += 1
                if self.step % 50 == 0 and rank() == 0:
                    done = f"epoch {self.epoch + 1} of {self.recipe.epochs}, step {self.step}"
                    log.info("detection: %s, loss %.4f", done, self.losses[-1])
        self.epoch += 1

    def average_precision(self) -> dict[str, float]:
        """Detect the objects of val2017, divided over the ranks; return COCO's metrics on all of them."""
        for buffer in self.model.buffers() if world() > 1 else ():
            dist.broadcast(buffer, 0)  # on CPUs the running statistics differ between the ranks
        self.model.eval()
        photos, detections = self.photos["val"], list[dict[str, Any]]()
        with torch.no_grad():
            for index in range(rank(), len(photos), world()):
                stop_if_asked()
                image, target = photos.take(index)
                (objects,) = self.model([image.to(self.device)])
                boxes, scores, labels = (objects[name].cpu() for name in ("boxes", "scores", "labels"))
                boxes[:, 2:] -= boxes[:, :2]  # COCO's boxes are x, y, width, height
                for box, score, label in zip(boxes.tolist(), scores.tolist(), labels.tolist(), strict=True):
                    which = {"image_id": int(target["image_id"]), "category_id": photos.categories[label - 1]}
                    detections.append(which | {"bbox": box, "score": score})
        shares: list[Any] = [detections] * world()
        if world() > 1:
            dist.all_gather_object(shares, detections)
        return coco_metrics(self.recipe.files("val")[1], [detection for share in shares for detection in share])

    def _batches(self) -> Iterator[list[Example]]:
        """This rank's share of every batch of the epoch; threads decode the photos in advance."""
        photos, size = self.photos["train"], self.recipe.batch_size
        generator = torch.Generator().manual_seed(stream("photos", self.seed, self.epoch))
        order = torch.randperm(len(photos), generator=generator).tolist()
        mirrored = (torch.rand(len(photos), generator=generator) < 0.5).tolist()
        with ThreadPoolExecutor(cores_per_process(), "photos") as pool:
            ahead: deque[list[Future[Example]]] = deque()
            for start in range(0, len(order) - size + 1, size):
                stop_if_asked()
                share = order[start + rank() : start + size : world()]
                ahead.append([pool.submit(photos.take, index, mirrored[index]) for index in share])
                if len(ahead) > AHEAD:
                    yield [photo.result() for photo in ahead.popleft()]
            while ahead:
                yield [photo.result() for photo in ahead.popleft()]

    @contextlib.contextmanager
    def _draws(self, *key: int) -> Iterator[None]:
        """Seed the global generators, from which torchvision draws; afterwards they are as before."""
        with torch.random.fork_rng([self.device.index] if self.device.type == "cuda" else []):
            torch.manual_seed(stream("detection", self.seed, *key))
            yield


def check_backbone(backbone: nn.Module | None) -> None:
    """Refuse a backbone that is no ResNet with the ImageNet stem for RGB photos. Raises ConfigError."""
    from timm.models.resnet import ResNet

    if not isinstance(backbone, ResNet):
        raise ConfigError(f"the FPN needs a ResNet of timm, not {type(backbone).__name__}: set backbone to resnet50")
    if isinstance(backbone.maxpool, nn.Identity):
        raise ConfigError("photos of 800 pixels need the stride of the ImageNet stem: set backbone.stem=imagenet")
    if (channels := next(backbone.parameters()).shape[1]) != 3:
        raise ConfigError(f"the backbone is for {channels} channels, and COCO has RGB photos: use a dataset with 3")


def detector(
    backbone: nn.Module, num_classes: int, sizes: Sequence[int], mean: Sequence[float], std: Sequence[float]
) -> FasterRCNN:
    """Build a Faster R-CNN with FPN on a copy of the backbone, in float32 with all layers trainable.

    Every BN has the statistics of the batch in training, whatever groups the backbone was trained with. The FPN and the
    convolutions of the box head have a BN each.

    Args:
        num_classes: classes of objects, without the background.
        sizes: lengths of the short side; training draws one per photo, the test uses the last.

    """
    resnet: Any = copy.deepcopy(backbone).float().requires_grad_()
    for module in resnet.modules():
        if isinstance(module, GroupedBatchNorm):
            module.__class__ = nn.BatchNorm2d  # type: ignore[assignment]
    layers = {f"layer{i}": str(i - 1) for i in range(1, 5)}
    widths = [feature["num_chs"] for feature in resnet.feature_info[1:]]
    fpn = BackboneWithFPN(resnet, layers, widths, 256, norm_layer=nn.BatchNorm2d)
    head = FastRCNNConvFCHead((256, 7, 7), [256] * 4, [1024], norm_layer=nn.BatchNorm2d)
    pixels = {"min_size": tuple(sizes), "image_mean": list(mean), "image_std": list(std)}
    return FasterRCNN(fpn, num_classes + 1, box_head=head, **pixels)


def coco_metrics(annotations: Path, detections: list[dict[str, Any]]) -> dict[str, float]:
    """Compute COCO's average precision of boxes in percent, by pycocotools; without the sizes that no object has.

    Args:
        annotations: COCO's instance file.
        detections: an entry per box, with ``image_id``, ``category_id``, ``bbox`` (x, y, width, height) and ``score``.
    """
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(annotations))
        # loadRes refuses an empty list: a box outside of a photo is no object.
        first = {"image_id": truth.getImgIds()[0], "category_id": truth.getCatIds()[0]}
        none = first | {"bbox": [-2, -2, 1, 1], "score": 0}
        scores = COCOeval(truth, truth.loadRes(detections or [none]), "bbox")
        scores.evaluate(), scores.accumulate(), scores.summarize()
    values = zip(AP, scores.stats[: len(AP)].tolist(), strict=True)
    return {name: 100 * value for name, value in values if value >= 0}  # -1: no such object
