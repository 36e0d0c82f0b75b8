"""One run on two nodes with a torchrun each, simulated on one machine; test_slurm.py has separate nodes."""

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

import pytest
import torch

from tests.conftest import SMALL, only_run
from tests.launch import slurm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not slurm.missing(), reason="test_slurm.py shows more, on two machines with a network each"),
]
COMMON = ["precision=fp64", "checkpoint.every=1", "epochs=3", "timeout=20"]  # 63 steps, 21 an epoch


def start_nodes() -> "list[subprocess.Popen[str]]":
    """Start torchrun for two nodes, in separate sessions, so that a node can be killed with all its processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rendezvous = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}"]
    rest = ["-m", "ssl_bench", "train", *SMALL, *COMMON, "paths.outputs=nodes"]
    return [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *rendezvous, f"--node-rank={node}", *rest],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for node in range(2)
    ]


def ended(nodes: "list[subprocess.Popen[str]]") -> list[tuple[int, str]]:
    """Wait for the nodes; return the exit code and the output of each."""
    results = []
    for node in nodes:
        printed, _ = node.communicate(timeout=120)
        results.append((node.returncode, printed))
    return results


def weights(outputs: str) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(only_run(Path(outputs)) / "checkpoints" / "last.pt", weights_only=True)
    return state["method"]  # type: ignore[no-any-return]


def rows(outputs: str) -> list[dict[str, Any]]:
    try:
        return [json.loads(r) for r in (only_run(Path(outputs)) / "metrics.jsonl").read_text().splitlines()]
    except (ValueError, OSError):  # not written yet
        return []


def losses(outputs: str) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in rows(outputs) if "loss" in row]


def test_a_killed_node_ends_the_run_which_then_resumes_with_the_bits_of_one_node(
    train: Callable[..., tuple[int, str]],
) -> None:
    nodes = start_nodes()
    end = time.monotonic() + 100
    while len(rows("nodes")) < 22:  # the first checkpoint is written
        assert time.monotonic() < end
        time.sleep(0.05)
    os.killpg(nodes[1].pid, signal.SIGKILL)
    started = time.monotonic()
    (code, printed), _ = ended(nodes)
    assert code == 1 and "rank 0 has lost the others" in printed and "the same command resumes" in printed, printed
    assert time.monotonic() - started < 60
    for code, printed in ended(start_nodes()):
        assert code == 0, printed
    assert "resuming at step 21 of 63" in (only_run(Path("nodes")) / "train.log").read_text()
    assert train("devices=2", *COMMON, "paths.outputs=one")[0] == 0
    assert only_run(Path("nodes")).name == only_run(Path("one")).name
    two, one = weights("nodes"), weights("one")
    assert two.keys() == one.keys() and all(torch.equal(two[name], one[name]) for name in one)
    assert losses("nodes") == losses("one") and [step for step, _ in losses("one")] == list(range(1, 64))
