"""Images per second of a whole training step of SimCLR, beside a plain loop's and lightly's, on CPUs and GPUs.

    python scripts/benchmark_step.py                        # fp32 and bf16, 64 images: 4 minutes on two cores
    python scripts/benchmark_step.py --precision fp32 --batch 128
    python scripts/benchmark_step.py --device cuda --precision bf16 --batch 32 64 128 256 512 1024

A step is views, forward, loss, backward and optimiser, on random images of 32 pixels: ResNet-18 with the CIFAR stem, a
head of two layers, NT-Xent, SGD. The other steps are written as their users would write them: torchvision's ResNet-18,
the same recipe of views by kornia, in channels_last where the name says so. Rounds alternate.

On a CPU a round is one step. On a GPU it is 20 steps between two synchronisations of host and device; two rounds, in
which libraries choose algorithms and graphs are recorded, come before and do not count. The package's steps are eager,
or replayed as a CUDA graph; the other loops have its views, so that only the loops differ, but for one with kornia's.
There are two floors of the time, with rates that are measured just after the steps:

    arithmetic floor               of a view = FLOP / rate
    arithmetic and memory floor    of a view = FLOP / rate + bytes / bandwidth

The rate is the best that this device has just reached in matrix products and convolutions, the bandwidth the best of
copies. The two add up because convolutions and batch norms run one after another. FLOP are 3 times those of the forward
pass. Bytes are those of fused kernels: a convolution reads and writes its tensors once in each of its three passes, a
batch norm reads its input for the statistics, reads and writes it to normalise, and reads four tensors and writes one
in the backward pass.
"""

import argparse
import importlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timing import alternate, environment, print_table, result_rows, save, try_each
from torch import Tensor, nn
from torch.nn.functional import conv2d

from ssl_bench.check.speed import seconds_of_calls, training
from ssl_bench.data.views import Views
from ssl_bench.hardware import release_memory
from ssl_bench.training.precision import Precision

NETWORK = "resnet18 32px"
# Of a view, forward and backward: 10^9 operations, 10^6 bytes in a format of 16 bits, numbers in the largest tensor.
GFLOP, MEGABYTES, LARGEST = 3.33, 17.5, 64 * 32**2
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ARITHMETIC, WITH_MEMORY = "arithmetic floor", "arithmetic and memory floor"
STEPS = 20  # of a round on a GPU; the package records its graph in the fourth step
JITTER, MEAN, STD = (0.4, 0.4, 0.4, 0.1), (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)

Step = Callable[[], object]
TwoViews = Callable[[], list[Tensor]]


def kornia_views(images: Tensor) -> TwoViews:
    """Makes two views of uint8 [n, 3, 32, 32] by the recipe of augment=simclr_cifar."""
    K = importlib.import_module("kornia.augmentation")
    steps = [K.RandomResizedCrop((32, 32), scale=(0.08, 1.0)), K.RandomHorizontalFlip()]
    steps += [K.ColorJitter(*JITTER, p=0.8), K.RandomGrayscale(p=0.2), K.Normalize(*map(torch.tensor, (MEAN, STD)))]
    pipeline = nn.Sequential(*steps).to(images.device)
    return lambda: [pipeline(images.float() / 255) for _ in range(2)]


def package_views(images: Tensor) -> TwoViews:
    """The same by the package, without a compiler."""
    views, generator = Views(32, jitter=JITTER, mean=MEAN, std=STD), torch.Generator(images.device)
    return lambda: [views(images, generator) for _ in range(2)]


def plain_loss(x: Tensor, y: Tensor) -> Tensor:
    """NT-Xent as in many repositories: all cosines, the diagonal masked, cross-entropy."""
    z = nn.functional.normalize(torch.cat([x, y]).float())
    logits = (z @ z.T / 0.1).fill_diagonal_(-torch.inf)
    return nn.functional.cross_entropy(logits, torch.arange(len(z), device=z.device).roll(len(x)))


def lightly_loss() -> Callable[[Tensor, Tensor], Tensor]:
    loss: Callable[[Tensor, Tensor], Tensor] = importlib.import_module("lightly.loss").NTXentLoss(temperature=0.1)
    return loss


