"""Grids: every run once, one after another or several at a time, and a summary at the end."""

import json
import re
import subprocess
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssl_bench import files
from ssl_bench.config import compose
from ssl_bench.config.identity import run_dir
from ssl_bench.hardware import available_cores
from tests.conftest import SMALL

Train = Callable[..., tuple[int, str]]
Cli = Callable[..., "subprocess.CompletedProcess[str]"]
LOCAL = ["launcher=local", "launcher.jobs=2"]


def results(outputs: str = "outputs") -> dict[str, Any]:
    """``results.json`` of all runs by run_id."""
    return {path.parent.name: files.read_json(path) for path in Path(outputs).glob("*/*/results.json")}


# ---- runs one after another


def counts(printed: str) -> list[int]:
    """Of all runs of a grid, those trained, done before, failed, and left out, if there are any."""
    (line,) = re.findall(r"^\d+ runs?: \d+ trained.*", printed, re.MULTILINE)
    return [int(number) for number in re.findall(r"\d+", line)]


def test_a_grid_trains_each_run_once_and_goes_on_after_a_failure(train: Train, cli: Cli) -> None:
    grid = ["-m", "max_steps=2", "optimizer.lr=0.1,1e38", "seed=0,1"]
    code, printed = train(*grid)
    assert code == 1
    assert counts(printed) == [4, 2, 0, 2]
    failures = [line for line in printed.splitlines() if line.startswith("  failed: ")]
    assert len(failures) == 2 and "not finite" in failures[0]
    assert failures[0].startswith("  failed: optimizer.lr=1e+38 seed=0: ")
    (path,) = Path("outputs/default").glob("grid-*.json")
    content = files.read_json(path)
    assert content.keys() == {"command", "single", "started", "runs"}
    folders = [Path("outputs", run["folder"]) for run in content["runs"]]
    assert [folder.name in results() for folder in folders] == [True, True, False, False]
    assert "not finite" in files.read_json(folders[2] / "failed.json")["reason"]
    assert [run["overrides"][-1] for run in content["runs"]] == ["seed=0", "seed=1"] * 2
    again, printed = train(*grid)
    assert again == 1 and counts(printed) == [4, 0, 2, 2]
    finished = next(path.parent for path in Path("outputs").glob("default/*/results.json"))
    left = finished / "failed.json"  # by a process that ended at once after it wrote the results
    files.write_json(left, {"reason": "its file system does not answer", "detail": ""})
    healthy, printed = train("-m", "max_steps=2", "optimizer.lr=0.1", "seed=0,1,2")
    assert not left.exists()
    assert healthy == 0 and counts(printed) == [3, 1, 2, 0]
    assert len(list(Path("outputs/default").glob("*/config.yaml"))) == 5
    status = cli("status")
    assert status.returncode == 0 and "2 diverged, 3 finished" in status.stdout
    lines = " ".join(status.stdout.split())
    assert lines.count("optimizer.lr=0.1 seed=") == 3 and lines.count("optimizer.lr=1e+38 seed=") == 2


def test_a_dry_run_lists_the_runs_that_are_not_done_and_writes_nothing(train: Train) -> None:
    assert train("max_steps=1", "seed=1")[0] == 0
    before = set(Path("outputs").rglob("*"))
    code, printed = train("-m", "max_steps=1", "seed=0,1", "dataset.train_images=1347", "--dry-run")
    assert code == 0 and {*Path("outputs").rglob("*")} == before
    *_, head, run, _, total = printed.splitlines()
    folder = run_dir(compose.load([*SMALL, "max_steps=1", "seed=0"]))
    assert all(word in printed for word in [*SMALL, "max_steps=1", "dataset.train_images=1347"])
    assert head.split() == ["steps", "time", "seed", "directory"]
    assert run.split() == ["1", "1", "min", "0", str(folder)] and re.findall(r"\d+", total)[:3] == ["1"] * 3
    grid, alone = ["-m", "seed=0,1"], ["seed=0"]
    for words in (grid, alone):
        code, printed = train("max_steps=1", *words, "--dry-run", "--json")
        (planned,) = json.loads(printed.splitlines()[0])  # before what stands on standard error
        assert code == 0 and planned["folder"] == str(folder) and "seed=0" in planned["overrides"]
        assert planned["steps"] == 1 and 0 < planned["hours"] < 0.1
    (evaluation,) = json.loads(train("max_steps=1", "seed=1", "evaluate=knn", "--dry-run", "--json")[1].splitlines()[0])
    assert (evaluation["steps"], evaluation["hours"]) == (0, 0)
    code, printed = train("max_steps=1", "seed=1", "--dry-run")
    assert code == 0 and str(run_dir(compose.load([*SMALL, "max_steps=1", "seed=1"]))) in printed
    assert {*Path("outputs").rglob("*")} == before


