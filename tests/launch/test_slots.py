"""Slots: each run on a machine gets GPUs or cores that no other run has, and a killed run frees them."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from ssl_bench.errors import ConfigError
from ssl_bench.hardware import visible_gpus
from ssl_bench.launch.slots import reserve

# Takes a slot and prints its GPUs and cores, as if torch saw all GPUs that the variable names.
HOLDER = """
import os, sys, time
from ssl_bench.launch import slots
if "CUDA_VISIBLE_DEVICES" in os.environ:
    slots.visible_gpus = lambda _: os.environ["CUDA_VISIBLE_DEVICES"].split(",")
slot = slots.reserve(*map(int, sys.argv[1:4]))
print(slot.environment.get("CUDA_VISIBLE_DEVICES"), sorted(slot.cores or []), flush=True)
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
        late = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        holders.append(late)
        said = late.stderr.readline() if late.stderr else ""
        assert said.startswith("ssl-bench: waiting for ")
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


@pytest.mark.parametrize("mine", [False, True])
def test_locks_in_the_folder_of_another_user_are_refused(
    mine: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They could make a run wait for ever; a folder of this user that others can write to is as bad."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("ssl_bench.launch.slots.visible_gpus", lambda _: ["0"])
    folder = tmp_path / f"ssl-bench-{os.getuid()}"
    folder.mkdir()
    if mine or os.getuid() != 0:
        folder.chmod(0o777)
    else:
        os.chown(folder, 65534, 65534)
    with pytest.raises(ConfigError, match=f"^{folder} "):
        reserve(1, 1, 1)
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
@pytest.mark.parametrize("named", ["0", "0,1", "-1,0", "NoDevFiles", "GPU-7a", ""])
def test_a_variable_alone_is_no_gpu(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm sets it on machines without one: two GPUs of one name would be waited for without an end."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus() == []
    slot = reserve(2, 1, 2)
    assert slot is not None and slot.environment == {} and slot.cores
    assert reserve(2, 1, 2, patient=lambda: False) is None  # its cores are taken
    slot.release()
