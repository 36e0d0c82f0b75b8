"""The photos of a split in one file: no file is opened per image, and photos are no larger than training needs.

``<split>.jpegs`` holds JPEGs one after another; ``<split>.npz`` is the index: their offsets [N+1], labels [N], and
heights and widths [N, 2]. The index is written last, so a split with an index is complete.
"""

from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from ssl_bench import files
from ssl_bench.data.dataset import MissingData
from ssl_bench.data.photos import Photos
from ssl_bench.errors import ConfigError

QUALITY = 90
LARGEST = 2**32  # bytes of an index: a photo takes 32
CHUNK = 1024  # images that are encoded between two writes

Track = Callable[[Iterable[list[int]]], Iterable[list[int]]]  # yields the same chunks and shows the progress


class Packed(Photos):
    """A packed split.

    Args:
        path: of its files, without their endings.
        workers: threads that decode.

    Raises:
        ConfigError: a file is missing or damaged, or the two do not belong together.
    """

    def __init__(self, path: Path, workers: int | None) -> None:
        self.path, index = path.with_name(f"{path.name}.jpegs"), path.with_name(f"{path.name}.npz")
        try:
            archive = BytesIO(files.read_bytes(index, LARGEST))
            files.compare_checksums(archive)  # np.savez compresses nothing, either
            with np.load(archive) as content:
                self.offsets, labels, self.sizes = content["offsets"], content["labels"], content["sizes"]
            with files.open_regular(self.path):  # of a pipe it would wait
                self._bytes = np.memmap(self.path, dtype=np.uint8, mode="c")  # copy-on-write: the file stays unchanged
            self._check(labels)
        except FileNotFoundError as error:
            remedy = "make it with the same arguments after `ssl-bench prepare`, or set dataset.packed=false"
            raise MissingData(f"dataset.packed=true: {error.filename} is missing; {remedy}") from error
        except Exception as error:  # zipfile and NumPy raise many kinds of errors, and advise to unpickle the file
            why = getattr(error, "strerror", None) or f"it is damaged, or does not belong to {self.path.name}"
            remedy = "remove both, and make them with the same arguments after `ssl-bench prepare`"
            raise ConfigError(f"dataset.packed=true: {index} cannot be read ({why}): {remedy}") from error
        super().__init__(torch.from_numpy(labels), workers)

    def _check(self, labels: np.ndarray) -> None:
        """Raise ValueError unless the index has the right types and shapes, and fits the file of photos."""
        count, integers = len(labels), (self.offsets, labels, self.sizes)
        shapes = [array.shape for array in integers] == [(count + 1,), (count,), (count, 2)]
        if count == 0 or not shapes or any(array.dtype != np.int64 for array in integers):
            raise ValueError("wrong arrays")
        increasing = self.offsets[0] == 0 and (np.diff(self.offsets) > 0).all() and self.offsets[-1] == len(self._bytes)
        if not increasing or labels.min() < 0 or self.sizes.min() < 1:
            raise ValueError("wrong numbers")

    def name(self, i: int) -> str:
        return f"{self.path}[{i}]"

    def encoded(self, i: int) -> Tensor:
        return torch.from_numpy(self._bytes[self.offsets[i] : self.offsets[i + 1]])


def pack(photos: Photos, path: Path, side: int, track: Track) -> None:
    """Write photos as JPEGs with a short side of at most ``side``; smaller photos keep their size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lengths: list[int] = []
    sizes: list[tuple[int, int]] = []

    def fill(file: BinaryIO) -> None:
        for chunk in track(chunks(len(photos))):
            for data, size in photos.map(lambda image: encode(image, side), chunk):
                file.write(data)
                lengths.append(len(data))
                sizes.append(size)

    files.write(path.with_name(f"{path.name}.jpegs"), fill)
    offsets, labels = np.cumsum([0, *lengths]), photos.labels.numpy()
    index = path.with_name(f"{path.name}.npz")
    files.write(index, lambda file: np.savez(file, offsets=offsets, labels=labels, sizes=np.array(sizes)))


def encode(image: Tensor, side: int) -> tuple[bytes, tuple[int, int]]:
    """Encode uint8 [3, h, w] as a JPEG; return its bytes, and its height and width."""
    from PIL import Image

    photo, out = Image.fromarray(image.permute(1, 2, 0).numpy()), BytesIO()
    if (short := min(photo.size)) > side:
        width, height = (length * side // short for length in photo.size)
        photo = photo.resize((width, height), Image.Resampling.BILINEAR)
    photo.save(out, "JPEG", quality=QUALITY)
    return out.getvalue(), (photo.height, photo.width)


def chunks(count: int) -> list[list[int]]:
    """Split 0 .. count - 1 into lists of CHUNK."""
    return [list(range(start, min(start + CHUNK, count))) for start in range(0, count, CHUNK)]
