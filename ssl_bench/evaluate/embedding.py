"""Features of many images, batch by batch, in a file that several processes write and that a stop does not harm.

``features.npy`` gets its name when it is whole. Before that it is ``features.npy.part``: the same bytes, and behind
them one byte for each batch, which is 1 once the features of the batch are on the disk. A batch is the same images in
any process and after any stop, so the file has the same bits.

Shapes: N images, n of a batch; D features.
"""

import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from ssl_bench import files
from ssl_bench.data.photos import Photos
from ssl_bench.data.reader import Reader
from ssl_bench.data.source import ImageBatch, Joined, Source
from ssl_bench.disk.patience import status
from ssl_bench.errors import RunError
from ssl_bench.signals import stop_if_asked

BATCH = 256
FEATURES = "features.npy"
Forward = Callable[[ImageBatch], Tensor]  # a batch on the device -> [n, D]


def batches(count: int) -> int:
    """The number of batches of so many images."""
    return -(-count // BATCH)


def embedded(images: Joined, forward: Forward, device: torch.device, which: Sequence[int]) -> Iterator[Tensor]:
    """Yield the features of some batches, given by their numbers: each float32 [n, D] on the CPU.

    Raises:
        RunError: a feature is not finite, or an image cannot be decoded.
    """
    rows = [torch.arange(batch * BATCH, min((batch + 1) * BATCH, len(images))) for batch in which]
    for ids, read, _ in Reader(images, device).batches(rows):
        stop_if_asked()
        features = forward(read).float().cpu()
        for part in images.parts:
            _require_undamaged(part)
        if not features.isfinite().all():
            bad = int(ids[~features.isfinite().all(1).to(ids.device)][0])
            raise RunError(f"the features of {images.place(bad)} are not finite: give another network or precision")
        yield features


def _require_undamaged(source: Source) -> None:
    """Refuse to go on once a damaged image was replaced by another one, as in a training."""
    if isinstance(source, Photos) and source.damaged:
        i, why = next(iter(source.damaged.items()))
        raise RunError(f"{source.name(i)} cannot be decoded ({why}): replace or remove it")


class FeatureFile:
    """``features.npy`` in a folder, float32 [count, width], while it is written."""

    def __init__(self, folder: Path, count: int, width: int) -> None:
        self.path, self.part, self._row = folder / FEATURES, folder / f"{FEATURES}.part", 4 * width
        header, shape = io.BytesIO(), {"descr": "<f4", "fortran_order": False, "shape": (count, width)}
        np.lib.format.write_array_header_1_0(header, shape)  # type: ignore[no-untyped-call]
        self._header, self._batches = header.getvalue(), batches(count)
        self._end = len(self._header) + count * self._row

    def begin(self) -> list[int]:
        """Make the file, or go on with the one that is there; return the batches that it lacks."""
        at_path = status(self.part)
        if at_path is None or at_path.st_size not in (self._end, self._end + self._batches):
            files.write(self.part, self._fill)
        with open(self.part, "rb") as file:
            file.seek(self._end)
            marks = file.read()  # none if only the renaming is left to do
        return [batch for batch, mark in enumerate(marks) if not mark]

    def _fill(self, file: BinaryIO) -> None:
        file.write(self._header)
        file.truncate(self._end + self._batches)

    def write(self, batch: int, features: Tensor) -> None:
        """Write the features of a batch, [n, D]."""
        with open(self.part, "r+b") as file:
            file.seek(len(self._header) + batch * BATCH * self._row)
            file.write(features.numpy().astype("<f4").tobytes())
            file.flush()
            os.fsync(file.fileno())  # before the mark
            file.seek(self._end + batch)
            file.write(b"\1")

    def finish(self) -> None:
        """Give the whole file its name."""
        with open(self.part, "r+b") as file:
            file.truncate(self._end)
            os.fsync(file.fileno())
        os.replace(self.part, self.path)


def rows(path: Path, start: int, stop: int) -> Tensor:
    """Some rows of a file of features; no other part of it stays in memory."""
    return torch.from_numpy(np.array(np.load(path, mmap_mode="r")[start:stop]))
