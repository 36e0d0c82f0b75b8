"""Memory and streams of a GPU around a recording: what fits without one never fails because of it."""

import os
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch

from ssl_bench.hardware import release_memory
from ssl_bench.record.environment import peak_memory
from ssl_bench.training.graph import GraphedStepper
from ssl_bench.training.step import Stepper
from tests.gpu.conftest import REAL
from tests.gpu.runs import Log, training

LARGE = ["batch_size.size=512", "backbone.width=64", "precision=fp16"]
original: Any = GraphedStepper._compared
compute: Any = Stepper.compute


def steps(*overrides: str) -> dict[str, Any]:
    """Memory, stream and messages after some steps of a run."""
    release_memory(torch.device("cuda"))
    log, run = Log(), training(*LARGE, *overrides)
    step, stream = run.stepper(), torch.cuda.current_stream()
    for _ in range(6):
        step(False)
    return {
        "peak": torch.cuda.max_memory_reserved(),
        "reserved": torch.cuda.memory_reserved(),
        "graphs": log.recordings(),
        "stream": torch.cuda.current_stream() == stream,
        "recorded": peak_memory(torch.device("cuda"), run.state.peak)["peak_device_mb"],
    }


def compared(self: GraphedStepper, *arguments: Any) -> list[str]:
    original(self, *arguments)  # in vain: kernels do nothing
    return []


def waiting(self: Stepper, *arguments: Any) -> Any:
    """An operation waits for the device, so that no step can be recorded."""
    found = compute(self, *arguments)
    found.loss.item()
    return found


def measured() -> list[dict[str, Any]]:
    """Eager steps; steps that are recorded, and refused; and some with a tenth more memory."""
    draws = ["negatives=random_k", "negatives.k=3"]  # with a generator, which the capture had
    found = [steps("graph=false")]
    with patch.object(GraphedStepper, "_compared", compared):
        found.append(steps("graph=true"))
    with patch.object(Stepper, "compute", waiting):
        found.append(steps("graph=auto", *draws))
    if not REAL:
        os.environ["FAKE_CUDA_MB"] = str(int(1.1 * found[0]["peak"] / 2**20))
        found.append(steps("graph=auto"))
    return found


def test_a_recording_takes_and_leaves_no_memory_that_an_eager_run_lacks(gpu: Callable[..., Any]) -> None:
    eager, replayed, refused, *little = gpu(measured, values=False)
    assert eager["peak"] > 2**29 and replayed["reserved"] <= 1.1 * eager["reserved"] < replayed["recorded"] * 1e6
    assert refused["graphs"] == 0 and refused["stream"] and refused["reserved"] <= 1.3 * eager["reserved"]
    assert all(each["graphs"] == 0 and each["peak"] <= 1.1 * eager["peak"] for each in little)
