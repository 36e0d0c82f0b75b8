"""Images per second of a whole training step of SimCLR, beside a plain loop's and lightly's, on CPUs.

    python scripts/benchmark_step.py                        # fp32 and bf16, 64 images: 4 minutes on two cores
    python scripts/benchmark_step.py --precision fp32 --batch 128

A step is views, forward, loss, backward and optimiser, on random images of 32 pixels: ResNet-18 with the CIFAR stem, a
head of two layers, NT-Xent, SGD. The other steps are written as their users would write them: torchvision's ResNet-18,
the same recipe of views by kornia, in channels_last where the name says so. Rounds of one step alternate.
"""

import argparse
import importlib
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from timing import alternate, environment, print_table, try_each
from torch import Tensor, nn

from ssl_bench.check.speed import training

BASE = "ssl_bench"


def kornia_views(images: Tensor) -> list[Tensor]:
    """Two views of uint8 [n, 3, 32, 32] by the recipe of augment=simclr_cifar."""
    K = importlib.import_module("kornia.augmentation")
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2023, 0.1994, 0.2010])
    steps = [K.RandomResizedCrop((32, 32), scale=(0.08, 1.0)), K.RandomHorizontalFlip()]
    steps += [K.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8), K.RandomGrayscale(p=0.2), K.Normalize(mean, std)]
    pipeline = nn.Sequential(*steps)
    x = images.float() / 255
    return [pipeline(x), pipeline(x)]


def plain_loss(x: Tensor, y: Tensor) -> Tensor:
    """NT-Xent as in many repositories: all cosines, the diagonal masked, cross-entropy."""
    z = nn.functional.normalize(torch.cat([x, y]).float())
    logits = (z @ z.T / 0.1).fill_diagonal_(-torch.inf)
    return nn.functional.cross_entropy(logits, torch.arange(len(z)).roll(len(x)))


def lightly_loss() -> Callable[[Tensor, Tensor], Tensor]:
    loss: Callable[[Tensor, Tensor], Tensor] = importlib.import_module("lightly.loss").NTXentLoss(temperature=0.1)
    return loss


def network() -> nn.Module:
    """torchvision's ResNet-18 with the CIFAR stem and SimCLR's head."""
    from torchvision.models import resnet18

    net: Any = resnet18(num_classes=128)
    net.conv1, net.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    net.fc = nn.Sequential(nn.Linear(512, 512, bias=False), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 128))
    trained: nn.Module = net.train()
    return trained


def other(
    make_loss: Callable[[], Callable[[Tensor, Tensor], Tensor]], batch: int, half: bool, joint: bool, last: bool
) -> Callable[[], object]:
    """A step of another loop.

    Args:
        make_loss: makes the loss of two batches of projections.
        batch: images.
        half: autocast to bf16.
        joint: both views in one forward, or one forward for each.
        last: weights and images in channels_last.
    """
    loss_of, memory = make_loss(), torch.channels_last if last else torch.contiguous_format
    net = network().to(memory_format=memory)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(net.parameters(), 0.1, 0.9, weight_decay=5e-4)
    images = torch.randint(256, (batch, 3, 32, 32), dtype=torch.uint8)
    kornia_views(images[:2])

    def step() -> None:
        views = [view.contiguous(memory_format=memory) for view in kornia_views(images)]
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            x, y = net(torch.cat(views)).chunk(2) if joint else map(net, views)
        loss = loss_of(x.float(), y.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def measure(precision: str, batch: int, rounds: int) -> None:
    """Time the steps in one precision and print their table."""
    half = precision == "bf16"
    step = training("resnet18 32px", batch, Path(mkdtemp()), torch.device("cpu"), f"precision={precision}").stepper()
    others, missing = try_each(
        {
            "plain loop": partial(other, lambda: plain_loss, batch, half, True, False),
            "plain loop, channels_last": partial(other, lambda: plain_loss, batch, half, True, True),
            "lightly": partial(other, lightly_loss, batch, half, False, False),
        }
    )
    times = alternate({BASE: partial(step, False)} | others, rounds)
    seconds = {name: each.wall for name, each in times.items()}
    rates = {"images/s": lambda name: f"{batch / statistics.median(seconds[name]):.1f}"}
    print(f"\n{precision}, {batch} images, a step")
    print_table(seconds, BASE, "ms", 1e3, rates, missing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--batch", type=int, default=64, help="images")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    print(environment(["torchvision", "kornia", "lightly"]))
    for precision in arguments.precision:
        measure(precision, arguments.batch, arguments.rounds)


if __name__ == "__main__":
    main()
