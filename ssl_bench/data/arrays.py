"""Images as NumPy arrays, memory-mapped from a folder: prepared data sets, and ``dataset=arrays``, the user's own.

A folder has ``{train,test,unlabeled}_images.npy``, [N, H, W, C], and ``_labels.npy``, integers [N].

Settings that follow from the user's own arrays, such as the number of channels, are written into the configuration with
a hash of all values, which is part of the run's identity. For them each file is read once, in pieces; the result is
stored in the user's cache folder.
"""

import hashlib
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, get_args

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from ssl_bench import files
from ssl_bench.config.ranges import Count
from ssl_bench.data.dataset import DIGITS, Dataset, MissingData, Probe, cached, counts_of
from ssl_bench.data.pixels import MOST_CHANNELS
from ssl_bench.data.source import Chosen, Images, Source
from ssl_bench.data.splits import few, twins_of_rows
from ssl_bench.errors import ConfigError, command_line, require

Type = Literal["uint8", "int16", "uint16", "float16", "float32", "float64"]
Split = tuple[np.ndarray, np.ndarray]  # images [N, H, W, C] and labels, int64 [N], of a split
PARTS = ("train", "choose", "test")  # of the train split, with ``held_out``
PIECE = 2**20  # numbers of an array that are examined together
SAMPLE = 2**16  # numbers of an array in which frequent values are searched
FINEST = 2**-20  # relative difference of a few steps of float32
MOST_COLOURS = 4  # with so many channels or fewer, the last axis has them, however low the images are
LARGEST_VALUE = 1e30  # larger ones leave float32 when they are squared or normalised
FREQUENT, FAR = 0.1, 100  # a share of all values, and standard deviations from the mean, that suggest a fill value


class Copies(TypedDict):
    """The numbers of the test images that are copies of training images, each with the number of the first original."""

    pairs: list[tuple[int, int]]


class Facts(TypedDict):
    """Facts about all numbers of an array.

    Attributes:
        content: the SHA-256 of type, shape and values.
        bad: the first image with a value that is not finite or is out of range, and the other facts are empty; or None.
        fill: a clause about values that may stand for missing ones, or ""; uint8 is not searched for them.
        mean, std: of each channel of images [N, H, W, C], rounded to nine digits, where uint8 is divided by 255.
    """

    content: str
    bad: int | None
    fill: str
    mean: list[float]
    std: list[float]


