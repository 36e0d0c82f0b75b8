"""Steps that are replayed: equal to eager ones, bit for bit.

On a CPU a list of the dispatched operations takes the place of a CUDA graph. As in a graph, what Python computes is not
repeated: a learning rate, a random seed or a branch of the recorded step would stay in every replay.
"""

import itertools
import logging
import math
import re
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.utils._pytree import tree_map

from ssl_bench.config.compose import load
from ssl_bench.data.batch import Batch, Step
from ssl_bench.distributed import Votes
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
    made = list[torch.Tensor]()
    for views, group in itertools.groupby(step.views):
        made += views.make(step.images, step.uniform[len(made) :][: len(list(group))], step.dtype)
    return Batch(made, step.ids, step.labels)


def training(*overrides: str) -> Training:
    config = load([*SMALL, "batch_size.size=16", "epochs=4", "max_steps=14", *overrides])
    return Training(config, torch.device("cpu"))


def stepper(run: Training) -> Stepper:
    run.state.method.train()
    return Stepper(run.state, run.schedule, run.precision, run.loader)


def trained(run: Training, step: Callable[[bool], Any]) -> dict[str, list[torch.Tensor]]:
    """The tensors of a training after some steps, and the diagnostics, which every fifth one records."""
    diagnostics: list[torch.Tensor] = []
    with patch.object(Step, "batch", views_at_once):
        for number in range(12):
            found = step(number % 5 == 4)
            diagnostics += found.values() if number % 5 == 4 else ()
    return run.state.tensors() | {"diagnostics": diagnostics}


OPTIONS = {
    "linear": ["temperature=linear", "temperature.slope=0.01", "optimizer=adamw", "optimizer.clip=0.1"],
    "a rising momentum": ["framework=byol", "framework.predictor=8", "head.hidden=8"],
    "growing queue": ["framework=moco_v2", "negatives.k=3", "negatives.final=90", "negatives.schedule=linear"],
}


@pytest.mark.parametrize("name", OPTIONS)
def test_replayed_steps_equal_eager_ones(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ssl_bench")
    eager = training(*OPTIONS[name])
    expected = trained(eager, stepper(eager))
    run = training(*OPTIONS[name])
    graphed = GraphedStepper(stepper(run), run.loader, True, Operations, Votes())
    found = trained(run, graphed)
    starts = [re.findall(r"step (\d+)", each) for each in caplog.messages if "replayed" in each]
    assert starts == [[str(EAGER_STEPS)], ["9"]]
    for kind, tensors in expected.items():
        assert len(tensors) == len(found[kind])
        assert all(torch.equal(a, b) for a, b in zip(tensors, found[kind], strict=True)), kind
    assert eager.state.meter.summary() == pytest.approx(run.state.meter.summary(), rel=1e-6) and run.state.step == 12
    assert math.isfinite(run.state.meter.summary()[0])
    assert [*map(vars_of, eager.state.method.modules())] == [*map(vars_of, run.state.method.modules())]


def vars_of(module: torch.nn.Module) -> Any:
    return getattr(module, "step", None)


# ---- recordings that must not be used


def test_a_recording_that_differs_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ssl_bench")
    eager = training()
    expected = trained(eager, stepper(eager))
    run = training()

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
