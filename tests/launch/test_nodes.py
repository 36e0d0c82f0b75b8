"""One run on two nodes with a torchrun each, simulated on one machine; test_slurm.py has separate nodes."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import SMALL, only_run
from tests.launch import slurm
from tests.training.test_run import checkpoint_tensors, identical, losses

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


def test_a_killed_node_ends_the_run_which_then_resumes_with_the_bits_of_one_node(
    train: Callable[..., tuple[int, str]],
) -> None:
    nodes = start_nodes()
    end = time.monotonic() + 100
    while not list(Path("nodes").glob("*/*/checkpoints/last.pt")):
        assert time.monotonic() < end
        time.sleep(0.05)
    os.killpg(nodes[1].pid, signal.SIGKILL)
    started = time.monotonic()
    (code, printed), _ = ended(nodes)
    assert code == 1 and "rank 0 has lost the others" in printed and "the same command resumes" in printed, printed
    assert time.monotonic() - started < 60
    for code, printed in ended(start_nodes()):
        assert code == 0, printed
    assert re.search(r"resuming at step (21|42) of 63", (only_run(Path("nodes")) / "train.log").read_text())
    assert train("devices=2", *COMMON, "paths.outputs=one")[0] == 0
    assert only_run(Path("nodes")).name == only_run(Path("one")).name
    two, one = Path("nodes"), Path("one")
    assert identical(checkpoint_tensors(two), checkpoint_tensors(one))
    assert losses(two) == losses(one) and len(losses(one)) == 63
