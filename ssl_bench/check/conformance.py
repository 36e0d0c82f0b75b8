"""Compare a loss of one's own with a formula: on 1, 2 and 4 ranks, in bf16, at other temperatures, and after a resume.

A loss gets three batches of the same 16 images, vectors of 6 numbers, in another order each. The last batch counts; the
others fill a queue, or averages of images. The gradient is that by the vectors of all ranks of the mean over the global
batch, as DistributedDataParallel averages it.
"""

import contextlib
import inspect
import io
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ssl_bench.check import formulas
from ssl_bench.check.formulas import LABELLED, MOMENTUM, Formula, VectorBatch
from ssl_bench.check.imported import imported
from ssl_bench.check.ranks import on_ranks
from ssl_bench.disk import temporary
from ssl_bench.distributed import join_local, rank, world
from ssl_bench.errors import ConfigError, RunError, reason

IMAGES, WIDTH, STEPS, TAU, CLASSES = 16, 6, 3, 0.1, 3
RANKS = (1, 2, 4)
TAUS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
EXACT = 1e-5  # of what is computed in float64; some losses compute in float32 all the same
BF16 = 0.03  # vectors and products rounded to 8 bits, at logits of 10
SINGLE = 1e-3  # in float32, at logits of up to 100
SECONDS = 60  # that a rank waits for the others
COLUMNS = ("1 rank", "2 ranks", "4 ranks", "bf16", "tau", "resume")

Measured = tuple[Tensor, Tensor]  # value [] and gradient [2, N, D] of the mean over the global batch
Build = Callable[[float], Any]  # a loss at a temperature; it is called with z1 and z2, and ids and labels by name


class Subject(NamedTuple):
    """A loss, ``MODULE:NAME`` or ``FILE.py:NAME``, and the formula with its options that it should be."""

    target: str
    formula: str
    options: Mapping[str, Any] = {}


class ConformanceRow(NamedTuple):
    """The cells of :data:`COLUMNS`, and by column why a bound is broken."""

    cells: dict[str, str]
    wrong: dict[str, str]


# ---- the loss


def import_loss(subject: Subject) -> Build:
    """Import a loss and say how it is made at a temperature.

    Raises:
        ConfigError: it cannot be imported, or does not take what it needs.
    """
    adapter, name = imported(subject.target), subject.target.rpartition(":")[2]
    taken = _arguments(adapter)
    temperature = next((key for key in ("tau", "temperature") if key in taken), None)
    if temperature is None and uses_tau(subject):
        raise ConfigError(f"{subject.target}: --as {subject.formula} needs an argument tau or temperature of {name}")

    def build(tau: float) -> Any:
        at = {temperature: tau} if temperature else {}
        loss = partial(adapter, **at) if {"z1", "z2"} <= set(taken) else adapter(**at)
        if not callable(loss):
            raise ConfigError(f"{subject.target}: {name} gives {type(loss).__name__}, which cannot be called as a loss")
        return loss

    return build


def _arguments(called: Any) -> Sequence[str]:
    return [*inspect.signature(called.forward if isinstance(called, nn.Module) else called).parameters]


def uses_tau(subject: Subject) -> bool:
    """Whether the formula depends on the temperature."""
    batches, formula = make_batches(), formulas.make(subject.formula, subject.options)
    return not torch.equal(formula(batches, 0.1), formula(batches, 0.3))


def make_batches(dtype: torch.dtype = torch.float64) -> list[VectorBatch]:
    """The batches of all ranks, the same everywhere."""
    generator = torch.Generator().manual_seed(0)
    centres, *noise = torch.randn(STEPS + 1, 2, IMAGES, WIDTH, generator=generator, dtype=torch.float64)
    orders = [torch.randperm(IMAGES, generator=generator) for _ in noise]
    views = [(centres[0, order] + 0.7 * x).to(dtype) for order, x in zip(orders, noise, strict=True)]
    return [VectorBatch(z, ids, ids % CLASSES) for z, ids in zip(views, orders, strict=True)]


