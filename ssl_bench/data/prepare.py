"""Make the files of a dataset that training reads: the library of ``ssl-bench prepare``.

Arrays that exist are not changed. Missing ones are made from a folder in torchvision's format or from its download.
ImageNet comes from a folder: ``dataset=imagenet64`` shrinks it to arrays, and ``dataset=imagenet dataset.packed=true``
packs it into one file per split.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageOps
from torch import Tensor

from ssl_bench import files
from ssl_bench.data.arrays import ArrayDataset
from ssl_bench.data.batch import Loader
from ssl_bench.data.dataset import Dataset
from ssl_bench.data.folder import FolderDataset
from ssl_bench.data.photos import Photos, chunks, pack
from ssl_bench.data.source import Source
from ssl_bench.data.views import Views
from ssl_bench.errors import ConfigError, require

# Classes of torchvision, and their argument for the split.
KINDS = dict.fromkeys(("CIFAR10", "CIFAR100", "FashionMNIST", "KMNIST", "MNIST", "USPS"), "train")
KINDS |= {"STL10": "split", "SVHN": "split"}
HOUR = 3600.0  # seconds; a temporary file that has not changed for so long is one of a killed process

Progress = Callable[[str, Iterable[list[int]]], Iterable[list[int]]]  # (split, chunks) -> the same chunks


def prepare(dataset: Dataset, name: str, source: Path | None, progress: Progress) -> str:
    """Make the files of a dataset unless they exist, and return a sentence about the result.

    Args:
        name: its name for that sentence.
        source: folder with the original files; None is the folder of the dataset, or torchvision's download.
        progress: called with each split of photos; it yields the chunks and shows the progress.

    Raises:
        ConfigError: ``source`` does not have the dataset.
        OSError: the download failed, or a file cannot be written.
        RunError: too many photos are damaged.
    """
    if isinstance(dataset, FolderDataset) and dataset.packed:
        folder = dataset.packed_path("train").parent
        files.remove_temporary(folder, HOUR)
        for split in dataset.split_folders:
            path = dataset.packed_path(split)
            if not path.with_name(f"{path.name}.npz").is_file():
                pack(dataset.source(split, source), path, dataset.resize, partial(progress, split))
    elif isinstance(dataset, ArrayDataset):
        folder = dataset.folder
        files.remove_temporary(folder, HOUR)
        if splits := _missing_splits(dataset):
            if dataset.torchvision == "ImageFolder":
                _shrink(dataset, splits, source or dataset.root / "imagenet", progress)
            else:
                _convert(dataset, splits, source)
    else:
        return f"dataset={name} needs no preparation: {dataset.check()} images to train on"
    return f"{folder} is ready: {dataset.check()} images to train on"


def _missing_splits(dataset: ArrayDataset) -> list[str]:
    """The splits whose arrays do not exist.

    Raises:
        ConfigError: only one of two exists; it may be a user's, and is not replaced.
    """
    present = {split: [*dataset.folder.glob(f"{split}_*.npy")] for split in dataset.splits}
    if alone := [paths[0] for paths in present.values() if len(paths) == 1]:
        raise ConfigError(f"{alone[0]} lacks the other file of its split: add it, or move this one")
    return [split for split, paths in present.items() if not paths]


def _shrink(dataset: ArrayDataset, splits: list[str], source: Path, progress: Progress) -> None:
    """Make the arrays of some splits from a folder of photos, chunk by chunk."""
    size, classes = dataset.size, dataset.num_classes
    common: dict[str, Any] = {"channels": 3, "mean": [0.0], "std": [1.0]}
    source = source.resolve()  # so that it has a name
    folder = FolderDataset(folder=source.name, root=source.parent, size=size, num_classes=classes, **common)
    dataset.folder.mkdir(parents=True, exist_ok=True)
    for split in splits:
        photos = folder.source(split)
        header: Any = {"descr": "|u1", "fortran_order": False, "shape": (len(photos), size, size, 3)}

        def fill(file: BinaryIO, split: str = split, photos: Photos = photos, header: Any = header) -> None:
            np.lib.format.write_array_header_1_0(file, header)
            for chunk in progress(split, chunks(len(photos))):
                for array in photos.map(lambda image: box(image, size), chunk):
                    file.write(array.tobytes())

        files.write(dataset.folder / f"{split}_images.npy", fill)
        files.write(dataset.folder / f"{split}_labels.npy", partial(np.save, arr=photos.labels.numpy()))


def box(image: Tensor, size: int) -> np.ndarray:
    """Shrink one photo: uint8 [3, h, w] -> uint8 [size, size, 3].

    Pillow's box filter resizes the whole photo to a square and ignores its proportions, as in Chrabaszcz, Loshchilov
    and Hutter, A Downsampled Variant of ImageNet as an Alternative to the CIFAR datasets (arXiv 1707.08819), section 3.
    """
    photo = Image.fromarray(image.permute(1, 2, 0).numpy())
    return np.asarray(photo.resize((size, size), Image.Resampling.BOX))


def _convert(dataset: ArrayDataset, splits: list[str], source: Path | None) -> None:
    """Make the arrays of some splits with torchvision, which downloads the dataset if there is no ``source``.

    torchvision's classes differ in the argument for the split, ``split`` or ``train``.
    """
    from torchvision import datasets

    name, folder = dataset.torchvision, source or dataset.root / "torchvision"
    require(name in KINDS, "dataset.torchvision", name, f"ImageFolder, {', '.join(KINDS)}")
    remedy = f"train or test: {name} has no other splits"
    given = KINDS[name] == "split" or {*dataset.splits} <= {"train", "test"}
    require(given, "dataset.pretrain", dataset.pretrain_splits, remedy)
    for split in splits:
        choice: dict[str, Any] = {"split": split} if KINDS[name] == "split" else {"train": split == "train"}
        try:
            content = getattr(datasets, name)(str(folder), download=source is None, **choice)
        except (RuntimeError, ValueError, IndexError, EOFError) as error:  # missing or damaged, or a failed download
            remedy = "remove damaged files, and get them again, from elsewhere with --source"
            wrong = f"torchvision could not download {name} into {folder}, or read it there ({error}): {remedy}"
            failed = source is None and isinstance(error, RuntimeError)  # the download
            raise (OSError if failed else ConfigError)(wrong) from error
        of_images, of_labels = zip(*((np.asarray(image), label) for image, label in content), strict=True)
        images, labels = np.stack(of_images), np.array(of_labels, dtype=np.int64)
        dataset.folder.mkdir(parents=True, exist_ok=True)
        images = images.reshape(*images.shape[:3], -1)  # grey ones have no channels
        files.write(dataset.folder / f"{split}_images.npy", partial(np.save, arr=images))
        files.write(dataset.folder / f"{split}_labels.npy", partial(np.save, arr=labels))


LEAST, GAP, CAPTION = 112, 4, 20  # pixels: the smallest side of a tile, the gap between tiles, the height of a caption
FRAME = 96  # grey level between and around images


def sheet(images: Source, views: Sequence[Views], seed: int, count: int) -> Image.Image:
    """Draw the first ``count`` images of a training and, in a row below them for each, their views, with captions."""
    step = next(Loader(images, views, count, torch.device("cpu"), seed, torch.float32).steps(0, 1))
    drawn, made = step.images, [x.clone() for x in step.batch().views]
    for x, view in zip(made, views, strict=True):
        for channel, (mean, std) in enumerate(zip(view.normalize.mean or (), view.normalize.std, strict=True)):
            x[:, channel].mul_(std).add_(mean)
    low, high = torch.zeros(()), torch.ones(())
    if isinstance(drawn, Tensor) and drawn.is_floating_point():
        low, high = drawn.amin((0, 2, 3), keepdim=True), drawn.amax((0, 2, 3), keepdim=True)  # [1, C, 1, 1]
        drawn = in_bytes(drawn, low, high)
    rows = [drawn, *(in_bytes(x, low, high) for x in made)]
    side = views[0].size * -(-LEAST // views[0].size)
    channels = drawn_channels(views[0].normalize.split(step.images)[0] or len(step.images[0]))
    height = CAPTION + side + GAP  # of a row
    page = Image.new("RGB", (max(count * (side + GAP), 2 * LEAST), len(rows) * height), (FRAME,) * 3)
    for below, of in enumerate([None, *views]):
        caption = f"view {below}: {of.size} x {of.size} pixels" if of else "images of the training"
        ImageDraw.Draw(page).text((GAP, below * height + 2), caption, "white", font_size=14)
    for (below, row), right in product(enumerate(rows), range(count)):
        image = Image.fromarray(row[right][:channels].expand(3, -1, -1).permute(1, 2, 0).numpy())
        # Small images are magnified so that their pixels can be seen.
        how = Image.Resampling.NEAREST if max(image.size) <= side else Image.Resampling.BILINEAR
        page.paste(ImageOps.contain(image, (side, side), how), (right * (side + GAP), below * height + CAPTION))
    return page


def in_bytes(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Values as uint8, ``low`` as 0 and ``high`` as 255."""
    return ((x - low) / (high - low)).nan_to_num_().mul_(255).round_().clamp_(0, 255).to(torch.uint8)


def drawn_channels(channels: int) -> int:
    """How many channels of a picture are drawn: three as colours, or one as grey."""
    return 3 if channels > 2 else 1
