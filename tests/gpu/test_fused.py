"""Fused batch norms in trainings on a GPU: launches, values, and when a run takes them.

The kernels do nothing on the fake GPU, so that a trial refuses them, unless Triton interprets them.
"""

import contextlib
import itertools
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch

from ssl_bench.distributed import rank
from ssl_bench.errors import RunError
from ssl_bench.networks.norm import of_this_rank
from ssl_bench.seeding import rng_state
from ssl_bench.training import fusing
from ssl_bench.training.graph import GraphedStepper
from tests.gpu.conftest import REAL
from tests.gpu.runs import Log, launches, training
from tests.gpu.test_steps import distance, trained

fake = pytest.mark.skipif(
    REAL, reason="only the kernels of the fake GPU do nothing or are interpreted, and are counted"
)


def started(graph: str) -> list[dict[str, Any]]:
    """Launches of the last of some steps without and with fused norms, and what the product says."""
    found = []
    for fused in ("false", "true"):
        options = ["backbone=resnet18_cifar", "precision=bf16", f"graph={graph}", f"fused_norm={fused}"]
        log, run, counts = Log(), training(*options), list[int]()
        # Kernels that do nothing give no values to compare.
        with patch.object(GraphedStepper, "_compared", lambda *_: []), patch.object(fusing, "close", lambda *_: True):
            step = run.stepper()
            for _ in range(6):
                launched = launches()
                step(False)
                counts.append(launches() - launched)
        found.append({"launches": counts[-1], "replayed": log.about("are replayed"), "fused": log.about("are fused")})
    return found


@fake
@pytest.mark.parametrize("graph", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_steps_with_fused_norms_are_fewer_launches_and_are_recorded(graph: str, gpu: Callable[..., Any]) -> None:
    torchs, fused = gpu(started, graph, values=False)
    assert torchs["fused"] == "" and "batch norms are fused with what follows them: a test step takes" in fused["fused"]
    if graph == "true":
        assert torchs["launches"] == fused["launches"] <= 20 and fused["replayed"] == torchs["replayed"] != ""
    else:  # 20 norms, of which 17 are followed by a ReLU, and 8 of these by an addition before it
        assert fused["launches"] < torchs["launches"] - 30


def interpreted() -> dict[str, Any]:
    """How far steps with fused norms are from steps with torch's, and what a run says whose fused steps take less."""
    start, eager, _ = trained(True, "graph=false", "precision=fp32")
    log = Log()
    _, fused, _ = trained(True, "graph=false", "precision=fp32", "fused_norm=true")
    found: dict[str, Any] = {"distance": distance(fused, eager, start), "said": [log.about("batch norms")]}
    for last in (6.0, 7.0):  # seconds since the clock began, in which the fused steps end
        clock = itertools.cycle([0.0, 3.0, 3.0, last])
        with patch.object(fusing.time, "perf_counter", lambda clock=clock: next(clock)):
            run = training("graph=false", "fused_norm=auto", one_layer=True)
            run.stepper()
        found["said"].append(log.about("batch norms"))
    return found


@fake
@pytest.mark.slow
def test_fused_steps_have_the_values_of_others_and_are_taken_where_they_are_faster(gpu: Callable[..., Any]) -> None:
    found = gpu(interpreted, TRITON_INTERPRET="1")
    taken, refused = "batch norms are fused with what follows them: a test step takes", "batch norms are not fused"
    assert found["distance"] <= 1e-5
    assert found["said"][0].startswith(taken)
    assert found["said"][1:] == [
        f"{refused} with what follows them: a test step takes 1000.00 ms in place of 1000.00",
        f"{refused} with what follows them: a test step takes 1333.33 ms in place of 1000.00",
    ]


def refused(graph: str, *overrides: str) -> dict[str, Any]:
    """What a trial leaves behind that finds other values, and what the run says and does then."""
    log, run, error = Log(), training(f"graph={graph}", "fused_norm=auto", *overrides, one_layer=True), ""
    before = [tensor.detach().clone() for tensors in run.state.tensors().values() for tensor in tensors]
    random = rng_state()
    run.stepper()
    after = [tensor for tensors in run.state.tensors().values() for tensor in tensors]
    with contextlib.suppress(RunError):
        try:
            training(f"graph={graph}", "fused_norm=true", *overrides, one_layer=True).stepper()
        except RunError as refusal:
            error = str(refusal)
            raise
    return {
        "said": log.about("batch norms"),
        "error": error,
        "same": all(map(torch.equal, before, after)) and str(random) == str(rng_state()),
        "gradients": sum(p.grad is not None for p in run.state.method.parameters()),
        "fused": sum(norm.normalise is not torch.nn.functional.batch_norm for norm in of_this_rank(run.state.method)),
    }


OTHERS = "they have other values than torch's"


@fake
@pytest.mark.parametrize("graph", ["auto", "false"])
def test_kernels_with_other_values_are_refused_and_leave_the_training_as_it_was(
    graph: str, gpu: Callable[..., Any]
) -> None:
    found = gpu(refused, graph)
    assert found["said"] == f"batch norms are not fused with what follows them: {OTHERS}"
    assert found["error"] == f"fused_norm=true: {OTHERS}: set fused_norm=auto or false"
    assert found["same"] and found["gradients"] == found["fused"] == 0


def of_one_rank() -> list[dict[str, Any]]:
    """Trials of which rank 1 alone finds other values, and of batch norms with the statistics of all ranks."""
    with patch.object(fusing, "close", lambda *_: rank() == 0):
        one = refused("auto", "framework=moco_v2", "framework.groups=2", "negatives.k=64")
    return [one, refused("auto", "framework=simclr")]


@fake
@pytest.mark.slow
def test_ranks_take_fused_norms_together_or_not_at_all(gpu: Callable[..., Any]) -> None:
    one, other = gpu(of_one_rank, ranks=2)
    assert one == other
    assert one[0]["said"].endswith(f": rank 1: {OTHERS}") and one[0]["same"] and one[0]["fused"] == 0
    assert "no batch norm of feature maps" in one[1]["said"] and one[1]["error"] != ""
