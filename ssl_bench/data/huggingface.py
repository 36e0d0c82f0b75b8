"""A dataset of Hugging Face on disk, ``dataset=hf``: a folder that ``save_to_disk`` of the package ``datasets`` has
written, or one of parquet files. Its classes and splits are found by their names, as in a folder of images."""

import contextlib
import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from ssl_bench.data.folder import is_visible
from ssl_bench.data.layout import Listing
from ssl_bench.data.own_images import OwnImages
from ssl_bench.data.photos import LARGEST, Photos
from ssl_bench.data.splits import few, find_splits, in_order, split_name
from ssl_bench.errors import ConfigError, reason, require
from ssl_bench.files import Mark, mark, open_regular

IMAGES = ("image", "img", "images", "picture", "photo", "jpg", "jpeg", "png", "webp")  # columns, if none has images
LABELS = ("label", "labels", "cls", "class", "target", "fine_label")  # columns, if none has classes
Value = int | str | None  # of a label


class StoredImages(Photos):
    """Rows of a dataset of Hugging Face, turned upright.

    Args:
        rows: its splits with an undecoded image column.
        column: that column.
        ids: (split, row) of each image.
    """

    def __init__(
        self, rows: Any, column: str, ids: Sequence[tuple[str, int]], labels: Tensor, workers: int | None
    ) -> None:
        super().__init__(labels, workers, upright=True)
        self.rows, self.column, self.ids = rows, column, ids

    def name(self, i: int) -> str:
        return "{}[{}]".format(*self.ids[i])

    def place(self, i: int) -> str:
        return str(self.ids[i][1])

    def encoded(self, i: int) -> Tensor:
        return torch.from_numpy(
            np.frombuffer(stored_bytes(self.rows, self.column, *self.ids[i]), dtype=np.uint8).copy()
        )


def stored_bytes(rows: Any, column: str, split: str, row: int) -> bytes:
    """The encoded image of a row. Raises OSError if it has none, or if it cannot be read."""
    try:
        value = rows[split][row][column]
    except Exception as error:  # pyarrow raises many kinds of errors
        raise OSError(0, f"the row cannot be read: {reason(error)}") from error
    if value and value["bytes"] is None and value["path"]:
        with open_regular(value["path"], LARGEST) as file:
            return file.read()
    if not value or not value["bytes"]:
        raise OSError(0, "no image in this row")
    return bytes(value["bytes"])