@dataclass(kw_only=True, eq=False)
class Arrays(Dataset):
    """Base class of arrays in ``folder``.

    Args:
        held_out: how many images of the train split are taken out of it to choose settings by, and how many to test on.
            They replace the test split. A permutation chooses them, which is the same in every run. Copies of these
            images, which have the same bytes, are taken out with them.
    """

    has_pixels = True
    name = "arrays"
    pretrain_splits: list[str] = field(default_factory=lambda: ["train"], init=False)
    held_out: tuple[Count, Count] | None = None

    folder: Path = field(init=False)
    remake: str = field(init=False)  # how to make the files, for refusals

    def _opened(self, split: str) -> Split:
        """Map the arrays of a split and check them."""
        raise NotImplementedError

    @property
    def splits(self) -> list[str]:
        """Names of all splits that are read, those of pre-training first."""
        return ["train"] if self.held_out else list(dict.fromkeys([*self.pretrain_splits, "train", "test"]))

    def files(self) -> list[Path]:
        return [path for split in self.splits for path in self._paths(split)]

    def _paths(self, split: str) -> list[Path]:
        return [self.folder / f"{split}_{kind}.npy" for kind in ("images", "labels")]

    def check(self) -> int:
        counts = {split: len(self.arrays(split)[0]) for split in self.splits}
        count = sum(counts[split] for split in self.pretrain_splits)
        fits, remedy = sum(self.held_out or ()) < count, f"numbers with a sum below {count}, the number of images"
        require(fits, "dataset.held_out", self.held_out, remedy)
        return len(self._parts[0][0]) if self.held_out else count

    @cached_property
    def _content(self) -> str:
        """The hash of the files; another one if copies are held out, since earlier versions trained on these copies."""
        content, moved = super()._content, self._parts[1] if self.held_out else 0
        if moved:
            files.say_once(f"dataset={self.name}: {moved} images are copies of held-out ones, and are held out too")
        return hashlib.sha256(f"{content} with copies".encode()).hexdigest()[:DIGITS] if moved else content

    @cached_property
    def _parts(self) -> tuple[list[Tensor], int]:
        """The images of the train split to train on, to choose by and to test on; and how many copies were moved.

        Raises:
            ConfigError: as :meth:`arrays`, or all images are copies of held-out ones.
        """
        images = self._opened("train")[0]
        choose, test = self.held_out or (0, 0)
        # RandomState has the same numbers in every version of NumPy.
        order = np.random.RandomState(0).permutation(len(images))
        first = np.array(twins_of_rows(images))
        drawn, highest = np.zeros((2, len(order)), dtype=int)
        drawn[order[len(order) - choose - test :]] = 1
        drawn[order[len(order) - test :]] = 2
        np.maximum.at(highest, first, drawn)
        part = highest[first]
        require((part == 0).any(), "dataset.held_out", self.held_out, "smaller numbers: all others are copies of these")
        return [torch.from_numpy(order[part[order] == place]) for place in range(3)], int((part != drawn).sum())

    def pretrain(self) -> Source:
        return self.split("train") if self.held_out else self._images(self.pretrain_splits)

    def split(self, name: str) -> Source:
        images = self._images(["train" if self.held_out else name])
        return Chosen(images, self._parts[0][PARTS.index(name)]) if self.held_out else images

    def _images(self, splits: Sequence[str]) -> Images:
        pairs = [self.arrays(split) for split in splits]
        return Images([images for images, _ in pairs], torch.cat([labels for _, labels in pairs]))

    def probes(self) -> dict[str, Probe]:
        probe = super().probes()[""]
        return {"": replace(probe, choose=self.split("choose")) if self.held_out else probe}

    def arrays(self, split: str) -> tuple[Tensor, Tensor]:
        """Map one split into memory: [N, C, H, W] and int64 [N], -1 for an unlabelled image.

        Raises:
            MissingData: a file is missing.
            ConfigError: a file is damaged or empty, does not fit the dataset or the other file, or is another one than
                ``content`` says.
        """
        images, labels = self._opened(split)
        self.check_content()
        return torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(np.array(labels))

    def _mapped(self, path: Path) -> np.ndarray:
        """Map an array into memory, copy-on-write: the file stays unchanged. An array of objects is refused."""
        try:
            with files.open_regular(path), warnings.catch_warnings():  # NumPy would wait for a pipe
                warnings.simplefilter("ignore")
                return np.lib.format.open_memmap(path, mode="c")
        except (FileNotFoundError, NotADirectoryError) as error:
            remedy = f"{self.remake}, or set {self.config_key} to the folder that has it"
            if path in self._paths("test") and self.pretrain_splits == ["train"]:
                remedy += ", or dataset.held_out to numbers of training images to choose by and to test on"
            raise MissingData(f"dataset={self.name}: {path} is missing: {remedy}") from error
        except Exception as error:  # NumPy raises many kinds of errors, and advises to unpickle the file
            why = getattr(error, "strerror", None) or "it is cut short, damaged or no array of numbers"
            raise self._refusal(path, f"cannot be read ({why})", f"remove it, and {self.remake}") from error

    def _refusal(self, path: Path, wrong: str, remedy: str) -> ConfigError:
        return ConfigError(f"dataset={self.name}: {path} {wrong}: {remedy}")