def measure_here(subject: Subject, dtype: torch.dtype, tau: float, resume: bool) -> Measured:
    """The loss of this rank's part of the last batch, and its gradient by it divided by the number of ranks."""
    build, half = import_loss(subject), dtype == torch.bfloat16

    def new_loss() -> Any:
        loss = build(tau)
        return loss.to(torch.float32 if half else dtype) if isinstance(loss, nn.Module) else loss

    loss, batches = new_loss(), make_batches(dtype)
    for number, batch in enumerate(batches):
        if resume and number and not isinstance(loss, partial):
            saved = loss.state_dict() if hasattr(loss, "state_dict") else None
            loss = new_loss()
            if saved is not None:
                for parameter in loss.parameters() if isinstance(loss, nn.Module) else ():
                    parameter.data.zero_()
                loss.load_state_dict(saved)
        share = IMAGES // world()
        here = slice(rank() * share, (rank() + 1) * share)
        z = batch.z[:, here].clone().requires_grad_()
        extra = {"ids": batch.ids[here]} | ({"labels": batch.labels[here]} if subject.formula in LABELLED else {})
        taken = _arguments(loss)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            views = (z[0], z[1].detach()) if subject.formula in MOMENTUM else (z[0], z[1])
            value = loss(*views, **{name: numbers for name, numbers in extra.items() if name in taken})
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"the loss is {shape}: return its mean over the anchors of this rank, with its gradient")
        gradient = torch.autograd.grad(value.sum(), z)[0]
    return value.detach().double().reshape(()), gradient.double() / world()


def measurements(subject: Subject) -> dict[str, tuple[torch.dtype, float, bool]]:
    """The measurements on one rank: number format, temperature, and whether the last batch follows a resume."""
    options = inspect.signature(formulas.FORMULAS[subject.formula]).parameters
    least = options["tau_min"].default if "tau_min" in options else 0
    most = options["tau_max"].default if "tau_max" in options else 11
    taus = [tau for tau in TAUS if least <= tau < most]
    one = {"1 rank": (torch.float64, TAU, False), "bf16": (torch.bfloat16, TAU, False)}
    return one | {f"tau {t:g}": (torch.float32, t, False) for t in taus} | {"resume": (torch.float64, TAU, True)}


def _work(subjects: Sequence[Subject], ranks: int, folder: Path, number: int) -> list[dict[str, Measured] | str]:
    """Measure each loss on a rank; a sentence in place of the numbers of a loss that failed."""
    warnings.simplefilter("ignore")
    join_local(folder / "meeting", number, ranks, torch.device("cpu"), SECONDS)
    results: list[dict[str, Measured] | str] = []
    for subject in subjects:
        asked = measurements(subject) if ranks == 1 else {f"{ranks} ranks": (torch.float64, TAU, False)}
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                results.append({name: measure_here(subject, *how) for name, how in asked.items()})
        except Exception as error:  # whatever the loss raises
            results.append(f"{type(error).__name__}: {reason(error)}")
    return results


def measure_on_ranks(subjects: Sequence[Subject]) -> list[dict[str, Measured | str]]:
    """Measure each loss on 1, 2 and 4 ranks: by column its value and gradient, or how the loss failed there."""
    columns: list[dict[str, Measured | str]] = [{} for _ in subjects]
    for ranks in RANKS:
        with temporary.folder() as folder:
            try:
                parts = on_ranks(partial(_work, subjects, ranks, folder), ranks, folder)
            except RunError as error:  # a rank has died
                parts = [[str(error)] * len(subjects)]
        for by_column, of_ranks in zip(columns, zip(*parts, strict=True), strict=True):
            failed = [part for part in of_ranks if isinstance(part, str)]
            if failed:
                by_column[COLUMNS[RANKS.index(ranks)]] = failed[0]
                continue
            for name in of_ranks[0]:
                values, gradients = zip(*(part[name] for part in of_ranks if not isinstance(part, str)), strict=True)
                by_column[name] = torch.stack(values).mean(), torch.cat(gradients, 1)
    return columns


# ---- what it should be


def apply_formula(formula: Formula, batches: Sequence[VectorBatch], tau: float) -> Measured:
    """Value and gradient of the formula in double precision."""
    *before, last = (b._replace(z=b.z.double()) for b in batches)
    value = formula([*before, last._replace(z=last.z.requires_grad_())], tau).mean()
    return value.detach(), torch.autograd.grad(value, last.z)[0]


def mistakes(formula: Formula, ranks: int) -> Iterator[tuple[str, Measured]]:
    """Known mistakes on several ranks, with the value and the gradient that each would have."""
    batches, share = make_batches(), IMAGES // ranks
    parts = [slice(first, first + share) for first in range(0, IMAGES, share)]
    by_rank = [[VectorBatch(b.z[:, rows], b.ids[rows], b.labels[rows]) for b in batches] for rows in parts]
    alone = [apply_formula(formula, own_images, TAU) for own_images in by_rank]
    value, gradient = (torch.stack([a for a, _ in alone]).mean(), torch.cat([b for _, b in alone], 1) / ranks)
    yield "a rank has only its own images", (value, gradient)
    values, gradients = [], []
    for rows in parts:
        z = batches[-1].z.clone()
        part = z[:, rows].clone().requires_grad_()
        z[:, rows] = part
        value = formula([*batches[:-1], batches[-1]._replace(z=z)], TAU)[:, rows].mean()
        values.append(value.detach())
        gradients.append(torch.autograd.grad(value, part)[0] / ranks)
    yield "gathered vectors have no gradient", (torch.stack(values).mean(), torch.cat(gradients, 1))


