"""Memory and streams of a GPU around a recording: what fits without one never fails because of it."""

import os
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch

from ssl_bench.hardware import release_memory
from ssl_bench.objective.contrast import Contrast, Embedded
from ssl_bench.objective.losses import InfoNCE, SupCon
from ssl_bench.objective.negatives import InBatch, RandomK
from ssl_bench.objective.positives import NearestKey
from ssl_bench.record.environment import peak_memory
from ssl_bench.training.graph import GraphedStepper
from ssl_bench.training.step import Stepper
from tests.gpu.conftest import REAL
from tests.gpu.runs import Log, launches, training

LARGE = ["batch_size.size=512", "backbone.width=64", "precision=fp16"]


def steps(count: int, *overrides: str) -> dict[str, Any]:
    """Memory, stream and messages after some steps of a run."""
    release_memory(torch.device("cuda"))
    log, run = Log(), training(*overrides)
    step, stream = run.stepper(), torch.cuda.current_stream()
    for _ in range(count):
        step(False)
    return {
        "peak": torch.cuda.max_memory_reserved(),
        "reserved": torch.cuda.memory_reserved(),
        "said": log.about("as a CUDA graph"),
        "stream": torch.cuda.current_stream() == stream,
        "recorded": peak_memory(torch.device("cuda"), run.state.peak)["peak_device_mb"],
    }


def in_little_memory() -> list[dict[str, Any]]:
    """Eager steps, and steps that may be recorded where there is a tenth more memory than these have taken."""
    eager = steps(6, "graph=false", *LARGE)
    os.environ["FAKE_CUDA_MB"] = str(int(1.1 * eager["peak"] / 2**20))
    return [eager, steps(6, "graph=auto", *LARGE)]


@pytest.mark.skipif(REAL, reason="the memory of a real GPU cannot be set")
def test_a_batch_that_fits_without_a_graph_fits_with_graph_auto(gpu: Callable[..., Any]) -> None:
    eager, auto = gpu(in_little_memory, values=False)
    assert eager["peak"] > 2**29 and auto["peak"] <= 1.1 * eager["peak"]
    assert "stays eager: that takes" in auto["said"]


compute: Any = Stepper.compute
SEARCH = 2**31


def searched() -> dict[str, Any]:
    """Steps of which the first one takes much memory for a moment, as cuDNN does where it searches for algorithms."""

    def searching(self: Stepper, *arguments: Any) -> Any:
        if self.state.step == 0:
            torch.empty(SEARCH, dtype=torch.uint8, device="cuda")
            torch.cuda.empty_cache()
        return compute(self, *arguments)

    with patch.object(Stepper, "compute", searching), patch.object(GraphedStepper, "_compared", lambda *_: []):
        return steps(6, "graph=auto", *LARGE)


def test_memory_in_which_cudnn_searches_is_of_the_run_and_of_no_later_step(gpu: Callable[..., Any]) -> None:
    found = gpu(searched, values=False, FAKE_CUDA_MB="3072")
    assert "from step 3 on, steps are replayed" in found["said"]
    assert found["recorded"] * 1e6 >= SEARCH > found["peak"]


def recorded() -> list[dict[str, Any]]:
    """Eager steps, and steps that are recorded, whose numbers are compared in vain: kernels do nothing."""

    def compared(self: GraphedStepper, *arguments: Any) -> list[str]:
        original(self, *arguments)
        return []

    original: Any = GraphedStepper._compared
    with patch.object(GraphedStepper, "_compared", compared):
        return [steps(6, f"graph={graph}", *LARGE) for graph in ("false", "true")]


def test_after_a_recording_the_memory_of_its_comparison_is_given_back(gpu: Callable[..., Any]) -> None:
    eager, replayed = gpu(recorded, values=False)
    assert replayed["reserved"] <= 1.1 * eager["reserved"] < replayed["recorded"] * 1e6


def objective(name: str, images: int) -> dict[str, int]:
    """Peak memory in MB, beside the embeddings, and launches of an objective at a batch size, forward and backward."""
    q = torch.randn(2, images, 128, device="cuda", requires_grad=True)
    ids = torch.arange(images, device="cuda")
    e = Embedded(q, q.flip(0), q, ids, labels=ids % 100)
    positives = NearestKey(98304, 128, 0).cuda()
    before, started = torch.cuda.memory_allocated(), launches()
    torch.cuda.reset_peak_memory_stats()
    if name == "nearest":
        positives.choose(e)
    else:
        loss = SupCon() if name == "supcon" else InfoNCE()
        negatives = RandomK(images, "all", False, 0) if name == "random_k" else InBatch()
        contrast = negatives.select(Contrast.of(e, negatives.bank(e)), 0.0)
        loss(contrast, torch.tensor(0.2, device="cuda")).mean().backward()
    return {"MB": (torch.cuda.max_memory_allocated() - before) >> 20, "launches": launches() - started}


def objectives() -> dict[str, dict[str, int]]:
    cases = {"nearest": 4096, "random_k": 16384, "supcon": 4096}
    return {name: objective(name, images) for name, images in cases.items()}


@pytest.mark.skipif(REAL, reason="only the fake GPU counts launches")
def test_objectives_of_large_batches_take_little_memory_and_few_launches(gpu: Callable[..., Any]) -> None:
    """The matrices would take 3, 4 and 0.3 GB; a panel takes 64 MB."""
    found = gpu(objectives, values=False)
    assert found["nearest"]["MB"] < 150 and found["random_k"]["MB"] < 800 and found["supcon"]["MB"] < 600
    assert found["nearest"]["launches"] < 200 and found["supcon"]["launches"] < 500


def refused() -> list[dict[str, Any]]:
    """Steps without a graph, and steps of which one operation waits for the device, so that none can be recorded."""

    def waiting(self: Stepper, *arguments: Any) -> Any:
        found = compute(self, *arguments)
        found.loss.item()
        return found

    options = [*LARGE, "negatives=random_k", "negatives.k=3"]  # with a generator, which the capture had
    eager = steps(8, "graph=false", *options)
    with patch.object(Stepper, "compute", waiting):
        return [eager, steps(8, "graph=auto", *options)]


def test_a_refused_recording_leaves_no_memory_and_the_former_stream(gpu: Callable[..., Any]) -> None:
    eager, auto = gpu(refused, values=False)
    assert "stays eager: " in auto["said"] and "captur" in auto["said"]
    assert auto["stream"] and auto["reserved"] <= 1.3 * eager["reserved"]


def one_after_another() -> list[dict[str, Any]]:
    """A small run, a large one, and the small one again where little more than the large one takes is left."""
    small = steps(6, "graph=auto")
    large = steps(4, "graph=false", "batch_size.size=1024")
    os.environ["FAKE_CUDA_MB"] = str(int(1.1 * large["peak"] / 2**20))
    return [small, large, steps(6, "graph=auto")]


@pytest.mark.slow
@pytest.mark.skipif(REAL, reason="the memory of a real GPU cannot be set")
def test_a_small_run_after_a_large_one_in_a_process_is_as_it_is_alone(gpu: Callable[..., Any]) -> None:
    small, large, again = gpu(one_after_another)
    assert "steps are replayed" in small["said"] and large["recorded"] > small["recorded"] + 100
    assert again["said"] == small["said"] and again["recorded"] == pytest.approx(small["recorded"], rel=0.02)
