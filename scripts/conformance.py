"""Compare the losses of other libraries, and those of this package, with naive loops in double precision.

    python scripts/conformance.py                   # about a minute on two cores
    python scripts/conformance.py --only ssl_bench

The libraries are optional: one that is absent has a row "not installed". A separate environment with all of them:

    python -m venv .venv-peers
    .venv-peers/bin/pip install -e . lightly pytorch-metric-learning open_clip_torch libauc stable-pretraining
    OMP_NUM_THREADS=1 .venv-peers/bin/python scripts/conformance.py

Every loss gets three batches of the same 16 images in another order, by the calls that its documentation has for the
number of ranks. The last batch counts; the others fill a queue, or averages of images. A cell has the larger of two
relative errors: of the value, averaged over the ranks, and of the gradient by the vectors of all ranks, as
DistributedDataParallel averages it. "x2" is twice the expected, a matter of scale.

- ranks: temperature 0.1, in double precision; the ranks are processes connected by gloo.
- bf16: vectors in bfloat16, within autocast. The loop gets the rounded vectors too; to round a gradient costs 0.2%.
- tau: the largest error in float32 at temperatures from 0.01 to 10 (iSogCLR: in its range), or all above 0.1%.
- resume: the state_dict is loaded into a new loss before the last batch.

The last three are of one process, and leave out what differs on one rank in double precision already.
"""

import argparse
import contextlib
import inspect
import io
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.multiprocessing as mp
from timing import environment
from torch import Tensor
from torch.nn.functional import normalize

from ssl_bench.api import options
from ssl_bench.api.pair_loss import PairLoss
from ssl_bench.distributed import join_local, leave, rank, world

IMAGES, WIDTH, STEPS, TAU, BIAS = 16, 6, 3, 0.1, -10.0
TAUS, BOUNDED = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0), (0.05, 0.1, 0.3, 0.7)
EXACT = 1e-5  # LibAUC computes in float32
ISOGCLR = {"gamma": 0.9, "tau_min": 0.05, "tau_max": 0.7, "rho": 0.3, "eta": 0.01, "beta": 0.9}  # LibAUC's defaults
LIBRARIES = ["ssl_bench", "lightly", "pytorch-metric-learning", "open_clip_torch", "libauc", "stable-pretraining"]


class Batch(NamedTuple):
    """Vectors [2, B, D] of two views; image and class [B]; number of the batch."""

    z: Tensor
    ids: Tensor
    labels: Tensor
    step: int


def make_batches(dtype: torch.dtype = torch.float64, images: int = IMAGES) -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    centres, *noise = torch.randn(STEPS + 1, 2, images, WIDTH, generator=generator, dtype=torch.float64)
    orders = [torch.randperm(images, generator=generator) for _ in noise]
    views = [(centres[0, order] + 0.7 * x).to(dtype) for order, x in zip(orders, noise, strict=True)]
    return [Batch(z, ids, ids % 3, step) for step, (z, ids) in enumerate(zip(views, orders, strict=True))]


# ---- the loops: the loss of the last batch, from all batches and the temperature

Loop = Callable[[list[Batch], float], Tensor]


