"""Compare time and memory of the losses, forward and backward, with lightly's and a plain cross-entropy in torch.

    python scripts/benchmark_losses.py                       # about 10 minutes on two cores
    python scripts/benchmark_losses.py --images 1024 4096

lightly is left out of the comparison if it is not installed. A separate environment for it:

    python -m venv .venv-benchmark
    .venv-benchmark/bin/pip install -e . lightly
    OMP_WAIT_POLICY=PASSIVE .venv-benchmark/bin/python scripts/benchmark_losses.py

A loss gets the unit vectors of two views of N images, which are 2N anchors with 2N - 2 negatives each, and computes
their gradient. Every round runs each contender once, in turns, so that a busy machine slows all of them. The table has
wall time, and the peak memory of a new process beyond its inputs and a small first call; gradients of the inputs count.
Ratios are to our tiled InfoNCE, of the medians.
"""

import argparse
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature

import numpy.random  # noqa: F401  # its 8 MB would else count as memory of the first draw
import torch
import torch.nn.functional as F
from timing import alternate, environment, extra_megabytes, print_table, try_each
from torch import Tensor

from ssl_bench.objective import losses
from ssl_bench.objective.contrast import Contrast, Embedded
from ssl_bench.objective.loss import Loss
from ssl_bench.objective.negatives import CrossView, InBatch, Negatives, NoNegatives, OwnView, RandomK

Contender = Callable[[Tensor, Tensor], Tensor]  # unit vectors of two views, each [N, D] -> mean loss []
OURS = "ssl_bench InfoNCE, tiled"
WIDTH, TAU, SMALL = 128, 0.2, 64
CLASSES = 100  # for losses with labels
MATRICES = 6  # of 2N x 2N that a storing loss holds at once
LIMIT = 12.0  # GB of them, or 80% of a GPU's memory, above which it is skipped


def ours(z1: Tensor, z2: Tensor, loss: Loss, negatives: Negatives, tiled: bool = True) -> Tensor:
    q = torch.stack([z1, z2])  # [2, N, D]
    ids = torch.arange(len(z1), device=q.device)
    e = Embedded(q=q, p=q.flip(0), raw=q, ids=ids, labels=ids % CLASSES if "labels" in loss.needs else None)
    contrast = negatives.select(Contrast.of(e, negatives.bank(e), tiled=tiled), 0.0)
    tau = loss.temperature(contrast, torch.tensor(TAU, device=q.device))
    value = loss(contrast, tau).mean()
    with torch.no_grad():
        loss.update(e.ids, loss.for_update(contrast, tau))
    return value


def plain(z1: Tensor, z2: Tensor) -> Tensor:
    z = torch.cat([z1, z2])
    logits = (z @ z.T / TAU).fill_diagonal_(float("-inf"))  # [2N, 2N]
    return F.cross_entropy(logits, torch.arange(len(z), device=z.device).roll(len(z1)))


def lightly(z1: Tensor, z2: Tensor, name: str) -> Tensor:
    from lightly.loss import DCLLoss, DCLWLoss, NTXentLoss

    warnings.filterwarnings("ignore", message="To copy construct")  # DCLW's weights
    classes = {"NT-Xent": NTXentLoss, "DCL": DCLLoss, "DCLW": DCLWLoss}
    return classes[name](temperature=TAU)(z1, z2)


def storing() -> dict[str, Contender]:
    """Contenders that store matrices of 2N x 2N."""
    dense = partial(ours, loss=losses.InfoNCE(), negatives=InBatch(), tiled=False)
    theirs = {f"lightly {name}": partial(lightly, name=name) for name in ("NT-Xent", "DCL", "DCLW")}
    return {"ssl_bench InfoNCE, dense": dense, "plain cross-entropy": plain, **theirs}


def fitting(loss: Loss) -> Negatives:
    """The negatives of a loss: both views of the other images, unless it needs others or none."""
    if "negatives" not in loss.needs:
        return NoNegatives()
    return OwnView() if "own_view" in loss.needs else CrossView() if "aligned" in loss.needs else InBatch()


