"""Steps of several GPUs: captured and replayed with their collectives, with the values of eager ones under DDP."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import yaml

from ssl_bench.distributed import rank
from ssl_bench.errors import RunError
from ssl_bench.hardware import release_memory
from ssl_bench.record.environment import peak_memory
from ssl_bench.training.graph import CudaRecording, GraphedStepper
from ssl_bench.training.step import Stepper
from tests.gpu.conftest import REAL
from tests.gpu.runs import Log, training
from tests.gpu.test_steps import compared, distance, right, trained

MOCO = ["framework=moco_v2", "negatives.k=64"]
OTHERS = [["loss=sogclr"], ["loss=vicreg", "negatives=none"], MOCO, [*MOCO, "framework.groups=4"]]


@pytest.mark.parametrize("methods", [[["loss=infonce"]], pytest.param(OTHERS, marks=pytest.mark.slow)])
def test_ranks_replay_steps_with_the_values_of_eager_ones(methods: list[list[str]], gpu: Callable[..., Any]) -> None:
    found = gpu(compared, methods, True, "true", ranks=2)
    assert [{name: each for name, each in one.items() if not right(each)} for one in found] == [{}, {}]


compute: Any = Stepper.compute
replay: Any = CudaRecording.replay


def failing(self: Stepper, *arguments: Any) -> Any:
    if rank() == 1 and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a planted fault")
    return compute(self, *arguments)


def diagnosed(self: Stepper, *arguments: Any) -> Any:
    time.sleep(0.1)  # so that replays are faster
    return (failing if arguments[-1] else compute)(self, *arguments)


def late(self: CudaRecording) -> None:
    time.sleep(1.5 * rank())
    replay(self)


CASES: list[tuple[Any, str, Any]] = [
    (GraphedStepper, "_check_memory", lambda self: "too little memory" * rank()),
    (Stepper, "compute", failing),
    (Stepper, "compute", diagnosed),
    (CudaRecording, "replay", late),
]


def refusals() -> list[dict[str, Any]]:
    """Steps of which rank 1 refuses a recording: before it, in its middle, with diagnostics; or is slow to replay."""
    start, eager, _ = trained(True, "graph=false")
    found = []
    for owner, name, planted in CASES:
        log, error = Log(), ""
        with patch.object(owner, name, planted):
            _, tensors, _ = trained(True, "graph=auto")
            graphs = log.recordings()
            try:
                trained(True, "graph=true")
            except RunError as refused:
                error = str(refused)
        found.append({"graphs": graphs, "distance": distance(tensors, eager, start), "error": error})
    return found


@pytest.mark.slow
def test_a_rank_that_refuses_or_is_slow_leaves_all_ranks_eager(gpu: Callable[..., Any]) -> None:
    one, other = gpu(refusals, ranks=2)
    assert one == other and [each["graphs"] for each in one] == [0, 0, 1, 0]
    assert max(each["distance"] for each in one) <= (0.05 if REAL else 0)
    assert ["rank 1" in each["error"] for each in one] == [True, True, True, False]  # graph=true asks for no times


# ---- memory and streams around a recording: what fits without one never fails because of it


LARGE = ["batch_size.size=512", "backbone.width=64", "precision=fp16"]
compared_values: Any = GraphedStepper._compared


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


def nothing_differs(self: GraphedStepper, *arguments: Any) -> list[str]:
    compared_values(self, *arguments)  # in vain: kernels do nothing
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
    with patch.object(GraphedStepper, "_compared", nothing_differs):
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


# ---- what is sent between the ranks in a step, and the values of one GPU


EXACT = ["precision=fp64", "optimizer.lr=0.01"]


def observed(log: str, cases: list[list[str]]) -> list[dict[str, Any]]:
    """The losses of four steps of some runs, and their collectives."""
    os.environ["FAKE_NCCL_LOG"] = log
    file, found = Path(f"{log}.{rank()}"), list[dict[str, Any]]()
    for overrides in cases:
        run, before = training(*overrides), len(file.read_text()) if file.exists() else 0
        step, losses = run.stepper(), []
        for _ in range(4):
            step(False)
            losses.append(run.state.meter.read()[0])
        found.append({"sent": file.read_text()[before:] if file.exists() else "", "losses": losses})
    return found


SENT = yaml.safe_load(Path(__file__).with_name("ranks.yaml").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 8])
def test_gpus_send_the_same_and_have_the_loss_of_one(count: int, gpu: Callable[..., Any], tmp_path: Path) -> None:
    cases = {name: SENT[name] for name in (SENT if count == 2 else ("simclr", "queue", "shuffled"))}
    words = [[*EXACT, *overrides.split()] for overrides in cases.values()]
    alone = gpu(observed, "", [["graph=false", *each] for each in words])
    ranks = gpu(observed, str(tmp_path / "sent"), words, ranks=count)
    for name, one, *several in zip(cases, alone, *ranks, strict=True):
        for each in several:
            assert each["losses"] == pytest.approx(one["losses"], rel=1e-9), name
        sent = [each["sent"] for each in several]
        assert REAL or (sent[0] and all(each == sent[0] for each in sent)), name  # in the same order
