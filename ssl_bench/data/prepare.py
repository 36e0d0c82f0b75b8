"""``ssl-bench prepare dataset=cifar10``: a dataset as the arrays that training reads.

It takes what is nearest: the arrays themselves if they are there, a folder of torchvision's, or torchvision's download.
ImageNet is read from a folder: ``dataset=imagenet64`` shrinks it to arrays, ``dataset=imagenet dataset.packed=true``
packs it into one file.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ssl_bench import files
from ssl_bench.config.compose import load
from ssl_bench.errors import ConfigError, RunError

if TYPE_CHECKING:
    from ssl_bench.data.arrays import ArrayDataset
    from ssl_bench.data.folder import FolderDataset


def main(arguments: Sequence[str]) -> int:
    """Writes ``<paths.data>/<dataset>/``; 0, 1 for a failed download or bad photos, 2 for bad arguments."""
    parser = argparse.ArgumentParser("ssl-bench prepare", description="Make a dataset ready for training.")
    parser.add_argument(
        "overrides", nargs="+", metavar="key=value", help="dataset=NAME, and paths.data=FOLDER if need be"
    )
    parser.add_argument(
        "--source",
        type=Path,
        help="a folder that torchvision's dataset class reads, or with ImageNet's train and val; nothing is downloaded",
    )
    parser.add_argument("--show", type=Path, metavar="FILE.png", help="also draw some images and their views")
    options = parser.parse_args(arguments)
    try:
        print(prepare(options.overrides, options.source))
        if options.show:
            from ssl_bench.data.sheet import show

            print(show(load(options.overrides), options.show))
    except ConfigError as error:
        print(f"ssl-bench: {error}", file=sys.stderr)
        return 2
    except (RunError, OSError) as error:
        print(f"ssl-bench: {error}", file=sys.stderr)
        return 1
    return 0


def prepare(overrides: Sequence[str], source: Path | None) -> str:
    """Makes the files of the dataset that ``overrides`` name, and says what there is.

    Raises:
        ConfigError: the dataset needs no preparation, or ``source`` does not have it.
        OSError: the download failed, or the folder cannot be written.
        RunError: too many photos are damaged.
    """
    config = load(overrides)
    from ssl_bench import parts as assemble
    from ssl_bench.data.arrays import ArrayDataset
    from ssl_bench.data.folder import FolderDataset

    dataset = assemble.dataset(config)
    if isinstance(dataset, FolderDataset) and dataset.packed:
        return _pack(dataset, source)
    if not isinstance(dataset, ArrayDataset):
        return f"dataset={config['choices']['dataset']} needs no preparation: {dataset.check()} images to train on"
    try:
        return f"{dataset.folder} is ready: {dataset.check()} images to train on"
    except ConfigError:
        pass  # not there yet
    if dataset.torchvision == "ImageFolder":
        _shrink(dataset, source or dataset.root / "imagenet")
        return f"{dataset.folder} is ready: {dataset.check()} images to train on"
    folder = source or dataset.root / "torchvision"
    for split in dict.fromkeys([*dataset.pretrain_splits, "train", "test"]):
        images, labels = _read(dataset.torchvision, folder, split, download=source is None)
        dataset.folder.mkdir(parents=True, exist_ok=True)
        for what, array in (("images", images), ("labels", labels)):
            files.write(dataset.folder / f"{split}_{what}.npy", lambda file, array=array: np.save(file, array))  # type: ignore[misc]
    return f"{dataset.folder} is ready: {dataset.check()} images to train on"


def _pack(dataset: "FolderDataset", source: Path | None) -> str:
    """Packs the splits that are not packed yet."""
    from ssl_bench.data.packed import pack

    for split in dataset.names:
        path = dataset.pack(split)
        if not path.with_name(f"{path.name}.npz").is_file():
            pack(dataset.source(split, source), path, dataset.resize, partial(_track, split))
    return f"{dataset.pack('train').parent} is ready: {dataset.check()} images to train on"


def _shrink(dataset: "ArrayDataset", source: Path) -> None:
    """Makes the arrays of both splits from a folder of photos."""
    from ssl_bench.data.folder import FolderDataset
    from ssl_bench.data.shrink import shrink

    size, classes = dataset.size, dataset.num_classes
    same: dict[str, Any] = {"channels": 3, "mean": [0.0], "std": [1.0], "epochs": 1, "knn_k": 1}
    source = source.resolve()  # so that it has a name
    photos = FolderDataset(source.name, root=str(source.parent), size=size, num_classes=classes, **same)
    for split in photos.names:
        shrink(photos.source(split), dataset.folder, split, dataset.size, partial(_track, split))


def _track(split: str, chunks: Iterable[list[int]]) -> Iterable[list[int]]:
    """Shows how far a split is, on a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(chunks, split, console=console, disable=not console.is_terminal)


def _read(name: str, folder: Path, split: str, download: bool) -> tuple[np.ndarray, np.ndarray]:
    """One split from torchvision: uint8 [N, H, W, C] and int64 [N]."""
    from torchvision import datasets

    choice: dict[str, Any] = {"split": split} if name == "STL10" else {"train": split == "train"}
    try:
        found = getattr(datasets, name)(str(folder), download=download, **choice)
    except RuntimeError as error:  # torchvision's answer to a missing or damaged file, and to a failed download
        if download:
            raise OSError(
                f"torchvision could not download {name}: {error}; get its files elsewhere and give --source"
            ) from error
        raise ConfigError(f"{folder} does not have torchvision's {name} ({error})") from error
    images = np.asarray(found.data, dtype=np.uint8)
    if name == "STL10":
        images = images.transpose(0, 2, 3, 1)  # stored with the channels first
    elif images.ndim == 3:
        images = images[..., None]
    labels = np.asarray(found.labels if name == "STL10" else found.targets, dtype=np.int64)
    return np.ascontiguousarray(images), labels