def anchors(z: Tensor, cross_view: bool = False) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Image, cosine with the positive [] and cosines with the negatives [K] of each anchor."""
    u = normalize(z, dim=-1)
    for v in (0, 1):
        for i in range(z.shape[1]):
            views = (1 - v,) if cross_view else (0, 1)
            others = [u[w, j] for w in views for j in range(z.shape[1]) if j != i]
            yield i, u[v, i] @ u[1 - v, i], torch.stack([u[v, i] @ other for other in others])


def mean(values: Sequence[Tensor]) -> Tensor:
    return torch.stack([*values]).mean()


def softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))


def infonce(batches: list[Batch], tau: float, cross_view: bool = False) -> Tensor:
    return mean([softplus((k / tau).logsumexp(0) - s / tau) for _, s, k in anchors(batches[-1].z, cross_view)])


def queue(batches: list[Batch], tau: float, with_batch: bool = False) -> Tensor:
    """Anchors of the first view against keys of the second: of the last two batches, or of this one and the last."""
    before, last, (q, keys) = (normalize(b.z, dim=-1) for b in batches)
    losses = []
    for i in range(len(q)):
        others = [keys[j] for j in range(len(keys)) if j != i] if with_batch else [*before[1]]
        k = torch.stack([q[i] @ other.detach() for other in [*others, *last[1]]])
        losses.append(softplus((k / tau).logsumexp(0) - q[i] @ keys[i].detach() / tau))
    return mean(losses)


def dcl(batches: list[Batch], tau: float) -> Tensor:
    return mean([(k / tau).logsumexp(0) - s / tau for _, s, k in anchors(batches[-1].z)])


def dclw(batches: list[Batch], tau: float) -> Tensor:
    rows = [*anchors(batches[-1].z)]
    near = [(s.detach() / 0.5).exp() for _, s, _ in rows]  # the same for both views
    return mean(
        [(k / tau).logsumexp(0) - (2 - x / mean(near)) * s / tau for x, (_, s, k) in zip(near, rows, strict=True)]
    )


def siglip(batches: list[Batch], tau: float) -> Tensor:
    rows = anchors(batches[-1].z, cross_view=True)
    return mean([softplus(-s / tau - BIAS) + softplus(k / tau + BIAS).sum() for _, s, k in rows])


def supcon(batches: list[Batch], tau: float) -> Tensor:
    u, labels = normalize(batches[-1].z.flatten(0, 1), dim=-1), batches[-1].labels.repeat(2)
    losses = []
    for i in range(len(u)):
        others = [j for j in range(len(u)) if j != i]
        total = torch.stack([u[i] @ u[j] / tau for j in others]).logsumexp(0)
        losses.append(mean([total - u[i] @ u[j] / tau for j in others if labels[j] == labels[i]]))
    return mean(losses)


def sogclr(batches: list[Batch], tau: float, learned: bool = False, largest: float = math.inf) -> Tensor:
    """tau log u' - s, the gradient of log u' being that of the batch's mean over u'; iSogCLR adds rho tau.

    ``largest`` bounds the gradient by a temperature, to 3 in the code of iSogCLR's authors, not in LibAUC.
    """
    gamma, rho, eta, beta = (ISOGCLR[name] for name in ("gamma", "rho", "eta", "beta"))
    u: dict[int, Tensor] = {}
    taus, slopes = [tau] * len(batches[0].ids), [0.0] * len(batches[0].ids)
    for batch in batches:
        losses: list[Tensor] = []
        moved: dict[int, list[Tensor]] = {i: [] for i in batch.ids.tolist()}
        slope: dict[int, list[Tensor]] = {i: [] for i in batch.ids.tolist()}
        for i, s, k in anchors(batch.z):
            image = int(batch.ids[i])
            t = taus[image]
            g = (k / t).exp().mean()
            new = g.detach() if image not in u else (1 - gamma) * u[image] + gamma * g.detach()
            losses.append(t * (new.log() + (g - g.detach()) / new) - s + (rho * t if learned else 0))
            moved[image].append(new)
            slope[image].append(new.log() + rho - ((k / t).exp() * k / t).mean().detach() / new)
        for image in moved:
            u[image] = mean(moved[image])
            slopes[image] = (1 - beta) * slopes[image] + beta * float(mean(slope[image]).clamp(-largest, largest))
            if learned:
                taus[image] = min(max(taus[image] - eta * slopes[image], ISOGCLR["tau_min"]), ISOGCLR["tau_max"])
    return mean(losses)


def vicreg(batches: list[Batch], tau: float) -> Tensor:
    z = batches[-1].z
    width, total = range(WIDTH), 25 * mean([(a - b).square() for a, b in zip(*z, strict=True)])
    for x in z:
        columns = [x[:, a] - mean(x[:, a]) for a in width]
        for a in width:
            total = total + 12.5 * (1 - (columns[a].square().sum() / (len(x) - 1) + 1e-4).sqrt()).clamp(min=0) / WIDTH
            for b in width:
                total = total + (a != b) * ((columns[a] * columns[b]).sum() / (len(x) - 1)).square() / WIDTH
    return total


def barlow_twins(batches: list[Batch], tau: float, listing: bool = False) -> Tensor:
    """As the authors' code has it, with BatchNorm, or as the listing in the paper, with torch's deviation of N - 1."""
    columns = []
    for x in batches[-1].z.mT.flatten(0, 1):
        centred = x - mean(x)
        squares = centred.square().sum()
        columns.append(
            centred / (((squares / (len(x) - 1)).sqrt() + 1e-5) if listing else (squares / len(x) + 1e-5).sqrt())
        )
    total = torch.zeros(())
    for a in range(WIDTH):
        for b in range(WIDTH):
            c = mean(columns[a] * columns[WIDTH + b])
            total = total + ((1 - c).square() if a == b else 0.005 * c.square())
    return total


clip, in_memory, isogclr = (
    partial(infonce, cross_view=True),
    partial(queue, with_batch=True),
    partial(sogclr, learned=True),
)

# ---- the losses

UNSAVED = "the memory bank is left out of the state_dict on purpose (pull request 993)"
NO_PLACE = "the state_dict has the memory, but not how far it is filled"
OWN_STATISTICS = "mean and deviation of a coordinate are those of the rank's own images"
SCALED = "the value is multiplied by the ranks, since gathered vectors have no gradient; the gradient is right"
WITHOUT = "gathered vectors have no gradient: 1 / W of it; its maintainers train as in the row above (open_clip#894)"
OWN_TEMPERATURES = "a rank changes the temperatures of its own images only"
SURROGATE = "the value is another one; the gradient is the sum over both views, here halved"
UNSAVED_AVERAGES = "no state_dict has the averages; its maintainers advise to pickle the loss (LibAUC#64)"


class Row(NamedTuple):
    """A loss: its loop, how to make it at a temperature, how to call it, where a difference comes from, its scale."""

    library: str
    name: str
    loop: Loop
    build: Callable[[float], Any]
    call: Callable[[Any, Batch], Tensor] = lambda loss, b: loss(*b.z)
    why: str = ""
    scale: float = 1.0


def ours() -> list[Row]:
    """Those of the losses with a loop that the package has."""
    kept, cross = {"instances": IMAGES, "gamma": 0.9}, {"negatives": "cross_view"}
    learned = {"name": "learned", "minimum": 1e-6}
    rows: list[tuple[str, str, Loop, Callable[[float], dict[str, Any]]]] = [
        ("NT-Xent", "infonce", infonce, lambda tau: {"temperature": tau}),
        ("NT-Xent, tau learned", "infonce", infonce, lambda tau: {"temperature": {**learned, "tau": tau}}),
        ("NT-Xent, queue", "infonce", queue, lambda tau: {"temperature": tau, "negatives": "queue", "k": 2 * IMAGES}),
        ("CLIP", "infonce", clip, lambda tau: {"temperature": tau, **cross}),
        ("DCL", "dcl", dcl, lambda tau: {"temperature": tau}),
        ("DCLW", "dclw", dclw, lambda tau: {"temperature": tau}),
        ("SigLIP", "siglip", siglip, lambda tau: {"temperature": tau, "bias": BIAS, **cross}),
        ("SupCon", "supcon", supcon, lambda tau: {"temperature": tau}),
        ("SogCLR", "sogclr", sogclr, lambda tau: {"temperature": tau, **kept}),
        ("iSogCLR", "isogclr", partial(isogclr, largest=3.0), lambda tau: {"tau": tau, **kept, **ISOGCLR}),
        ("VICReg", "vicreg", vicreg, lambda tau: {}),
        ("Barlow Twins", "barlow_twins", barlow_twins, lambda tau: {"weight": 0.005}),
    ]

    def call(loss: PairLoss, b: Batch) -> Any:
        labels = {"labels": b.labels} if type(loss.loss).__name__ == "SupCon" else {}
        return loss(b.z[0], b.z[1] if loss.symmetric else b.z[1].detach(), b.ids, **labels)

    def build(loss: str, given: Callable[[float], dict[str, Any]]) -> Callable[[float], Any]:
        return lambda tau: PairLoss(loss, **given(tau))

    return [
        Row("ssl_bench", name, loop, build(loss, given), call)
        for name, loss, loop, given in rows
        if loss in options.names("loss")
    ]


def peer(library: str, name: str, loop: Loop, path: str, why: str = "", **given: Any) -> Row:
    """A row of the class at ``path``, which is called with both views."""
    module, kind = path.rsplit(".", 1)
    made = getattr(import_module(module), kind)
    takes_tau = "temperature" in inspect.signature(made).parameters
    return Row(library, name, loop, lambda tau: made(**({"temperature": tau} if takes_tau else {}), **given), why=why)


def lightly() -> list[Row]:
    def row(name: str, loop: Loop, kind: str, why: str = "", **given: Any) -> Row:
        return peer("lightly", name, loop, f"lightly.loss.{kind}", why, gather_distributed=True, **given)

    bank = row("NT-Xent, queue", queue, "NTXentLoss", UNSAVED, memory_bank_size=(2 * IMAGES, WIDTH))
    return [
        row("NT-Xent", infonce, "NTXentLoss"),
        bank._replace(call=lambda loss, b: loss(b.z[0], b.z[1].detach())),
        row("DCL", dcl, "DCLLoss"),
        row("DCLW", dclw, "DCLWLoss", "the weights compare with the mean of the rank's own images"),
        row("VICReg", vicreg, "VICRegLoss"),
        row("Barlow Twins", barlow_twins, "BarlowTwinsLoss", OWN_STATISTICS),
    ]


def pytorch_metric_learning() -> list[Row]:
    from pytorch_metric_learning import losses
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

    def row(name: str, loop: Loop, build: Any, call: Any, why: str = SCALED) -> Row:
        def parallel(tau: float) -> Any:
            return DistributedLossWrapper(build(tau)) if world() > 1 else build(tau)

        return Row("pytorch-metric-learning", name, loop, parallel, call, why)

    def memory(tau: float) -> Any:
        return losses.CrossBatchMemory(losses.NTXentLoss(tau), WIDTH, memory_size=2 * IMAGES)

    def enqueue(loss: Any, b: Batch) -> Any:
        labels = (b.ids + b.step * IMAGES).repeat(2)  # new ones in each batch, as in the notebook on MoCo
        return loss(torch.cat([b.z[0], b.z[1].detach()]), labels, enqueue_mask=torch.arange(len(labels)) >= len(b.ids))

    return [
        row("NT-Xent", infonce, losses.NTXentLoss, lambda loss, b: loss(b.z.flatten(0, 1), b.ids.repeat(2))),
        row("NT-Xent, queue", in_memory, memory, enqueue, f"{SCALED}; {NO_PLACE}"),
        row("SupCon", supcon, losses.SupConLoss, lambda loss, b: loss(b.z.flatten(0, 1), b.labels.repeat(2))),
        row("VICReg", vicreg, lambda tau: losses.VICRegLoss(), lambda loss, b: loss(b.z[0], ref_emb=b.z[1])),
    ]


def open_clip() -> list[Row]:
    from open_clip.loss import ClipLoss, SigLipLoss

    def row(name: str, loop: Loop, kind: Any, why: str = "", bias: Any = None, **given: Any) -> Row:
        def build(tau: float) -> Any:
            made = kind(rank=rank(), world_size=world(), **given)
            made.scale = torch.tensor(1 / tau)
            return made

        def call(loss: Any, b: Batch) -> Any:
            return loss(*normalize(b.z, dim=-1), loss.scale, bias)  # its models normalise

        return Row("open_clip_torch", name, loop, build, call, why)

    return [
        row("CLIP", clip, ClipLoss, local_loss=True, gather_with_grad=True),
        row("CLIP, defaults", clip, ClipLoss, WITHOUT),
        row("SigLIP", siglip, SigLipLoss, bias=torch.tensor(BIAS)),
    ]


def libauc() -> list[Row]:
    from libauc.losses import GCLoss

    def row(name: str, loop: Loop, why: str, **given: Any) -> Row:
        def build(tau: float) -> Any:
            with contextlib.redirect_stdout(io.StringIO()):  # it prints its settings
                return GCLoss("unimodal", N=IMAGES, tau=tau, distributed=world() > 1, **given)

        return Row("libauc", name, loop, build, lambda loss, b: loss(*b.z.to(torch.float32), b.ids), why, 2.0)

    return [
        row("SogCLR", sogclr, f"{SURROGATE}; e^(s / tau) overflows float32 at tau = 0.01; {UNSAVED_AVERAGES}"),
        row("iSogCLR", isogclr, f"{SURROGATE}; {OWN_TEMPERATURES}; {UNSAVED_AVERAGES}", enable_isogclr=True),
    ]


def stable_pretraining() -> list[Row]:
    library, module, listing = "stable-pretraining", "stable_pretraining.losses", partial(barlow_twins, listing=True)
    return [
        peer(library, "NT-Xent", infonce, f"{module}.NTXEntLoss"),
        peer(library, "CLIP", clip, f"{module}.CLIPLoss"),
        peer(library, "VICReg", vicreg, f"{module}.VICRegLoss"),
        peer(library, "Barlow Twins", listing, f"{module}.BarlowTwinsLoss", OWN_STATISTICS),
    ]


ROWS = dict(
    zip(LIBRARIES, [ours, lightly, pytorch_metric_learning, open_clip, libauc, stable_pretraining], strict=True)
)


def make_rows(libraries: Sequence[str]) -> tuple[list[Row], dict[str, str]]:
    """The rows of the libraries, and why there are none of a library."""
    rows, missing = [], {}
    for library in libraries:
        try:
            rows += ROWS[library]()
        except ImportError as error:
            missing[library] = f"not installed: {error}"
    return rows, missing


# ---- comparison

Found = tuple[Tensor, Tensor]  # value [] and gradient [2, N, D] of the mean over the global batch


def expected(row: Row, batches: list[Batch], tau: float) -> Found:
    *before, last = (b._replace(z=b.z.double()) for b in batches)
    value = row.scale * row.loop([*before, last._replace(z=last.z.requires_grad_())], tau)
    return value.detach(), torch.autograd.grad(value, last.z)[0]


def measure(row: Row, batches: list[Batch], tau: float, resume: bool = False) -> Found:
    """The loss of this rank's part of the last batch, and its gradient by it divided by the number of ranks."""
    half = batches[0].z.dtype == torch.bfloat16
    dtype = torch.float32 if half else batches[0].z.dtype
    loss = row.build(tau).to(dtype)
    for batch in batches:
        if resume and batch is batches[-1]:
            saved, loss = loss.state_dict(), row.build(tau).to(dtype)
            for parameter in loss.parameters():
                parameter.data.zero_()
            loss.load_state_dict(saved)
        share = len(batch.ids) // world()
        own = slice(rank() * share, (rank() + 1) * share)
        z = batch.z[:, own].clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            value = row.call(loss, Batch(z, batch.ids[own], batch.labels[own], batch.step))
        gradient = torch.autograd.grad(value, z)[0]
    return value.detach().double(), gradient.double() / world()


