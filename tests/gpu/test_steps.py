"""Steps on one GPU: captured and replayed, with the values of eager ones."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import yaml

from ssl_bench.config.compose import load
from ssl_bench.training.engine import row_of
from ssl_bench.training.graph import GraphedStepper
from tests.gpu.conftest import REAL
from tests.gpu.runs import Log, launches, training, waits
from tests.methods.test_contrastive import missing_need, rule_of
from tests.methods.training import has_own_objective, options

STEPS, LOGGED = 9, 3  # steps, and how many of them come with one that is logged
# A real GPU rounds sums in no fixed order, and at the rates of a training a few steps make that as large as a step.
RATE = ["optimizer.lr=0.0001"] if REAL else []
Tensors = dict[str, list[torch.Tensor]]
SMALL = {"queue": ["negatives.k=64"], "random_k": ["negatives.k=3"], "memory_bank": ["negatives.k=40"]}


def trained(one_layer: bool, *overrides: str) -> tuple[Tensors, Tensors, list[float]]:
    """The tensors of a run before and after some steps, with the diagnostics of those that are logged; its losses.

    Learning rates are rounded to single precision, in which a graph reads them.
    """
    run = training(*RATE, *overrides, one_layer=one_layer)
    start = {kind: [tensor.detach().clone() for tensor in tensors] for kind, tensors in run.state.tensors().items()}
    lr_at = run.schedule.lr_at
    object.__setattr__(run.schedule, "lr_at", lambda step: torch.tensor(lr_at(step)).item())
    step, losses, diagnostics = run.stepper(), [], list[torch.Tensor]()
    for number in range(STEPS):
        found = step(number % LOGGED == LOGGED - 1)
        diagnostics += found.values() if number % LOGGED == LOGGED - 1 else ()
        losses.append(run.state.meter.read()[0])
    return start, run.state.tensors() | {"diagnostics": diagnostics}, losses


def compared(variants: list[list[str]], one_layer: bool, graph: str = "auto") -> dict[str, Any]:
    """Of each variant how many graphs the product reports, and how far replayed steps are from eager ones."""
    found = {}
    for variant in variants:
        log = Log()
        _, replayed, losses = trained(one_layer, f"graph={graph}", *variant)
        start, eager, _ = trained(one_layer, "graph=false", *variant)
        far, finite = distance(replayed, eager, start), all(map(math.isfinite, losses))
        found[" ".join(variant)] = {"graphs": log.recordings(), "distance": far, "finite": finite}
    return found


@torch.no_grad()
def distance(found: Tensors, exact: Tensors, start: Tensors) -> float:
    """The largest distance of a kind of tensors, relative to their change; 0 if all have the same bits.

    Infinity if whole numbers differ or a number is not finite.
    """
    shares = []
    for kind, tensors in exact.items():
        far, change = 0.0, 0.0
        for a, b, before in itertools.zip_longest(found[kind], tensors, start.get(kind, [])):
            if not torch.equal(a, b):
                if not a.is_floating_point():
                    return math.inf
                far += float((a.double() - b.double()).square().sum())
            change += float((b.double() - (0 if before is None else before.double())).square().sum())
        if not math.isfinite(far + change):  # of NaN, max would say anything
            return math.inf
        shares.append(math.sqrt(far / change) if far else 0.0)
    return max(shares)


def right(found: dict[str, Any], tolerance: float = 0.0) -> bool:
    """Whether both kinds of steps were replayed and equal eager ones."""
    return found["graphs"] == 2 and found["distance"] <= (0.05 if REAL else tolerance) and found["finite"]


def variants() -> list[list[str]]:
    """Each framework with each kind of negatives that it can have, and a loss: the default one if it can have that."""
    found = []
    for framework in sorted({*options("framework")} - {"frozen"}):  # which trains nothing
        words = [f"framework={framework}", "augment=crop"]
        if has_own_objective(framework):
            found.append(words)
            continue
        default = load(words)["choices"]
        for negatives, loss in itertools.product(options("negatives"), [default["loss"], *options("loss")]):
            chosen = {"framework": framework, "negatives": negatives, "temperature": default["temperature"]}
            rules = {group: rule_of(group, name) for group, name in (chosen | {"loss": loss}).items()}
            parts = [*words, f"negatives={negatives}"]
            if not any(each[: len(parts)] == parts for each in found) and missing_need(rules, framework) is None:
                found.append([*parts, f"loss={loss}", *SMALL.get(negatives, [])])
    return found


OPTIONS = [words.split() for words in yaml.safe_load(Path(__file__).with_name("options.yaml").read_text())]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["even", "odd", "options"])
def test_every_framework_and_option_is_replayed_with_the_values_of_eager_steps(
    part: str, gpu: Callable[..., Any]
) -> None:
    """The frameworks in two processes, which tests can run side by side."""
    cases = OPTIONS if part == "options" else variants()[part == "odd" :: 2]
    found = gpu(compared, cases, part != "options")
    assert {name: each for name, each in found.items() if not right(each, 1e-6 if "lars" in name else 0.0)} == {}


def launches_and_waits(*overrides: str) -> tuple[list[int], list[int]]:
    """Launches of each step of a run, of which every fourth is logged, and waits of the host in it and in its row."""
    run = training("log_every=4", *overrides)
    found: tuple[list[int], list[int]] = [], []
    with patch.object(GraphedStepper, "_compared", lambda *_: []):  # kernels that do nothing give no values to compare
        step = run.stepper()
        for number in range(12):
            launched, waited = launches(), waits()
            diagnostics = step(number % 4 == 3)
            found[0].append(launches() - launched)
            if number % 4 == 3:
                row_of(run, diagnostics)
            found[1].append(waits() - waited)
    return found


@pytest.mark.skipif(REAL, reason="only the fake GPU counts waits and launches")
@pytest.mark.parametrize("method", ["simclr", *(pytest.param(name, marks=pytest.mark.slow) for name in ("byol",))])
def test_only_a_logged_step_waits_and_that_once_and_a_replayed_one_is_a_few_launches(
    method: str, gpu: Callable[..., Any]
) -> None:
    words = ["backbone=resnet18_cifar", f"framework={method}"]
    eager, waited = gpu(launches_and_waits, "graph=false", *words, values=False)
    assert waited[1:] == [0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]
    replayed, waited = gpu(launches_and_waits, "graph=true", *words, values=False)
    assert waited[8:] == [0, 0, 0, 1]  # both kinds of steps are recorded before
    assert len({*eager[8:11]}) == len({*replayed[8:11]}) == 1
    assert replayed[8] <= 20 and replayed[11] <= 48 and eager[8] > 500
