"""Speed of making views on one core: ours beside torchvision, kornia and lightly, in one run.

    python -m venv bench && bench/bin/pip install -e . lightly kornia
    bench/bin/python scripts/benchmark_views.py

The first command makes an environment of its own for the alternatives; without them (they are optional) the script
says "not installed" and compares with torchvision alone. Everyone gets the same images in the form they like best, made
beforehand (PIL images, tensors), and must return a normalised float batch. Time is the CPU time of this process on one
thread, in alternating rounds, so that a busy machine slows everyone; the median of the rounds is shown.
"""

from __future__ import annotations

import argparse
import importlib
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from statistics import median

import torch
from torch import Tensor

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)


# What any benchmark needs: where it ran, and times that can be compared


def environment(packages: Sequence[str]) -> str:
    """Processor and versions, one line each."""
    try:
        with open("/proc/cpuinfo") as lines:
            cpu = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        cpu = platform.processor() or platform.machine()
    rows = [("CPU", f"{cpu}, {torch.get_num_threads()} thread"), ("python", platform.python_version())]
    for package in packages:
        try:
            rows.append((package, version(package)))
        except PackageNotFoundError:
            rows.append((package, "not installed"))
    return "\n".join(f"{name:<12} {value}" for name, value in rows)


def alternate(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each call, [rounds] per name: every round calls everyone once; a first one is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for i in range(rounds + 1):
        for name, call in contenders.items():
            start = time.process_time()
            call()
            if i > 0:
                seconds[name].append(time.process_time() - start)
    return seconds


def table(seconds: dict[str, list[float]], images: int, ours: str) -> str:
    """One row per name: images per second, microseconds per image (median, least, most), how much faster ours is."""
    rows = [f"{'':<28}{'images/s':>10}{'us/image':>10}{'min':>9}{'max':>9}{'ours is':>10}"]
    for name, times in seconds.items():
        each = [1e6 * t / images for t in times]
        ratio = median(times) / median(seconds[ours])
        middle = median(each)
        rows.append(f"{name:<28}{1e6 / middle:>10.0f}{middle:>10.1f}{min(each):>9.1f}{max(each):>9.1f}{ratio:>9.2f}x")
    return "\n".join(rows)


# The views


@dataclass(frozen=True)
class Task:
    """`views` views of `size` pixels from images of `source` pixels, with SimCLR's recipe at a colour strength."""

    size: int
    source: int
    views: int
    strength: float
    blur: float

    @property
    def jitter(self) -> tuple[float, float, float, float]:
        return 0.8 * self.strength, 0.8 * self.strength, 0.8 * self.strength, 0.2 * self.strength

    @property
    def kernel(self) -> int:
        return 2 * max(1, self.size // 20) + 1


TASKS = {
    32: Task(size=32, source=32, views=2, strength=0.5, blur=0.0),
    96: Task(size=96, source=96, views=1, strength=1.0, blur=0.5),
    224: Task(size=224, source=256, views=1, strength=1.0, blur=0.5),
}

Maker = Callable[[], object]


def ours(task: Task, images: Tensor) -> Maker:
    from ssl_bench.data.views import Views

    views = Views(task.size, jitter=task.jitter, blur=task.blur, mean=MEAN, std=STD)
    generator = torch.Generator().manual_seed(0)
    return lambda: [views(images, generator) for _ in range(task.views)]


def one_by_one(transform: Callable[[object], Tensor], inputs: Sequence[object], views: int) -> Maker:
    """A transform of single images, as a data loader's worker calls it."""
    return lambda: [torch.stack([transform(x) for x in inputs]) for _ in range(views)]


def pil(images: Tensor) -> list[object]:
    from PIL import Image

    return [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]


def torchvision_v1_pil(task: Task, images: Tensor) -> Maker:
    from torchvision import transforms as T

    steps = [
        T.RandomResizedCrop(task.size),
        T.RandomHorizontalFlip(),
        T.RandomApply([T.ColorJitter(*task.jitter)], 0.8),
        T.RandomGrayscale(0.2),
    ]
    if task.blur > 0:
        steps.append(T.RandomApply([T.GaussianBlur(task.kernel, (0.1, 2.0))], task.blur))
    return one_by_one(T.Compose([*steps, T.ToTensor(), T.Normalize(MEAN, STD)]), pil(images), task.views)


def torchvision_v2(task: Task) -> Callable[[object], Tensor]:
    from torchvision.transforms import v2

    steps = [
        v2.RandomResizedCrop(task.size),
        v2.RandomHorizontalFlip(),
        v2.RandomApply([v2.ColorJitter(*task.jitter)], 0.8),
        v2.RandomGrayscale(0.2),
    ]
    if task.blur > 0:
        steps.append(v2.RandomApply([v2.GaussianBlur(task.kernel, (0.1, 2.0))], task.blur))
    return v2.Compose([*steps, v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])


def torchvision_v2_pil(task: Task, images: Tensor) -> Maker:
    return one_by_one(torchvision_v2(task), pil(images), task.views)


def torchvision_v2_uint8(task: Task, images: Tensor) -> Maker:
    return one_by_one(torchvision_v2(task), list(images.contiguous()), task.views)


def kornia_batched(task: Task, images: Tensor) -> Maker:
    K = importlib.import_module("kornia.augmentation")
    steps = [
        K.RandomResizedCrop((task.size, task.size)),
        K.RandomHorizontalFlip(),
        K.ColorJitter(*task.jitter, p=0.8),
        K.RandomGrayscale(p=0.2),
    ]
    if task.blur > 0:
        steps.append(K.RandomGaussianBlur((task.kernel, task.kernel), (0.1, 2.0), p=task.blur))
    pipeline = torch.nn.Sequential(*steps, K.Normalize(torch.tensor(MEAN), torch.tensor(STD)))
    return lambda: [pipeline(images.float() / 255) for _ in range(task.views)]


def lightly_pil(task: Task, images: Tensor) -> Maker:
    transform = importlib.import_module("lightly.transforms.simclr_transform").SimCLRViewTransform(
        input_size=task.size,
        cj_strength=task.strength,
        gaussian_blur=task.blur,
        normalize={"mean": list(MEAN), "std": list(STD)},
    )
    return one_by_one(transform, pil(images), task.views)


CONTENDERS: dict[str, Callable[[Task, Tensor], Maker]] = {
    "ssl_bench": ours,
    "torchvision v2, PIL": torchvision_v2_pil,
    "torchvision v2, uint8 tensor": torchvision_v2_uint8,
    "torchvision v1, PIL": torchvision_v1_pil,
    "kornia, batched": kornia_batched,
    "lightly, PIL": lightly_pil,
}


def photographs(n: int, size: int) -> Tensor:
    """Smooth noise, uint8 [n, 3, size, size], stored channels last as prepared data are."""
    coarse = torch.rand(n, 3, 6, 6, generator=torch.Generator().manual_seed(0))  # [n, 3, 6, 6]
    fine = torch.nn.functional.interpolate(coarse, size, mode="bicubic").clamp(0, 1)  # [n, 3, size, size]
    return (fine * 255).byte().permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=512, help="images at 32 pixels; larger sizes take fewer")
    parser.add_argument("--rounds", type=int, default=7, help="at least 5 for a median worth printing")
    parser.add_argument("--size", type=int, nargs="+", choices=list(TASKS), default=list(TASKS))
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    print(environment(["ssl-bench", "torch", "torchvision", "pillow", "kornia", "lightly"]))
    for task in (TASKS[size] for size in arguments.size):
        images = photographs(max(8, arguments.batch * 32 * 32 // task.size**2), task.source)
        makers, missing = {}, []
        for name, build in CONTENDERS.items():
            try:
                makers[name] = build(task, images)
            except ModuleNotFoundError as error:
                missing.append(f"{name:<28}{'not installed':>20} ({error.name})")
        blur = f", blur {task.blur}" if task.blur else ""
        print(f"\n{task.views} view{'s' * (task.views > 1)} of {task.size} px from {task.source} px, ", end="")
        print(f"colour strength {task.strength}{blur}; {len(images)} images, median of {arguments.rounds} rounds")
        print(table(alternate(makers, arguments.rounds), len(images), "ssl_bench"))
        print(*missing, sep="\n", end="\n" if missing else "")


if __name__ == "__main__":
    main()
