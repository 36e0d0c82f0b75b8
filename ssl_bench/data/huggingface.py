"""A dataset of Hugging Face on disk, ``dataset=hf``: a folder that ``save_to_disk`` of the package ``datasets`` has
written, or one of parquet files or of other files that ``load_dataset`` reads. The package finds its splits."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from ssl_bench.data.own_images import Listing, OwnImages
from ssl_bench.data.photos import LARGEST, Photos
from ssl_bench.data.splits import few, find_splits, in_order
from ssl_bench.errors import ConfigError, InvalidValue, reason, require
from ssl_bench.files import Mark, mark, open_regular

SPLIT = "split"  # a column that says the split of each row
IMAGES = ("image", "img", "images", "picture", "photo", "jpg", "jpeg", "png", "webp")  # columns, if none has images
LABELS = ("label", "labels", "cls", "class", "target", "fine_label")  # columns, if none has classes
OTHER_COLUMN = "remove its rows, or set dataset.label to another column"
Value = int | str | None  # of a label


class StoredImages(Photos):
    """Rows of a dataset of Hugging Face, turned upright.

    Args:
        read: returns the encoded image of a row by its name; an OSError if it cannot be read.
        names: of the rows, ``<split>/<row>``.
    """

    def __init__(self, read: Callable[[str], bytes], names: Sequence[str], labels: Tensor, workers: int | None) -> None:
        super().__init__(labels, workers, upright=True)
        self.read, self.names = read, names

    def name(self, i: int) -> str:
        return self.names[i]

    def place(self, i: int) -> str:
        return self.names[i].rpartition("/")[2]

    def encoded(self, i: int) -> Tensor:
        return torch.from_numpy(np.frombuffer(self.read(self.names[i]), dtype=np.uint8).copy())


class HuggingFace(OwnImages):
    """A dataset of Hugging Face on disk: a folder of ``save_to_disk``, or one that ``load_dataset`` reads.

    A column ``split`` says the split of each row.

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
    def _opened(self) -> tuple[dict[str, Any], str, dict[str, list[Value]], list[str], list[str]]:
        """The splits with an undecoded image column only, the name of that column, the labels of the splits, the names
        of the classes, and notes.
        """
        from datasets import Image

        splits, notes = _splits_on_disk(self.location, _marks(self.location))
        splits = splits if self.label == SPLIT else _by_column(splits)
        features = next(iter(splits.values())).features
        readable = [name for name, feature in features.items() if _holds_images(feature)]
        images = [name for name in readable if isinstance(features[name], Image)]
        image = self._column("image", self.image, images or [name for name in readable if name.lower() in IMAGES])
        of_images = f"the column of the images, one of {', '.join(readable) or 'none: no column can have any'}"
        require(image in readable, "dataset.image", self.image, of_images)
        classes = [name for name, feature in features.items() if hasattr(feature, "names")]
        label = self._column("label", self.label, classes or [name for name in features if name.lower() in LABELS])
        others = [name for name in features if name != image]
        of_labels = f"the column of the labels, one of {', '.join(others)}"
        require(label is None or label in others, "dataset.label", self.label, of_labels)
        if label is None and others:
            notes = [*notes, f"dataset.label can be one of {few(others)}"]
        if len({str(split.features.get(label)) for split in splits.values()}) > 1:
            raise ConfigError(f"dataset.label={label}: this column has another type or other classes in each split")
        rows, labels = dict[str, Any](), dict[str, list[Value]]()
        for name, split in splits.items():
            rows[name] = split.select_columns([image]).cast_column(image, Image(decode=False))
            values = split[label] if label else [None] * len(split)
            labels[name] = [_label(value, str(label)) for value in values]
        return rows, str(image), labels, list(getattr(features.get(label), "names", None) or []), notes

    @staticmethod
    def _column(key: str, given: str | None, found: list[str]) -> str | None:
        """The column that is given, else the only one that was found, or None."""
        several = f"the column of the {key}s, one of {', '.join(found)}"
        require(given is not None or len(found) < 2, f"dataset.{key}", None, several)
        return given or next(iter(found), None)

    def listing(self) -> Listing:
        require(self.location.is_dir(), "dataset.path", str(self.path), "a folder: there is none of that name")
        with _failures_refused(self.location):
            _, _, labels, names_of_classes, notes = self._opened
            rename = "save the one to train on as train, and the other one as test"
            splits = find_splits(labels, rename)
            if splits is None and "train" not in labels and len(labels) > 1:
                raise ConfigError(f"which of the splits {few(list(labels))} is to be trained on is not clear: {rename}")
            train, tests = splits or ("train" if "train" in labels else next(iter(labels)), [])
            without, count = labels[train].count(None), len(labels[train])
            if not count:
                raise ConfigError(f"{train} has no rows")
            if 0 < without < count:
                raise ConfigError(f"{without} of {count} rows of {train} have no label: {OTHER_COLUMN}")
            # A test split that hides its labels is not used.
            test = next((name for name in tests if labels[name] and (None in labels[name]) == bool(without)), None)
            used = [train, test] if test else [train]
            values = sorted({value for value in labels[train] if value is not None})  # type: ignore[type-var]
            classes = in_order(str(value) for value in values) if values and isinstance(values[0], str) else values
            number: dict[Any, int] = {value: i for i, value in enumerate(classes)} | {None: -1}
            if unknown := [value for value in labels[test or train] if value not in number]:
                raise ConfigError(f"{test} has the class {unknown[0]}, which {train} does not have: {OTHER_COLUMN}")
        names = [f"{split}/{i}" for split in used for i in range(len(labels[split]))]
        is_test = [split == test for split in used for _ in labels[split]] if test else None
        unused = [f"not used: {len(labels[name])} in {name}" for name in labels if name not in used]
        numbers = [number[value] for split in used for value in labels[split]]
        texts: dict[Value, str] = dict(enumerate(names_of_classes))
        class_names = [str(texts.get(value, value)) for value in classes]
        return Listing(names, numbers, is_test, class_names, [*notes, *unused], test or "")

    def open_image(self, listing: Listing, i: int) -> BinaryIO:
        return BytesIO(self.read(listing.names[i]))

    def read(self, name: str) -> bytes:
        """The encoded image of the row ``<split>/<row>``. Raises OSError if it has none, or if it cannot be read."""
        rows, column, *_ = self._opened
        split, _, row = name.rpartition("/")
        try:
            value = rows[split][int(row)][column]
        except Exception as error:  # pyarrow raises many kinds of errors
            raise OSError(0, f"the row cannot be read: {reason(error)}") from error
        if value and value["bytes"] is None and value["path"]:
            try:
                with open_regular(self.location / value["path"], LARGEST) as file:
                    return file.read()
            except ValueError as error:  # a path with a null byte
                raise OSError(0, f"the path of the image is none: {reason(error)}") from error
        if not value or not value["bytes"]:
            raise OSError(0, "no image in this row")
        return bytes(value["bytes"])

    def stamp(self, listing: Listing) -> dict[str, Mark | None]:
        return {str(path.relative_to(self.location)): mark for path, mark in _marks(self.location)}

    def photos(self, listing: Listing, ids: Sequence[int]) -> Photos:
        names, labels = [listing.names[i] for i in ids], torch.tensor([listing.labels[i] for i in ids])
        return StoredImages(self.read, names, labels, self.workers)