def network(device: torch.device, memory: torch.memory_format) -> nn.Module:
    """torchvision's ResNet-18 with the CIFAR stem and SimCLR's head."""
    from torchvision.models import resnet18

    net: Any = resnet18(num_classes=128)
    net.conv1, net.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    net.fc = nn.Sequential(nn.Linear(512, 512, bias=False), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 128))
    trained: nn.Module = net.to(device, memory_format=memory).train()
    return trained


def other(
    make_loss: Callable[[], Callable[[Tensor, Tensor], Tensor]],
    make_views: Callable[[Tensor], TwoViews],
    joint: bool,
    last: bool,
    batch: int,
    precision: Precision,
    device: torch.device,
) -> Step:
    """A step of another loop.

    Args:
        make_loss: makes the loss of two batches of projections.
        make_views: makes a function that returns two views of the images.
        joint: both views in one forward, or one forward for each.
        last: weights and images in channels_last.
        batch: images.
        precision: of autocast; the loss is scaled in fp16.
    """
    loss_of, memory = make_loss(), torch.channels_last if last else torch.contiguous_format
    net = network(device, memory)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, 0.9, weight_decay=5e-4)
    scaler = torch.amp.GradScaler(device.type, enabled=precision.scaled)
    two_views = make_views(torch.randint(256, (batch, 3, 32, 32), dtype=torch.uint8, device=device))

    def step() -> None:
        views = [view.contiguous(memory_format=memory) for view in two_views()]
        with torch.autocast(device.type, precision.autocast, enabled=precision.autocast is not None):
            x, y = net(torch.cat(views)).chunk(2) if joint else map(net, views)
        loss = loss_of(x.float(), y.float())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def package(batch: int, precision: Precision, device: torch.device, *overrides: str) -> Step:
    settings = dict(word.partition("=")[::2] for word in (f"precision={precision.name}", *overrides))  # the last counts
    words = [f"{key}={value}" for key, value in settings.items()]
    return partial(training(NETWORK, batch, device, *words).stepper(), False)


def contenders(cuda: bool, variants: Sequence[Sequence[str]]) -> dict[str, Callable[..., Step]]:
    """Makers of each step, which take a number of images, a precision and a device; the package's first.

    Args:
        variants: settings of further steps of the package.
    """

    def ours(batch: int, precision: Precision, device: torch.device, settings: Sequence[str]) -> Step:
        return package(batch, precision, device, *settings)

    name, graph = ("ssl_bench, replayed", "graph=true") if cuda else ("ssl_bench", "graph=auto")
    varied = {", ".join((name, *words)): partial(ours, settings=[graph, *words]) for words in ((), *variants)}
    if not cuda:
        return {
            **varied,
            "plain loop": partial(other, lambda: plain_loss, kornia_views, True, False),
            "plain loop, channels_last": partial(other, lambda: plain_loss, kornia_views, True, True),
            "lightly": partial(other, lightly_loss, kornia_views, False, False),
        }
    return {
        **varied,
        "ssl_bench, eager": partial(ours, settings=["graph=false"]),
        "plain loop, channels_last": partial(other, lambda: plain_loss, package_views, True, True),
        "plain loop, channels_last, kornia's views": partial(other, lambda: plain_loss, kornia_views, True, True),
        "lightly's loss and forwards": partial(other, lightly_loss, package_views, False, False),
    }


def floors(batch: int, precision: Precision, device: torch.device, tflops: float, gigabytes: float) -> dict[str, float]:
    """The least seconds of a step of ``batch`` images, of two views each, at measured rates.

    Args:
        gigabytes: of copies that no cache holds. Copies as large as the largest tensor count if they are faster.
    """
    views, size = 2 * batch, 4 if precision.autocast is None else 2  # bytes of a number
    gigabytes = max(gigabytes, copy_gigabytes(device, views * LARGEST * size))
    arithmetic = views * GFLOP / 1e3 / tflops
    memory = views * MEGABYTES * size / 2 / 1e3 / gigabytes
    return {ARITHMETIC: arithmetic, WITH_MEMORY: arithmetic + memory}