class HuggingFace(OwnImages):
    """A dataset of Hugging Face on disk: a folder of ``save_to_disk``, or of parquet files.

    Args:
        path: the folder.
        image: the column of the images; None: the only one with images.
        label: the column of the labels, whose values are the classes: whole numbers, text, or true and false; None: the
            only one with classes, or one of the names in ``LABELS``; no column: no classes.
    """

    key = "path"

    def __init__(self, path: str | None, image: str | None = None, label: str | None = None, **common: Any) -> None:
        super().__init__(**common)
        require(bool(path), "path", path, "the folder that save_to_disk has written, or one of parquet files")
        self.path, self.image, self.label = Path(str(path)), image, label

    @property
    def location(self) -> Path:
        return self.path.absolute()

    @cached_property
    def _opened(self) -> tuple[dict[str, Any], str, dict[str, list[Value]], list[str]]:
        """The splits with an undecoded image column only, the name of that column, the labels of the splits, notes."""
        with _failures_refused(self.location):
            splits, notes = _splits_on_disk(self.location, _marks(self.location))
            from datasets import Image

            features = next(iter(splits.values())).features
            readable = [name for name, feature in features.items() if _holds_images(feature)]
            images = [name for name in readable if type(features[name]).__name__ == "Image"]
            images = images or [name for name in readable if name.lower() in IMAGES]
            image = self.image or (images[0] if len(images) == 1 else "")
            of_images = f"the column of the images, one of {', '.join(readable) or 'none: no column can have any'}"
            require(image in readable, "dataset.image", self.image, of_images)
            label = self.label or self._find_label(features)
            others = [name for name in features if name != image]
            exists = label is None or label in others
            require(exists, "dataset.label", self.label, f"the column of the labels, one of {', '.join(others)}")
            if label is None and others:
                notes = [*notes, f"dataset.label can be one of {few(others)}"]
            if len({str(split.features.get(label)) for split in splits.values()}) > 1:
                raise ConfigError(f"dataset.label={label}: this column has another type or other classes in each split")
            self._names = list(getattr(features.get(label), "names", None) or [])
            rows = {
                n: split.select_columns([image]).cast_column(image, Image(decode=False)) for n, split in splits.items()
            }
            return rows, image, {n: _labels(split, label) for n, split in splits.items()}, notes

    def _find_label(self, features: Any) -> str | None:
        """The column of the labels, None without one. Raises InvalidValue if there are several."""
        columns = [name for name, feature in features.items() if type(feature).__name__ == "ClassLabel"]
        columns = columns or [name for name in features if name.lower() in LABELS]
        require(len(columns) < 2, "dataset.label", None, f"the column of the labels, one of {', '.join(columns)}")
        return columns[0] if columns else None

    def listing(self) -> Listing:
        _, _, labels, notes = self._opened
        rename = "save the one to train on as train, and the other one as test"
        try:
            splits = find_splits(labels, rename)
            if splits is None and "train" not in labels and len(labels) > 1:
                raise ConfigError(f"which of the splits {few(list(labels))} is to be trained on is not clear: {rename}")
        except ConfigError as error:
            raise ConfigError(f"dataset.path={self.path}: {error}") from error
        train, tests = splits or ("train" if "train" in labels else next(iter(labels)), [])
        without = sum(value is None for value in labels[train])
        if 0 < without < len(labels[train]):
            raise ConfigError(
                f"dataset.path={self.path}: {without} of {len(labels[train])} rows of {train} have no label: remove "
                "them, or set dataset.label to another column"
            )
        # A test split that hides its labels is not used.
        test = next((name for name in tests if labels[name] and (None in labels[name]) == bool(without)), None)
        used = [train, test] if test else [train]
        values = sorted({value for value in labels[train] if value is not None})  # type: ignore[type-var]
        classes = in_order(str(value) for value in values) if values and isinstance(values[0], str) else values
        if unknown := [value for value in labels[test or train] if value is not None and value not in classes]:
            raise ConfigError(
                f"dataset.path={self.path}: {test} has the class {unknown[0]}, which {train} does not have: remove its "
                "rows, or set dataset.label to another column"
            )
        names = [f"{split}/{i}" for split in used for i in range(len(labels[split]))]
        if not labels[train]:
            raise ConfigError(f"dataset.path={self.path}: it has no rows")
        number = {value: i for i, value in enumerate(classes)} | {None: -1}
        is_test = [name.startswith(f"{test}/") for name in names] if test else None
        unused = [f"not used: {len(labels[name])} in {name}" for name in labels if name not in used]
        numbers = [number[value] for split in used for value in labels[split]]
        texts: dict[Value, str] = dict(enumerate(self._names))
        class_names = [str(texts.get(value, value)) for value in classes]
        return Listing(names, numbers, is_test, class_names, [*notes, *unused], test or "")

    def open_image(self, listing: Listing, i: int) -> BinaryIO:
        rows, column, *_ = self._opened
        split, _, row = listing.names[i].partition("/")
        return BytesIO(stored_bytes(rows, column, split, int(row)))

    def stamp(self, listing: Listing) -> list[Any]:
        return [[str(path.relative_to(self.location)), mark] for path, mark in _marks(self.location)]

    def photos(self, listing: Listing, ids: Sequence[int]) -> Photos:
        rows, column, *_ = self._opened
        pairs = [(name.partition("/")[0], int(name.partition("/")[2])) for name in (listing.names[i] for i in ids)]
        return StoredImages(rows, column, pairs, torch.tensor([listing.labels[i] for i in ids]), self.workers)


def _holds_images(feature: Any) -> bool:
    """Whether a column may have images: encoded, or their paths."""
    kind = type(feature).__name__
    if isinstance(feature, dict):  # as pandas has written an image
        return feature.keys() == {"bytes", "path"}
    return kind == "Image" or (
        kind == "Value" and feature.dtype in ("binary", "large_binary", "string", "large_string")
    )


