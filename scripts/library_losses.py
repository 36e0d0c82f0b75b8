"""Print what ``ssl-bench conformance`` finds of the losses of other libraries, and of this package.

    python -m venv .venv-peers
    .venv-peers/bin/pip install -e . lightly pytorch-metric-learning open_clip_torch libauc stable-pretraining
    OMP_NUM_THREADS=1 .venv-peers/bin/python scripts/library_losses.py            # two minutes on two cores

The libraries are optional: one that is absent has a row "not installed". Each is called as its documentation has it for
several ranks. A row's function is the adapter, as one of your own would be.
"""

from importlib import import_module
from typing import Any

import torch
from timing import environment
from torch.nn.functional import normalize

from ssl_bench.api.pair_loss import PairLoss
from ssl_bench.check import conformance
from ssl_bench.check.conformance import COLUMNS, IMAGES, WIDTH, Subject
from ssl_bench.distributed import rank, world

UNSAVED = "the memory bank is left out of the state_dict on purpose (pull request 993)"
NO_PLACE = "the state_dict has the memory, but not how far it is filled"
OWN_STATISTICS = "mean and deviation of a coordinate are those of the rank's own images"
SCALED = "the value is multiplied by the ranks, since gathered vectors have no gradient; the gradient is right"
WITHOUT = "1 / W of the gradient; its maintainers train as in the row above (open_clip#894)"
OWN_TEMPERATURES = "a rank changes the temperatures of its own images only"
SURROGATE = "the value is another one; the gradient is the sum over both views, here halved"
UNSAVED_AVERAGES = "no state_dict has the averages; its maintainers advise to pickle the loss (LibAUC#64)"
LIBAUC = {"gamma": 0.9, "tau_max": 0.7, "rho": 0.3, "eta": 0.01, "beta": 0.9, "largest": 1e9}  # its defaults

OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "nt_xent": ("infonce", {}),
    "moco": ("infonce", {"negatives": "queue", "k": 2 * IMAGES}),
    "clip": ("infonce", {"negatives": "cross_view"}),
    "siglip": ("siglip", {"negatives": "cross_view"}),
    "sogclr": ("sogclr", {"instances": IMAGES}),
    "isogclr": ("isogclr", {"instances": IMAGES}),
    **{name: (name, {}) for name in ("dcl", "dclw", "supcon", "vicreg", "barlow_twins")},
}
ROWS: list[tuple[str, str, str, dict[str, Any], str]] = [  # library, adapter, formula, its options, why it differs
    *(("ssl_bench", f"ours_{name}", name, {}, "") for name in OURS),
    ("lightly", "lightly_NTXentLoss", "nt_xent", {}, ""),
    ("lightly", "lightly_queue", "moco", {}, UNSAVED),
    ("lightly", "lightly_DCLLoss", "dcl", {}, ""),
    ("lightly", "lightly_DCLWLoss", "dclw", {}, "the weights compare with the mean of the rank's own images"),
    ("lightly", "lightly_VICRegLoss", "vicreg", {}, ""),
    ("lightly", "lightly_BarlowTwinsLoss", "barlow_twins", {"weight": 0.005}, OWN_STATISTICS),
    ("pytorch-metric-learning", "metric_NTXentLoss", "nt_xent", {}, SCALED),
    ("pytorch-metric-learning", "metric_queue", "moco", {"with_batch": True}, f"{SCALED}; {NO_PLACE}"),
    ("pytorch-metric-learning", "metric_SupConLoss", "supcon", {}, SCALED),
    ("pytorch-metric-learning", "metric_VICRegLoss", "vicreg", {}, SCALED),
    ("open_clip_torch", "open_clip", "clip", {}, ""),
    ("open_clip_torch", "open_clip_defaults", "clip", {}, WITHOUT),
    ("open_clip_torch", "open_clip_siglip", "siglip", {}, ""),
    ("libauc", "libauc_sogclr", "sogclr", {}, f"{SURROGATE}; e^(s / tau) overflows float32; {UNSAVED_AVERAGES}"),
    ("libauc", "libauc_isogclr", "isogclr", LIBAUC, f"{SURROGATE}; {OWN_TEMPERATURES}; {UNSAVED_AVERAGES}"),
    ("stable-pretraining", "stable_NTXEntLoss", "nt_xent", {}, ""),
    ("stable-pretraining", "stable_CLIPLoss", "clip", {}, ""),
    ("stable-pretraining", "stable_VICRegLoss", "vicreg", {}, ""),
    (
        "stable-pretraining",
        "stable_BarlowTwinsLoss",
        "barlow_twins",
        {"weight": 0.005, "listing": True},
        OWN_STATISTICS,
    ),
]


