"""Compare the speed of making views on one core with torchvision, kornia and lightly, in one run.

    python -m venv bench && bench/bin/pip install -e . lightly kornia
    bench/bin/python scripts/benchmark_views.py

The first command makes a separate environment for the alternatives. They are optional: without them the script prints
"not installed" and compares with torchvision alone. Every contender gets the same images in the form that suits it best
(PIL images or tensors, made before the timing) and returns a normalised float batch. The time is the CPU time of this
process on one thread, in alternating rounds, so that a busy machine slows all contenders; ratios are of the medians.
"""

import argparse
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from timing import alternate, environment, print_table, try_each
from torch import Tensor

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)


@dataclass(frozen=True)
class Task:
    """SimCLR's recipe: ``views`` views of ``size`` pixels from images of ``source`` [height, width] pixels."""

    size: int
    source: tuple[int, int]
    views: int
    strength: float
    blur: float

    @property
    def jitter(self) -> tuple[float, float, float, float]:
        return 0.8 * self.strength, 0.8 * self.strength, 0.8 * self.strength, 0.2 * self.strength

    @property
    def kernel(self) -> int:
        return 2 * max(1, self.size // 20) + 1


TASKS = [
    Task(size=32, source=(32, 32), views=2, strength=0.5, blur=0.0),
    Task(size=96, source=(96, 96), views=1, strength=1.0, blur=0.5),
    Task(size=224, source=(256, 256), views=1, strength=1.0, blur=0.5),
    Task(size=224, source=(375, 500), views=1, strength=1.0, blur=0.5),
]
SIZES = sorted({task.size for task in TASKS})

Maker = Callable[[], object]


def ours(task: Task, images: Tensor) -> Maker:
    from ssl_bench.data.views import Views

    views = Views(task.size, jitter=task.jitter, blur=task.blur, mean=MEAN, std=STD)
    generator = torch.Generator().manual_seed(0)
    return lambda: [views(images, generator) for _ in range(task.views)]


def one_by_one(transform: Callable[[object], Tensor], inputs: Sequence[object], views: int) -> Maker:
    """Apply a transform to single images, as a data loader's worker does."""
    return lambda: [torch.stack([transform(x) for x in inputs]) for _ in range(views)]


def pil(images: Tensor) -> list[object]:
    from PIL import Image

    return [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]


def torchvision_recipe(task: Task, transforms: Any) -> list[Any]:
    """The recipe on images, in torchvision's transforms v1 or v2."""
    steps = [
        transforms.RandomResizedCrop(task.size),
        transforms.RandomHorizontalFlip(),
        transforms.RandomApply([transforms.ColorJitter(*task.jitter)], 0.8),
        transforms.RandomGrayscale(0.2),
    ]
    if task.blur > 0:
        steps.append(transforms.RandomApply([transforms.GaussianBlur(task.kernel, (0.1, 2.0))], task.blur))
    return steps


def torchvision_v1_pil(task: Task, images: Tensor) -> Maker:
    from torchvision import transforms as v1

    steps = [*torchvision_recipe(task, v1), v1.ToTensor(), v1.Normalize(MEAN, STD)]
    return one_by_one(v1.Compose(steps), pil(images), task.views)


def torchvision_v2(task: Task) -> Callable[[object], Tensor]:
    from torchvision.transforms import v2

    to_float = v2.ToDtype(torch.float32, scale=True)
    return v2.Compose([*torchvision_recipe(task, v2), v2.ToImage(), to_float, v2.Normalize(MEAN, STD)])


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


def photographs(n: int, size: tuple[int, int]) -> Tensor:
    """Smooth noise, uint8 [n, 3, *size], stored channels last as prepared data are."""
    coarse = torch.rand(n, 3, 6, 6, generator=torch.Generator().manual_seed(0))  # [n, 3, 6, 6]
    fine = torch.nn.functional.interpolate(coarse, size, mode="bicubic").clamp(0, 1)  # [n, 3, *size]
    return (fine * 255).byte().permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def images_per_second(seconds: Mapping[str, Sequence[float]], images: int, name: str) -> str:
    return f"{images / median(seconds[name]):.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=512, help="images of 32 pixels; fewer of larger sizes")
    parser.add_argument("--rounds", type=int, default=7, help="use 5 or more for a reliable median")
    parser.add_argument("--size", type=int, nargs="+", choices=SIZES, default=SIZES)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    print(environment(["torchvision", "pillow", "kornia", "lightly"]))
    for task in (task for task in TASKS if task.size in arguments.size):
        images = photographs(max(8, arguments.batch * 32 * 32 // task.size**2), task.source)
        makers, missing = try_each({name: partial(build, task, images) for name, build in CONTENDERS.items()})
        blur = f", blur {task.blur}" if task.blur else ""
        height, width = task.source
        print(f"\n{task.views} view{'s' * (task.views > 1)} of {task.size} px from {width} x {height} px, ", end="")
        print(f"colour strength {task.strength}{blur}; {len(images)} images, {arguments.rounds} rounds")
        seconds = {name: spent.cpu for name, spent in alternate(makers, arguments.rounds).items()}
        columns = {"images/s": partial(images_per_second, seconds, len(images))}
        print_table(seconds, "ssl_bench", "us/image", 1e6 / len(images), columns, missing)


if __name__ == "__main__":
    main()