def error(measured: Tensor, right: Tensor) -> float:
    """Relative distance; NaN or infinite where ``measured`` is."""
    return float((measured - right).norm() / right.norm())


def percent(share: float) -> str:
    return f"{share:.1%}" if math.isfinite(share) else "not finite"


def cell(measured: Measured, right: Measured, ranks: int = 1) -> str:
    """The larger error if value and gradient are exact, or what differs: by the number of ranks, or otherwise."""
    words = []
    for name, m, r in zip(("value", "gradient"), measured, right, strict=True):
        factor = next((by for by in (1, ranks, 1 / ranks) if error(m / by, r) < EXACT), None)
        if factor != 1:
            words.append(f"{name} x{factor:g}" if factor else f"{name} {percent(error(m, r))} off")
    return ", ".join(words) or f"{max(map(error, measured, right)):.0e}"


def exact(measured: Measured, right: Measured) -> bool:
    return all(error(m, r) < EXACT for m, r in zip(measured, right, strict=True))


def compare_with_formula(subject: Subject, columns: Mapping[str, Measured | str]) -> ConformanceRow:
    """Compare what was measured, by column, with the formula.

    bf16, tau and resume leave out the value or the gradient that differs on one rank in double precision already.
    """
    formula, cells, wrong = formulas.make(subject.formula, subject.options), dict[str, str](), dict[str, str]()
    right = apply_formula(formula, make_batches(), TAU)
    others = ((f"it is that of {n}", apply_formula(f, make_batches(), TAU)) for n, f in formulas.FORMULAS.items())
    for ranks, column in zip(RANKS, COLUMNS, strict=False):
        measured = columns[column]
        if isinstance(measured, str):
            cells[column] = wrong[column] = measured
            continue
        cells[column] = cell(measured, right, ranks)
        if not exact(measured, right) and "1 rank" in wrong:
            wrong[column] = "as on 1 rank"
        elif not exact(measured, right):
            wrong[column] = _looks_like(subject, measured, mistakes(formula, ranks) if ranks > 1 else others)
    first = columns["1 rank"]
    if isinstance(first, str):
        return ConformanceRow(cells | dict.fromkeys(COLUMNS[3:], ""), wrong)
    counts = [error(m, r) < EXACT for m, r in zip(first, right, strict=True)]
    off: dict[str, float] = {}
    for name, (dtype, tau, _) in measurements(subject).items():
        pairs = zip(columns[name], apply_formula(formula, make_batches(dtype), tau), counts, strict=True)
        off[name] = max((error(m, r) for m, r, count in pairs if count), default=math.nan)  # type: ignore[arg-type]
    if not any(counts):
        return ConformanceRow(cells | dict.fromkeys(COLUMNS[3:], ""), wrong)
    taus = {name.removeprefix("tau "): share for name, share in off.items() if name.startswith("tau ")}
    above = ", ".join(f"{tau}: {percent(share)}" for tau, share in taus.items() if not share < SINGLE)
    cells["bf16"], cells["tau"] = percent(off["bf16"]), above or f"{max(taus.values()):.0e}"
    cells["resume"] = f"{off['resume']:.0e}" if off["resume"] < EXACT else f"{percent(off['resume'])} off"
    broken = {"bf16": not off["bf16"] < BF16, "tau": bool(above), "resume": not off["resume"] < EXACT}
    limits = {"bf16": f"more than {BF16:.0%} off", "tau": f"more than {SINGLE:.1%} off in float32"}
    limits["resume"] = "the state_dict lacks something that a step changes"
    return ConformanceRow(cells, wrong | {column: limits[column] for column, is_broken in broken.items() if is_broken})


def _looks_like(subject: Subject, measured: Measured, candidates: Iterator[tuple[str, Measured]]) -> str:
    """The mistake among the candidates that has the measured gradient, up to a factor."""
    for words, (_, gradient) in candidates:
        if is_multiple(measured[1], gradient):
            return words
    return f"value or gradient is not that of {subject.formula}"


def is_multiple(measured: Tensor, gradient: Tensor) -> bool:
    """Whether a gradient is the other one times a positive number."""
    factor = float((measured * gradient).sum() / gradient.square().sum())
    return error(measured, factor * gradient) < EXACT and factor > EXACT
