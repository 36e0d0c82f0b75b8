"""Several GPUs: what is sent between the ranks in a step, and the values of one GPU."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ssl_bench.distributed import rank
from tests.gpu.conftest import REAL
from tests.gpu.runs import training

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


QUEUE = ["framework=moco_v2", "negatives.k=64"]
CASES = {
    "simclr": [],
    "memory_bank": ["negatives=memory_bank", "negatives.k=40"],
    "queue": QUEUE,
    "shuffled": [*QUEUE, "framework.groups=8"],
    "chunks": ["batch_size.chunk=8"],
    "npid_cld": ["framework=npid_cld", "framework.clusters=8"],
    "byol": ["framework=byol", "framework.predictor=32", "head.hidden=32"],
    "densecl": ["framework=densecl", "negatives.k=64"],
}


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 8])
def test_gpus_send_the_same_and_have_the_loss_of_one(count: int, gpu: Callable[..., Any], tmp_path: Path) -> None:
    cases = {name: CASES[name] for name in (CASES if count == 2 else ("simclr", "queue", "shuffled"))}
    words = [[*EXACT, *overrides] for overrides in cases.values()]
    alone = gpu(observed, "", [["graph=false", *each] for each in words])
    ranks = gpu(observed, str(tmp_path / "sent"), words, ranks=count)
    for name, one, *several in zip(cases, alone, *ranks, strict=True):
        for each in several:
            assert each["losses"] == pytest.approx(one["losses"], rel=1e-9), name
        sent = [each["sent"] for each in several]
        assert REAL or (sent[0] and all(each == sent[0] for each in sent)), name  # in the same order