class ArrayDataset(Arrays):
    """Prepared arrays in ``<root>/<name>/``, of uint8.

    Args:
        name: the folder.
        torchvision: the class of torchvision from which ``ssl-bench prepare`` makes the arrays, one of those that
            ``data/prepare.py`` lists, or ``ImageFolder``: it makes them from a folder of photos, shrunk to ``size`` x
            ``size``.
        pretrain: the splits to pre-train on.
    """

    def __init__(self, name: str, torchvision: str, pretrain: Sequence[str], **common: Any) -> None:
        super().__init__(**common)
        self.name, self.torchvision, self.pretrain_splits = name, torchvision, [*pretrain]
        remedy = "null, or dataset.pretrain to [train]"
        require(self.held_out is None or self.pretrain_splits == ["train"], "held_out", self.held_out, remedy)
        self.folder, command = self.root / name, ["ssl-bench", "prepare", f"dataset={name}", f"paths.data={self.root}"]
        self.remake = f"get it with `{command_line(command)}`"

    def _opened(self, split: str) -> Split:
        of_images, of_labels = self._paths(split)
        images, labels = self._mapped(of_images), self._mapped(of_labels)
        shape = (self.size, self.size, self.channels)
        remedy = f"set dataset.size, channels and num_classes, or remove both files of this split, and {self.remake}"
        if images.dtype != np.uint8 or images.shape[1:] != shape or not len(images):
            raise self._refusal(of_images, f"holds {_shape(images)}, not uint8 of {[*shape]}, one or more", remedy)
        count, most = len(images), self.num_classes - 1
        whole = labels.dtype == np.int64 and labels.shape == (count,)
        if not whole or not -1 <= labels.min() <= labels.max() <= most:
            fits = f"int64 [{count}] from 0 to {most}, or -1 for an unlabelled image"
            held = f"{_shape(labels)} from {labels.min()} to {labels.max()}" if whole else _shape(labels)
            raise self._refusal(of_labels, f"holds {held}, not {fits}", remedy)
        return images, labels


