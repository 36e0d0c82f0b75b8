"""Slots: each run on a machine gets GPUs or cores that no other run has, and a killed run frees them."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

# Takes a slot and prints its GPUs and cores.
HOLDER = """
import os, sys, time
from ssl_bench.launch.slots import slot
with slot(*map(int, sys.argv[1:4])):
    print(os.environ.get("CUDA_VISIBLE_DEVICES"), sorted(os.sched_getaffinity(0)), flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def reserved(holder: "subprocess.Popen[str]") -> tuple[str, list[int]]:
    """The GPUs and cores that a holder prints once it has its slot."""
    assert holder.stdout is not None
    gpus, _, cores = holder.stdout.readline().partition(" ")
    return gpus, json.loads(cores)


@pytest.mark.parametrize(
    ("visible", "settings", "expected"),
    [
        ("0,1", "1 2 1", ["0", "1", "0", "1"]),  # two on each GPU: every GPU gets one before any gets a second
        ("0,GPU-7a,2,3", "2 1 1", ["0,GPU-7a", "2,3"]),
    ],
)
def test_slots_on_gpus_are_shared_out_and_freed_by_a_kill(
    visible: str, settings: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    command = [sys.executable, "-c", HOLDER, *settings.split()]
    holders = []
    try:
        for gpus in expected:
            holders.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            assert reserved(holders[-1])[0] == gpus
        late = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        holders.append(late)
        time.sleep(1)
        holders[1].kill()  # the kernel releases its locks
        assert reserved(late)[0] == expected[1]
    finally:
        for holder in holders:
            with holder:
                holder.kill()
    (folder,) = tmp_path.glob("ssl-bench-*")
    assert folder.stat().st_mode & 0o777 == 0o700  # other users cannot write to it


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be shared")
def test_slots_on_a_machine_without_gpus_divide_the_cores() -> None:
    cores = sorted(os.sched_getaffinity(0))
    command = [sys.executable, "-c", HOLDER, "1", "1", str(len(cores) // 2)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as one,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as two,
    ):
        shares = [reserved(holder)[1] for holder in (one, two)]
        one.kill()
        two.kill()
    assert [len(share) for share in shares] == [len(cores) // 2] * 2 and not set(shares[0]) & set(shares[1])
