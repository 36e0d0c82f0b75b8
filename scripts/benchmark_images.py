"""Photos from the disk to views: how many a core makes, and whether training waits for them.

    python scripts/benchmark_images.py FOLDER                   # with train/<class>/*.JPEG
    python scripts/benchmark_images.py FOLDER --side 500 375    # the same photos, scaled and encoded again first

Decoding alone is the floor; "to a batch" is what a GPU machine's cores do, for there the views are made on the GPU;
"to two views" is all of SimCLR's recipe at 224 pixels on the CPU, against torchvision's ImageFolder and v2 transforms
in its DataLoader. Seconds of CPU time of all threads and processes, in alternating rounds; the median is shown. Part
two trains a network and says which share of the time it waited for images.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np
import torch
from benchmark_views import environment
from torch import Tensor, nn

from ssl_bench.data.evalview import EvalView
from ssl_bench.data.folder import Folder
from ssl_bench.data.loader import Loader
from ssl_bench.data.photos import decode
from ssl_bench.data.views import Views

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE = 224
VIEWS = Views(SIZE, jitter=(0.8, 0.8, 0.8, 0.2), blur=0.5, mean=MEAN, std=STD)
NEED = 1000  # images per second that a GPU trains on


def cpu_seconds() -> float:
    """Of this process with its threads, and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def scaled(folder: Path, out: Path, width: int, height: int, quality: int = 95) -> None:
    """The first 400 photos of a folder at another size."""
    from PIL import Image

    for path in sorted(folder.glob("train/*/*"))[::3][:400]:
        target = out / "train" / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as photo:
            photo.convert("RGB").resize((width, height), Image.Resampling.BICUBIC).save(target, "JPEG", quality=quality)


# The contenders, each of which takes every photo once


def bare(data: list[Tensor], workers: int) -> None:
    """Decoding and nothing else, of bytes that are in memory already."""
    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(decode, data):
            pass


def to_a_batch(images: Folder, batch: int) -> None:
    for _ in loader(images, batch).steps(0, len(images) // batch):
        pass


def to_two_views(images: Folder, batch: int) -> None:
    for step in loader(images, batch).steps(0, len(images) // batch):
        step.batch()


def to_evaluation(images: Folder, batch: int) -> None:
    view = EvalView(resize=256, size=SIZE, mean=MEAN, std=STD)
    for start in range(0, len(images) - batch + 1, batch):
        view(images.take(torch.arange(start, start + batch)))


def torchvision_loader(folder: Path, batch: int, workers: int) -> None:
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    steps = [
        v2.RandomResizedCrop(SIZE),
        v2.RandomHorizontalFlip(),
        v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8),
        v2.RandomGrayscale(0.2),
        v2.RandomApply([v2.GaussianBlur(VIEWS.blur_kernel, (0.1, 2.0))], 0.5),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ]
    view = v2.Compose(steps)
    images = ImageFolder(str(folder / "train"), lambda photo: (view(photo), view(photo)))
    for _ in DataLoader(images, batch, shuffle=True, num_workers=workers, drop_last=True):
        pass


def loader(images: Folder, batch: int) -> Loader:
    return Loader(images, [VIEWS, VIEWS], batch, torch.device("cpu"), 0, torch.float32)


def rates(folder: Path, images: Folder, batch: int, rounds: int, workers: int) -> None:
    """Prints images per second of one core for each contender, in alternating rounds; a first one is not counted."""
    used = len(images) // batch * batch
    data = [images.encoded(i) for i in range(used)]
    contenders: dict[str, Callable[[], None]] = {
        "decode alone": lambda: bare(data, workers),
        "to a batch": lambda: to_a_batch(images, batch),
        "to a centre for evaluation": lambda: to_evaluation(images, batch),
        "to two views": lambda: to_two_views(images, batch),
        "torchvision, PIL, two views": lambda: torchvision_loader(folder, batch, workers),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for i in range(rounds + 1):
        for name, call in contenders.items():
            wall, cpu = time.perf_counter(), cpu_seconds()
            call()
            if i > 0:
                times[name].append((cpu_seconds() - cpu, time.perf_counter() - wall))
    print(f"{'per core':<30}{'images/s':>10}{'least':>8}{'most':>8}{'of decode':>11}{'images/s, wall':>16}")
    floor = median(cpu for cpu, _ in times["decode alone"])
    for name, spent in times.items():
        cpus, walls = zip(*spent, strict=True)
        cpu, wall = median(cpus), median(walls)
        least, most = used / max(cpus), used / min(cpus)
        print(f"{name:<30}{used / cpu:>10.0f}{least:>8.0f}{most:>8.0f}{floor / cpu:>11.1%}{used / wall:>16.0f}")
    chosen = ("to a batch", "to two views", "torchvision, PIL, two views")
    batches, ours, theirs = (median(cpu for cpu, _ in times[name]) for name in chosen)
    print(f"two views: {theirs / ours:.1f} times torchvision's")
    print(f"8 GPUs at {NEED} images/s each need {8 * NEED * batches / used:.0f} cores (views on the GPUs), ", end="")
    print(f"{8 * NEED * floor / used:.0f} for decoding alone")


# The overlap


def overlap(images: Folder, batch: int, steps: int) -> None:
    """Trains a small network on two views and prints how long it waited for photos."""
    network = nn.Sequential(
        nn.Conv2d(3, 32, 7, 4, 3), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
    )
    optimizer = torch.optim.SGD(network.parameters(), 0.01)
    waited, start, ready = 0.0, 0.0, loader(images, batch).steps(0, steps + 1)
    for i in range(steps + 1):
        asked = time.perf_counter()
        step = next(ready)
        if i == 0:
            start = time.perf_counter()  # the first batch is waited for by anyone
        else:
            waited += time.perf_counter() - asked
        first, second = step.batch().views
        loss = (network(first) - network(second)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    wall = time.perf_counter() - start
    print(f"{steps} steps of {batch} images: {wall:.1f} s, {waited:.2f} s ({waited / wall:.1%}) of them waiting")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--side", type=int, nargs=2, metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2, help="threads here, processes in torchvision's DataLoader")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    print(environment(["ssl-bench", "torch", "torchvision", "pillow"]))
    copy = Path(tempfile.mkdtemp()) if arguments.side else None
    folder = copy or arguments.folder
    try:
        if copy is not None:
            scaled(arguments.folder, copy, *arguments.side)
        classes = sorted(path.name for path in (folder / "train").iterdir())
        images = Folder(folder / "train", classes, arguments.workers)
        shapes = np.array([image.shape[1:] for image in images.take(torch.arange(min(64, len(images))))])
        size = np.mean([images.encoded(i).numel() for i in range(64)]) / 1000
        height, width = np.median(shapes, 0)
        print(f"\n{len(images)} photos, of 64 the median is {width:.0f} x {height:.0f} pixels, {size:.0f} kB; ", end="")
        print(f"{arguments.workers} workers, batches of {arguments.batch}, {arguments.rounds} rounds")
        rates(folder, images, arguments.batch, arguments.rounds, arguments.workers)
        overlap(images, arguments.batch, 8)
    finally:
        if copy is not None:
            shutil.rmtree(copy)


if __name__ == "__main__":
    main()
