"""Steps of several GPUs: captured and replayed with their collectives, with the values of eager ones under DDP."""

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from ssl_bench.distributed import rank
from ssl_bench.errors import RunError
from ssl_bench.training.graph import CudaRecording, GraphedStepper
from ssl_bench.training.step import Stepper
from tests.gpu.conftest import REAL
from tests.gpu.runs import Log, launches, training
from tests.gpu.test_steps import compared, distance, right, trained

MOCO = ["framework=moco_v2", "negatives.k=64"]
OTHERS = [["loss=sogclr"], ["loss=vicreg", "negatives=none"], MOCO, [*MOCO, "framework.groups=4"]]


@pytest.mark.parametrize("methods", [[["loss=infonce"]], pytest.param(OTHERS, marks=pytest.mark.slow)])
def test_ranks_replay_steps_with_the_values_of_eager_ones(methods: list[list[str]], gpu: Callable[..., Any]) -> None:
    found = gpu(compared, methods, True, "true", ranks=2)
    assert [{name: each for name, each in one.items() if not right(each)} for one in found] == [{}, {}]


# ---- replayed or eager


def choices(log: str) -> list[dict[str, Any]]:
    """What ranks say, send and have where eager steps, or replays, are slow on rank 1."""
    os.environ["FAKE_NCCL_LOG"] = log
    sent, (start, eager, _) = Path(f"{log}.{rank()}"), trained(True, "graph=false")
    found = []
    for owner, name, seconds in ((Stepper, "compute", 0.3), (CudaRecording, "replay", 1.5)):
        part: Any = getattr(owner, name)

        def late(self: Any, *arguments: Any, part: Any = part, seconds: float = seconds) -> Any:
            time.sleep(seconds * rank())
            return part(self, *arguments)

        said = Log()
        with patch.object(owner, name, late):
            _, tensors, _ = trained(True, "graph=auto")
        last = sent.read_text().splitlines()[-8:] if sent.exists() else []  # of one step
        found.append(
            {
                "said": [line for line in said.lines if "as a CUDA graph" in line],
                "communicators": len({line.startswith("split") for line in last}),
                "distance": distance(tensors, eager, start),
            }
        )
    return found


@pytest.mark.slow
def test_ranks_take_what_is_faster_on_the_slowest_of_them_and_say_so(gpu: Callable[..., Any], tmp_path: Path) -> None:
    one, other = gpu(choices, str(tmp_path / "sent"), ranks=2)
    assert one == other  # with the same times
    assert [case["distance"] <= (0.05 if REAL else 0) for case in one] == [True] * 2
    times = r": a replayed step takes (\S+) ms, an eager one (\S+) ms"
    replayed = re.fullmatch("from step 3 on, steps are replayed as a CUDA graph" + times, one[0]["said"][0])
    stays = re.fullmatch("steps are not replayed as a CUDA graph" + times, one[1]["said"][0])
    assert replayed and float(replayed[2]) > max(300, float(replayed[1]))
    assert stays and float(stays[1]) > max(1500, float(stays[2]))
    assert len(one[0]["said"]) == 2 and len(one[1]["said"]) == 1  # steps with diagnostics follow
    assert REAL or [case["communicators"] for case in one] == [1, 2]


# ---- a rank that refuses


def little(self: GraphedStepper) -> str:
    return "too little memory" * rank()


compute: Any = Stepper.compute


def failing(self: Stepper, *arguments: Any) -> Any:
    if rank() == 1 and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a planted fault")
    return compute(self, *arguments)


def refusals() -> list[dict[str, Any]]:
    """Steps of which rank 1 refuses a recording, before it and in its middle, or only one of those with diagnostics."""

    def diagnosed(self: Stepper, *arguments: Any) -> Any:
        time.sleep(0.1)  # so that replays are faster
        return (failing if arguments[-1] else compute)(self, *arguments)

    start, eager, _ = trained(True, "graph=false")
    found = []
    for patched in (
        patch.object(GraphedStepper, "_check_memory", little),
        patch.object(Stepper, "compute", failing),
        patch.object(Stepper, "compute", diagnosed),
    ):
        log, error = Log(), ""
        with patched:
            _, tensors, _ = trained(True, "graph=auto")
            with contextlib.suppress(RunError):
                trained(True, "graph=true")
                error = "not refused"
        said = [line for line in log.lines if "as a CUDA graph" in line]
        found.append({"said": said, "distance": distance(tensors, eager, start), "error": error})
    return found


