"""Compare the losses of other libraries, and of this package, with the formulas of ``tests/formulas.py``.

    python -m venv .venv-peers
    .venv-peers/bin/pip install -e . lightly pytorch-metric-learning open_clip_torch libauc stable-pretraining
    OMP_NUM_THREADS=1 .venv-peers/bin/python scripts/library_losses.py            # two minutes on two cores

The libraries are optional: one that is absent has a row "not installed". Each is called as its documentation has it for
several ranks: a function ``make(tau)`` gives the loss, to be called with two views, and with ids and labels if it takes
them. The batches are those of ``ssl-bench check --loss``.
"""

import contextlib
import io
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from timing import environment
from torch.nn.functional import normalize

from ssl_bench.api.pair_loss import PairLoss
from ssl_bench.check.loss import IMAGES, WIDTH, Batch, Measured, batches, measure
from ssl_bench.check.ranks import SECONDS, on_ranks
from ssl_bench.distributed import join_local, rank, world
from ssl_bench.errors import RunError, reason

sys.path.append(str(Path(__file__).parents[1]))
from tests import formulas

RANKS, TAU, TAUS = (1, 2, 4), 0.1, (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
EXACT, SINGLE = 1e-5, 1e-3  # largest errors in float64, and in float32 at logits of up to 100
COLUMNS = ("1 rank", "2 ranks", "4 ranks", "bf16", "tau", "resume")
UNSAVED = "the memory bank is left out of the state_dict on purpose (pull request 993)"
NO_PLACE = "the state_dict has the memory, but not how far it is filled"
OWN_STATISTICS = "mean and deviation of a coordinate are those of the rank's own images"
OWN_WEIGHTS = "the weights compare with the mean of the rank's own images"
SCALED = "the value is multiplied by the ranks, since gathered vectors have no gradient; the gradient is right"
WITHOUT = "1 / W of the gradient; its maintainers train as in the row above (open_clip#894)"
OWN_TEMPERATURES = "a rank changes the temperatures of its own images only"
OVERFLOWS = "e^(s / tau) overflows float32"
SURROGATE = "the value is another one; the gradient is the sum over both views, here halved"
UNSAVED_AVERAGES = "no state_dict has the averages; its maintainers advise to pickle the loss (LibAUC#64)"
LIBAUC = {"gamma": 0.9, "tau_max": 0.7, "rho": 0.3, "eta": 0.01, "beta": 0.9, "largest": 1e9}  # its defaults


def lightly_queue(tau: float) -> Any:
    from lightly.loss import NTXentLoss

    return NTXentLoss(tau, memory_bank_size=(2 * IMAGES, WIDTH), gather_distributed=True)


class Metric(torch.nn.Module):
    """A loss of pytorch-metric-learning, which takes labels in place of pairs."""

    def __init__(self, loss: Any, by_class: bool = False) -> None:
        from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

        super().__init__()
        self.loss, self.by_class = DistributedLossWrapper(loss) if world() > 1 else loss, by_class

    def forward(self, z1: Any, z2: Any, ids: Any, labels: Any = None) -> Any:
        return self.loss(torch.cat([z1, z2]), (labels if self.by_class else ids).repeat(2))


def metric_NTXentLoss(tau: float) -> Any:  # the name of the loss
    from pytorch_metric_learning.losses import NTXentLoss

    return Metric(NTXentLoss(tau))


def metric_SupConLoss(tau: float) -> Any:
    from pytorch_metric_learning.losses import SupConLoss

    return Metric(SupConLoss(tau), by_class=True)


class metric_VICRegLoss(Metric):
    def __init__(self, tau: float) -> None:
        from pytorch_metric_learning.losses import VICRegLoss

        super().__init__(VICRegLoss())

    def forward(self, z1: Any, z2: Any) -> Any:  # type: ignore[override]
        return self.loss(z1, ref_emb=z2)


class metric_queue(Metric):
    """New labels in each batch, as in the notebook on MoCo."""

    step: torch.Tensor

    def __init__(self, tau: float) -> None:
        from pytorch_metric_learning.losses import CrossBatchMemory, NTXentLoss

        super().__init__(CrossBatchMemory(NTXentLoss(tau), WIDTH, memory_size=2 * IMAGES))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def forward(self, z1: Any, z2: Any, ids: Any) -> Any:  # type: ignore[override]
        self.step += 1
        labels = (ids + self.step * IMAGES).repeat(2)
        return self.loss(torch.cat([z1, z2]), labels, enqueue_mask=torch.arange(len(labels)) >= len(ids))


def open_clip(tau: float, name: str = "ClipLoss", **given: Any) -> Any:
    loss = getattr(import_module("open_clip.loss"), name)(rank=rank(), world_size=world(), **given)
    bias = [torch.tensor(-10.0)] if name == "SigLipLoss" else []
    return lambda z1, z2: loss(normalize(z1, dim=-1), normalize(z2, dim=-1), torch.tensor(1 / tau), *bias)


class libauc_sogclr:
    """Half of the loss, whose gradient is the sum over both views."""

    def __init__(self, tau: float, learned: bool = False) -> None:
        from libauc.losses import GCLoss

        self.loss = GCLoss("unimodal", N=IMAGES, tau=tau, distributed=world() > 1, enable_isogclr=learned)

    def __call__(self, z1: Any, z2: Any, ids: Any) -> Any:
        return self.loss(z1.float(), z2.float(), ids) / 2


def libauc_isogclr(tau: float) -> Any:
    return libauc_sogclr(tau, learned=True)


def ours(tau: float, loss: str, **given: Any) -> PairLoss:
    given |= {"tau": tau} if loss == "isogclr" else {}  # its own temperatures begin with it
    return PairLoss(loss, tau, **given)


def of(module: str, name: str, tau: float, **given: Any) -> Any:
    """A loss of a library, with its temperature if it has one."""
    kind = getattr(import_module(module), name)
    return kind(**given) if name in ("VICRegLoss", "BarlowTwinsLoss") else kind(temperature=tau, **given)


lightly = partial(of, "lightly.loss", gather_distributed=True)  # by default it has a rank's own images
stable = partial(of, "stable_pretraining.losses")


class Row(NamedTuple):
    """A loss, its formula with the negatives (``queue``: two batches), and why the two differ."""

    library: str
    name: str
    make: Callable[..., Any]
    formula: Callable[[], formulas.Formula]
    negatives: str = "both"
    why: str = ""


def one(formula: formulas.Formula, **given: Any) -> Callable[[], formulas.Formula]:
    return lambda: partial(formula, **given)


SOGCLR, ISOGCLR = formulas.SogCLR, formulas.ISogCLR
ONE: dict[str, Callable[[], formulas.Formula]] = {
    name: one(getattr(formulas, name))
    for name in ("infonce", "siglip", "dcl", "dclw", "supcon", "vicreg", "barlow_twins")
}
LEARNED, LISTING = partial(ISOGCLR, **LIBAUC), one(formulas.barlow_twins, weight=0.005, listing=True)
BARLOW_TWINS = one(formulas.barlow_twins, weight=0.005)
OURS = [
    ("nt_xent", partial(ours, loss="infonce"), ONE["infonce"], "both"),
    ("moco", partial(ours, loss="infonce", negatives="queue", k=2 * IMAGES), ONE["infonce"], "queue"),
    ("clip", partial(ours, loss="infonce", negatives="cross_view"), ONE["infonce"], "cross"),
    ("siglip", partial(ours, loss="siglip", negatives="cross_view"), ONE["siglip"], "cross"),
    ("sogclr", partial(ours, loss="sogclr", instances=IMAGES), SOGCLR, "both"),
    ("isogclr", partial(ours, loss="isogclr", instances=IMAGES), ISOGCLR, "both"),
    *((name, partial(ours, loss=name), ONE[name], "both") for name in ONE if name not in ("infonce", "siglip")),
]
ROWS = [
    *(Row("ssl_bench", *row) for row in OURS),
    Row("lightly", "nt_xent", partial(lightly, "NTXentLoss"), ONE["infonce"]),
    Row("lightly", "moco", lightly_queue, ONE["infonce"], "queue", UNSAVED),
    Row("lightly", "dcl", partial(lightly, "DCLLoss"), ONE["dcl"]),
    Row("lightly", "dclw", partial(lightly, "DCLWLoss"), ONE["dclw"], why=OWN_WEIGHTS),
    Row("lightly", "vicreg", partial(lightly, "VICRegLoss"), ONE["vicreg"]),
    Row(
        "lightly",
        "barlow_twins",
        partial(lightly, "BarlowTwinsLoss"),
        BARLOW_TWINS,
        why=OWN_STATISTICS,
    ),
    Row("pytorch-metric-learning", "nt_xent", metric_NTXentLoss, ONE["infonce"], why=SCALED),
    Row("pytorch-metric-learning", "moco", metric_queue, ONE["infonce"], "queue with batch", f"{SCALED}; {NO_PLACE}"),
    Row("pytorch-metric-learning", "supcon", metric_SupConLoss, ONE["supcon"], why=SCALED),
    Row("pytorch-metric-learning", "vicreg", metric_VICRegLoss, ONE["vicreg"], why=SCALED),
    Row("open_clip_torch", "clip", partial(open_clip, local_loss=True, gather_with_grad=True), ONE["infonce"], "cross"),
    Row("open_clip_torch", "clip, defaults", open_clip, ONE["infonce"], "cross", WITHOUT),
    Row("open_clip_torch", "siglip", partial(open_clip, name="SigLipLoss"), ONE["siglip"], "cross"),
    Row("libauc", "sogclr", libauc_sogclr, SOGCLR, why=f"{SURROGATE}; {OVERFLOWS}; {UNSAVED_AVERAGES}"),
    Row("libauc", "isogclr", libauc_isogclr, LEARNED, why=f"{SURROGATE}; {OWN_TEMPERATURES}; {UNSAVED_AVERAGES}"),
    Row("stable-pretraining", "nt_xent", partial(stable, "NTXEntLoss"), ONE["infonce"]),
    Row("stable-pretraining", "clip", partial(stable, "CLIPLoss"), ONE["infonce"], "cross"),
    Row("stable-pretraining", "vicreg", partial(stable, "VICRegLoss"), ONE["vicreg"]),
    Row("stable-pretraining", "barlow_twins", partial(stable, "BarlowTwinsLoss"), LISTING, why=OWN_STATISTICS),
]


# ---- what is measured, and what it should be


def module(row: Row, tau: float, **_: bool) -> torch.nn.Module:
    loss = row.make(tau=tau)
    if not isinstance(loss, torch.nn.Module):
        call, loss = loss, torch.nn.Module()
        loss.forward = call
    return loss


def taus(row: Row) -> list[float]:
    least, most = getattr(row.formula(), "range", (0, math.inf))
    return [tau for tau in TAUS if least <= tau < most]


def single(dtype: torch.dtype) -> list[Batch]:
    return [batch._replace(z=batch.z.to(dtype)) for batch in batches(torch.float32)]


def work(row: Row, ranks: int, folder: Path, number: int) -> dict[str, Measured]:
    warnings.simplefilter("ignore")
    join_local(folder / "meeting", number, ranks, torch.device("cpu"), SECONDS)
    share = IMAGES // ranks
    with contextlib.redirect_stdout(io.StringIO()):
        found = {"": measure(partial(module, row, TAU), batches(), slice(number * share, (number + 1) * share))}
        if ranks == 1:
            found["bf16"] = measure(partial(module, row, TAU), batches(torch.bfloat16))
            found["resume"] = measure(partial(module, row, TAU), batches(), resumed=True)
            found |= {f"{tau:g}": measure(partial(module, row, tau), single(torch.float32)) for tau in taus(row)}
    return found


def views(data: Sequence[Batch], kind: str, tau: float) -> list[list[list[formulas.Anchor]]]:
    """The anchors of each batch; those of a queue are in the first view, and its keys in the second."""
    if not kind.startswith("queue"):
        return [formulas.anchors(batch.z, tau, kind, batch.ids, batch.labels) for batch in data]  # type: ignore[arg-type]
    *before, (q, keys) = (normalize(batch.z, dim=-1) for batch in data)
    found, keys, t = [], keys.detach(), torch.tensor(tau, dtype=torch.float64)
    for i in range(len(q)):
        mine = [torch.cat([keys[:i], keys[i + 1 :]])] if kind == "queue with batch" else [before[-2][1].detach()]
        k, s = torch.cat([*mine, before[-1][1].detach()]) @ q[i], keys[i] @ q[i]
        found.append(formulas.Anchor(i, s, k, k, t, q[i], q[i], torch.zeros(len(k)).bool()))
    return [[found]]


def right(row: Row, data: Sequence[Batch], tau: float) -> Measured:
    """Value and gradient by the formula."""
    exact = [batch._replace(z=batch.z.double()) for batch in data]
    z = exact[-1].z.requires_grad_()
    value = formulas.per_anchor(row.formula(), views(exact, row.negatives, tau)).mean()
    gradient = torch.autograd.grad(value, z)[0]
    return Measured(value.detach(), (gradient[0] if row.negatives.startswith("queue") else gradient).flatten())


def errors(found: Measured, exact: Measured) -> list[float]:
    """Relative errors of value and gradient; of a queue the gradient is that of the anchors."""
    pairs = [(found.value.double(), exact.value), (found.gradient[: exact.gradient.numel()], exact.gradient)]
    return [float((a - b).norm() / b.norm()) for a, b in pairs]


def percent(share: float) -> str:
    return f"{share:.1%}" if math.isfinite(share) else "not finite"


def cell(found: Measured, exact: Measured, ranks: int) -> str:
    """The larger error if value and gradient are exact, or what differs: by the number of ranks, or otherwise."""
    words = []
    for i, name in enumerate(("value", "gradient")):
        by_factor = {f: errors(Measured(*(x / f for x in found)), exact)[i] for f in (1, ranks, 1 / ranks)}
        factor = next((f for f, error in by_factor.items() if error < EXACT), None)
        if factor != 1:
            words.append(f"{name} x{factor:g}" if factor else f"{name} {percent(by_factor[1])} off")
    return ", ".join(words) or f"{max(errors(found, exact)):.0e}"


def cells(row: Row) -> list[str]:
    made, exact, first = list[str](), right(row, batches(), TAU), dict[str, Measured]()
    for ranks in RANKS:
        try:
            with TemporaryDirectory(prefix="ssl-bench-") as folder:
                parts = on_ranks(partial(work, row, ranks, Path(folder)), ranks, Path(folder))
        except RunError as error:
            made.append(reason(error))
            continue
        mean = Measured(*(torch.stack(numbers).mean(0) for numbers in zip(*(part[""] for part in parts), strict=True)))
        made.append(cell(mean, exact, ranks))
        first = first or parts[0]
    counts = [error < EXACT for error in errors(first[""], exact)]  # what differs on one rank already is left out

    def largest(name: str, data: Sequence[Batch], tau: float) -> float:
        off = zip(errors(first[name], right(row, data, tau)), counts, strict=True)
        return max((error for error, count in off if count), default=math.nan)

    by_tau = {f"{tau:g}": largest(f"{tau:g}", single(torch.float32), tau) for tau in taus(row)}
    above = ", ".join(f"{tau}: {percent(share)}" for tau, share in by_tau.items() if not share < SINGLE)
    resume = largest("resume", batches(), TAU)
    made += [percent(largest("bf16", batches(torch.bfloat16), TAU)), above or f"{max(by_tau.values()):.0e}"]
    return [*made, f"{resume:.0e}" if resume < EXACT else f"{percent(resume)} off"]


def main() -> None:
    print(environment(list(dict.fromkeys(row.library for row in ROWS))[1:]), end="\n\n")
    print(f"| {' | '.join(['library', 'formula', *COLUMNS, 'why'])} |\n|{'---|' * (3 + len(COLUMNS))}")
    for row in ROWS:
        try:
            row.make(tau=TAU)
        except ModuleNotFoundError:
            print(f"| {row.library} | {row.name} | not installed{' |' * (1 + len(COLUMNS))}")
            continue
        print("|", " | ".join([row.library, row.name, *cells(row), row.why]), "|", flush=True)


if __name__ == "__main__":
    main()
