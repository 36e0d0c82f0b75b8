"""Grids: every cell once, failures told at the end, and what the other commands say of them."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import only_run

Train = Callable[..., tuple[int, str]]
Cli = Callable[..., Any]


def test_a_grid_is_trained_once_and_a_failing_cell_stops_nobody(train: Train, cli: Cli) -> None:
    grid = ["-m", "max_steps=2", "optimizer.lr=0.1,1e38", "seed=0,1"]
    code, printed = train(*grid)
    assert code == 1
    assert "4 cells: 2 trained, 0 done before, 2 failed" in printed
    failures = [line for line in printed.splitlines() if line.startswith("  failed: ")]
    assert (
        len(failures) == 2
        and failures[0].startswith("  failed: optimizer.lr=1e+38 seed=0: ")
        and "not finite" in failures[0]
    )
    again, printed = train(*grid)
    assert again == 1 and "4 cells: 0 trained, 2 done before, 2 failed" in printed
    healthy, printed = train("-m", "max_steps=2", "optimizer.lr=0.1", "seed=0,1,2")
    assert healthy == 0 and "3 cells: 1 trained, 2 done before, 0 failed" in printed
    assert len(list(Path("outputs/default").iterdir())) == 5
    status = cli("status")
    assert status.returncode == 0 and "3 done, 0 partial, 2 failed" in status.stdout
    cells = " ".join(status.stdout.split())
    assert cells.count("optimizer.lr=0.1 seed=") == 3 and cells.count("optimizer.lr=1e+38 seed=") == 2


def test_an_interrupted_grid_goes_on_where_it_stopped(train: Train) -> None:
    assert train("-m", "max_steps=2", "seed=0,1")[0] == 0
    (run,) = [c.parent for c in Path("outputs").glob("*/*/config.yaml") if yaml.safe_load(c.read_text())["seed"] == 1]
    (run / "results.json").unlink()
    _, printed = train("-m", "max_steps=2", "seed=0,1,2")
    assert "3 cells: 2 trained, 1 done before, 0 failed" in printed


def test_a_grid_ends_with_the_mean_over_the_seeds_of_each_cell(train: Train) -> None:
    code, printed = train(
        "-m", "max_steps=1", "temperature.tau=0.1,0.2", "seed=0,1", "evaluate=knn", "evaluate.baselines=[init]"
    )
    rows = [
        [part.strip() for part in line.split("│")[1:-1]] for line in printed.splitlines() if "│ temperature" in line
    ]
    assert code == 0 and [row[:2] for row in rows] == [["temperature.tau=0.1", "2"], ["temperature.tau=0.2", "2"]]
    for row in rows:
        tau = float(row[0].split("=")[1])
        runs = [json.loads(path.read_text()) for path in Path("outputs").glob("*/*/results.json")]
        for name, said in zip(("knn/top1", "knn_init/top1"), row[2:], strict=True):
            a, b = (100 * run["metrics"][name] for run in runs if run["config"]["temperature"]["tau"] == tau)
            assert said == f"{(a + b) / 2:.1f} ± {abs(a - b) / 2**0.5:.1f}%"


def test_an_experiment_is_a_grid_and_the_command_line_beats_it(train: Train, tmp_path: Path) -> None:
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    experiment = {"name": "taus", "hydra": {"mode": "MULTIRUN", "sweeper": {"params": {"temperature.tau": "0.1,0.2"}}}}
    path = tmp_path / "mine" / "experiment" / "taus.yaml"
    path.write_text("# @package _global_\n" + yaml.safe_dump(experiment))
    common = ["--config-dir", str(tmp_path / "mine"), "experiment=taus", "max_steps=1"]
    assert "2 cells: 2 trained" in train(*common)[1]
    assert "1 cells: 0 trained, 1 done before" in train(*common, "temperature.tau=0.2")[1]
    runs = [yaml.safe_load(p.read_text()) for p in Path("outputs/taus").glob("*/config.yaml")]
    assert sorted(r["temperature"]["tau"] for r in runs) == [0.1, 0.2]
    assert all(r["choices"]["experiment"] == "taus" for r in runs)


def test_a_trained_run_is_judged_again(train: Train, cli: Cli) -> None:
    assert train("max_steps=3", "evaluate=knn", "evaluate.baselines=[init,raw]")[0] == 0
    run = only_run()
    trained = json.loads((run / "results.json").read_text())["metrics"]
    done = cli("evaluate", str(run), "evaluate=[knn,linear]")
    assert done.returncode == 0, done.stderr
    (path,) = (run / "evaluations").iterdir()
    judged = json.loads(path.read_text())["metrics"]
    assert {name: judged[name] for name in trained} == trained and "linear/top1" in judged
    other = cli("evaluate", str(run), "evaluate=knn", "evaluate.knn.k=1")
    assert other.returncode == 0 and len(list((run / "evaluations").iterdir())) == 2
    refused = cli("evaluate", str(run), "seed=1")
    assert refused.returncode == 2 and "seed=1: only evaluate and paths.data can be changed" in refused.stderr
    nothing = cli("evaluate", "outputs")
    assert nothing.returncode == 2 and "outputs is no run directory" in nothing.stderr
    shutil.rmtree(run / "checkpoints")
    empty = cli("evaluate", str(run))
    assert empty.returncode == 1 and "has no checkpoint yet" in empty.stderr


def test_a_reader_that_leaves_is_no_error() -> None:
    for i in range(3):
        folder = Path(f"outputs/{i}/0123456789")
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("{}")
    piped = f"{sys.executable} -m ssl_bench status | true"
    done = subprocess.run(["bash", "-c", piped], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""


def test_help(cli: Cli) -> None:
    assert "ssl-bench <command>" in cli().stdout and cli("--help").returncode == 0
    unknown = cli("trian")
    assert unknown.returncode == 2 and "there is no command 'trian'" in unknown.stderr
    groups = cli("train", "--help")
    assert groups.returncode == 0 and "batch_size: b1000, b1024, b1120" in groups.stdout


@pytest.mark.parametrize("grid", [["-m", "loss=infonce,typo"], ["-m", "batch_size.size=0,64", "max_steps=1"]])
def test_a_cell_that_cannot_be(train: Train, grid: list[str]) -> None:
    """An option that does not exist is found before any cell starts; a value that is refused costs one cell."""
    code, printed = train(*grid)
    if "loss" in grid[1]:
        assert code == 2 and "loss=typo: there is no such option" in printed and not Path("outputs/default").exists()
    else:
        assert code == 1 and "2 cells: 1 trained, 0 done before, 1 failed" in printed
        assert "batch_size.size=0: set batch_size.size to 2 or more" in printed