@pytest.mark.slow
def test_a_rank_that_refuses_leaves_all_ranks_eager(gpu: Callable[..., Any]) -> None:
    one, other = gpu(refusals, ranks=2)
    assert one == other
    assert [(each["distance"] <= (0.05 if REAL else 0), each["error"]) for each in one] == [(True, "")] * 3
    stays = "cannot be replayed as a CUDA graph and stays eager: rank 1:"
    recorded, planted = "from step 3 on, steps are replayed as a CUDA graph", "RuntimeError: a planted fault"
    assert one[0]["said"] == [f"the step {stays} too little memory"]
    assert one[1]["said"] == [f"the step {stays} {planted}"]
    assert one[2]["said"][0].startswith(recorded) and one[2]["said"][1] == f"a step with diagnostics {stays} {planted}"


# ---- what is started and sent


def started(log: str, graph: str, cases: list[list[str]]) -> list[dict[str, Any]]:
    """Launches of the last step but one of some runs, and of the last one, which is logged; and what both send."""
    os.environ["FAKE_NCCL_LOG"] = log
    file, found = Path(f"{log}.{rank()}"), list[dict[str, Any]]()
    with patch.object(GraphedStepper, "_compared", lambda *_: []):  # kernels that do nothing give no values to compare
        for overrides in cases:
            step, counts, sent = training(f"graph={graph}", *overrides).stepper(), list[int](), list[str]()
            for number in range(9):
                launched, length = launches(), file.stat().st_size if file.exists() else 0
                step(number % 3 == 2)
                counts.append(launches() - launched)
                sent += file.read_text()[length:].splitlines() if number > 6 and file.exists() else []
            found.append({"launches": counts[-2:], "sent": sent})
    return found


@pytest.mark.skipif(REAL, reason="only the fake GPU says what is sent")
def test_a_recorded_step_has_one_communicator(gpu: Callable[..., Any], tmp_path: Path) -> None:
    """Sums of batch statistics have another one under DDP only."""
    eager, replayed = (
        gpu(started, str(tmp_path / graph), graph, [[]], values=False, ranks=2)[0][0]["sent"]
        for graph in ("false", "true")
    )
    assert any(line.startswith("split_") for line in eager)
    assert Counter(replayed) == Counter(line.removeprefix("split_") for line in eager)


RESNET = ["backbone=resnet18_cifar"]
STARTED = {
    "simclr": RESNET,
    "moco_v2": [*RESNET, "framework=moco_v2", "negatives.k=64"],
    "sogclr": [*RESNET, "loss=sogclr"],
    "vicreg": [*RESNET, "loss=vicreg", "negatives=none"],
}


@pytest.mark.slow
@pytest.mark.skipif(REAL, reason="only the fake GPU counts launches")
@pytest.mark.parametrize("ranks", [1, 2])
def test_replayed_steps_of_ranks_are_a_few_launches_and_send_what_eager_ones_do(
    ranks: int, gpu: Callable[..., Any], tmp_path: Path
) -> None:
    eager, replayed = (
        gpu(started, str(tmp_path / graph), graph, [*STARTED.values()], values=False, ranks=ranks * (ranks > 1))
        for graph in ("false", "true")
    )
    if ranks == 1:
        eager, replayed = [eager], [replayed]
    assert all(each == replayed[0] for each in replayed)  # in the same order
    for one in zip(eager[0], replayed[0], strict=True):
        assert one[0]["launches"][0] > 400 and one[1]["launches"][0] <= 24 and one[1]["launches"][1] <= 64
    for one, other in zip(eager, replayed, strict=True):
        for e, r in zip(one, other, strict=True):
            assert sum(map(size, e["sent"])) == sum(map(size, r["sent"]))


def size(sent: str) -> int:
    return int(sent.split()[1])