def _holds_images(feature: Any) -> bool:
    """Whether a column may have images: encoded, or their paths."""
    kind = type(feature).__name__
    if isinstance(feature, dict):  # as pandas has written an image
        return feature.keys() == {"bytes", "path"}
    return kind == "Image" or (
        kind == "Value" and feature.dtype in ("binary", "large_binary", "string", "large_string")
    )


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
    except InvalidValue:
        raise
    except ConfigError as error:
        raise ConfigError(f"dataset.path={folder}: {error}") from error
    except ImportError as error:
        raise ConfigError('dataset=hf needs the package datasets: pip install "ssl-bench[hf]"') from error
    except Exception as error:
        why = f"no dataset of Hugging Face can be read there ({reason(error)})"
        raise ConfigError(f"dataset.path={folder}: {why}") from error


def _marks(folder: Path) -> tuple[tuple[Path, Mark], ...]:
    """The files below a folder, none if there is no folder, with what changes when they are written again."""
    return tuple((path, mark(path.stat())) for path in sorted(folder.rglob("*")) if path.is_file())


@lru_cache(8)  # each run of a grid asks
def _splits_on_disk(folder: Path, marks: tuple[tuple[Path, Mark], ...]) -> tuple[dict[str, Any], list[str]]:
    """The splits of a dataset by name, memory-mapped, and notes for the user; ``marks`` are those of its files."""
    import datasets

    notes = []
    if any((folder / name).exists() for name in ("dataset_dict.json", "state.json")):
        opened = datasets.load_from_disk(str(folder))
    else:
        # The package finds its own copy by paths and times only. Devices and inodes do not count: they may change with
        # each mount, and a copy is large.
        written = [str(folder), *((str(path), mark[2:]) for path, mark in marks)]
        name = hashlib.sha256(repr(written).encode(errors="surrogateescape")).hexdigest()[:16]
        cache, local = Path(datasets.config.HF_DATASETS_CACHE, name), datasets.DownloadConfig(local_files_only=True)
        builder = datasets.load_dataset_builder(str(folder), cache_dir=str(cache), download_config=local)
        builder.download_and_prepare(download_config=local)
        opened, read = (
            builder.as_dataset(),
            {Path(file) for split in builder.config.data_files.values() for file in split},
        )
        ends = {path.suffix for path in read}
        unread = [str(path.relative_to(folder)) for path, _ in marks if path.suffix in ends and path not in read]
        notes = [f"a copy is in {cache}", *([f"not used: {few(unread)}"] if unread else [])]
    opened = opened.with_format(None)  # that of torch or NumPy, with which it may be saved, has other types
    return dict(opened) if isinstance(opened, dict) else {"train": opened}, notes


def _by_column(splits: dict[str, Any]) -> dict[str, Any]:
    """The splits that the column ``SPLIT`` names, if there is one.

    Raises:
        ConfigError: there are several splits beside it, and a value of the column is in more than one of them.
    """
    values: dict[str, list[str]] = {}
    for name, split in splits.items():
        if SPLIT in split.features:
            texts = dict(enumerate(getattr(split.features[SPLIT], "names", [])))
            values[name] = [str(texts.get(value, value)) for value in split[SPLIT]]
    if len(splits) == 1 and values:
        column = np.array(values[name])
        return {value: split.select(np.flatnonzero(column == value)) for value in sorted({*column.tolist()})}
    if sum(len({*of_split}) for of_split in values.values()) > len(set().union(*values.values())):
        raise ConfigError(f"the column {SPLIT} and the splits {few(list(splits))} do not agree: remove one of them")
    return splits
