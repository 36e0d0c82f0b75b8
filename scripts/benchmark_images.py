"""Measure how many photos per second a core reads from the disk.

    python scripts/benchmark_images.py FOLDER                   # with train/<class>/*.JPEG
    python scripts/benchmark_images.py FOLDER --side 500 375    # the same photos, scaled and encoded again first

"decode alone" is the least that any loader can take. "to a batch" is the work of the cores of a GPU machine, where the
GPU makes the views. "to two views" is SimCLR's whole recipe at 224 pixels on the CPU; it is compared with torchvision's
ImageFolder and v2 transforms in torch's DataLoader. Times are CPU times of all threads and processes, in alternating
rounds; rates are medians.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np
import torch
from benchmark_views import TASKS, torchvision_v2
from timing import alternate, environment, print_table
from torch import Tensor

from ssl_bench.data.evalview import EvalView
from ssl_bench.data.folder import Folder
from ssl_bench.data.loader import Loader
from ssl_bench.data.photos import decode
from ssl_bench.data.views import Views

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE = 224
VIEWS = Views(SIZE, jitter=(0.8, 0.8, 0.8, 0.2), blur=0.5, mean=MEAN, std=STD)
PER_GPU = 1000  # images per second that one GPU trains on


def scaled(folder: Path, out: Path, width: int, height: int, quality: int = 95) -> None:
    """Write up to 400 photos of a folder, every third one, at another size."""
    from PIL import Image

    for path in sorted(folder.glob("train/*/*"))[::3][:400]:
        target = out / "train" / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as photo:
            photo.convert("RGB").resize((width, height), Image.Resampling.BICUBIC).save(target, "JPEG", quality=quality)


# The contenders; each uses every photo once


def decode_alone(data: list[Tensor], workers: int) -> None:
    """Decode photos whose bytes are in memory, without any further work."""
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

    view = torchvision_v2(next(task for task in TASKS if task.size == SIZE))
    images = ImageFolder(str(folder / "train"), lambda photo: (view(photo), view(photo)))
    for _ in DataLoader(images, batch, shuffle=True, num_workers=workers, drop_last=True):
        pass


def loader(images: Folder, batch: int) -> Loader:
    return Loader(images, [VIEWS, VIEWS], batch, torch.device("cpu"), 0, torch.float32)


def rates(folder: Path, images: Folder, batch: int, rounds: int, workers: int) -> None:
    """Print CPU time per image, and images per second of one core, for each contender."""
    used = len(images) // batch * batch
    data = [images.encoded(i) for i in range(used)]
    contenders: dict[str, Callable[[], None]] = {
        "decode alone": lambda: decode_alone(data, workers),
        "to a batch": lambda: to_a_batch(images, batch),
        "to a centre for evaluation": lambda: to_evaluation(images, batch),
        "to two views": lambda: to_two_views(images, batch),
        "torchvision, PIL, two views": lambda: torchvision_loader(folder, batch, workers),
    }
    times = alternate(contenders, rounds)
    seconds = {name: spent.cpu for name, spent in times.items()}
    cpu = {name: median(spent) for name, spent in seconds.items()}
    floor = cpu["decode alone"]
    columns: dict[str, Callable[[str], str]] = {
        "images/s": lambda name: f"{used / cpu[name]:.0f}",
        "of decode": lambda name: f"{floor / cpu[name]:.1%}",
        "images/s, wall": lambda name: f"{used / median(times[name].wall):.0f}",
    }
    print_table(seconds, "decode alone", "us/image", 1e6 / used, columns)
    print(f"two views: {cpu['torchvision, PIL, two views'] / cpu['to two views']:.1f} times torchvision's")
    cores = 8 * PER_GPU * cpu["to a batch"] / used
    print(f"8 GPUs at {PER_GPU} images/s each need {cores:.0f} cores (views on the GPUs), ", end="")
    print(f"{8 * PER_GPU * floor / used:.0f} for decoding alone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--side", type=int, nargs=2, metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2, help="our threads, and the DataLoader's processes")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    print(environment(["torchvision", "pillow"]))
    copy = Path(tempfile.mkdtemp()) if arguments.side else None
    folder = copy or arguments.folder
    try:
        if copy is not None:
            scaled(arguments.folder, copy, *arguments.side)
        classes = sorted(path.name for path in (folder / "train").iterdir())
        images = Folder(folder / "train", classes, arguments.workers)
        sample = range(min(64, len(images)))
        shapes = np.array([image.shape[1:] for image in images.take(torch.arange(len(sample)))])
        size = np.mean([images.encoded(i).numel() for i in sample]) / 1000
        height, width = np.median(shapes, 0)
        print(f"\n{len(images)} photos, of {len(sample)} the median is {width:.0f} x {height:.0f} pixels, ", end="")
        print(f"the mean {size:.0f} kB; ", end="")
        print(f"{arguments.workers} workers, batches of {arguments.batch}, {arguments.rounds} rounds")
        rates(folder, images, arguments.batch, arguments.rounds, arguments.workers)
    finally:
        if copy is not None:
            shutil.rmtree(copy)


if __name__ == "__main__":
    main()
