"""Time and memory of the losses, forward and backward, beside lightly's and a plain cross entropy in torch.

    python scripts/benchmark_losses.py                       # about 10 minutes on two cores
    python scripts/benchmark_losses.py --images 1024 4096

lightly is left out of the comparison where it is not installed. An environment of its own for it:

    python -m venv .venv-benchmark
    .venv-benchmark/bin/pip install -e . lightly
    OMP_WAIT_POLICY=PASSIVE .venv-benchmark/bin/python scripts/benchmark_losses.py

A loss gets the unit vectors of two views of N images, so that there are 2N anchors with 2N - 2 negatives each, and
gives their gradient. Every round runs each contender once, in turns, so that a busy machine is busy for all of them.
Printed are the median and the fastest round and the peak memory of a fresh process above what its inputs and a small
first call had taken, gradients of the inputs included. Ratios are to our tiled InfoNCE, of the medians.
"""

import argparse
import platform
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context

import torch
import torch.nn.functional as F
from torch import Tensor

from ssl_bench.objective import losses
from ssl_bench.objective.contrast import Contrast, Embedded
from ssl_bench.objective.loss import Loss
from ssl_bench.objective.negatives import InBatch, Negatives, RandomK

Contender = Callable[[Tensor, Tensor], Tensor]  # unit vectors of two views, each [N, D] -> mean loss []
OURS = "ssl_bench InfoNCE, tiled"
WIDTH, TAU, WARM_UP = 128, 0.2, 64
MATRICES, LIMIT = 6, 12.0  # 2N x 2N matrices that a loss holds at once if it stores any; GB of them that are too many


def ours(z1: Tensor, z2: Tensor, loss: Loss, negatives: Negatives, tiled: bool = True) -> Tensor:
    q = torch.stack([z1, z2])  # [2, N, D]
    e = Embedded(q=q, p=q.flip(0), raw=q, ids=torch.arange(len(z1), device=q.device))
    contrast = negatives.select(Contrast.of(e, negatives.bank(e), tiled=tiled))
    return loss(contrast, torch.tensor(TAU, device=q.device)).mean()


def plain(z1: Tensor, z2: Tensor) -> Tensor:
    z = torch.cat([z1, z2])
    logits = (z @ z.T / TAU).fill_diagonal_(float("-inf"))  # [2N, 2N]
    return F.cross_entropy(logits, torch.arange(len(z), device=z.device).roll(len(z1)))


def lightly(z1: Tensor, z2: Tensor, name: str) -> Tensor:
    from lightly.loss import DCLLoss, DCLWLoss, NTXentLoss

    warnings.filterwarnings("ignore", message="To copy construct")  # DCLW's weights
    peers = {"NT-Xent": NTXentLoss, "DCL": DCLLoss, "DCLW": DCLWLoss}
    return peers[name](temperature=TAU)(z1, z2)


def storing() -> dict[str, Contender]:
    """The contenders that store matrices of 2N x 2N."""
    dense = partial(ours, loss=losses.InfoNCE(), negatives=InBatch(), tiled=False)
    peers = {f"lightly {name}": partial(lightly, name=name) for name in ("NT-Xent", "DCL", "DCLW")}
    return {"ssl_bench InfoNCE, dense": dense, "plain cross entropy": plain, **peers}


def variants(images: int) -> Mapping[str, Contender]:
    """Our other losses of the same negatives, and InfoNCE of fewer."""
    kinds = [getattr(losses, name) for name in losses.__all__ if name != "InfoNCE"]
    others = [kind() for kind in kinds if kind.needs == {"negatives"}]
    fewer = [RandomK(k, views="all", shared=False, seed=0) for k in (1, 16, 256, 1024) if k < 2 * images - 2]
    rows = {f"ssl_bench {type(loss).__name__}": partial(ours, loss=loss, negatives=InBatch()) for loss in others}
    return rows | {f"ssl_bench InfoNCE, K = {x.k}": partial(ours, loss=losses.InfoNCE(), negatives=x) for x in fewer}


