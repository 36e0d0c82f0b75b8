"""Grids: every run once, one after another or several at a time, whatever becomes of a process, and a summary."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import yaml

from ssl_bench import files
from ssl_bench.config import compose
from ssl_bench.config.identity import run_dir
from ssl_bench.errors import ConfigError
from ssl_bench.hardware import available_cores, visible_gpus
from ssl_bench.launch.processes import Run
from ssl_bench.launch.run import places
from ssl_bench.record import runs
from tests.conftest import SMALL
from tests.ranks import wait_for

Train = Callable[..., tuple[int, str]]
LOCAL = ["launcher=local", "launcher.jobs=2"]
linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
# Takes the lease of a run and holds it until its input ends.
HOLDER = """
import sys
from pathlib import Path
from ssl_bench.launch.lease import held
with held(Path(sys.argv[1]), wait=False):
    sys.stdin.read()
"""


def results(outputs: str = "outputs") -> dict[str, Any]:
    """``results.json`` of all runs by run_id."""
    return {path.parent.name: files.read_json(path) for path in Path(outputs).glob("*/*/results.json")}


def counts(printed: str) -> list[int]:
    """Runs of a grid: all, trained, done before, failed, and then interrupted, not begun and left out, if any."""
    (line,) = re.findall(r"^\d+ runs?: \d+ trained.*", printed, re.MULTILINE)
    return [int(number) for number in re.findall(r"\d+", line)]


def grid(*overrides: str, local: bool = True) -> "subprocess.Popen[str]":
    """Start a grid in a new process, of two runs at a time."""
    command = [sys.executable, "-m", "ssl_bench", "train", *SMALL, "-m", *(LOCAL * local), *overrides]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, **pipes, start_new_session=True)


def losses(folder: Path) -> list[float]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "loss" in row]


def begun() -> list[Path]:
    """The runs that have trained a step."""
    return [path.parent for path in Path("outputs").glob("*/*/metrics.jsonl") if losses(path.parent)]


# ---- runs one after another


def test_a_grid_trains_each_run_once_and_goes_on_after_a_failure(
    train: Train, cli: Callable[..., "subprocess.CompletedProcess[str]"]
) -> None:
    words = ["-m", "max_steps=2", "optimizer.lr=0.1,1e38", "seed=0,1"]
    code, printed = train(*words)
    assert code == 1 and counts(printed) == [4, 2, 0, 2]
    failures = [line for line in printed.splitlines() if line.startswith("  failed: ")]
    assert len(failures) == 2 and failures[0].startswith("  failed: optimizer.lr=1e+38 seed=0: ")
    (path,) = Path("outputs/default").glob("grid-*.json")
    content = files.read_json(path)
    assert content.keys() == {"command", "single", "started", "runs"}
    folders = [Path("outputs", folder) for _, folder in content["runs"]]
    assert [folder.name in results() for folder in folders] == [True, True, False, False]
    assert "not finite" in files.read_json(folders[2] / "failed.json")["reason"]
    assert [overrides[-1] for overrides, _ in content["runs"]] == ["seed=0", "seed=1"] * 2
    again, printed = train(*words)
    assert again == 1 and counts(printed) == [4, 0, 2, 2]
    assert counts(train("-m", "max_steps=2", "optimizer.lr=0.1", "seed=0,1,2")[1]) == [3, 1, 2, 0]
    assert len(list(Path("outputs/default").glob("*/config.yaml"))) == 5
    status = " ".join(cli("status").stdout.split())
    assert "2 diverged, 3 finished" in status
    assert status.count("optimizer.lr=0.1 seed=") == 3 and status.count("optimizer.lr=1e+38 seed=") == 2


def test_a_dry_run_lists_the_runs_that_are_not_done_and_writes_nothing(train: Train) -> None:
    assert train("max_steps=1", "seed=1")[0] == 0
    before = set(Path("outputs").rglob("*"))
    code, printed = train("-m", "max_steps=1", "seed=0,1", "dataset.train_images=1347", "--dry-run")
    *_, head, run, _, total = printed.splitlines()
    folder = str(run_dir(compose.load([*SMALL, "max_steps=1", "seed=0"])))
    assert code == 0 and head.split() == ["steps", "time", "run", "directory"]
    steps, time, *words = run.split()
    assert (steps, words) == ("1", ["seed=0", folder]) and re.fullmatch(r"0m\d\ds", time)
    assert re.findall(r"\d+", total)[:2] == ["1", "1"]
    for words in (["-m", "seed=0,1"], ["seed=0"]):
        code, printed = train("max_steps=1", *words, "--dry-run", "--json")
        (planned,) = json.loads(printed.splitlines()[0])  # before what stands on standard error
        assert code == 0 and planned["folder"] == folder and "seed=0" in planned["overrides"]
        assert planned["steps"] == 1 and 0 < planned["hours"] < 0.1
    (evaluation,) = json.loads(train("max_steps=1", "seed=1", "evaluate=knn", "--dry-run", "--json")[1].splitlines()[0])
    assert (evaluation["steps"], evaluation["hours"]) == (0, 0)
    code, printed = train("max_steps=1", "seed=1", "--dry-run")
    assert code == 0 and str(run_dir(compose.load([*SMALL, "max_steps=1", "seed=1"]))) in printed
    assert {*Path("outputs").rglob("*")} == before


def test_a_dry_run_gives_no_hours_of_runs_whose_images_are_not_on_the_disk_and_none_of_what_trains_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_BENCH_DATA", raising=False)
    main, words = import_module("ssl_bench.commands.train").main, ["-m", "launcher=slurm", "epochs=2", "--dry-run"]
    words += ["backbone=resnet_digits", "backbone.width=4"]
    assert main([*words, "dataset=cifar10,scattered_digits", "--json"]) == 0
    photos, digits = json.loads(capsys.readouterr().out.splitlines()[0])
    assert photos.keys() == {"folder", "overrides", "steps", "hours"}
    assert photos["steps"] == 2 * (50_000 // 256) and photos["hours"] is None
    assert digits["steps"] == 2 * (1347 // 64) and digits["hours"] is None  # its jobs run elsewhere
    assert main([*words, "dataset=cifar10"]) == 0 and "390 steps" in capsys.readouterr().out
    assert main(["-m", "framework=frozen", "seed=0,1", "--dry-run", "--json"]) == 0
    assert [run["hours"] for run in json.loads(capsys.readouterr().out.splitlines()[0])] == [0, 0]


def test_an_experiment_is_a_grid_and_the_command_line_overrides_it(train: Train, tmp_path: Path) -> None:
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    experiment = {"name": "taus", "hydra": {"mode": "MULTIRUN", "sweeper": {"params": {"temperature.tau": "0.1,0.2"}}}}
    path = tmp_path / "conf" / "experiment" / "taus.yaml"
    path.write_text("# @package _global_\n" + yaml.safe_dump(experiment))
    common = ["--config-dir", str(tmp_path / "conf"), "experiment=taus", "max_steps=1"]
    assert counts(train(*common)[1]) == [2, 2, 0, 0]
    assert counts(train(*common, "temperature.tau=0.2")[1]) == [1, 0, 1, 0]
    runs = [yaml.safe_load(p.read_text()) for p in Path("outputs/taus").glob("*/config.yaml")]
    assert sorted(r["temperature"]["tau"] for r in runs) == [0.1, 0.2]
    assert all(r["choices"]["experiment"] == "taus" for r in runs)


def test_runs_that_cannot_be_are_left_out_and_counted_and_the_others_are_trained(train: Train) -> None:
    words = ["-m", "max_steps=1", "batch_size=b32,b64", "negatives=random_k", "negatives.k=16,64"]
    for flags in ([], ["--dry-run"]):
        code, printed = train(*words, *flags)
        assert code == 2 and re.search(r"ssl-bench: 1 of 4 .*batch_size=b32 negatives\.k=64: ", printed)
    assert not Path("outputs").exists()
    code, printed = train(*words, "skip=impossible")
    assert code == 0 and counts(printed) == [4, 3, 0, 0, 1] and "batch_size=b32 negatives.k=64: " in printed
    (path,) = Path("outputs/default").glob("grid-*.json")
    content = files.read_json(path)
    assert len(content["runs"]) == len(results()) == 3 and content["command"].endswith(" skip=impossible")


# ---- what each of several runs at a time has


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
    monkeypatch.setattr("ssl_bench.launch.run.visible_gpus", lambda _: gpus)
    runs = [Run((), {"devices": count, "device": "auto"}, Path(), "") for count in (1, devices)]
    found = places(runs, {"jobs": jobs, "runs_per_gpu": per_gpu})
    assert found == [({"CUDA_VISIBLE_DEVICES": names}, set()) for names in expected]
    assert places(runs, {"jobs": None, "runs_per_gpu": per_gpu}) == found
    with pytest.raises(ConfigError, match=rf"^launcher\.jobs={jobs + 1}: "):
        places(runs, {"jobs": jobs + 1, "runs_per_gpu": per_gpu})


@pytest.mark.parametrize(
    ("jobs", "shares"), [(2, [{0, 1}, {2, 3}]), (3, [{0}, {1}, {2}]), (5, [{0}, {1}, {2}, {3}, {0}])]
)
def test_the_cores_are_shared_out(jobs: int, shares: list[set[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr("ssl_bench.launch.run.available_cores", lambda: 4)
    runs = [Run((), {"devices": 1, "device": "cpu"}, Path(), "")]
    assert places(runs, {"jobs": jobs, "runs_per_gpu": 1}) == [({}, share) for share in shares]


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
@pytest.mark.parametrize("named", ["0", "-1,0", "NoDevFiles", "GPU-7a", ""])
def test_a_variable_alone_is_no_gpu(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm sets it on machines without one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus() == []


@pytest.mark.skipif(available_cores() < 2, reason="one core cannot be shared")
@pytest.mark.exhaustive
def test_the_runs_of_a_grid_have_the_same_threads_and_one_that_goes_on_alone_keeps_them(
    cli: Callable[..., "subprocess.CompletedProcess[str]"],
) -> None:
    run, every = [*SMALL, "max_steps=1"], {"OMP_NUM_THREADS": str(available_cores())}
    assert cli("train", "-m", *LOCAL, *run, "seed=0,1,2", **every).returncode == 0
    lost = next(Path(f"outputs/default/{name}") for name, one in results().items() if one["config"]["seed"] == 2)
    (lost / "results.json").unlink()
    (lost / "checkpoints" / "last.pt").unlink()
    assert [cli("train", *run, f"seed={seed}", **every).returncode for seed in (2, 3)] == [0, 0]
    threads = {one["config"]["seed"]: one["environment"]["threads"] for one in results().values()}
    assert threads == dict.fromkeys(range(3), available_cores() // 2) | {3: available_cores()}


# ---- several runs at a time


@linux
@pytest.mark.slow
def test_runs_at_the_same_time_have_the_bits_of_the_same_runs_one_by_one(train: Train) -> None:
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


@linux
@pytest.mark.slow
def test_a_process_that_is_killed_fails_one_run_and_the_rest_is_trained(train: Train) -> None:
    with grid("epochs=300", "max_steps=300", "seed=range(4)") as process:
        wait_for(begun)
        killed = begun()[0]
        owner = runs.owner(killed)
        assert owner is not None
        psutil.Process(owner.pid).kill()
        printed, _ = process.communicate(timeout=200)
    assert process.returncode == 1 and counts(printed) == [4, 3, 0, 1], printed
    assert "SIGKILL" in files.read_json(killed / "failed.json")["reason"] and killed.name not in results()
    code, again = train("-m", "epochs=300", "max_steps=300", "seed=range(4)")
    assert code == 0 and counts(again) == [4, 1, 3, 0], again
    assert not (killed / "failed.json").exists()


@linux
@pytest.mark.parametrize(
    "stopped", [pytest.param(True, marks=pytest.mark.slow), pytest.param(False, marks=pytest.mark.exhaustive)]
)
def test_a_grid_that_is_stopped_or_killed_saves_its_runs_begins_no_other_and_leaves_no_process(stopped: bool) -> None:
    with grid("epochs=4000", "seed=range(8)") as process:
        wait_for(lambda: len(begun()) == 2)
        every = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM if stopped else signal.SIGKILL)
        printed, _ = process.communicate(timeout=60)
        assert len(every) >= 3
        wait_for(lambda: not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in every), 20)
    assert not stopped or (process.returncode == 143 and counts(printed) == [8, 0, 0, 0, 2, 6]), printed
    assert len(begun()) == 2
    for folder in begun():
        assert torch.load(folder / "checkpoints" / "last.pt")["step"] == len(losses(folder)) > 0


@linux
@pytest.mark.slow
def test_the_same_grid_twice_at_once_trains_each_run_once() -> None:
    runs = ["max_steps=20", "seed=range(6)"]
    with grid(*runs, local=False) as one, grid(*runs, local=False) as other:
        printed = [process.communicate(timeout=200)[0] for process in (one, other)]
    assert [one.returncode, other.returncode] == [0, 0], printed
    assert sum(counts(text)[1] for text in printed) == 6 == len(results()), printed
    assert all(len(losses(folder)) == 20 for folder in begun())


@linux
@pytest.mark.slow
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
