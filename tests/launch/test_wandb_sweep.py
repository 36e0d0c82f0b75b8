"""A sweep of W&B, as far as it goes without its server: its own agent starts our command, in the run that it names."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wandb
import yaml
from wandb.wandb_agent import Agent

from ssl_bench.config.compose import check, load
from ssl_bench.parts import validate
from tests.conftest import SMALL, only_run
from tests.record.test_wandb import legs, pick, records, summary, wandb_config

SCRIPTS = Path(__file__).parents[2] / "scripts"
Run = Callable[[str, dict[str, Any], list[str]], list[str]]


@pytest.fixture
def sweep() -> dict[str, Any]:
    return dict(yaml.safe_load((SCRIPTS / "wandb_sweep.yaml").read_text()))


@pytest.fixture
def agent_run(sweep: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Hands the agent what W&B's server would, and waits for the process that it starts; gives its command line."""
    monkeypatch.delenv(wandb.env.SERVICE, raising=False)
    for name in ("RUN_ID", "SWEEP_ID", "SWEEP_PARAM_PATH", "DIR"):  # the agent sets them for good
        monkeypatch.setenv(f"WANDB_{name}", "")
        monkeypatch.delenv(f"WANDB_{name}")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")

    def run(run_id: str, parameters: dict[str, Any], command: list[str]) -> list[str]:
        agent = Agent(None, None)
        agent._sweep_command = command
        monkeypatch.setenv("WANDB_SWEEP_ID", "sweep123")
        args = {name: {"value": value} for name, value in parameters.items()}
        told = {"type": "run", "run_id": run_id, "program": sweep["program"], "args": args}
        assert "exception" not in agent._process_command(told)
        process = agent._run_processes[run_id]
        started = process._popen
        assert started is not None
        while process.poll() is None:
            time.sleep(0.05)
        assert process.poll() == 0
        return list(started.args)

    return run


def cells(sweep: dict[str, Any]) -> list[dict[str, Any]]:
    """What a grid suggests: one value of each list."""
    lists = [p["values"] if "values" in p else [p["value"]] for p in sweep["parameters"].values()]
    return [dict(zip(sweep["parameters"], values, strict=True)) for values in itertools.product(*lists)]


def test_the_agent_expands_to_a_command_that_composes(sweep: dict[str, Any], agent_run: Run) -> None:
    assert sweep["metric"] == {"name": "knn/top1", "goal": "maximize"} and len(cells(sweep)) == 54
    drawn = cells(sweep)[1] | {"temperature.tau": 0.07318273645, "seed": 3}  # as bayes would
    for number, cell in enumerate((cells(sweep)[0], cells(sweep)[-1], drawn)):
        env, *line = agent_run(f"run{number}", cell, ["${env}", "echo", *sweep["command"][1:]])
        assert env == "/usr/bin/env" and line[:3] == ["echo", "ssl-bench", "train"]
        config = load(line[3:])
        check(config)
        validate(config, config["devices"])
        assert config["choices"]["loss"] == cell["loss"] and config["choices"]["negatives"] == "random_k"
        assert config["batch_size"]["size"] == cell["batch_size.size"]
        assert config["negatives"]["k"] == cell["negatives.k"]
        assert config["temperature"]["tau"] == cell["temperature.tau"] and config["seed"] == cell["seed"]
        assert config["devices"] == 1 and config["tracking"]["mode"] == "online" and "knn" in config["evaluate"]