def make_views(images: int, device: str) -> tuple[Tensor, Tensor]:
    """Unit vectors, those of one image closer than those of two."""
    generator = torch.Generator().manual_seed(0)
    centres, *noise = (torch.randn(images, WIDTH, generator=generator) for _ in range(3))
    z1, z2 = (F.normalize(centres + x, dim=1).to(device).requires_grad_() for x in noise)
    return z1, z2


def step(contender: Contender, views: tuple[Tensor, Tensor]) -> Tensor:
    """Forward and backward; returns the loss once they are over."""
    for z in views:
        z.grad = None
    loss = contender(*views)
    loss.backward()
    torch.cuda.synchronize() if loss.is_cuda else None
    return loss.detach()


def importable(contender: Contender, device: str) -> bool:
    """Tries a contender on a few images, which also loads what it needs."""
    try:
        step(contender, make_views(WARM_UP, device))
    except ImportError:
        return False
    return True


def peak_megabytes(device: str, restart: bool = False) -> float:
    """The most memory this process has held, on Linux and on a GPU since the last restart."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats() if restart else None
        return torch.cuda.max_memory_allocated() / 2**20
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    if restart:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 2**10 for line in lines if line.startswith("VmHWM"))


def extra_memory(contender: Contender, images: int, device: str, threads: int) -> float:
    torch.set_num_threads(threads)
    views = make_views(images, device)
    importable(contender, device)
    before = peak_megabytes(device, restart=True)
    step(contender, views)
    return peak_megabytes(device) - before


def compare(contenders: Mapping[str, Contender], images: int, device: str, rounds: int) -> None:
    """A row for each contender, of which the first is ours."""
    views = make_views(images, device)
    present = {name: contender for name, contender in contenders.items() if importable(contender, device)}
    seconds: dict[str, list[float]] = {name: [] for name in present}
    for i in range(rounds + 1):  # the first is not counted
        for name, contender in present.items():
            start = time.perf_counter()
            step(contender, views)
            if i > 0:
                seconds[name].append(time.perf_counter() - start)
    print(f"{'':32}{'median ms':>10}{'fastest':>10}{'ratio':>8}{'extra MB':>10}{'ratio':>8}")
    base = None  # our memory
    for name in contenders:
        if name not in present:
            print(f"{name:32}not installed")
            continue
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            memory = pool.submit(extra_memory, present[name], images, device, torch.get_num_threads()).result()
        base = base or memory
        median, best = statistics.median(seconds[name]), min(seconds[name])
        row = f"{1e3 * median:10.1f}{1e3 * best:10.1f}{median / statistics.median(seconds[OURS]):8.2f}"
        print(f"{name:32}{row}{memory:10.0f}{memory / base:8.2f}", flush=True)


def machine(device: str) -> str:
    cpu = platform.processor() or platform.machine()
    if sys.platform == "linux":
        with open("/proc/cpuinfo") as lines:
            cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), cpu)
    found = [f"{platform.system()}, {cpu}, {torch.get_num_threads()} threads", f"python {platform.python_version()}"]
    found += [torch.cuda.get_device_name()] if device == "cuda" else []
    for package in ("torch", "lightly"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} not installed")
    return ", ".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[1024, 4096, 16384], help="each an N to measure at")
    parser.add_argument("--variants", type=int, nargs="*", default=[4096], help="each an N for our other losses too")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(machine(device))
    for images in arguments.images:
        print(f"\nN = {images} images, {2 * images} anchors, D = {WIDTH}, tau = {TAU}, {arguments.rounds} rounds")
        contenders: dict[str, Contender] = {OURS: partial(ours, loss=losses.InfoNCE(), negatives=InBatch())}
        needed = MATRICES * 4 * (2 * images) ** 2 / 1e9
        if needed > LIMIT:
            print(f"skipped, as they would need about {needed:.0f} GB: {', '.join(storing())}")
        else:
            views = make_views(images, device)
            torch.testing.assert_close(step(contenders[OURS], views), step(plain, views), rtol=1e-5, atol=0)
            contenders |= storing()
        if images in arguments.variants:
            contenders |= variants(images)
        compare(contenders, images, device, arguments.rounds)


if __name__ == "__main__":
    main()