def copy_gigabytes(device: torch.device, count: int | None = None) -> float:
    """Measure a copy of ``count`` bytes, or of so many that no cache holds them: 10^9 bytes a second, both ways."""
    count = count or (2**30 if device.type == "cuda" else 2**27)
    source = torch.zeros(count, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return 2 * count / min(seconds_of_calls(lambda: target.copy_(source))) / 1e9


def best_tflops(device: torch.device, number_format: str) -> float:
    """Measure square matrix products and a ResNet's convolutions, as a run computes them: the best 10^12 FLOP/s."""

    def numbers(*shape: int) -> Tensor:
        x = torch.randn(shape, device=device).to(FORMATS[number_format])
        return x if x.ndim == 2 else x.contiguous(memory_format=torch.channels_last)

    sides, images = ((4096, 8192), 1024) if device.type == "cuda" else ((1024, 2048), 32)
    rates = []
    for side in sides:
        product = partial(torch.mm, numbers(side, side), numbers(side, side))
        rates.append(2 * side**3 / min(seconds_of_calls(product)))
    for channels, side in ((64, 32), (128, 16), (256, 8)):
        x, weights = numbers(images, channels, side, side), numbers(channels, channels, 3, 3)
        flop = 2 * 3 * 3 * images * (side * channels) ** 2
        rates.append(flop / min(seconds_of_calls(partial(conv2d, x, weights, padding=1))))
    return max(rates) / 1e12


def started(make: Callable[[], Step], steps: int, device: torch.device) -> Step:
    """Make a step and return a round of such steps, which has run once and ends when the device has computed it."""
    step = make()

    def one_round() -> None:
        for _ in range(steps):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    one_round()
    return one_round


def measure(
    precision: Precision, batch: int, rounds: int, device: torch.device, variants: Sequence[Sequence[str]]
) -> list[dict[str, Any]]:
    """Time the steps in one precision; print their table and return its rows."""
    cuda = device.type == "cuda"
    steps = STEPS if cuda else 1
    if cuda:
        torch.cuda.reset_peak_memory_stats()  # from which the package tells whether a graph fits
    makers = {name: partial(make, batch, precision, device) for name, make in contenders(cuda, variants).items()}
    found, missing = try_each({name: partial(started, make, steps, device) for name, make in makers.items()})
    if cuda:
        _, failed = try_each(found)  # with the memory of all of them in use
        missing |= failed
    times = alternate({name: call for name, call in found.items() if name not in missing}, rounds, warm_up=0)
    rates = best_tflops(device, precision.name), copy_gigabytes(device)
    least = floors(batch, precision, device, *rates)
    seconds = {floor: [of_floor] for floor, of_floor in least.items()}
    seconds |= {name: [wall / steps for wall in each.wall] for name, each in times.items()}

    def share(floor: str, name: str) -> str:
        of_floor = least[floor] / statistics.median(seconds[name])
        return "-" if name in least else f"{of_floor:.0%}" if of_floor <= 1 else "exceeded"

    columns: Mapping[str, Callable[[str], str]] = {
        "images/s": lambda name: f"{batch / statistics.median(seconds[name]):.1f}",
        **{f"of {floor}": partial(share, floor) for floor in least},
    }
    print(f"\n{precision.name}, {batch} images, a step")
    print_table(seconds, ARITHMETIC if cuda else "ssl_bench", "ms", 1e3, columns, missing)
    rows = result_rows(seconds, missing, precision=precision.name, batch=batch)
    return [row | {"images_s": 1e3 * batch / row["median_ms"]} if "median_ms" in row else row for row in rows]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    formats = ["fp32", "bf16", "fp16", "auto"]
    parser.add_argument(
        "--precision", nargs="+", choices=formats, default=["fp32", "bf16"], help="auto: as in training"
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[64], help="images")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--set",
        nargs="+",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="time one more step of the package, with these settings: --set compile=true --set precision=fp16",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there after each table")
    arguments = parser.parse_args(words)
    cuda = arguments.device == "cuda"
    if cuda and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU")
    if "fp16" in arguments.precision and not cuda:
        parser.error("--precision fp16: fp16 needs --device cuda")

    torch.manual_seed(0)
    machine, rows = environment(["torchvision", "kornia", "lightly"], arguments.device), list[dict[str, Any]]()
    print(machine)
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    for name in arguments.precision:
        for batch in arguments.batch:
            rows += measure(Precision.of(name, cuda), batch, arguments.rounds, device, arguments.set)
            save(arguments.json, machine, rows)
            release_memory(device)


if __name__ == "__main__":
    main()
