"""One run on two nodes, each with its own torchrun, here on the same machine."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.conftest import SMALL, only_run

COMMON = [*SMALL, "precision=fp64", "checkpoint.every=1"]


def agents(outputs: str, *arguments: str) -> "list[subprocess.Popen[str]]":
    """An agent for each of two nodes, in a session of its own, so that a node can vanish as a whole."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}"]
    rest = ["-m", "ssl_bench", "train", *COMMON, f"paths.outputs={outputs}", *arguments]
    return [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *meeting, f"--node-rank={node}", *rest],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for node in range(2)
    ]


def ended(nodes: "list[subprocess.Popen[str]]") -> list[tuple[int, str]]:
    """Exit codes and what was printed."""
    found = []
    for node in nodes:
        printed, _ = node.communicate(timeout=120)
        found.append((node.returncode, printed))
    return found


def weights(outputs: str) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(only_run(Path(outputs)) / "checkpoints" / "last.pt", weights_only=True)
    return state["method"]  # type: ignore[no-any-return]


def rows(outputs: str) -> list[dict[str, Any]]:
    try:
        return [json.loads(r) for r in (only_run(Path(outputs)) / "metrics.jsonl").read_text().splitlines()]
    except (ValueError, OSError):  # not there yet
        return []


def losses(outputs: str) -> list[float]:
    return [row["loss"] for row in rows(outputs) if "loss" in row]


def test_two_nodes_are_two_ranks_of_one(train: Callable[..., tuple[int, str]]) -> None:
    for code, printed in ended(agents("nodes", "max_steps=4")):
        assert code == 0, printed
    assert train("devices=2", "precision=fp64", "checkpoint.every=1", "max_steps=4", "paths.outputs=one")[0] == 0
    assert only_run(Path("nodes")).name == only_run(Path("one")).name
    two, one = weights("nodes"), weights("one")
    assert two.keys() == one.keys() and all(torch.equal(two[name], one[name]) for name in one)
    assert losses("nodes") == losses("one") and len(losses("one")) == 4


def test_a_node_that_vanishes_ends_the_run_and_it_resumes() -> None:
    nodes = agents("nodes", "epochs=4", "timeout=20")
    end = time.monotonic() + 100
    while len(rows("nodes")) < 25:  # the first of the epochs of 21 steps is saved
        assert time.monotonic() < end
        time.sleep(0.1)
    os.killpg(nodes[1].pid, signal.SIGKILL)
    started = time.monotonic()
    (code, printed), _ = ended(nodes)
    assert code == 1 and "rank 0 has lost the others" in printed and "the same command resumes" in printed, printed
    assert time.monotonic() - started < 60
    for code, printed in ended(agents("nodes", "epochs=4", "timeout=20")):
        assert code == 0, printed
    assert "resuming at step 21" in (only_run(Path("nodes")) / "train.log").read_text()
    assert [row["step"] for row in rows("nodes") if "loss" in row] == list(range(1, 85))
