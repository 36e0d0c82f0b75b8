"""The example of a W&B sweep: W&B's own agent starts its command, with the answers of the server replaced."""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wandb
import yaml
from wandb.wandb_agent import Agent

from tests.conftest import SMALL, only_run
from tests.record.wandb_files import of_kind, records, summary, wandb_config, wandb_directories

SWEEP = Path(__file__).parents[2] / "scripts" / "wandb_sweep.yaml"
Run = Callable[[str, dict[str, Any], list[str]], None]


@pytest.fixture
def sweep() -> dict[str, Any]:
    return dict(yaml.safe_load(SWEEP.read_text()))


@pytest.fixture
def agent_run(sweep: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Function that gives W&B's agent a run as the server would and waits for its process."""
    monkeypatch.delenv(wandb.env.SERVICE, raising=False)
    for name in ("RUN_ID", "SWEEP_ID", "SWEEP_PARAM_PATH", "DIR"):  # the agent sets them and does not restore them
        monkeypatch.setenv(f"WANDB_{name}", "")
        monkeypatch.delenv(f"WANDB_{name}")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")

    def run(run_id: str, parameters: dict[str, Any], command: list[str]) -> None:
        agent = Agent(None, None)
        agent._sweep_command = command
        monkeypatch.setenv("WANDB_SWEEP_ID", "sweep123")
        args = {name: {"value": value} for name, value in parameters.items()}
        request = {"type": "run", "run_id": run_id, "program": sweep["program"], "args": args}
        assert "exception" not in agent._process_command(request)
        process = agent._run_processes[run_id]
        while process.poll() is None:
            time.sleep(0.05)
        assert process.poll() == 0

    return run


def combinations(sweep: dict[str, Any]) -> list[dict[str, Any]]:
    """All combinations of the listed values, as W&B's grid method suggests them."""
    lists = [p["values"] if "values" in p else [p["value"]] for p in sweep["parameters"].values()]
    return [dict(zip(sweep["parameters"], values, strict=True)) for values in itertools.product(*lists)]


@pytest.mark.slow
def test_the_metric_is_in_the_run_that_the_agent_names(sweep: dict[str, Any], agent_run: Run) -> None:
    command = [c.replace("tracking=online", "tracking=offline") for c in sweep["command"]]
    command[-1:-1] = [s for s in [*SMALL, "evaluate=[knn_val,knn]", "max_steps=2"] if not s.startswith("tracking")]
    assert sweep["metric"] == {"name": "knn_val/top1", "goal": "maximize"} and len(combinations(sweep)) == 54
    values = combinations(sweep)[-1] | {"temperature.tau": 0.07318273645, "seed": 3}  # as the bayes method draws them
    agent_run("agent001", values, command)
    folder = only_run()
    metrics = json.loads((folder / "results.json").read_text())["metrics"]
    (directory,) = wandb_directories(folder)
    entries = records(directory)
    (run,) = of_kind(entries, "run")
    assert (run.run_id, run.sweep_id, run.run_group) == ("agent001", "sweep123", "sweep")
    assert (
        summary(entries)["knn_val/top1"] == metrics["knn_val/top1"] and values.items() <= wandb_config(entries).items()
    )
    # Suggested a second time: the run is done, and the sweep gets the metric from its files.
    before = {name: (folder / name).stat().st_mtime_ns for name in ("results.json", "metrics.jsonl")}
    time.sleep(1)  # W&B names its directories by the second
    agent_run("agent002", values, command)
    assert {name: (folder / name).stat().st_mtime_ns for name in before} == before
    entries = records(wandb_directories(folder)[1])
    (run,) = of_kind(entries, "run")
    assert (run.run_id, run.sweep_id) == ("agent002", "sweep123")
    assert summary(entries)["knn_val/top1"] == metrics["knn_val/top1"]
    assert [row.step.num for row in of_kind(entries, "history")] == [0, 1, 2]
    assert [r.exit_code for r in of_kind(entries, "exit")] == [0]