def _on_rank(rank: int, ranks: int, folder: str, libraries: Sequence[str]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    join_local(Path(folder) / "store", rank, ranks, torch.device("cpu"), 600)
    torch.save([measure(row, make_batches(), TAU) for row in make_rows(libraries)[0]], f"{folder}/{rank}.pt")
    leave()


def on_ranks(ranks: int, libraries: Sequence[str]) -> list[Found]:
    """Measure each row on some ranks."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_on_rank, (ranks, folder, libraries), nprocs=ranks, start_method="spawn")
        parts = [torch.load(f"{folder}/{rank}.pt") for rank in range(ranks)]
    each = [zip(*found, strict=True) for found in zip(*parts, strict=True)]
    return [(torch.stack(values).mean(), torch.cat(gradients, 1)) for values, gradients in each]


def error(found: Tensor, right: Tensor) -> float:
    return float((found - right).norm() / right.norm())


def percent(share: float) -> str:
    return f"{share:.1%}" if math.isfinite(share) else "not finite"


def cell(found: Found, right: Found, ranks: int = 1) -> str:
    """The larger error if value and gradient are exact, or what differs: by the number of ranks, or otherwise."""
    words = []
    for name, f, r in zip(("value", "gradient"), found, right, strict=True):
        factor = next((by for by in (1, ranks, 1 / ranks) if error(f / by, r) < EXACT), None)
        if factor != 1:
            words.append(f"{name} x{factor:g}" if factor else f"{name} {percent(error(f, r))} off")
    return ", ".join(words) or f"{max(map(error, found, right)):.0e}"


def one_process(row: Row) -> list[str]:
    """The cells of one rank, bf16, tau and resume."""
    right, found = expected(row, make_batches(), TAU), measure(row, make_batches(), TAU)
    counts = [error(f, r) < EXACT for f, r in zip(found, right, strict=True)]

    def off(dtype: torch.dtype, tau: float = TAU, resume: bool = False) -> float:
        batches = make_batches(dtype)
        pairs = zip(measure(row, batches, tau, resume), expected(row, batches, tau), counts, strict=True)
        return max(error(f, r) for f, r, count in pairs if count)

    taus = {tau: off(torch.float32, tau) for tau in (BOUNDED if row.name == "iSogCLR" else TAUS)}
    wrong = ", ".join(f"{tau:g}: {percent(share)}" for tau, share in taus.items() if not share < 1e-3)
    resumed = off(torch.float64, resume=True)
    return [
        cell(found, right),
        percent(off(torch.bfloat16)),
        wrong or f"{max(taus.values()):.0e}",
        f"{resumed:.0e}" if resumed < EXACT else f"{percent(resumed)} off",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=LIBRARIES, default=LIBRARIES, metavar="LIBRARY", help="which rows")
    libraries = parser.parse_args().only
    warnings.simplefilter("ignore")
    rows, missing = make_rows(libraries)
    print(environment(LIBRARIES[1:]), end="\n\n")
    columns = ["library", "loss", "1 rank", "2 ranks", "4 ranks", "bf16", "tau", "resume", "why"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    parallel = {ranks: on_ranks(ranks, libraries) for ranks in (2, 4)}
    for i, row in enumerate(rows):
        one, *rest = one_process(row)
        right = expected(row, make_batches(), TAU)
        more = [cell(found[i], right, ranks) for ranks, found in parallel.items()]
        print("|", " | ".join([row.library, row.name, one, *more, *rest, row.why]), "|", flush=True)
    for library, why in missing.items():
        print(f"| {library} | {why} | | | | | | | |")


if __name__ == "__main__":
    main()
