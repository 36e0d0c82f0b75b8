"""Slots: each run on a machine gets GPUs or cores that no other run has, and a killed run frees them."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from ssl_bench.errors import ConfigError
from ssl_bench.launch.slots import Slot

# Takes a slot and prints its GPUs and cores.
HOLDER = """
import os, sys, time
from ssl_bench.launch.slots import Slot
with Slot(*map(int, sys.argv[1:4])):
    print(os.environ.get("CUDA_VISIBLE_DEVICES"), sorted(os.sched_getaffinity(0)), flush=True)
    time.sleep(60)
"""


def visible_gpus(holder: "subprocess.Popen[str]") -> str:
    """The GPUs that a holder prints once it has its slot."""
    assert holder.stdout is not None
    return holder.stdout.readline().partition(" ")[0]


@pytest.mark.parametrize(
    ("visible", "settings", "expected"),
    [
        ("0,1", "1 2 1", ["0", "1", "0", "1"]),  # two on each GPU: every GPU gets one before any gets a second
        ("5,GPU-7a", "1 1 1", ["5", "GPU-7a"]),
        ("0,1,2,3", "2 1 1", ["0,1", "2,3"]),
    ],
)
def test_slots_on_gpus_are_shared_out_and_freed_by_a_kill(
    visible: str, settings: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    command = [sys.executable, "-c", HOLDER, *settings.split()]
    holders = []
    try:
        for gpus in expected:
            holders.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            assert visible_gpus(holders[-1]) == gpus
        late = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        holders.append(late)
        time.sleep(1)
        holders[1].kill()  # the kernel releases its locks
        assert visible_gpus(late) == expected[1]
    finally:
        for holder in holders:
            with holder:
                holder.kill()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be shared")
@pytest.mark.slow
def test_slots_on_a_machine_without_gpus_divide_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    cores = sorted(os.sched_getaffinity(0))
    command = [sys.executable, "-c", HOLDER, "1", "1", "2"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as one,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as two,
    ):
        assert one.stdout is not None and two.stdout is not None
        shares = [json.loads(h.stdout.readline().partition(" ")[2]) for h in (one, two) if h.stdout]
        one.kill()
        two.kill()
    assert [len(share) for share in shares] == [len(cores) // 2] * 2 and not set(shares[0]) & set(shares[1])


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where locks may lie, in their order, below folders of this test; the host's name is that in the locks' names."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return [
        tmp_path / place for place in ("run/ssl_bench", "home/.cache/ssl_bench/locks", f"tmp/ssl-bench-{os.getuid()}")
    ]


def holders(places: list[Path]) -> list[Path]:
    """The folders that have locks after a slot was reserved."""
    with Slot(1, 1, 1):
        pass
    host = socket.gethostname()
    found = [place for place in places if (place / f"{host}-machine-all").exists()]
    assert all((place / f"{host}-machine-gpu-0.0").stat().st_mode & 0o777 == 0o600 for place in found)
    return found


def test_locks_lie_in_a_folder_of_the_user(places: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    assert holders(places) == places[:1] and places[0].stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert holders(places)[1:] == places[1:2]


def writable(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def test_a_folder_that_another_user_may_have_prepared_is_not_used(places: list[Path]) -> None:
    for place in places:
        place.parent.mkdir(parents=True)
    writable(places[0])
    assert holders(places) == places[1:2]
    writable(places[2])
    (places[1] / f"{socket.gethostname()}-machine-all").unlink()
    places[1].chmod(0o777)
    with pytest.raises(ConfigError, match="XDG_RUNTIME_DIR: set it to a folder of yours"):
        holders(places)