def test_the_metric_arrives_in_the_run_that_the_agent_names(sweep: dict[str, Any], agent_run: Run) -> None:
    small = [*SMALL, "evaluate=knn", "max_steps=2"]
    command = [c.replace("tracking=online", "tracking=offline") for c in sweep["command"]]
    command[-1:-1] = [s for s in small if not s.startswith("tracking")]
    cell = cells(sweep)[0]
    agent_run("theirs01", cell, command)
    folder = only_run()
    metrics = json.loads((folder / "results.json").read_text())["metrics"]
    (leg,) = legs(folder)
    found = records(leg)
    (run,) = pick(found, "run")
    assert (run.run_id, run.sweep_id, run.run_group) == ("theirs01", "sweep123", "sweep")
    assert summary(found)["knn/top1"] == metrics["knn/top1"] and cell.items() <= wandb_config(found).items()
    # The same cell in another run of the sweep: it is done, and its metric is told from its files.
    before = {name: (folder / name).stat().st_mtime_ns for name in ("results.json", "metrics.jsonl")}
    time.sleep(1)  # W&B names its directories by the second
    agent_run("theirs02", cell, command)
    assert {name: (folder / name).stat().st_mtime_ns for name in before} == before
    found = records(legs(folder)[1])
    (run,) = pick(found, "run")
    assert (run.run_id, run.sweep_id) == ("theirs02", "sweep123")
    assert summary(found)["knn/top1"] == metrics["knn/top1"]
    assert [row.step.num for row in pick(found, "history")] == [0, 1, 2]
    assert [r.exit_code for r in pick(found, "exit")] == [0]


def sync(*arguments: str, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        ["bash", str(SCRIPTS / "sync_wandb.sh"), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"} | environment,
    )
    return done.returncode, done.stdout, done.stderr


def leg(run: str, name: str, size: int = 100) -> Path:
    """What W&B leaves in a run's directory, without a word of content: the script looks at names and sizes."""
    folder = Path(run) / "wandb" / f"offline-run-{name}"
    folder.mkdir(parents=True)
    (Path(run) / "config.yaml").touch()
    file = folder / f"run-{name.partition('-')[2]}.wandb"
    file.write_bytes(b"x" * size)
    return file


def test_the_newest_of_a_run_is_sent_once(tmp_path: Path) -> None:
    leg("outputs/a/aa", "20260101_000000-aa")
    leg("outputs/a/aa", "20260102_000000-aa")
    leg("outputs/a/aa", "20260103_000000-aa", size=7)  # killed at once
    leg("outputs/a/aa", "20260101_120000-agent-s")  # of a sweep
    done = leg("outputs/b c/bb", "20260101_000000-bb")
    leg("outputs/b c/cc", "20260101_000000-cc")
    for run in ("a/aa", "b c/bb"):
        Path("outputs", run, "results.json").touch()
    names = "20260102_000000-aa", "20260101_120000-agent-s"
    newest = [f"wandb sync outputs/a/aa/wandb/offline-run-{name}" for name in names]
    others = [f"wandb sync outputs/b\\ c/{r}/wandb/offline-run-20260101_000000-{r}" for r in ("bb", "cc")]

    code, out, err = sync("--dry-run")
    assert code == 0 and sorted(out.splitlines()) == sorted([*newest, others[0]]) and "1 unfinished" in err
    code, out, err = sync("--dry-run", "--unfinished", "outputs")
    assert code == 0 and sorted(out.splitlines()) == sorted([*newest, *others]) and not err
    mark = done.with_name(f"{done.name}.synced")
    mark.touch()
    assert sync("--dry-run")[1].splitlines() == sorted(newest, reverse=True)
    os.utime(mark, (1, 1))  # it was sent while it was running
    assert f"wandb sync --include-synced {others[0].removeprefix('wandb sync ')}" in sync("--dry-run")[1].splitlines()
    assert sync("--dry-run", "nowhere")[0] == 2 and sync("--wet-run")[0] == 2 and sync("outputs", "b")[0] == 2
    assert sync("--help")[:2] == (0, sync("-h")[1]) and "--unfinished" in sync("-h")[1]


def test_what_wandb_does_not_send_is_an_error(tmp_path: Path) -> None:
    """Without a key and without a server; wandb itself may end with 0 when it could not read a file."""
    leg("outputs/a/aa", "20260101_000000-aa")
    Path("outputs/a/aa/results.json").touch()
    code, out, err = sync(HOME=str(tmp_path), WANDB_API_KEY="", WANDB_BASE_URL="http://127.0.0.1:9")
    assert code == 1 and out.endswith("0 sent, 1 failed\n") and "not sent: outputs/a/aa/wandb" in err
    shutil.rmtree("outputs")
    Path("outputs").mkdir()
    assert sync() == (0, "0 sent, 0 failed\n", "")
