"""Steps of several GPUs: captured and replayed with their collectives, with the values of eager ones under DDP."""

import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch

from ssl_bench.distributed import rank
from ssl_bench.errors import RunError
from ssl_bench.training.graph import CudaRecording, GraphedStepper
from ssl_bench.training.step import Stepper
from tests.gpu.conftest import REAL
from tests.gpu.runs import Log
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