@dataclass(kw_only=True, eq=False)
class OwnArrays(Arrays):
    """Images of the user's own as arrays, in a folder.

    ``{train,test}_images.npy`` are [N, H, W, C] or [N, H, W], ``{train,test}_labels.npy`` are [N]; without files of
    labels there are no classes. uint8 is divided by 255; int16, uint16 and floats are not. ``mean`` and ``std`` are of
    the values after that.

    Args:
        root: the folder.
        size: height and width of the views and of what is evaluated; None: the shorter side of the images.
        resize: length of an image's short side in evaluation, before its centre of ``size`` x ``size`` is cut out;
            None: ``size``, and images of ``size`` x ``size`` are evaluated as they are.
        interpolation: of that resize.
        channels, dtype, num_classes: None: those of the arrays.
        mean, std: of each channel; None: those of ``train_images.npy``.
    """

    config_key = "dataset.root"
    root: str | None  # type: ignore[assignment]
    size: Count | None = None  # type: ignore[assignment]
    resize: int | None = None
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    channels: Annotated[int, Meta(ge=1, le=MOST_CHANNELS)] | None = None  # type: ignore[assignment]
    dtype: Type | None = None  # type: ignore[assignment]
    num_classes: int | None = None  # type: ignore[assignment]
    mean: Sequence[float] | None = None  # type: ignore[assignment]
    std: Sequence[float] | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        require(bool(self.root), "root", self.root, "the folder of your arrays")
        self.given: dict[str, Any] = {name: getattr(self, name) for name in ("channels", "dtype", "num_classes")}
        self.given_size, self.size, self.dtype = self.size, self.size or 1, self.dtype or "uint8"
        self.mean, self.std, self.num_classes = self.mean or (), self.std or (), self.num_classes or 0
        self.channels = self.channels or len(self.mean) or 1
        super().__post_init__()
        self.folder, self.remake = Path(self.root or "").absolute(), "save it with numpy.save, as an array of numbers"
        if self.resize is not None:
            remedy = f"dataset.size ({self.size}) or more, or null"
            require(self.resize >= self.size, "resize", self.resize, remedy)
            self.eval_view = {"resize": self.resize, "size": self.size, "interpolation": self.interpolation}

    def files(self) -> list[Path]:
        paths = super().files()
        return paths if any(map(os.path.lexists, paths[1::2])) else paths[::2]

    def hash_of_files(self) -> str:
        text = "".join(f"{name}\0{facts['content']}\n" for name, facts in self._facts.items())
        return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]

    def settings_of_images(self) -> dict[str, Any]:
        (images, labels), path = self._opened("train"), self._paths("train")[0]
        height, width, channels = images.shape[1:]
        settings = {"channels": channels, "dtype": str(images.dtype), "num_classes": int(labels.max()) + 1}
        for name, value in settings.items():
            require(self.given[name] in (None, value), f"dataset.{name}", self.given[name], f"{value} or null")
        size, facts = self.given_size or min(height, width), self._facts[path.name]
        mean, std = list(self.mean or facts["mean"]), list(self.std or facts["std"])
        require(len(mean) == channels, "dataset.mean", mean, f"{channels} numbers, one per channel, or null")
        if flat := [i for i in range(channels) if std[i] <= FINEST * abs(mean[i])]:
            one = f"has one value only in channel {flat[0]} of 0 to {channels - 1}, as far as float32 holds it"
            raise self._refusal(path, one, "leave the channel out, or set dataset.mean and dataset.std")
        settings |= {"root": str(self.folder), "size": size, "mean": mean, "std": std}
        settings["resize"] = self.resize or (None if height == width == size else size)
        counts = counts_of(self.split("train").labels.tolist(), settings["num_classes"])
        return settings | super().settings_of_images() | counts

    def summary(self) -> str:
        """Describe the arrays in a sentence."""
        images, labels = self._opened("train")
        shape, classes = " x ".join(map(str, images.shape[1:])), int(labels.max()) + 1
        counts = f"{len(self.split('train'))} images to train on, {len(self.split('test'))} to test"
        notes = [f"{self.folder}: {images.dtype} of {shape}, {classes or 'no'} classes, {counts}"]
        if images.shape[3] != 3 or images.dtype != np.uint8:
            notes.append("views leave out saturation, hue and grayscale, which are for three channels of uint8")
        return "; ".join([*notes, *self.warnings()])

    def warnings(self) -> list[str]:
        """Sentences about values that may stand for missing ones, and about test images that are copies of training
        images.

        Raises:
            ConfigError: all test images are copies.
        """
        facts = self._facts[self._paths("train")[0].name]
        seems = facts["fill"] if not self.mean or list(self.mean) == facts["mean"] else ""
        remedy = "where they stand for missing ones, replace them, or set dataset.mean and dataset.std without them"
        sentences = [f"train_images.npy: {seems}: {remedy}"] if seems else []
        copies = [] if self.held_out else cached(["copies", self._content], self._copies, Copies)["pairs"]
        if copies:
            which = "test images are copies of training images (image {} of test is image {} of train)"
            which, count = which.format(*copies[0]), len(self._opened("test")[0])
            if len(copies) == count:
                wrong = f"is no test: all {count} {which}"
                raise self._refusal(self._paths("test")[0], wrong, "put other images there")
            sentences.append(f"{len(copies)} of {count} {which}")
        return sentences

    def _copies(self) -> Copies:
        trained, tested = (self._opened(split)[0] for split in ("train", "test"))
        first = twins_of_rows(trained, tested)[len(trained) :]
        return {"pairs": [pair for pair in enumerate(first) if pair[1] < len(trained)]}

    def _opened(self, split: str) -> Split:
        return self._arrays[split]

    @cached_property
    def _arrays(self) -> dict[str, Split]:
        """The arrays of each split."""
        require(self.folder.is_dir(), "dataset.root", str(self.root), "a folder of arrays: there is none of that name")
        arrays, classes = dict[str, Split](), set[int]()
        for split in self.splits:
            of_images, of_labels = self._paths(split)
            images, has_labels = self._images_of(of_images), of_labels in self.files()
            labels = self._mapped(of_labels) if has_labels else np.full(len(images), -1)
            first = arrays.get("train", (images, labels))[0]
            if first.dtype != images.dtype or first.shape[1:] != images.shape[1:]:
                wrong = f"holds {_shape(images)}, and train_images.npy {_shape(first)}"
                raise self._refusal(of_images, wrong, "save both alike")
            present = {*np.unique(labels).tolist()}
            fits, classes = labels.shape == images.shape[:1] and labels.dtype.kind in "iu", classes or present
            numbered = len(classes) > 1 and classes == {*range(len(classes))} and present <= classes
            if not fits or (has_labels and not numbered):
                wrong = f"holds {_shape(labels)} for {len(images)} images, classes {few([*map(str, sorted(present))])}"
                remedy = "save integers [N], one for each image, that number two classes or more from 0 without a gap, "
                remedy += "the same in both splits, or remove the files of labels to have none"
                raise self._refusal(of_labels, wrong, remedy)
            arrays[split] = images, np.array(labels, dtype=np.int64)
        return arrays

    def _images_of(self, path: Path) -> np.ndarray:
        array = self._mapped(path)
        types = get_args(Type)
        plain = array.dtype.name in types and array.flags.c_contiguous and array.dtype.isnative
        images = array[..., None] if array.ndim == 3 else array
        count, height, width, channels = images.shape if images.ndim == 4 else (0, 0, 0, 0)
        # Images with the channels before them would else be a few lines of W channels.
        low = 2 * height <= min(width, channels) and channels > MOST_COLOURS
        first = self.given["channels"] is None and height <= MOST_CHANNELS and (channels == width != height or low)
        if not plain or not (min(count, height, width) >= 1 and 1 <= channels <= MOST_CHANNELS) or first:
            remedy = f"save numpy.ascontiguousarray(images) as {', '.join(types)} in C order, one image or more, "
            remedy += f"[N, height, width, channels] with 1 to {MOST_CHANNELS} channels; numpy.moveaxis(images, 1, 3) "
            remedy += f"moves channels to the end{f', and dataset.channels={channels} confirms that' * first}"
            raise self._refusal(path, f"holds {_shape(array)}", remedy)
        return images

    @cached_property
    def _facts(self) -> dict[str, Facts]:
        """The facts of :func:`examined` about each file that is used, by its name."""
        facts = dict[str, Facts]()
        for path in self.files():
            array = self._opened(path.name.partition("_")[0])[path.name.endswith("_labels.npy")]
            status = path.stat()
            key = ["array", str(path), files.mark(status), array.shape]
            facts[path.name] = cached(key, partial(examined, array), Facts, status.st_mtime_ns)
            if (bad := facts[path.name]["bad"]) is not None:
                wrong = f"has NaN, an infinite value or one beyond {LARGEST_VALUE:g} in image {bad}"
                raise self._refusal(path, wrong, "replace such values")
        return facts


