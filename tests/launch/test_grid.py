"""Several runs at once on one machine: each in a process and a place of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ssl_bench import files
from ssl_bench.training.estimate import out_of_memory
from tests.conftest import SMALL

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
LOCAL = ["hydra/launcher=local", "hydra.launcher.n_jobs=2"]
# Takes a place and says what it got.
HOLDER = """
import os, sys, time
from ssl_bench.launch.slots import Place
with Place(*map(int, sys.argv[1:4])):
    print(os.environ.get("CUDA_VISIBLE_DEVICES"), sorted(os.sched_getaffinity(0)), flush=True)
    time.sleep(60)
"""


def results(outputs: str = "outputs") -> dict[str, Any]:
    return {path.parent.name: files.read_json(path) for path in Path(outputs).glob("*/*/results.json")}


def losses(folder: Path) -> list[float]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "loss" in row]


def test_runs_side_by_side_are_those_one_after_another(cli: Cli) -> None:
    grid = [*SMALL, "-m", "max_steps=3", "optimizer.lr=0.1,0.2,1e38", "seed=0"]
    # One core for either run: sums are not split in another way.
    both = cli("train", *grid, *LOCAL, "paths.outputs=both")
    assert both.returncode == 1, both.stdout + both.stderr
    assert "3 cells: 2 trained, 0 done before, 1 failed" in both.stdout
    failures = [line for line in both.stdout.splitlines() if line.startswith("  failed: ")]
    assert len(failures) == 1 and "optimizer.lr=1e+38" in failures[0] and "not finite" in failures[0]
    again = cli("train", *grid, *LOCAL, "paths.outputs=both")
    assert again.returncode == 1 and "3 cells: 0 trained, 2 done before, 1 failed" in again.stdout
    assert cli("train", *grid, "paths.outputs=one").returncode == 1
    assert set(results("both")) == set(results("one")) and len(results("one")) == 2
    for identity in results("one"):
        (beside,), (alone,) = Path("both").glob(f"*/{identity}"), Path("one").glob(f"*/{identity}")
        assert losses(beside) == losses(alone) and len(losses(alone)) == 3
        assert not (beside / "claims").exists()


def test_a_run_that_is_killed_takes_nobody_with_it() -> None:
    # So long that it is not killed at its end: elastic's agent never notices a process that dies while it waits for its
    # result to be fetched.
    command = [sys.executable, "-m", "ssl_bench", "train", *SMALL, "-m", *LOCAL, "epochs=4000,2", "seed=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as grid:
        try:
            wait_for(lambda: list(Path("outputs").glob("*/*/metrics.jsonl")))
            wait_for(results)  # the short one is done, so that the process of a training is that of the long one
            wait_for(lambda: len(trainings(grid.pid)) == 1)
            os.kill(trainings(grid.pid)[0], signal.SIGKILL)
            printed, _ = grid.communicate(timeout=100)
        finally:
            grid.kill()
    assert grid.returncode == 1 and "2 cells: 1 trained, 0 done before, 1 failed" in printed, printed


def test_a_run_that_somebody_has_is_waited_for_after_the_others(cli: Cli) -> None:
    command = [sys.executable, "-m", "ssl_bench", "train", *SMALL, "epochs=6", "seed=0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as other:
        wait_for(lambda: list(Path("outputs").glob("*/*/claims/1")))
        grid = cli("train", *SMALL, "-m", "epochs=6", "seed=0,1")
        assert other.wait(60) == 0
    assert grid.returncode == 0, grid.stdout + grid.stderr
    assert f"is being trained by {os.uname().nodename} (process {other.pid})" in grid.stdout + grid.stderr
    assert "2 cells: 1 trained, 1 done before, 0 failed" in grid.stdout
    assert len(results()) == 2


@pytest.mark.parametrize(
    ("visible", "settings", "expected"),
    [
        ("0,1", "1 2 1", ["0", "1", "0", "1"]),  # two on each GPU, each GPU once before one has two
        ("5,GPU-7a", "1 1 1", ["5", "GPU-7a"]),
        ("0,1,2,3", "2 1 1", ["0,1", "2,3"]),
    ],
)
def test_places_on_gpus(
    visible: str, settings: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    command = [sys.executable, "-c", HOLDER, *settings.split()]
    holders = []
    try:
        for place in expected:
            holders.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            assert said(holders[-1]) == place
        late = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        holders.append(late)
        time.sleep(1)
        holders[1].kill()  # and the kernel lifts its locks
        assert said(late) == expected[1]
    finally:
        for holder in holders:
            with holder:
                holder.kill()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be shared")
def test_places_on_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
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


def test_what_would_fit_is_said() -> None:
    gib = 2**30
    said_ = out_of_memory(1024, 8, 15 * gib, 16 * gib, 6 * gib, 0.1 * gib)
    assert "15.0 of the GPU's 16.0 GiB" in said_ and "about 102 MiB" in said_
    assert "batch_size.chunk=256," in said_  # 32 of a rank's 128 images: 64 would take 6.4 GiB
    assert "batch_size.chunk or batch_size.size" in out_of_memory(8, 8, gib, gib, 0, 0.1 * gib)


def said(holder: "subprocess.Popen[str]") -> str:
    assert holder.stdout is not None
    return holder.stdout.readline().partition(" ")[0]


def wait_for(found: Callable[[], Any], seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while not (what := found()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return what


def trainings(grid: int) -> list[int]:
    """The processes that a grid trains in."""
    return [pid for pid, command in descendants(grid) if "spawn_main" in command and "fork" in command]


def descendants(pid: int) -> list[tuple[int, str]]:
    """Processes that a process has started, and those that they have: number and command."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            command = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
            found += [(child, command), *descendants(child)]
    return found