def __getattr__(name: str) -> Any:
    """The adapters that only pass the temperature on: ``lightly_DCLLoss``."""
    library, _, loss = name.partition("_")
    if library == "ours":

        def make(tau: float) -> Any:
            given: dict[str, Any] = {"tau": tau} if loss == "isogclr" else {}  # its own temperatures begin with it
            return PairLoss(OURS[loss][0], tau, **OURS[loss][1], **given)

        return make
    if library not in ("lightly", "stable"):
        raise AttributeError(name)
    module = {"lightly": "lightly.loss", "stable": "stable_pretraining.losses"}[library]
    given = {"gather_distributed": True} if library == "lightly" else {}  # by default it has a rank's own images
    kind = getattr(import_module(module), loss)
    if loss in ("VICRegLoss", "BarlowTwinsLoss"):
        return lambda: kind(**given)
    return lambda temperature: kind(temperature=temperature, **given)


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
    def __init__(self) -> None:
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


def open_clip(z1: Any, z2: Any, tau: float, **given: Any) -> Any:
    from open_clip.loss import ClipLoss

    given = given or {"local_loss": True, "gather_with_grad": True}
    loss = ClipLoss(rank=rank(), world_size=world(), **given)
    return loss(normalize(z1, dim=-1), normalize(z2, dim=-1), torch.tensor(1 / tau))  # its models normalise


def open_clip_defaults(z1: Any, z2: Any, tau: float) -> Any:
    return open_clip(z1, z2, tau, local_loss=False)


def open_clip_siglip(z1: Any, z2: Any, tau: float) -> Any:
    from open_clip.loss import SigLipLoss

    loss, scale, bias = SigLipLoss(rank=rank(), world_size=world()), torch.tensor(1 / tau), torch.tensor(-10.0)
    return loss(normalize(z1, dim=-1), normalize(z2, dim=-1), scale, bias)


class libauc_sogclr:
    """Half of the loss, whose gradient is the sum over both views."""

    def __init__(self, tau: float, learned: bool = False) -> None:
        from libauc.losses import GCLoss

        self.loss = GCLoss("unimodal", N=IMAGES, tau=tau, distributed=world() > 1, enable_isogclr=learned)

    def __call__(self, z1: Any, z2: Any, ids: Any) -> Any:
        return self.loss(z1.float(), z2.float(), ids) / 2


def libauc_isogclr(tau: float) -> Any:
    return libauc_sogclr(tau, learned=True)


def main() -> None:
    libraries = list(dict.fromkeys(row[0] for row in ROWS))
    print(environment(libraries[1:]), end="\n\n")
    print(f"| {' | '.join(['library', 'formula', *COLUMNS, 'why'])} |\n|{'---|' * (3 + len(COLUMNS))}")
    subjects = [Subject(f"{__file__}:{adapter}", formula, given) for _, adapter, formula, given, _ in ROWS]
    for row, subject, columns in zip(ROWS, subjects, conformance.measure_on_ranks(subjects), strict=True):
        library, adapter, formula, _, why = row
        first = columns["1 rank"]
        if isinstance(first, str) and "ModuleNotFoundError" in first:
            print(f"| {library} | {formula} | not installed{' |' * (1 + len(COLUMNS))}")
            continue
        cells = conformance.compare_with_formula(subject, columns).cells
        name = f"{formula}, defaults" if adapter.endswith("_defaults") else formula
        print("|", " | ".join([library, name, *(cells[column] for column in COLUMNS), why]), "|")


if __name__ == "__main__":
    main()
