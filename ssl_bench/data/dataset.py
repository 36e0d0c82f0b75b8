"""The interface of a dataset: its splits, the properties of its images, and the tasks that it is evaluated on."""

import contextlib
import hashlib
import json
import os
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta

from ssl_bench import files
from ssl_bench.config.ranges import Count
from ssl_bench.data.source import Chosen, Source, stratified
from ssl_bench.errors import ConfigError, require

Result = TypeVar("Result", bound=Mapping[str, Any])
PIECE = 4096  # bytes of a file that are read at once for its hash
PIECES = 1024  # of all files together
DIGITS = 10
MOST_NEIGHBOURS = 200
VERSION = 9  # of the results in the cache folder: those of another version are not read
SETTLED = 60  # seconds: a file may change once more without another time or size so soon after a change


class MissingData(ConfigError):
    """Files of a dataset are missing."""


@dataclass(kw_only=True, eq=False)
class Dataset(ABC):
    """Base class: the splits of a dataset and the properties of its images.

    Five arguments, ``train_images`` to ``least_labels``, are for other parts of the configuration; the
    dataset itself does not use them.

    Args:
        root: folder of all datasets (``paths.data``).
        size: height and width of the images.
        channels: number of channels of an image.
        num_classes: labels are 0 .. num_classes - 1.
        mean, std: of the values of each channel, in [0, 1]. The channels after the last of these numbers must be
            constant over the image, and are not normalised.
        train_images: images in one epoch of pre-training, for cost estimates without the files.
        epochs: default length of a training.
        knn_k: default number of neighbours of the kNN evaluator.
        labelled_images: number of images that classifiers are trained on; None: ``train_images``.
        least_labels: training images of the smallest class; None: classes are of about one size.
        content: hash of the files that hold the images, checked when they are opened; None: it is not checked.
        hashes: compute ``content`` from all bytes of the files, not from a part of them.

    Attributes:
        one_label: whether a label is the number of one class, and not the count of each.
        has_pixels: whether all images have one size, even those of which evaluation takes the centre.
        has_images: whether there is anything to train a network on, or to evaluate it on.
        dtype: of the stored values. uint8 is divided by 255 before ``mean`` is subtracted; other types are not.
        config_key: the key of the configuration that says where the files are.

    Raises:
        InvalidValue: ``mean`` and ``std`` do not fit each other or the channels.
    """

    one_label = True
    has_pixels = False
    has_images = True
    dtype = "uint8"
    config_key = "paths.data"

    root: Path
    size: Count
    channels: Count
    num_classes: Annotated[int, Meta(ge=0)]
    mean: Sequence[float]
    std: Sequence[float]
    train_images: Count | None = None
    epochs: Count | None = None
    knn_k: Count | None = None
    labelled_images: int | None = None
    least_labels: int | None = None
    content: str | None = None
    hashes: bool = False

    def __post_init__(self) -> None:
        fits = f"at most {self.channels} numbers, one per channel from the first on"
        require(len(self.mean) <= self.channels, "mean", self.mean, fits)
        require(len(self.std) == len(self.mean), "std", self.std, f"as many numbers as mean has ({len(self.mean)})")
        self.root = Path(self.root)
        self.eval_view: dict[str, Any] = {}  # further arguments of EvalView, for images of many sizes

    @abstractmethod
    def check(self) -> int:
        """Count the images to pre-train on, from the headers of the files only.

        Raises:
            ConfigError: a file is missing; the message names the command that makes it.
        """

    def files(self) -> Sequence[Path]:
        """The files that hold the images, all below ``root``; none if the package makes the images.

        Raises:
            ConfigError: they cannot be listed.
        """
        return ()

    def settings_of_images(self) -> dict[str, Any]:
        """The arguments of the constructor that depend on the images, such as their number, with their values.

        Raises:
            ConfigError: there are no images, or they cannot be read.
        """
        count = self.check()
        return {"content": self._content, "train_images": count}

    @cached_property
    def _content(self) -> str:
        return self.hash_of_files()

    def hash_of_files(self) -> str:
        """Raises OSError if one cannot be read."""
        return content_of(self.files(), self.root, self.hashes)

    def check_content(self) -> None:
        """Refuse files whose hash is not ``content``; called when they are opened.

        Raises:
            ConfigError: the files have another hash, or cannot be read.
        """
        if self.content is not None and self._content != self.content:
            changed = f"have changed since this run began (hash {self._content}, not {self.content})"
            remedy = f"set {self.config_key} to a folder with the unchanged images"
            raise ConfigError(f"dataset: the images in {self.root} {changed}: {remedy}")

    def pretrain(self) -> Source:
        """Open the images to pre-train on."""
        return self.split("train")

    def split(self, name: str) -> Source:
        """Open the labelled ``train`` or ``test`` split, for evaluation."""
        raise NotImplementedError

    def class_names(self) -> list[str]:
        """The names of the classes in the order of their labels; an empty list if the files do not name them."""
        return []

    def warnings(self) -> list[str]:
        """Sentences about images that make results doubtful, such as copies; they are recorded beside the results."""
        return []

    def probes(self) -> "dict[str, Probe]":
        """The classification tasks that a network is evaluated on, by their names in the metrics.

        Metrics of the task ``digit20`` are called ``linear/digit20/top1``, and those of the task "" ``linear/top1``.
        """
        return {"": Probe(self.split("train"), self.split("test"), self.num_classes)}