def _labels(split: Any, column: str | None) -> list[Value]:
    """The class of each row, None for a row without one."""
    return [None] * len(split) if column is None else [_label(value, column) for value in split[column]]


def _label(value: Any, column: str) -> Value:
    if value is None or value in (-1, "") or value != value:  # NaN
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int | str):
        return value
    raise ConfigError(
        f"dataset.label={column}: {str(value)[:40]} is no class: set dataset.label to a column of whole numbers or text"
    )


@contextlib.contextmanager
def _failures_refused(folder: Path) -> Iterator[None]:
    """Refuse a folder in which the package ``datasets`` fails; it and pyarrow raise many kinds of errors."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        why = f"no dataset of Hugging Face can be read there ({reason(error)})"
        raise ConfigError(f"dataset.path={folder}: {why}") from error


def _marks(folder: Path) -> tuple[tuple[Path, Mark], ...]:
    """The files below a folder, none if there is no folder, with what changes when they are written again."""
    return tuple((path, mark(path.stat())) for path in sorted(folder.rglob("*")) if path.is_file())


@lru_cache(8)  # each run of a grid asks
def _splits_on_disk(folder: Path, marks: tuple[tuple[Path, Mark], ...]) -> tuple[dict[str, Any], list[str]]:
    """The splits of a dataset by name, memory-mapped, and notes for the user; ``marks`` are those of its files.

    Raises:
        ConfigError: the package ``datasets`` is missing, or the folder is no dataset, or has several.
    """
    try:
        import datasets
    except ImportError as error:
        raise ConfigError('dataset=hf needs the package datasets: pip install "ssl-bench[hf]"') from error
    require(folder.is_dir(), "dataset.path", str(folder), "a folder: there is none of that name")
    with _failures_refused(folder):
        paths = sorted(path.relative_to(folder) for path in folder.rglob("*.parquet"))
        parquet = [path for path in paths if all(map(is_visible, path.parts))]
        notes = [f"a copy of the parquet files is in {datasets.config.HF_DATASETS_CACHE}"] if parquet else []
        if parquet:
            data = {name: [str(folder / path) for path in paths] for name, paths in _parquet_splits(parquet).items()}
            # The package finds its own copy by paths and times only. Devices and inodes do not count: they may change
            # with each mount, and a copy is large.
            written = [(str(path.relative_to(folder)), mark[2:]) for path, mark in marks]
            name = hashlib.sha256(repr(written).encode(errors="surrogateescape")).hexdigest()[:16]
            opened = datasets.load_dataset("parquet", name, data_files=data)
        else:
            opened = datasets.load_from_disk(str(folder))
        opened = opened.with_format(None)  # that of torch or NumPy, with which it may be saved, has other types
        return dict(opened) if isinstance(opened, dict) else {"train": opened}, notes


def _parquet_splits(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Paths by their split, which is in the name of the file or of a folder: train-0-of-2.parquet, test/0.parquet.

    Raises:
        ConfigError: the names differ in more than the split and the numbers of files: these are several datasets.
    """
    splits: dict[str, list[Path]] = {}
    datasets: dict[str, Path] = {}
    for path in paths:
        *folders, name = ([word for word in re.split(r"[\W_]+", part) if word] for part in path.with_suffix("").parts)
        holder = next((words for words in (name, *reversed(folders)) if any(map(split_name, words))), [])
        split = next(filter(split_name, holder), "")
        # The key leaves out numbers of files, 00000-of-00002, and words with a digit after the split, such as a hash.
        start = name.index(split) if holder is name else 0
        number = re.compile(r".*\d|of$" if holder is name else r"\d+$|of$")
        rest = [word for i, word in enumerate(name) if i < start or not number.match(word)]
        key = " ".join(word for words in (*folders, rest) for word in words if word is not split)
        splits.setdefault(split or "train", []).append(path)
        datasets.setdefault(key, path)
    if len(datasets) > 1:
        several = few([str(path) for path in datasets.values()])
        raise ConfigError(
            f"{several} are parquet files of {len(datasets)} datasets: set dataset.path to a folder with the files of "
            "one, named as train-0.parquet, train-1.parquet, test-0.parquet"
        )
    return splits
