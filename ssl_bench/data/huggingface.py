"""A dataset of Hugging Face on disk, ``dataset=hf``: a folder that ``save_to_disk`` of the package ``datasets`` has
written, or one of parquet files or of other files that ``load_dataset`` reads. The package finds its splits."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ssl_bench.data.folder import OwnImages
from ssl_bench.data.photos import LARGEST
from ssl_bench.data.splits import TRAIN, Listing, Row, arrange, few, find_splits
from ssl_bench.errors import ConfigError, reason, require
from ssl_bench.files import Mark, mark, open_regular

SPLIT = "split"  # a column that says the split of each row
IMAGES = ("image", "img", "images", "picture", "photo", "jpg", "jpeg", "png", "webp")  # columns, if none has images
LABELS = ("label", "labels", "cls", "class", "target", "fine_label")  # columns, if none has classes
RENAME = "save the one to train on as train, and the other one as test"


@dataclass(kw_only=True, eq=False)
class HuggingFace(OwnImages):
    """A dataset of Hugging Face on disk: a folder of ``save_to_disk``, or one that ``load_dataset`` reads.

    A column ``split`` says the split of each row.

    Args:
        path: the folder.
        image: the column of the images; None: the only one with images, or one of the names in ``IMAGES``.
        label: the column of the labels, whose values are the classes: whole numbers, text, or true and false; None: the
            only one with classes, or one of the names in ``LABELS``; no column: no classes.
    """

    key, has_files = "path", False

    path: str | None
    image: str | None = None
    label: str | None = None
    _rows: dict[str, Any] = field(default_factory=dict, init=False)  # splits with a column "image" of encoded images

    def listing(self) -> Listing:
        if find_spec("datasets") is None:
            raise ConfigError('it needs the package datasets: pip install "ssl-bench[hf]"')
        from datasets import Image

        splits, cache = _splits_on_disk(self.location, _marks(self.location))
        notes = [f"a copy is in {cache}"] if cache else []
        splits = splits if self.label == SPLIT else _by_column(splits)
        features = next(iter(splits.values())).features
        images = [name for name in features if isinstance(features[name], Image)]
        image = self._column("image", self.image, images, IMAGES, features)
        require(image is not None, "dataset.image", None, f"the column of the images, one of {few([*features])}")
        classes = [name for name in features if hasattr(features[name], "names")]
        label = self._column("label", self.label, classes, LABELS, features)
        notes += [f"dataset.label can be one of {few([*features])}"] * (label is None and len(features) > 1)
        if len({str(split.features.get(label)) for split in splits.values()}) > 1:
            raise ConfigError(f"dataset.label={label}: this column has another type or other classes in each split")
        train, tests = find_splits(splits, RENAME) or (TRAIN if TRAIN in splits else next(iter(splits)), [])
        if not tests and TRAIN not in splits and len(splits) > 1:
            raise ConfigError(f"which of the splits {few(list(splits))} is to be trained on is not clear: {RENAME}")
        listed = list[Row]()
        for name in dict.fromkeys((train, *tests, *splits)):
            rows = splits[name].select_columns([image]).cast_column(image, Image(decode=False))
            self._rows[name] = rows.rename_columns({image: "image"})
            labels = [_label(value, label) for value in splits[name][label]] if label else [None] * len(rows)
            listed += [(f"{name}/{i}", value, name) for i, value in enumerate(labels)]
        listing = arrange(listed, train, tests, notes)
        if texts := getattr(features.get(label), "names", None):
            listing.classes[:] = [texts[int(value)] for value in listing.classes]
        return listing

    @staticmethod
    def _column(key: str, given: str | None, typed: list[str], usual: Sequence[str], features: Any) -> str | None:
        """The column ``given``, else the only one with the right type, or else with a usual name; None: there is none.

        Args:
            key: ``image`` or ``label``.
            typed: the columns whose type is that of images or of classes.
            usual: names of such columns.
            features: all columns.
        """
        candidates = typed or [name for name in features if name.lower() in usual]
        valid = given in features if given else len(candidates) < 2
        require(valid, f"dataset.{key}", given, f"the column of the {key}s, one of {few(candidates or [*features])}")
        return given or next(iter(candidates), None)

    def open_image(self, name: str) -> BinaryIO:
        split, _, row = name.rpartition("/")
        try:
            value = self._rows[split][int(row)]["image"] or {"bytes": None, "path": None}
        except Exception as error:  # pyarrow raises many kinds of errors
            raise OSError(0, f"the row cannot be read: {reason(error)}") from error
        if value["bytes"]:
            return BytesIO(value["bytes"])
        if value["bytes"] is None and value["path"]:
            return open_regular(self.location / value["path"], LARGEST)
        raise OSError(0, "no image in this row")

    def stamp(self) -> dict[str, Mark | None]:
        return {str(path.relative_to(self.location)): mark for path, mark in _marks(self.location)}


def _label(value: Any, column: str | None) -> int | str | None:
    if value is None or value in (-1, "") or value != value:  # NaN
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    remedy = f"a column of whole numbers or text: {str(value)[:40]} is no class"
    require(isinstance(value, int | str), "dataset.label", column, remedy)
    return value  # type: ignore[no-any-return]


def _marks(folder: Path) -> tuple[tuple[Path, Mark], ...]:
    """The files below a folder, each with what changes when it is written again."""
    return tuple((path, mark(path.stat())) for path in sorted(folder.rglob("*")) if path.is_file())


@lru_cache(8)  # each run of a grid asks
def _splits_on_disk(folder: Path, marks: tuple[tuple[Path, Mark], ...]) -> tuple[dict[str, Any], Path | None]:
    """The splits of a dataset by name, memory-mapped, and the folder of the copy that ``datasets`` made, or None.

    ``marks`` are those of its files: another call after a change reads it again.
    """
    import datasets

    cache = None
    if any((folder / name).exists() for name in ("dataset_dict.json", "state.json")):
        opened = datasets.load_from_disk(str(folder))
    else:
        # The package finds its own copy by paths and times only. Devices and inodes do not count: they may change with
        # each mount, and a copy is large.
        written = [str(folder), *((str(path), mark[2:]) for path, mark in marks)]
        name = hashlib.sha256(repr(written).encode(errors="surrogateescape")).hexdigest()[:16]
        cache, local = Path(datasets.config.HF_DATASETS_CACHE, name), datasets.DownloadConfig(local_files_only=True)
        opened = datasets.load_dataset(str(folder), cache_dir=str(cache), download_config=local)
    opened = opened.with_format(None)  # that of torch or NumPy, with which it may be saved, has other types
    return dict(opened) if isinstance(opened, dict) else {TRAIN: opened}, cache


def _by_column(splits: dict[str, Any]) -> dict[str, Any]:
    """The splits by the column ``SPLIT``; the splits as they are if there is no such column.

    Raises:
        ConfigError: there are several splits beside it, and a value of the column is in more than one of them.
    """
    values = {name: np.array(split[SPLIT], dtype=str) for name, split in splits.items() if SPLIT in split.features}
    if len(splits) == 1 and values:
        ((name, column),) = values.items()
        return {value: splits[name].select(np.flatnonzero(column == value)) for value in np.unique(column).tolist()}
    if sum(len({*of_split}) for of_split in values.values()) > len({*np.concatenate([[], *values.values()])}):
        raise ConfigError(f"the column {SPLIT} and the splits {few(list(splits))} do not agree: remove one of them")
    return splits
