"""The folder with grids of all kinds has the runs that it says, as their files say themselves."""

import json
from collections import Counter
from pathlib import Path

import yaml

from ssl_bench.config.identity import run_id
from ssl_bench.launch.outcome import DIVERGED
from ssl_bench.record import evaluations, results
from tests.results.grids import RUNS, STATES


def state(run: Path) -> str:
    """The state of a run; that of one without an owner, which has begun."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    content = results.read(run)
    assert run_id(config) == run.name and (run / "command.txt").read_text().startswith("ssl-bench train ")
    if content:
        longer = content["config"]["epochs"] < config["epochs"]
        missing = evaluations.missing(content["evaluations"], config)
        return "interrupted" if longer else "evaluation missing" if missing else "finished"
    if (run / "failed.json").exists():
        reason = json.loads((run / "failed.json").read_text())["reason"]
        return "diverged" if DIVERGED in reason else "failed"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return "evaluation missing" if rows[-1]["step"] == config["max_steps"] else "interrupted"


def test_every_experiment_has_its_runs_in_their_states(grids: Path) -> None:
    overrides = [json.loads(path.read_text())["runs"] for path in grids.glob("outputs/*/grid-*.json")]
    begun = sorted(grids.glob("outputs/losses/*/command.txt"))
    assert sum(map(len, overrides)) == RUNS["losses"] == len(begun) + STATES["losses"]["not begun"]
    for name, count in RUNS.items():
        runs = sorted(path for path in (grids / "outputs" / name).iterdir() if path.is_dir())
        given = {key: n for key, n in STATES.get(name, {}).items() if key != "not begun"}
        assert len(runs) == count - (name == "losses"), name
        if name != "damaged":
            others = Counter(map(state, runs))
            assert others.pop("finished") == len(runs) - sum(given.values()) and others == given, name
    assert len({path.parent.parent.name for path in grids.glob("others/*/*/config.yaml")}) == 2
