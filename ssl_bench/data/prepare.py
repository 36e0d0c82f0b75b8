"""``ssl-bench prepare dataset=cifar10``: a dataset as the arrays that training reads.

It takes what is nearest: the arrays themselves if they are there, a folder of torchvision's, or torchvision's download.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ssl_bench import files
from ssl_bench.config import load
from ssl_bench.errors import ConfigError


def main(arguments: Sequence[str]) -> int:
    """Writes ``<paths.data>/<dataset>/``; 0, 1 for a failed download, 2 for bad arguments or a bad source."""
    parser = argparse.ArgumentParser("ssl-bench prepare", description="Make a dataset ready for training.")
    parser.add_argument(
        "overrides", nargs="+", metavar="key=value", help="dataset=NAME, and paths.data=FOLDER if need be"
    )
    parser.add_argument(
        "--source", type=Path, help="a folder that torchvision's dataset class reads; nothing is downloaded"
    )
    options = parser.parse_args(arguments)
    try:
        print(prepare(options.overrides, options.source))
    except ConfigError as error:
        print(f"ssl-bench: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"ssl-bench: {error}", file=sys.stderr)
        return 1
    return 0


def prepare(overrides: Sequence[str], source: Path | None) -> str:
    """Makes the arrays of the dataset that ``overrides`` name, and says what there is.

    Raises:
        ConfigError: the dataset needs no preparation, or ``source`` does not have it.
        OSError: the download failed, or the folder cannot be written.
    """
    config = load(overrides)
    from ssl_bench import assemble
    from ssl_bench.data.arrays import ArrayDataset

    dataset = assemble.dataset(config)
    if not isinstance(dataset, ArrayDataset):
        return f"dataset={config['choices']['dataset']} needs no preparation: {dataset.check()} images to train on"
    try:
        return f"{dataset.folder} is ready: {dataset.check()} images to train on"
    except ConfigError:
        pass  # not there yet
    folder = source or dataset.root / "torchvision"
    for split in dict.fromkeys([*dataset.pretrain_splits, "train", "test"]):
        images, labels = _read(dataset.torchvision, folder, split, download=source is None)
        dataset.folder.mkdir(parents=True, exist_ok=True)
        for what, array in (("images", images), ("labels", labels)):
            files.write(dataset.folder / f"{split}_{what}.npy", lambda file, array=array: np.save(file, array))  # type: ignore[misc]
    return f"{dataset.folder} is ready: {dataset.check()} images to train on"


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
