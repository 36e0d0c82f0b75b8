"""The runs of a results folder, and its cache: it changes how long ``ssl-bench status`` takes, never what it shows."""

import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ssl_bench import files
from ssl_bench.launch.grid import record
from ssl_bench.launch.lock import Lock
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.status import cache
from ssl_bench.status.labels import labels
from ssl_bench.status.runs import Runs, finished
from ssl_bench.status.scan import Scan
from tests.status.folders import OUTPUTS, claim_elsewhere, configuration, make, make_grid, rows, touch

CACHE = OUTPUTS / ".runs.json"
NOW = time.time()


@pytest.fixture(autouse=True)
def written_for_every_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "FEW", 0)


def results(run_id: str, config: dict[str, Any], **metrics: float) -> str:
    values = {name.replace("_top1", "/top1"): value for name, value in metrics.items()}
    return json.dumps({"run_id": run_id, "config": config, "metrics": values, "seconds": 33.5})


def make_done(name: str, top1: float = 0.5, **values: Any) -> Path:
    folder = make(name, rows(10), **values)
    text = results(folder.name, configuration(**values), knn_top1=top1, knn_init_top1=0.1)
    (folder / "results.json").write_text(text)
    return folder


def make_many(seed: int = 0) -> None:
    """Make runs in every state, single ones and those of two grids, and folders that are no runs."""
    generator = random.Random(seed)
    for number in range(24):
        parent, values = generator.choice(("a", "b", "b/deep")), {"seed": number % 4, "optimizer": {"lr": number // 4}}
        kind = number if number < 6 else generator.randrange(6)
        name = f"{parent}/{number:02d}"
        if kind in (0, 1):
            make_done(name, generator.random(), **values)
            continue
        folder = make(name, rows(generator.randrange(1, 9)), evaluate={"every": number % 2}, **values)
        if kind == 2:
            (folder / "failed.json").write_text('{"reason": "no\\n \\ud800", "detail": ""}')
        elif kind == 3:
            claim_elsewhere(folder, "node7", silent=5)
        elif kind == 4:
            (folder / "command.txt").write_text(f"ssl-bench train 'name=two words' seed={number % 4}\n")
        if number % 5 == 0:
            with open(folder / "metrics.jsonl", "a") as file:
                file.write('{"step": 4, "epoch": 2.0, "knn/top1": 0.75}\n{"step": 5, "epo')
    made = sorted(path.parent for path in OUTPUTS.glob("**/config.yaml"))
    seeds = [f"seed={n}" for n in range(8)]
    outcomes = {n: Outcome(State.DONE, folder=str(made[n].absolute())) for n in range(5)}
    make_grid("1", seeds, outcomes | {5: Outcome.failed("no memory"), 6: Outcome(State.INTERRUPTED, 130)}, started=1.0)
    make_grid("2", seeds, {2: Outcome(State.RUNNING, folder=str(made[2]))}, finished={"1": str(made[9]), "2": "x/y"})
    for name in ("wandb/run", ".hidden/run", "c/wandb/run"):
        make_done(name)
    (OUTPUTS / "c/config.yaml").write_text("a: 1\n")
    age()


def age(folder: Path = OUTPUTS) -> None:
    """Let all files and folders be old, each of another age; the claims stay young."""
    for number, path in enumerate(sorted([folder, *folder.rglob("*")], reverse=True)):
        if "claims" not in path.parts:
            touch(path, NOW - 5000 + number)


def shown() -> list[dict[str, Any]]:
    """Everything that is known of each entry."""
    entries, left = Scan(OUTPUTS).update(NOW)
    found = []
    for entry, label in zip(entries, labels(entries), strict=True):
        run, grid = entry.run, entry.grid
        one: dict[str, Any] = {"label": label, "state": entry.state, "left": entry.left, "all left": left}
        one |= {"best": entry.best, "reason": entry.reason, "command": entry.command, "overrides": entry.overrides}
        one |= {"grid": grid and (grid.path, grid.left, grid.at_work, entry.index)}
        if run:
            of_metrics = (run.metrics.step, run.metrics.epoch, run.metrics.seconds, run.metrics.speed)
            one |= {"path": run.path, "metrics": of_metrics, "end": run.end, "share": run.share, "owner": run.owner}
            one |= {"began": run.began, "config": run.config.content, "seed": run.seed, "seconds": run.seconds}
            one |= {"run_id": run.run_id, "results": run.results}
        found.append(one)
    return found


@pytest.fixture
def uncached(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, Any]]]:
    """Function that scans without a cache."""

    def scan() -> list[dict[str, Any]]:
        with monkeypatch.context() as patch:
            patch.setattr(cache, "NAME", "no/such/folder")
            return shown()

    return scan


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the runs, and of the records of grids, that are read from now on."""
    paths: list[str] = []
    read_run, read_json = Runs._read, files.read_json

    def run(self: Runs, start: str, begun: bool) -> dict[str, Any] | None:
        paths.append(str(Path(start).relative_to(OUTPUTS)))
        return read_run(self, start, begun)

    def record_of_grid(path: str | Path) -> Any:
        if Path(path).parent.name == "jobs":
            paths.append(str(Path(path).relative_to(OUTPUTS)))
        return read_json(path)

    monkeypatch.setattr(Runs, "_read", run)
    monkeypatch.setattr(files, "read_json", record_of_grid)
    return paths


Uncached = Callable[[], list[dict[str, Any]]]


def test_a_scan_with_the_cache_gives_what_one_without_it_gives(uncached: Uncached, read: list[str]) -> None:
    make_many()
    expected = uncached()
    assert {str(one["state"].value) for one in expected} == {"done", "running", "partial", "failed", "waiting"}
    assert len(read) > 24 and not CACHE.exists()
    assert shown() == expected and CACHE.is_file()
    read.clear()
    written = CACHE.stat().st_ino
    assert shown() == expected and CACHE.stat().st_ino == written and read == []


def test_whatever_changes_is_read_again(uncached: Uncached, read: list[str]) -> None:
    make_many()
    first = {one["path"]: one for one in shown() if "path" in one}
    by_state = {one["state"].value: OUTPUTS / path for path, one in first.items()}
    done, partial, failed = by_state["done"], by_state["partial"], by_state["failed"]

    def changed(*folders: Path) -> dict[str, dict[str, Any]]:
        read.clear()
        now = shown()
        assert {*read} <= {*(str(folder.relative_to(OUTPUTS)) for folder in folders)}
        assert now == uncached()
        return {one["path"]: one for one in now if "path" in one}

    new = make_done("a/new", 0.9, seed=9)
    assert changed(new)["a/new"]["best"] == {"knn/top1": 0.9}
    with open(partial / "metrics.jsonl", "a") as file:  # the run goes on
        file.write("\n" + json.dumps(rows(9)[-1]) + "\n")
    assert changed(partial, new)[str(partial.relative_to(OUTPUTS))]["metrics"][1] == 9.0
    Lock(partial).take()
    assert changed(partial, new)[str(partial.relative_to(OUTPUTS))]["state"] == "running"
    shutil.rmtree(partial / "claims")
    (partial / "results.json").write_text(results(partial.name, configuration(), knn_top1=0.25))
    assert changed(partial, new)[str(partial.relative_to(OUTPUTS))]["best"] == {"knn/top1": 0.25}
    (failed / "failed.json").unlink()
    assert changed(partial, new, failed)[str(failed.relative_to(OUTPUTS))]["state"] == "partial"
    text = (failed / "config.yaml").read_text()
    assert "epochs: 10" in text
    (failed / "config.yaml").write_text(text.replace("epochs: 10", "epochs: 20"))
    assert changed(partial, new, failed)[str(failed.relative_to(OUTPUTS))]["end"] == 20
    (done / "new").write_text(results(done.name, configuration(), knn_top1=0.125))
    (done / "new").replace(done / "results.json")
    assert changed(partial, new, failed, done)[str(done.relative_to(OUTPUTS))]["best"] == {"knn/top1": 0.125}
    record(OUTPUTS / ".sweeps/1", 7, ["seed=7"], Outcome.failed("late"))
    changed(partial, new, failed, done, OUTPUTS / ".sweeps/1/jobs/7.json")
    shutil.rmtree(done)
    assert str(done.relative_to(OUTPUTS)) not in changed(partial, new, failed)
    shutil.rmtree(OUTPUTS / "b")
    assert not [path for path in changed() if path.startswith("b")]
    shutil.rmtree(OUTPUTS / ".sweeps")
    assert all(one["grid"] is None for one in changed().values())


def test_few_changes_do_not_write_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "FEW", 4)  # a run is a change, and so is its configuration
    make_done("a/0")
    shown()
    assert not CACHE.exists()
    for number in range(1, 4):
        make_done(f"a/{number}", epochs=number)
    shown()
    assert CACHE.is_file()


def test_the_cache_has_what_is_there_and_nothing_else() -> None:
    scan = Scan(OUTPUTS)
    for number in range(3):
        make_done(f"a/{number}", epochs=number)
        scan.update(NOW)
    assert len(shown()) == 3
    shutil.rmtree(OUTPUTS / "a/0")
    make_done("a/3", epochs=4)
    finished(OUTPUTS)
    names = [name for name in json.loads(CACHE.read_bytes())["values"] if not name.startswith("config ")]
    assert sorted(names) == ["a/1", "a/2", "a/3"]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "garbage": lambda content: random.Random(0).randbytes(len(content)),
    "of another version": lambda content: content.replace(b'"version":"', b'"version":"0.'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_counts_as_none_and_is_replaced(damage: str, uncached: Uncached) -> None:
    make_many()
    expected = uncached()
    shown()
    content = CACHE.read_bytes()
    CACHE.write_bytes(DAMAGE[damage](content))
    assert shown() == expected and json.loads(CACHE.read_bytes()) == json.loads(content)


@pytest.mark.parametrize("place", ["folder", "no such folder"])
def test_a_cache_that_cannot_be_written_is_left_out(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_done("a/0")
    CACHE.mkdir()
    monkeypatch.setattr(cache, "NAME", {"folder": CACHE.name}.get(place, "no/such/folder"))
    before = {*OUTPUTS.rglob("*")}
    assert len(shown()) == 1 and {*OUTPUTS.rglob("*")} == before


def test_runs_that_differ_in_their_seed_only_share_a_configuration() -> None:
    def nested(seed: int, inner: int) -> dict[str, Any]:
        return {"seed": seed, "dataset": {"seed": inner, "deeper": {"seed": seed, "x": [1, {"seed": 3}]}}}

    for number, (seed, inner) in enumerate([(3, 3), (4, 4), (4, 5)]):
        make_done(f"a/{number}", **nested(seed, inner))
    first, second, third = finished(OUTPUTS)
    assert first.config is second.config and first.config_key == second.config_key != third.config_key
    assert first.config["seed"] is None
    assert first.config["dataset"] == {"seed": None, "deeper": {"seed": None, "x": [1, {"seed": 3}]}}
    assert [run.seed for run in (first, second, third)] == [3, 4, 4]


def test_finished_runs_are_those_with_results_at_any_depth() -> None:
    for seed in range(3):
        make_done(f"a/{seed}", seed / 10, seed=seed)
    make_done("b/other", seed=0, optimizer={"lr": 1})
    make_done("b/deep/down/0", 0.9, seed=0)  # the same run_id as a/0
    make("a/partial", rows(3))
    bare = OUTPUTS / "c/bare"
    (bare / "inside").mkdir(parents=True)
    (bare / "results.json").write_text(results("bare", {"seed": 5, "information": 2}, nats=1.5))  # no config.yaml
    (bare / "inside/results.json").write_text(results("inside", {}, nats=2))
    for name, text in {"list": "[]", "old": '{"metrics": {}}', "cut": "{", "number": '{"run_id": 1}'}.items():
        (OUTPUTS / "d" / name).mkdir(parents=True)
        (OUTPUTS / "d" / name / "results.json").write_text(text)
    for attempt in range(2):
        runs = finished(OUTPUTS)
        assert [str(run.folder.relative_to(OUTPUTS)) for run in runs] == [
            *("a/0", "a/1", "a/2", "b/other", "c/bare", "c/bare/inside"),
        ], attempt
        assert [run.run_id for run in runs] == ["0", "1", "2", "other", "bare", "inside"]
        assert [run.seed for run in runs] == [0, 1, 2, 0, 5, None]
        assert runs[1].metrics == {"knn/top1": 0.1, "knn_init/top1": 0.1} and runs[4].metrics == {"nats": 1.5}
        assert runs[0].config is runs[1].config is runs[2].config and runs[0].config is not runs[3].config
        assert runs[0].config == configuration(seed=None) and runs[4].config == {"seed": None, "information": 2}
        keys = [run.config_key for run in runs]
        assert len({*keys[:3]}) == 1 and len({*keys}) == 4
    assert len(shown()) == 6  # without those that have no config.yaml
    assert [run.run_id for run in finished(OUTPUTS)] == ["0", "1", "2", "other", "bare", "inside"]