def variants(images: int) -> Mapping[str, Contender]:
    """Our other losses with the same negatives, or those that they need, and InfoNCE with fewer negatives."""
    kinds = [getattr(losses, name) for name in losses.__all__ if name != "InfoNCE"]
    others = [kind(instances=images) if "instances" in signature(kind).parameters else kind() for kind in kinds]
    most = 2 * images - 2  # that an anchor has
    counts = sorted({k for k in (1, 16, 256, 1024, most // 2, most * 3 // 4, most - 1) if k < most})
    fewer = [RandomK(k, views="all", shared=False, seed=0) for k in counts]
    rows = {f"ssl_bench {type(loss).__name__}": partial(ours, loss=loss, negatives=fitting(loss)) for loss in others}
    return rows | {f"ssl_bench InfoNCE, K = {x.k}": partial(ours, loss=losses.InfoNCE(), negatives=x) for x in fewer}


def make_views(images: int, device: str) -> tuple[Tensor, Tensor]:
    """Unit vectors of two views; those of one image are closer than those of two images."""
    generator = torch.Generator().manual_seed(0)
    centres, *noise = (torch.randn(images, WIDTH, generator=generator) for _ in range(3))
    z1, z2 = (F.normalize(centres + x, dim=1).to(device).requires_grad_() for x in noise)
    return z1, z2


def step(contender: Contender, views: tuple[Tensor, Tensor]) -> Tensor:
    """Run forward and backward, and return the loss when both are complete."""
    for z in views:
        z.grad = None
    loss = contender(*views)
    loss.backward()
    torch.cuda.synchronize() if loss.is_cuda else None
    return loss.detach()


def compare(contenders: Mapping[str, Contender], images: int, device: str, rounds: int) -> None:
    """Print a table of the contenders, which include ours."""
    small, full = partial(make_views, SMALL, device), partial(make_views, images, device)
    steps = {name: partial(step, contender) for name, contender in contenders.items()}
    tried, missing = try_each({name: partial(one_step, small()) for name, one_step in steps.items()})
    views = full()
    times = alternate({name: partial(steps[name], views) for name in tried}, rounds)
    megabytes: dict[str, float] = {}

    def extra(name: str) -> str:
        megabytes[name] = extra_megabytes(steps[name], small, full, device)
        return f"{megabytes[name]:.0f}"

    def ratio(name: str) -> str:
        return f"{megabytes[name] / megabytes[OURS]:.2f}" if megabytes.get(OURS) else "-"  # a small loss takes none

    columns = {"extra MB": extra, "ratio of MB": ratio}
    seconds = {name: spent.wall for name, spent in times.items()}
    print_table(seconds, OURS, "ms", 1e3, columns, missing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[1024, 4096, 16384], help="values of N")
    parser.add_argument("--variants", type=int, nargs="*", default=[4096], help="values of N with our other losses")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    limit = 0.8 * torch.cuda.mem_get_info()[0] / 1e9 if device == "cuda" else LIMIT
    print(environment(["lightly"], device))
    for images in arguments.images:
        print(f"\nN = {images} images, {2 * images} anchors, D = {WIDTH}, tau = {TAU}, {arguments.rounds} rounds")
        contenders: dict[str, Contender] = {OURS: partial(ours, loss=losses.InfoNCE(), negatives=InBatch())}
        needed = MATRICES * 4 * (2 * images) ** 2 / 1e9
        if needed > limit:
            print(f"skipped, they need about {needed:.0f} GB: {', '.join(storing())}")
        else:
            views = make_views(images, device)
            torch.testing.assert_close(step(contenders[OURS], views), step(plain, views), rtol=1e-5, atol=0)
            contenders |= storing()
        if images in arguments.variants:
            contenders |= variants(images)
        compare(contenders, images, device, arguments.rounds)


if __name__ == "__main__":
    main()
