"""Steps that are replayed: equal to eager ones, bit for bit.

On a CPU a list of the dispatched operations takes the place of a CUDA graph. As in a graph, what Python computes is not
repeated: a learning rate, a random seed or a branch of the recorded step would stay in every replay.
"""

import logging
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.utils._pytree import tree_map

from ssl_bench.config.compose import load
from ssl_bench.data.batch import Batch, Step
from ssl_bench.distributed import Votes
from ssl_bench.errors import RunError
from ssl_bench.objective import bits
from ssl_bench.training.engine import Training
from ssl_bench.training.graph import EAGER_STEPS, GraphedStepper
from ssl_bench.training.step import Stepper
from tests.conftest import SMALL
from tests.operations import Operations


@pytest.fixture(autouse=True)
def draws_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU numpy sorts and packs, which is no operation of torch."""
    monkeypatch.setattr(bits, "in_numpy", lambda device: False)


def views_at_once(step: Step, rows: slice = slice(None)) -> Batch:
    """The views as a GPU makes them."""
    assert rows == slice(None) and isinstance(step.images, torch.Tensor)
    return Batch(step._on_device(step.images), step.ids, step.labels)


def training(folder: Path, *overrides: str) -> Training:
    other = "backbone=timm" in overrides  # which has no width
    config = load([*SMALL[other:], "epochs=4", "max_steps=14", *overrides])
    return Training(config, "0123456789", folder, torch.device("cpu"))


def stepper(run: Training) -> Stepper:
    run.state.method.train()
    return Stepper(run.state, run.schedule, run.precision, None)


def trained(run: Training, step: Callable[[bool], Any]) -> dict[str, list[torch.Tensor]]:
    """The tensors of a training after some steps, and the diagnostics, which every fifth one records."""
    diagnostics: list[torch.Tensor] = []
    with patch.object(Step, "batch", views_at_once):
        for number in range(12):
            found = step(number % 5 == 4)
            diagnostics += found.values() if number % 5 == 4 else ()
    return run.state.tensors() | {"diagnostics": diagnostics}


# tests/gpu has every framework, kind of negatives and optimiser.
VIT = ["backbone=timm", "backbone.name=vit_tiny_patch16_224", "backbone.args.patch_size=5"]
VIT += ["backbone.args.depth=1", "backbone.args.embed_dim=12", "backbone.args.num_heads=3"]
OPTIONS = {
    "simclr": [],
    "linear": ["temperature=linear", "temperature.slope=0.01", "optimizer=adamw", "optimizer.clip=0.1"],
    "layer decay": [*VIT, "optimizer.layer_decay=0.5"],
    "k of a queue": ["framework=moco_v2", "negatives.k=16"],
    "npid": ["framework=npid", "loss=nce", "negatives.k=9"],
    "a rising momentum": ["framework=byol", "framework.predictor=8", "head.hidden=8"],
    "frozen patches": [*VIT, "backbone=vit_moco_v3", "framework=moco_v3", "framework.predictor=8", "head.hidden=8"],
    "densecl": ["framework=densecl", "negatives.k=96"],
    "isogclr": ["loss=isogclr"],
    "nearest": ["positives=nearest", "positives.k=99"],
    "growing k": ["negatives=random_k", "negatives.k=2", "negatives.final=9", "negatives.schedule=cosine"],
    "growing queue": ["framework=moco_v2", "negatives.k=3", "negatives.final=90", "negatives.schedule=linear"],
    "labels": ["loss=sincere", "positives=label"],
}


# tests/gpu replays the frameworks, losses and negatives of the others, too; the next test has those of simclr.
FIRST = {"linear", "layer decay", "a rising momentum", "growing queue"}


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in FIRST else pytest.mark.exhaustive) for each in OPTIONS]
)
def test_replayed_steps_equal_eager_ones(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ssl_bench")
    eager = training(tmp_path, *OPTIONS[name])
    batches, step = eager.loader.steps(0, 14), stepper(eager)
    expected = trained(eager, lambda diagnostics: step(next(batches), diagnostics))
    run = training(tmp_path, *OPTIONS[name])
    graphed = GraphedStepper(stepper(run), run.loader, True, Operations, Votes())
    found = trained(run, graphed)
    starts = [re.findall(r"step (\d+)", each) for each in caplog.messages if "replayed" in each]
    assert starts == [[str(EAGER_STEPS)], ["9"]]
    for kind, tensors in expected.items():
        assert len(tensors) == len(found[kind])
        for a, b in zip(tensors, found[kind], strict=True):
            assert torch.equal(a, b), kind
    assert eager.state.meter.summary() == pytest.approx(run.state.meter.summary(), rel=1e-6) and run.state.step == 12
    assert math.isfinite(run.state.meter.summary()[0])
    assert [*map(vars_of, eager.state.method.modules())] == [*map(vars_of, run.state.method.modules())]


def vars_of(module: torch.nn.Module) -> Any:
    return getattr(module, "step", None)


@pytest.mark.parametrize("augment", ["digits", "byol", "multicrop_cifar"])
def test_views_that_are_made_at_once_are_those_of_a_cpu(augment: str, tmp_path: Path) -> None:
    """``byol`` makes its two views by different makers, multi-crop its crops by two."""
    step = next(training(tmp_path, f"augment={augment}", "precision=fp32").loader.steps(3, 4))
    at_once, one_by_one = views_at_once(step).views, step.batch().views
    assert len(at_once) == len(one_by_one) > 1
    assert all(torch.equal(a, b) for a, b in zip(at_once, one_by_one, strict=True))


# ---- recordings that must not be used


def test_a_recording_that_differs_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ssl_bench")
    eager = training(tmp_path)
    batches, step = eager.loader.steps(0, 14), stepper(eager)
    expected = trained(eager, lambda diagnostics: step(next(batches), diagnostics))
    run = training(tmp_path)

    class Numb(Operations):
        """Replays with the ids of the recorded step."""

        def record(self, compute: Callable[[], Any], generators: Sequence[torch.Generator]) -> None:
            super().record(compute, generators)
            ids = graphed._ids
            self.calls = [(f, tree_map(lambda v: v.clone() if v is ids else v, a), k, o) for f, a, k, o in self.calls]

    graphed = GraphedStepper(stepper(run), run.loader, False, Numb, Votes())
    found = trained(run, graphed)
    assert "stays eager" in caplog.text
    assert all(torch.equal(a, b) for a, b in zip(expected["weights"], found["weights"], strict=True))


def test_a_step_that_cannot_be_recorded_stays_eager_or_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def waiting(self: Training, *args: Any) -> Any:
        found = compute(self, *args)
        found.diagnostics["tau"].item()
        return found

    compute: Any = Stepper.compute
    with patch.object(Stepper, "compute", waiting):
        run = training(tmp_path)
        trained(run, GraphedStepper(stepper(run), run.loader, False, Operations, Votes()))
        assert "aten::_local_scalar_dense" in caplog.text
        run = training(tmp_path)
        with pytest.raises(RunError, match="graph=auto or false"):
            trained(run, GraphedStepper(stepper(run), run.loader, True, Operations, Votes()))
