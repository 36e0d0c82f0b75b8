"""Count the launches of a training step by phase, without a GPU, beside lightly's step and a plain loop's.

    python scripts/benchmark_launches.py                       # ten methods, ResNet-18 with the CIFAR stem, bf16
    python scripts/benchmark_launches.py --only simclr byol --operations
    python scripts/benchmark_launches.py --compiled            # also the kernels of compiled views, which takes minutes

A launch costs the host 5 to 10 us, whatever the batch: with small batches a step takes as long as its launches. Steps
run on tensors without values (fake_gpu.py). Every operation of torch that starts a kernel counts once: views of a
tensor, allocations and questions about it do not count; an operation that starts several kernels counts once too, so
that a GPU has more. "waits" counts how often the host reads values, for which it waits on a GPU.

The views of the other steps are kornia's, the same recipe on the GPU. kornia and lightly's loss read values, so that
their parts run on the CPU, on real tensors of 8 images, and are counted in the same way.
"""

import argparse
import importlib
import json
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from fake_gpu import FakeTraining, Launches, fake_gpu
from phases import PHASES
from timing import environment, try_each
from torch import Tensor, nn

from ssl_bench.config.compose import load
from ssl_bench.parts import Parts

COMMON = ["dataset=cifar10", "precision=bf16", "evaluate.baselines=[]"]
METHODS = {
    "simclr": [],
    "dcl": ["loss=dcl"],
    "dclw": ["loss=dclw"],
    "eqco": ["loss=eqco"],
    "macl": ["loss=macl", "temperature=macl_a"],
    "moco_v2": ["framework=moco_v2"],
    "byol": ["framework=byol", "negatives=none", "loss=byol", "augment=simclr_cifar"],
    "simo": ["framework=simo", "augment=simclr_cifar"],
    "relic": ["framework=relic", "negatives=random_k", "negatives.views=cross", "negatives.k=64", "loss=relic"],
    "npid": ["framework=npid", "augment=simclr_cifar"],
}


def step(overrides: list[str]) -> Launches:
    """The launches of the second step; the first one has what happens once an epoch."""
    with fake_gpu(), Launches() as launches:
        training = FakeTraining(load([*COMMON, *overrides]), 50_000, launches)
        training.step()
        launches.clear()
        training.step()
        return launches


# ---- the steps of others, on the CPU


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
    positives = torch.arange(len(z), device=z.device).roll(len(x))
    return nn.functional.cross_entropy(logits, positives)


def lightly_loss() -> Callable[[Tensor, Tensor], Tensor]:
    loss: Callable[[Tensor, Tensor], Tensor] = importlib.import_module("lightly.loss").NTXentLoss(temperature=0.1)
    return loss


def other_step(make_loss: Callable[[], Callable[[Tensor, Tensor], Tensor]], joint: bool) -> Launches:
    """The second step of SimCLR as a loop of torch: views, autocast, loss, backward, SGD.

    Args:
        make_loss: makes the loss of two batches of projections.
        joint: both views in one forward, or one forward for each.
    """
    loss_of, launches = make_loss(), Launches("cpu")
    encoder: Any = Parts(load([*COMMON, "framework=simclr"])).method.encoder
    network = nn.Sequential(encoder.backbone, encoder.head)
    optimizer = torch.optim.SGD(network.parameters(), 0.1, 0.9, weight_decay=5e-4, foreach=True)  # a GPU's default
    images = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8)
    for _ in range(2):
        launches.clear()
        with launches:
            with launches.phase("views"):
                views = kornia_views(images)
            with launches.phase("forward"), torch.autocast("cpu", torch.bfloat16):
                x, y = network(torch.cat(views)).chunk(2) if joint else map(network, views)
            with launches.phase("loss"):
                loss = loss_of(x, y)
            with launches.phase("backward"):
                loss.backward()
            with launches.phase("optimiser"):
                optimizer.step()
                optimizer.zero_grad()
    return launches


OTHERS = {
    "plain loop, kornia": partial(other_step, lambda: plain_loss, True),
    "lightly, kornia": partial(other_step, lightly_loss, False),
}


# ---- compiled views


def compiled_views() -> str:
    """Kernels of both views of augment=simclr_cifar after torch.compile for this CPU.

    Inductor says how many loops it generates; each is a kernel on a GPU. Matrix products and sorts are calls of torch,
    counted in the generated code.
    """
    from torch._inductor import metrics
    from torch._inductor.utils import run_and_get_code

    views = Parts(load([*COMMON])).views[0]
    images, uniform = torch.zeros(8, 3, 32, 32, dtype=torch.uint8), [torch.rand(8, 36) for _ in range(2)]
    metrics.reset()
    views.compile()
    _, code = run_and_get_code(views.make, images, uniform, torch.float32)
    calls = sum(len(re.findall(r"= (?:torch\.ops\.aten|aten)\.\w+|extern_kernels\.\w+", text)) for text in code)
    return f"compiled views: {metrics.generated_kernel_count} generated kernels and {calls} calls of torch"


# ---- the table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*METHODS], default=[*METHODS], metavar="METHOD")
    parser.add_argument("--operations", action="store_true", help="also list the operations of every phase")
    parser.add_argument("--compiled", action="store_true", help="also compile the views, and count their kernels")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    rows = {name: step(METHODS[name]) for name in arguments.only}
    others, missing = try_each(OTHERS)
    rows |= others
    if arguments.json:
        print(json.dumps({name: row.counts | {"waits": row.waits} for name, row in rows.items()}))
        return
    print(environment(["kornia", "lightly"]))
    columns = [phase for phase in PHASES if any(row.counts[phase] for row in rows.values())]
    print(" " * 20 + "".join(f"{title:>11}" for title in [*columns, "total", "waits"]))
    for name, row in rows.items():
        values = [*(row.counts[phase] for phase in columns), row.counts.total(), row.waits]
        print(f"{name:20}" + "".join(f"{value:>11}" for value in values))
    for name, package in missing.items():
        print(f"{name:20}not installed ({package})")
    for name, row in rows.items() if arguments.operations else ():
        for phase in columns:
            listed = ", ".join(
                f"{operation} {n}" for operation, n in row.operations.get(phase, Counter()).most_common()
            )
            print(f"\n{name}, {phase}: {listed}")
    if arguments.compiled:
        print(compiled_views())


if __name__ == "__main__":
    main()