def _shape(array: np.ndarray) -> str:
    return f"{array.dtype} {list(array.shape)}"


def examined(array: np.ndarray) -> Facts:
    """Compute the facts about an array, which is read in pieces."""
    digest = hashlib.sha256(f"{array.dtype} {array.shape}".encode())
    channels = array.shape[3] if array.ndim == 4 else 1
    origin = array.reshape(-1, channels)[0].astype(np.float64)  # sums of differences to it lose no digits
    total, squares, farthest = np.zeros((3, channels))
    rows = max(1, PIECE // (array.size // len(array)))
    for start in range(0, len(array), rows):
        piece = array[start : start + rows]
        digest.update(piece.data)
        values = piece.reshape(-1, channels).astype(np.float64)
        if not (bounded := np.abs(values) < LARGEST_VALUE).all():  # nor with NaN
            bad = start + int(bounded.reshape(len(piece), -1).all(1).argmin())
            return {"content": "", "bad": bad, "fill": "", "mean": [], "std": []}
        values -= origin
        total += values.sum(0)
        squares += np.einsum("nc,nc->c", values, values)
        farthest = np.maximum(farthest, np.maximum(values.max(0), -values.min(0)))
    count, white = array.size / channels, 255 if array.dtype == np.uint8 else 1
    mean, deviation = total / count, np.sqrt(np.maximum(squares / count - (total / count) ** 2, 0))
    means, deviations = ([float(f"{x:.9g}") for x in values / white] for values in (origin + mean, deviation))
    facts: Facts = {"content": digest.hexdigest(), "bad": None, "fill": "", "mean": means, "std": deviations}
    if white == 255:
        return facts
    sample = array.reshape(-1)[np.random.default_rng(0).integers(array.size, size=SAMPLE)]
    numbers, counts = np.unique(sample, return_counts=True)
    if (farthest - np.abs(mean) > FAR * deviation).any():
        facts["fill"] = f"some values are more than {FAR} standard deviations from the mean"
    if (share := counts.max() / counts.sum()) >= FREQUENT:
        facts["fill"] = f"about {share:.0%} of all values are {numbers[counts.argmax()]:g}"
    return facts
