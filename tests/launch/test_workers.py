"""The workers of a grid: each run is trained once, with the bits that it has alone, whatever becomes of a process."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from ssl_bench import files
from ssl_bench.config import compose
from ssl_bench.config.identity import run_dir
from ssl_bench.errors import ConfigError
from ssl_bench.hardware import visible_gpus
from ssl_bench.launch.run import Run
from ssl_bench.launch.workers import places
from ssl_bench.record import lease
from tests.conftest import SMALL
from tests.launch.test_grid import LOCAL, counts, results
from tests.ranks import wait_for

linux = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
pytestmark = [linux, pytest.mark.slow]
# Takes a run and keeps it until its input ends.
HOLDER = """
import sys
from pathlib import Path
from ssl_bench.record.lease import held
with held(Path(sys.argv[1]), wait=False):
    sys.stdin.read()
"""


def grid(*overrides: str, local: bool = True) -> "subprocess.Popen[str]":
    """Start a grid in a new process, with two workers."""
    command = [sys.executable, "-m", "ssl_bench", "train", *SMALL, "-m", *(LOCAL * local), *overrides]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, **pipes, start_new_session=True)


def losses(folder: Path) -> list[float]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "loss" in row]


def begun() -> list[Path]:
    """The runs that have trained a step."""
    return [path.parent for path in Path("outputs").glob("*/*/metrics.jsonl") if losses(path.parent)]


# ---- what a worker has


def run(devices: int) -> Run:
    return Run((), {"devices": devices, "device": "auto"}, Path(), "")


@pytest.mark.parametrize(
    ("gpus", "devices", "jobs", "per_gpu", "expected"),
    [
        (["0", "1"], 1, 4, 2, ["0", "1", "0", "1"]),  # every GPU gets one before any gets a second
        (["0", "GPU-7a", "2", "3"], 2, 2, 1, ["0,GPU-7a", "2,3"]),
        (["0", "1", "2"], 2, 3, 2, ["0,1", "2,0", "1,2"]),
    ],
)
def test_the_gpus_are_shared_out(
    gpus: list[str], devices: int, jobs: int, per_gpu: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ssl_bench.launch.workers.visible_gpus", lambda _: gpus)
    found = places([run(1), run(devices)], {"jobs": jobs, "runs_per_gpu": per_gpu})
    assert found == [({"CUDA_VISIBLE_DEVICES": names}, set()) for names in expected]
    assert places([run(devices)], {"jobs": None, "runs_per_gpu": per_gpu}) == found
    with pytest.raises(ConfigError, match=rf"^launcher\.jobs={jobs + 1}: "):
        places([run(devices)], {"jobs": jobs + 1, "runs_per_gpu": per_gpu})


@pytest.mark.parametrize(
    ("jobs", "shares"), [(2, [[0, 1], [2, 3]]), (3, [[0], [1], [2]]), (6, [[0], [1], [2], [3], [0], [1]])]
)
def test_the_cores_are_shared_out(jobs: int, shares: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssl_bench.launch.workers.visible_gpus", lambda _: [])
    monkeypatch.setattr("ssl_bench.launch.workers.cores", lambda: [0, 1, 2, 3])
    monkeypatch.setattr("ssl_bench.launch.workers.available_cores", lambda: 4)
    assert places([run(1)], {"jobs": jobs, "runs_per_gpu": 1}) == [({}, {*share}) for share in shares]


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
@pytest.mark.parametrize("named", ["0", "0,1", "-1,0", "NoDevFiles", "GPU-7a", ""])
def test_a_variable_alone_is_no_gpu(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm sets it on machines without one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus() == []


# ---- what becomes of the runs


def test_runs_of_workers_have_the_bits_of_the_same_runs_one_by_one(train: Any) -> None:
    runs = ["max_steps=2", "seed=0,1,2", "evaluate=knn", "evaluate.baselines=[]"]
    with grid(*runs, "paths.outputs=parallel") as process:
        printed, _ = process.communicate()
    assert process.returncode == 0 and counts(printed) == [3, 3, 0, 0], printed
    assert train("-m", *runs, "paths.outputs=sequential")[0] == 0
    one, other = results("parallel"), results("sequential")
    assert len(one) == 3 and one.keys() == other.keys()
    for identity in one:
        assert one[identity]["metrics"] == other[identity]["metrics"] and "knn/top1" in one[identity]["metrics"]
        a, b = (next(Path(place).glob(f"*/{identity}")) for place in ("parallel", "sequential"))
        assert losses(a) == losses(b) and len(losses(a)) == 2
        states = [torch.load(folder / "checkpoints" / "last.pt")["method"] for folder in (a, b)]
        assert states[0].keys() == states[1].keys()
        assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_a_worker_that_is_killed_fails_one_run_and_the_rest_is_trained(train: Any) -> None:
    with grid("epochs=300", "max_steps=300", "seed=range(4)") as process:
        wait_for(begun)
        killed = begun()[0]
        owner = lease.owner(killed)
        assert owner is not None
        psutil.Process(owner.pid).kill()
        printed, _ = process.communicate(timeout=200)
    assert process.returncode == 1 and counts(printed) == [4, 3, 0, 1], printed
    assert "SIGKILL" in files.read_json(killed / "failed.json")["reason"] and killed.name not in results()
    code, again = train("-m", "epochs=300", "max_steps=300", "seed=range(4)")
    assert code == 0 and counts(again) == [4, 1, 3, 0], again
    assert not (killed / "failed.json").exists()


def test_a_grid_that_is_stopped_saves_its_runs_and_begins_no_other() -> None:
    with grid("epochs=4000", "seed=range(8)") as process:
        wait_for(lambda: len(begun()) == 2)
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 143 and counts(printed) == [8, 0, 0, 0, 2, 6], printed
    for folder in begun():
        assert torch.load(folder / "checkpoints" / "last.pt")["step"] == len(losses(folder))


@pytest.mark.exhaustive
def test_no_process_is_left_after_a_grid_that_is_killed() -> None:
    with grid("epochs=4000", "seed=range(8)") as process:
        wait_for(lambda: len(begun()) == 2)
        every = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        assert len(every) >= 3
        wait_for(lambda: not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in every), 20)
    assert len(begun()) == 2  # the other six did not start
    for folder in begun():
        assert torch.load(folder / "checkpoints" / "last.pt")["step"] == len(losses(folder)) > 0


def test_the_same_grid_twice_at_once_trains_each_run_once() -> None:
    runs = ["max_steps=20", "seed=range(6)"]
    with grid(*runs, local=False) as one, grid(*runs, local=False) as other:
        printed = [process.communicate(timeout=200)[0] for process in (one, other)]
    assert [one.returncode, other.returncode] == [0, 0], printed
    assert sum(counts(text)[1] for text in printed) == 6 == len(results()), printed
    assert all(len(losses(folder)) == 20 for folder in begun())


@pytest.mark.parametrize("local", [False, True])
def test_a_run_that_another_process_trains_waits_until_the_other_runs_are_done(local: bool) -> None:
    held = run_dir(compose.load([*SMALL, "max_steps=1", "seed=0"]))
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(held)], **pipes) as holder:
        wait_for(lambda: (held / "lease").exists())
        with grid("max_steps=1", "seed=0,1,2", local=local) as started:
            wait_for(lambda: len(results()) == 2)
            assert not (held / "results.json").exists() and started.poll() is None
            holder.communicate()  # ends its input, upon which it gives the run back
            printed, _ = started.communicate(timeout=100)
    assert started.returncode == 0 and counts(printed) == [3, 3, 0, 0], printed
    assert len(results()) == 3
