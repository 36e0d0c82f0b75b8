"""``dataset=arrays``: the user's own images as NumPy arrays of 1 to 32 channels, memory-mapped from one folder.

What the arrays decide, such as the number of channels, is written into the configuration with a hash of all values,
which is part of the run's identity. To find it, each file is read once, in pieces; the result is kept in the user's
cache folder.
"""

import hashlib
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from ssl_bench import files
from ssl_bench.data.arrays import ArrayDataset
from ssl_bench.data.content import DIGITS
from ssl_bench.data.copies import copies
from ssl_bench.data.headers import remembered
from ssl_bench.data.own_images import counts_of
from ssl_bench.data.pixels import MOST_CHANNELS
from ssl_bench.errors import ConfigError, require

Type = Literal["uint8", "int16", "uint16", "float16", "float32", "float64"]
PIECE = 2**20  # numbers that are looked at together
LARGE = 2**31  # bytes of a file that takes seconds to read
FINEST = 2**-20  # share of a mean that is a few steps of float32
MOST_COLOURS = 4  # with so many channels or fewer, the last axis has them, however low the images are
BEYOND = 1e30  # values that leave float32 when they are squared or normalised


class OwnArrays(ArrayDataset):
    """Images of the user's own as arrays, in a folder.

    ``{train,test}_images.npy`` are [N, H, W, C] or [N, H, W], ``{train,test}_labels.npy`` are [N]; without files of
    labels there are no classes. Images of uint8 are shares of 255. Those of int16, uint16 and floats are taken as they
    are, also by ``mean`` and ``std``.

    Args:
        root: the folder.
        held_out: as of :class:`ArrayDataset`; there are no files of a test split then.
        size: height and width of the views and of what is evaluated; None: the shorter side of the images.
        resize: length of an image's short side in evaluation, before its centre of ``size`` x ``size`` is cut out;
            None: ``size``, and images of ``size`` x ``size`` are evaluated as they are.
        interpolation: of that resize.
        channels, dtype, num_classes: None: those of the arrays.
        mean, std: of each channel; None: those of ``train_images.npy``.
        epochs, train_images, knn_k, least_labels, content: as of :class:`Dataset`.
    """

    place = "dataset.root"

    def __init__(
        self,
        root: str | None,
        held_out: tuple[int, int] | None = None,
        size: int | None = None,
        resize: int | None = None,
        interpolation: Literal["bilinear", "bicubic"] = "bilinear",
        channels: int | None = None,
        dtype: Type | None = None,
        num_classes: int | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        epochs: int | None = None,
        train_images: int | None = None,
        knn_k: int | None = None,
        least_labels: int | None = None,
        content: str | None = None,
    ) -> None:
        require(bool(root), "root", root, "the folder of your arrays")
        self.given: dict[str, Any] = {"channels": channels, "dtype": dtype, "num_classes": num_classes}
        self.given_size, self.resize, self.mean, self.std = size, resize, mean, std
        super().__init__(
            "arrays",
            "",
            ["train"],
            held_out,
            root=str(root),
            size=1 if size is None else size,
            channels=len(mean or "-") if channels is None else channels,
            num_classes=num_classes or 0,
            mean=mean or (),
            std=std or (),
            epochs=epochs,
            train_images=train_images,
            knn_k=knn_k,
            least_labels=least_labels,
            content=content,
        )
        self.folder, self.dtype = self.root.absolute(), dtype or "uint8"
        if resize is not None:
            require(resize >= self.size, "resize", resize, f"dataset.size ({self.size}) or more, or null")
            self.eval_view = {"resize": resize, "size": self.size, "interpolation": interpolation}

    def files(self) -> list[Path]:
        paths = super().files()
        return paths if any(map(os.path.lexists, paths[1::2])) else paths[::2]

    def hash_of_files(self) -> str:
        text = "".join(f"{name}\0{look['content']}\n" for name, look in self._looks.items())
        return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]

    def settings_of_images(self) -> dict[str, Any]:
        images, labels = self._opened("train")
        height, width, channels = images.shape[1:]
        found = {"channels": channels, "dtype": str(images.dtype), "num_classes": int(labels.max()) + 1}
        for name, value in found.items():
            require(self.given[name] in (None, value), f"dataset.{name}", self.given[name], f"{value} or null")
        size, look = self.given_size or min(height, width), self._looks[self._paths("train")[0].name]
        mean, std = list(self.mean or look["mean"]), list(self.std or look["std"])
        require(len(mean) == channels, "dataset.mean", mean, f"{channels} numbers, one per channel, or null")
        if flat := [i for i in range(channels) if std[i] <= FINEST * abs(mean[i])]:
            one = f"channel {flat[0]} of 0 to {channels - 1} has one value only, as far as float32 holds it"
            raise self._refusal(self._paths("train")[0], one, "leave it out, or set dataset.mean and dataset.std")
        whole = height == width == size
        of_training = counts_of(self.split("train").labels.tolist(), found["num_classes"])
        return {
            "root": str(self.folder),
            "content": self._content,
            "size": size,
            "resize": self.resize or (None if whole else size),
            "mean": mean,
            "std": std,
            **found,
            **of_training,
        }

    def summary(self) -> str:
        """Describe the arrays in a sentence."""
        images, labels = self._opened("train")
        shape, classes = " x ".join(map(str, images.shape[1:])), int(labels.max()) + 1
        counts = f"{len(self.split('train'))} images to train on, {len(self.split('test'))} to test"
        notes = [f"{self.folder}: {images.dtype} of {shape}, {classes or 'no'} classes, {counts}"]
        if images.shape[3] != 3 or images.dtype != np.uint8:
            notes.append("views leave out saturation, hue and grayscale, which are for three channels of uint8")
        if self.held_out and (moved := self._parts[1]):
            notes.append(f"{moved} images are copies of held-out ones, and are held out too")
        return "; ".join([*notes, *self.doubts()])

    def doubts(self) -> list[str]:
        """Say how many test images are copies of training images, if there are any.

        Raises:
            ConfigError: all are.
        """
        if self.held_out:
            return []
        alike = remembered(["copies", self._content], self._count_copies)
        count, tested, trained, copied = (alike[key] for key in ("count", "tested", "trained", "copied"))
        which = f"test images are copies of training images (image {tested} of test is image {trained} of train)"
        if copied == count:
            raise self._refusal(self._paths("test")[0], f"all {count} {which}", "put other images there")
        return [f"{copied} of {count} {which}"] if copied else []

    def _count_copies(self) -> dict[str, int]:
        of_test, of_train = self.originals("test"), self.originals("train")
        assert of_test is not None and of_train is not None
        pairs = copies(of_test, of_train)
        first, original = next(iter(pairs.items()), (-1, -1))
        return {"count": len(of_test.marks), "copied": len(pairs), "tested": first, "trained": original}

    def _refusal(self, path: Path, wrong: str, remedy: str) -> ConfigError:
        return ConfigError(f"dataset=arrays: {path}: {wrong}: {remedy}")

    def _opened(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        return self._arrays[split]

    @cached_property
    def _arrays(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """The images [N, H, W, C] and labels, int64 [N], of each split."""
        require(self.folder.is_dir(), "dataset.root", str(self.root), "a folder of arrays: there is none of that name")
        arrays, used = dict[str, tuple[np.ndarray, np.ndarray]](), self.files()
        for split in self.splits:
            of_images, of_labels = self._paths(split)
            images = self._images_of(of_images)
            labels = self._labels_of(of_labels) if of_labels in used else np.full(len(images), -1)
            if len(images) != len(labels):
                wrong = f"{len(labels)} labels for {len(images)} images"
                raise self._refusal(of_labels, wrong, "save one for each image")
            arrays[split] = images, labels
        (first, labels), (other, tested) = arrays["train"], arrays[self.splits[-1]]
        if first.dtype != other.dtype or first.shape[1:] != other.shape[1:]:
            shapes = [f"{array.dtype} [N, {', '.join(map(str, array.shape[1:]))}]" for array in (other, first)]
            wrong = f"{shapes[0]}, and train_images.npy has {shapes[1]}"
            raise self._refusal(self._paths(self.splits[-1])[0], wrong, "save both alike")
        present = np.unique(labels)
        if of_labels in used and (len(present) < 2 or present[-1] >= len(present)):
            several = f"the classes {', '.join(map(str, present[:5]))}{', ...' if len(present) > 5 else ''}"
            remedy = "number two classes or more from 0 without a gap, or remove the files of labels to have none"
            raise self._refusal(self._paths("train")[1], several, remedy)
        if tested.max() > present[-1]:
            wrong = f"the class {tested.max()}, which train_labels.npy does not have"
            raise self._refusal(of_labels, wrong, "remove its images")
        return arrays

    def _images_of(self, path: Path) -> np.ndarray:
        array = self._present(path)
        holds = f"{array.dtype} {list(array.shape)}"
        if array.dtype.name not in get_args(Type):
            raise self._refusal(path, holds, f"save the images as one of {', '.join(get_args(Type))}")
        if not array.flags.c_contiguous or not array.dtype.isnative:
            saved = f"numpy.ascontiguousarray(images, dtype={str(array.dtype.newbyteorder('='))!r})"
            raise self._refusal(path, f"{holds} in another order of axes or bytes", f"save {saved}")
        images = array[..., None] if array.ndim == 3 else array
        count, height, width, channels = images.shape if images.ndim == 4 else (0, 0, 0, 0)
        # Images with the channels before them would else be a few lines of W channels.
        few = 2 * height <= min(width, channels) and channels > MOST_COLOURS
        first = self.given["channels"] is None and height <= MOST_CHANNELS and (channels == width != height or few)
        if not (min(count, height, width) >= 1 and 1 <= channels <= MOST_CHANNELS) or first:
            remedy = (
                f"save them as [N, height, width, channels] with one image or more and 1 to {MOST_CHANNELS} channels"
            )
            remedy += "; numpy.moveaxis(images, 1, 3) moves channels to the end"
            remedy += f", and dataset.channels={channels} confirms that they are there" * first
            raise self._refusal(path, holds, remedy)
        return images

    def _labels_of(self, path: Path) -> np.ndarray:
        array = self._present(path)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise self._refusal(path, f"{array.dtype} {list(array.shape)}", "save the labels as integers [N]")
        if len(array) and array.min() < 0:
            raise self._refusal(path, f"the label {array.min()}", "number the classes from 0")
        return np.array(array, dtype=np.int64)

    def _present(self, path: Path) -> np.ndarray:
        if not os.path.lexists(path):
            remedy = "put it there, or set dataset.root to the folder that has it"
            if path in self._paths("test"):
                remedy += ", or dataset.held_out to hold out a part of the images to train on"
            raise ConfigError(f"dataset=arrays: {path} is missing: {remedy}")
        return self._mapped(path, "save it again with numpy.save, as an array of numbers")

    @cached_property
    def _looks(self) -> dict[str, dict[str, Any]]:
        """Look at each file (:func:`look`); return the facts by the name of the file."""
        used = self.files()
        pairs = [pair for split in self.splits for pair in zip(self._paths(split), self._opened(split), strict=True)]
        return {path.name: self._look(path, array) for path, array in pairs if path in used}

    def _look(self, path: Path, array: np.ndarray) -> dict[str, Any]:
        status = path.stat()
        if array.nbytes > LARGE:
            files.say_once(f"dataset=arrays: {path} is read wholly if it has changed, {array.nbytes / 1e9:.0f} GB")
        found = remembered([str(path), files.mark(status), array.shape], lambda: look(array))
        if (bad := found["bad"]) is not None:
            wrong = f"image {bad} has NaN, an infinite value or one beyond {BEYOND:g}"
            raise self._refusal(path, wrong, "replace such values")
        return found


def look(array: np.ndarray) -> dict[str, Any]:
    """Look at all numbers of an array, in pieces.

    Returns:
        ``content``, the SHA-256 of type, shape and values; ``bad``, the first row with a value that is not finite or
        out of range, or None; and of images [N, H, W, C] ``mean`` and ``std`` of each channel in float64, rounded to
        nine digits; uint8 is divided by 255 for them.
    """
    digest = hashlib.sha256(f"{array.dtype} {array.shape}".encode())
    channels = array.shape[3] if array.ndim == 4 else 1
    origin = array.reshape(-1, channels)[0].astype(np.float64)  # sums of differences to it lose no digits
    total, squares = np.zeros(channels), np.zeros(channels)
    rows = max(1, PIECE // (array.size // len(array)))
    for start in range(0, len(array), rows):
        piece = array[start : start + rows]
        digest.update(piece.data)
        values = piece.reshape(-1, channels).astype(np.float64)
        if not (np.abs(values) < BEYOND).all():
            wrong = ~(np.abs(values.reshape(len(piece), -1)) < BEYOND).all(1)
            return {"content": "", "bad": start + int(wrong.argmax())}
        values -= origin
        total += values.sum(0)
        squares += np.einsum("nc,nc->c", values, values)
    count, white = array.size / channels, 255 if array.dtype == np.uint8 else 1
    mean, deviation = total / count, np.sqrt(np.maximum(squares / count - (total / count) ** 2, 0))
    rounded = {"mean": (origin + mean) / white, "std": deviation / white}
    return {"content": digest.hexdigest(), "bad": None} | {
        name: [float(f"{value:.9g}") for value in numbers] for name, numbers in rounded.items()
    }