@dataclass(kw_only=True, eq=False)
class PhotoDataset(Dataset):
    """Base class of datasets of photos of any size. Views are crops of the photos; evaluation uses their centres.

    Args:
        resize: length of a photo's short side in evaluation, before its centre of ``size`` x ``size`` is cut out.
        interpolation: of that resize.
        workers: threads that decode; None shares the CPU cores among the processes of this machine.
    """

    resize: int = 256
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    workers: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.resize >= self.size, "resize", self.resize, f"dataset.size ({self.size}) or more")
        require(self.channels == 3, "channels", self.channels, "3")
        self.eval_view = {"resize": self.resize, "size": self.size, "interpolation": self.interpolation}


@dataclass(frozen=True)
class Probe:
    """One classification task: the labelled splits to train and test a classifier on, and the number of classes.

    Attributes:
        train: what the classifier is trained on.
        test: what it is tested on.
        num_classes: at least 2.
        choose: what settings are chosen by; None: a part of ``train``.
    """

    train: Source
    test: Source
    num_classes: int
    choose: Source | None = None


class Share:
    """A dataset with a share of another one's training images, and all of its test images.

    The share is the same in every run; a smaller share is a part of a larger one.

    Args:
        whole: the other data set.
        share: in (0, 1), of each class, rounded, at least one image.
    """

    def __init__(self, whole: Dataset, share: float) -> None:
        self.whole, self.share = whole, share

    def _part(self, source: Source) -> Chosen:
        return Chosen(source, stratified(source.labels, self.share, 0))

    def check(self) -> int:
        self.whole.check()
        return len(self.pretrain())

    def settings_of_images(self) -> dict[str, Any]:
        settings, images = self.whole.settings_of_images(), self.pretrain()
        counts = counts_of(images.labels.tolist(), settings["num_classes"]) if "knn_k" in settings else {}
        return settings | {"train_images": len(images)} | counts

    def pretrain(self) -> Source:
        return self._part(self.whole.pretrain())

    def split(self, name: str) -> Source:
        source = self.whole.split(name)
        return self._part(source) if name == "train" else source

    def probes(self) -> dict[str, Probe]:
        return {name: replace(probe, train=self._part(probe.train)) for name, probe in self.whole.probes().items()}

    def __getattr__(self, name: str) -> Any:
        """All other attributes, such as ``class_names``, are those of the whole data set."""
        if name == "whole":
            raise AttributeError(name)
        return getattr(self.whole, name)


def counts_of(labels: Sequence[int], classes: int) -> dict[str, Any]:
    """The arguments of a dataset that follow from the labels of its training images and the number of its classes."""
    count, of_class = len(labels), Counter(labels)
    return {
        "num_classes": classes,
        "train_images": count,
        "least_labels": min(map(of_class.__getitem__, range(classes)), default=None),
        "knn_k": max(1, min(MOST_NEIGHBOURS, count // 50)),
    }


def content_of(paths: Sequence[Path], root: Path, whole: bool) -> str:
    """Hash the names of all files, and some of their bytes, in tens of milliseconds.

    At most 1,024 files are read: the first, the last, and others at equal distances in the list. The hash has the size
    of each of them, and pieces of 4 KiB at equal distances from the start to the end of the file: two pieces, or more
    if the files are few, 1,024 of all files together. A file that is not longer than its pieces is read as a whole.

    Args:
        paths: of the files, in a fixed order.
        root: folder; the hash has the paths relative to it.
        whole: hash all bytes of all files instead.

    Raises:
        OSError: a file cannot be read.
    """
    digest = hashlib.sha256("\0".join(os.path.relpath(path, root) for path in paths).encode(errors="surrogateescape"))
    chosen = [paths[i] for i in _equally_spaced(len(paths), len(paths) if whole else PIECES)]
    for path in chosen:
        with files.open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(b"\0%d\0" % size)
            count = max(2, PIECES // len(chosen))
            if whole or size <= count * PIECE:
                digest.update(hashlib.file_digest(file, "sha256").digest())  # type: ignore[arg-type]
                continue
            for start in _equally_spaced(size - PIECE + 1, count):
                digest.update(os.pread(file.fileno(), PIECE, start))
    return digest.hexdigest()[:DIGITS]


def _equally_spaced(length: int, count: int) -> list[int]:
    """At most ``count`` of the numbers from 0 to ``length`` - 1, equally spaced, with the first and the last."""
    if length <= count:
        return list(range(length))
    return [i * (length - 1) // (count - 1) for i in range(count)]


def cached(key: Any, find: Callable[[], Result], kind: type[Result], newest: int = 0) -> Result:
    """The result of reading files, from the cache folder if it was computed before.

    Args:
        key: plain values; a result in the cache is used only if it was written under an equal key.
        find: computes the result, which has plain values.
        kind: the TypedDict of the result; a file in the cache that does not fit it is not used.
        newest: time of the last change of any of the files, in nanoseconds since 1970. Soon after a change the cache is
            neither read nor written.
    """
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    text = json.dumps([VERSION, key]).encode(errors="surrogateescape")
    path = Path(folder, "ssl_bench", f"images-{hashlib.sha256(text).hexdigest()[:20]}.json")
    # A user without a home has no cache folder.
    settled = os.path.isabs(folder) and time.time_ns() - newest > SETTLED * 10**9
    if settled and (earlier := files.read_json(path, kind, named=False)) is not None:
        return earlier  # type: ignore[no-any-return]
    result = find()
    if settled and result.get("opened", True):  # a file that could not be opened may be there the next time
        with contextlib.suppress(OSError):  # the home directory may be read-only
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_text(path, json.dumps(result))
    return result
