"""A dataset of Hugging Face on disk, ``dataset=hf``: what ``save_to_disk`` of the package ``datasets`` has written, or
a folder of parquet files. Its classes and splits are found as those of a folder of images."""

from collections.abc import Sequence
from functools import cache, cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from ssl_bench.data.own import TESTS, Listing, OwnImages
from ssl_bench.data.photos import Photos
from ssl_bench.errors import ConfigError, require
from ssl_bench.files import open_regular


class StoredImages(Photos):
    """Rows of a dataset of Hugging Face, turned upright.

    Args:
        rows: its splits with an undecoded image column.
        column: that column.
        ids: (split, row) of each image.
        labels: int64 [N].
        workers: threads that decode.
    """

    upright = True

    def __init__(
        self, rows: Any, column: str, ids: Sequence[tuple[str, int]], labels: Tensor, workers: int | None
    ) -> None:
        super().__init__(labels, workers)
        self.rows, self.column, self.ids = rows, column, ids

    def name(self, i: int) -> str:
        return "{}[{}]".format(*self.ids[i])

    def encoded(self, i: int) -> Tensor:
        return torch.from_numpy(
            np.frombuffer(stored_bytes(self.rows, self.column, *self.ids[i]), dtype=np.uint8).copy()
        )


def stored_bytes(rows: Any, column: str, split: str, row: int) -> bytes:
    """The encoded image of a row. Raises OSError if it has none."""
    value = rows[split][row][column]
    if value and value["bytes"] is None and value["path"]:
        with open_regular(value["path"]) as file:
            return file.read()
    if not value or not value["bytes"]:
        raise OSError(0, "no image in this row")
    return bytes(value["bytes"])


class HuggingFace(OwnImages):
    """A dataset of Hugging Face on disk: a folder of ``save_to_disk``, or of parquet files.

    Args:
        path: the folder.
        image: the column of the images; None: the only one with images.
        label: the column of the labels; None: the only one with classes, or one named label; no column: no classes.
    """

    key = "path"

    def __init__(self, path: str | None, image: str | None = None, label: str | None = None, **common: Any) -> None:
        super().__init__(**common)
        require(bool(path), "path", path, "the folder that save_to_disk has written, or one of parquet files")
        self.path, self.image, self.label = Path(str(path)), image, label

    @property
    def place(self) -> Path:
        return self.path.absolute()

    @cached_property
    def _opened(self) -> tuple[dict[str, Any], str, dict[str, list[int]]]:
        """The splits with an undecoded image column only, the name of that column, and the labels of the splits."""
        splits = _splits_on_disk(self.place)
        from datasets import Image

        features = next(iter(splits.values())).features
        kinds = {name: type(feature).__name__ for name, feature in features.items()}
        images = [name for name, kind in kinds.items() if kind == "Image"] or [
            n for n in ("image", "img") if n in kinds
        ]
        labels = [name for name, kind in kinds.items() if kind == "ClassLabel"]
        labels = labels or [name for name in ("label", "labels") if name in kinds]
        image = self.image or (images[0] if len(images) == 1 else "")
        require(image in kinds, "dataset.image", self.image, f"the column of the images, one of {', '.join(kinds)}")
        label = self.label or (labels[0] if len(labels) == 1 else None)
        known = label in kinds if self.label else len(labels) < 2
        require(known, "dataset.label", self.label, f"the column of the labels, one of {', '.join(labels or kinds)}")
        rows = {n: split.select_columns([image]).cast_column(image, Image(decode=False)) for n, split in splits.items()}
        return rows, image, {name: _labels(split, label) for name, split in splits.items()}

    def listing(self) -> Listing:
        _, _, labels = self._opened
        train = "train" if "train" in labels else next(iter(labels))
        labelled = min(labels[train], default=-1) >= 0
        # A test split whose labels are secret is none here.
        fitting = [name for name in TESTS if name in labels and (min(labels[name], default=-1) >= 0) == labelled]
        test = next((name for name in fitting if name != train), None)
        used = [train, test] if test else [train]
        names = [f"{split}/{i}" for split in used for i in range(len(labels[split]))]
        every = [value for split in used for value in labels[split]]
        if not names:
            raise ConfigError(f"dataset.path={self.path}: it has no rows")
        is_test = [name.startswith(f"{test}/") for name in names] if test else None
        return Listing(names, every if labelled else [-1] * len(every), is_test, max(every) + 1 if labelled else 0)

    def open_image(self, listing: Listing, i: int) -> BinaryIO:
        rows, column, _ = self._opened
        split, _, row = listing.names[i].partition("/")
        return BytesIO(stored_bytes(rows, column, split, int(row)))

    def stamp(self, listing: Listing) -> list[Any]:
        found = sorted(path for path in self.place.rglob("*") if path.is_file())
        return [[str(path.relative_to(self.place)), path.stat().st_size, path.stat().st_mtime_ns] for path in found]

    def photos(self, listing: Listing, ids: Sequence[int]) -> Photos:
        rows, column, _ = self._opened
        pairs = [(name.partition("/")[0], int(name.partition("/")[2])) for name in (listing.names[i] for i in ids)]
        return StoredImages(rows, column, pairs, torch.tensor([listing.labels[i] for i in ids]), self.workers)


def _labels(split: Any, column: str | None) -> list[int]:
    if column is None:
        return [-1] * len(split)
    values = split[column]
    if not all(isinstance(value, int) for value in values):
        raise ConfigError(f"dataset.label={column}: this column has other values than whole numbers: set another one")
    return list(values)


@cache
def _splits_on_disk(folder: Path) -> dict[str, Any]:
    """The splits of a dataset by name, memory-mapped.

    Raises:
        ConfigError: the package ``datasets`` is missing, or the folder is no dataset.
    """
    try:
        import datasets
    except ImportError as error:
        raise ConfigError('dataset=hf needs the package datasets: pip install "ssl-bench[hf]"') from error
    require(folder.is_dir(), "dataset.path", str(folder), "a folder: there is none of that name")
    parquet = sorted(folder.rglob("*.parquet"))
    try:
        if parquet:  # train-00000-of-00001.parquet, or train/0000.parquet
            data: dict[str, list[str]] = {}
            for path in parquet:
                words = [*path.name.replace(".", "-").split("-"), path.parent.name]
                split = next((name for name in ("train", *TESTS) if name in words), "train")
                data.setdefault(split, []).append(str(path))
            opened = datasets.load_dataset("parquet", data_files=data)
        else:
            opened = datasets.load_from_disk(str(folder))
    except (FileNotFoundError, ValueError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"dataset.path={folder}: no dataset of Hugging Face can be read there ({reason})") from error
    return dict(opened) if isinstance(opened, dict) else {"train": opened}
