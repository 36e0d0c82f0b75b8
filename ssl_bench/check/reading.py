"""Photos to measure with, and the rates at which they are read.

Used by the section "input", which judges the rates.
"""

import contextlib
import io
import itertools
import math
import multiprocessing
import os
import random
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from ssl_bench.check.timing import synchronize
from ssl_bench.data.folder import Folder, images
from ssl_bench.data.packed import encode
from ssl_bench.data.photos import JPEG, Photos, decode
from ssl_bench.data.reader import Reader
from ssl_bench.errors import ConfigError
from ssl_bench.files import open_regular
from ssl_bench.hardware import available_cores

CLASSES = 16  # folders of which photos are taken
HEIGHT, WIDTH = 375, 500  # of constructed photos
BATCH = 64  # least number of photos of a batch
SMALLEST = 10**6  # bytes of a file that counts as large
LISTED = 20_000  # most files of paths.data that are looked at


@dataclass(frozen=True)
class ReadRate:
    """How fast batches of photos are read, decoded and brought to a device.

    Attributes:
        images_s: images per second, by the clock.
        cpu_seconds: time of all threads per image.
    """

    images_s: float
    cpu_seconds: float


def find_photos(data: Path) -> Folder | None:
    """Open photos of up to ``CLASSES`` classes of the first ``<name>/train`` or ``<name>/<name>/train`` in ``data``."""
    folders = sorted(path for pattern in ("*/train", "*/*/train") for path in data.glob(pattern) if path.is_dir())
    for folder in sorted(folders, key=lambda path: path.parent.name != "imagenet"):
        with contextlib.suppress(ConfigError, OSError):  # a folder that cannot be read
            classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
            classes = classes[:: max(1, math.ceil(len(classes) / CLASSES))]
            if any(images(folder / name) for name in classes):
                return Folder(folder, classes, None)
    return None


def some_jpegs(photos: Folder, count: int, seconds: float) -> list[bytes]:
    """Read up to ``count`` JPEGs of a dataset, in a random choice, for about ``seconds``; damaged ones are left out."""
    chosen, end = list[bytes](), math.inf
    for i in random.sample(range(len(photos)), min(len(photos), 4 * count)):
        with contextlib.suppress(RuntimeError, OSError, ValueError):
            data = photos.encoded(i)
            if data[:3].tolist() == JPEG and decode(data).numel():
                chosen.append(data.numpy().tobytes())
                end = min(end, time.perf_counter() + seconds)  # the first one loads the decoder, which does not count
        if len(chosen) == count or time.perf_counter() >= end:
            break
    return chosen


def largest_file(data: Path) -> Path | None:
    """The largest file in ``data``, in its folders, and among their packed files; None if all are below 1 MB."""
    listed = itertools.chain.from_iterable(data.glob(pattern) for pattern in ("*", "*/*", "*/packed/*/*"))
    sizes = {
        path: path.stat().st_size
        for path in itertools.islice(listed, LISTED)
        if path.is_file() and os.access(path, os.R_OK)
    }
    largest = max(sizes, key=sizes.__getitem__, default=None)
    return largest if largest is not None and sizes[largest] >= SMALLEST else None


def read_through(path: Path, most: int, seconds: float) -> tuple[float, int]:
    """Read up to ``most`` bytes of a file for about ``seconds``; return bytes per second, and the bytes.

    It starts at a random place, so that a second measurement does not read what the first one left in memory.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(random.randrange(max(1, size - most)))
        start, count = time.perf_counter(), 0
        while count < most and (block := file.read(2**20)):
            count += len(block)
            if time.perf_counter() - start >= seconds:
                break
        return count / (time.perf_counter() - start), count


def constructed(seed: int) -> bytes:
    """A JPEG of WIDTH x HEIGHT pixels with about as many bytes as a photo of that size: noise at every scale."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.full((1, 3, HEIGHT, WIDTH), 0.5)
    for cells in (2, 4, 8, 16, 32, 64, 128, 256):
        noise = torch.randn(1, 3, cells, cells, generator=generator) * 0.25 / cells**0.15
        image += interpolate(noise, (HEIGHT, WIDTH), mode="bilinear")
    return encode((image[0].clamp(0, 1) * 255).to(torch.uint8), HEIGHT)[0]


def difference(image: Tensor, data: Tensor) -> tuple[float, float]:
    """Compare a decoded photo [3, h, w] with Pillow's: mean difference in levels, and that of the worst 8 x 8 pixels.

    A photo of another size differs by 255.
    """
    from PIL import Image

    with Image.open(io.BytesIO(data.numpy().tobytes())) as photo:
        expected = torch.from_numpy(np.array(photo.convert("RGB"))).permute(2, 0, 1)
    if image.shape != expected.shape:
        return 255.0, 255.0
    levels = (image.float() - expected.float()).abs()
    return float(levels.mean()), float(avg_pool2d(levels, 8, ceil_mode=True).max())


def read_rate(photos: Photos, device: torch.device, seconds: float) -> ReadRate:
    """Read batches with the threads that training reads with, for about ``seconds`` and at least one batch."""
    size = max(BATCH, 4 * photos.workers)  # with fewer, threads would have nothing to do at the end of each batch
    ids = torch.arange(len(photos)).repeat(math.ceil(size / len(photos)))
    batches = Reader(photos, device).batches(itertools.cycle(torch.split(ids, size)))
    next(batches)  # threads start, libraries are loaded
    synchronize(device)
    start, cpu, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < seconds:
        count += len(next(batches).ids)
    synchronize(device)
    return ReadRate(count / (time.perf_counter() - start), (time.process_time() - cpu) / count)


def all_ranks(photos: Folder, device: torch.device, ranks: int, seconds: float) -> ReadRate:
    """Measure :func:`read_rate` in ``ranks`` processes at once, each with its share of the cores and its own GPU."""
    if ranks == 1:
        return read_rate(photos, device, seconds)
    context = multiprocessing.get_context("spawn")  # a fork could not use CUDA
    workers = max(1, available_cores() // ranks)
    with ProcessPoolExecutor(ranks, context, _meet_at, (context.Barrier(ranks),)) as pool:
        devices = [torch.device("cuda", i) if device.type == "cuda" else device for i in range(ranks)]
        arguments = (photos.folder, list(photos.classes), workers)
        waiting = [pool.submit(_rate_of_rank, *arguments, each, seconds) for each in devices]
        rates = [each.result() for each in waiting]
    images_s = sum(rate.images_s for rate in rates)
    return ReadRate(images_s, sum(rate.cpu_seconds * rate.images_s for rate in rates) / images_s)


_barrier: Any = None  # of the processes of all_ranks


def _meet_at(barrier: Any) -> None:
    global _barrier
    _barrier = barrier


def _rate_of_rank(folder: Path, classes: list[str], workers: int, device: torch.device, seconds: float) -> ReadRate:
    if device.type == "cuda":
        torch.cuda.set_device(device)
    photos = Folder(folder, classes, workers)
    read_rate(photos, device, 0.01)  # CUDA starts
    _barrier.wait(120)
    return read_rate(photos, device, seconds)