def test_a_dry_run_gives_no_hours_of_runs_whose_images_are_not_on_the_disk(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_BENCH_DATA", raising=False)
    main, grid = import_module("ssl_bench.commands.train").main, ["-m", "launcher=slurm", "epochs=2", "--dry-run"]
    assert main([*grid, "dataset=cifar10,scattered_digits", "--json"]) == 0
    photos, digits = json.loads(capsys.readouterr().out.splitlines()[0])
    assert photos.keys() == {"folder", "overrides", "steps", "hours"}
    assert photos["steps"] == 2 * (50_000 // 256) and photos["hours"] is None
    assert digits["steps"] == 2 * (1347 // 64) and digits["hours"] > 0
    assert main([*grid, "dataset=cifar10"]) == 0
    assert "390 steps" in capsys.readouterr().out


def test_a_dry_run_times_no_step_of_a_network_that_is_not_trained(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-m", "framework=frozen", "seed=0,1", "--dry-run", "--json"]
    assert import_module("ssl_bench.commands.train").main(words) == 0
    assert [run["hours"] for run in json.loads(capsys.readouterr().out.splitlines()[0])] == [0, 0]


@pytest.mark.skipif(available_cores() < 2, reason="one core cannot be shared")
@pytest.mark.exhaustive
def test_the_runs_of_a_grid_have_the_same_threads_and_one_that_goes_on_alone_keeps_them(cli: Cli) -> None:
    run, every = [*SMALL, "max_steps=1"], {"OMP_NUM_THREADS": str(available_cores())}
    assert cli("train", "-m", *LOCAL, *run, "seed=0,1,2", **every).returncode == 0
    lost = next(Path(f"outputs/default/{name}") for name, one in results().items() if one["config"]["seed"] == 2)
    (lost / "results.json").unlink()
    (lost / "checkpoints" / "last.pt").unlink()
    assert cli("train", *run, "seed=2", **every).returncode == 0
    assert cli("train", *run, "seed=3", **every).returncode == 0
    threads = {one["config"]["seed"]: one["environment"]["threads"] for one in results().values()}
    assert threads == dict.fromkeys(range(3), available_cores() // 2) | {3: available_cores()}


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
    grid = ["-m", "max_steps=1", "batch_size=b32,b64", "negatives=random_k", "negatives.k=16,64"]
    for flags in ([], ["--dry-run"]):
        code, printed = train(*grid, *flags)
        assert code == 2 and re.search(r"ssl-bench: 1 of 4 .*batch_size=b32 negatives\.k=64: ", printed)
        assert not Path("outputs").exists()
    code, printed = train(*grid, "skip=impossible", "--dry-run")
    assert code == 0 and "3 runs to go" in printed and "batch_size=b32 negatives.k=64: " in printed
    code, printed = train(*grid, "skip=impossible")
    assert code == 0 and counts(printed) == [4, 3, 0, 0, 1]
    assert "batch_size=b32 negatives.k=64: " in printed
    (path,) = Path("outputs/default").glob("grid-*.json")
    content = files.read_json(path)
    assert len(content["runs"]) == 3 and content["command"].endswith(" skip=impossible")
    assert train("max_steps=1", "batch_size=b64", "negatives=random_k", "negatives.k=64")[1].count("already done") == 1
    assert len(results()) == 3
