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
from ssl_bench.record import cache
from ssl_bench.record.cache import VERSION
from ssl_bench.results.differing import labels
from ssl_bench.results.numbers import Numbers
from ssl_bench.results.runs import Runs, finished
from ssl_bench.results.scan import Scan
from tests.results.folders import OUTPUTS, claim_elsewhere, configuration, finish, make, make_grid, rows, touch

CACHE = OUTPUTS / ".runs.json"
NOW = time.time()
Uncached = Callable[[], list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def written_for_every_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "FEW_CHANGES", 0)


def make_done(name: str, top1: float = 0.5, **values: Any) -> Path:
    folder = make(name, rows(10), **values)
    finish(folder, 33.5, knn_top1=top1, knn_init_top1=0.1)
    return folder


def make_many() -> None:
    """Make runs in every state, single ones and those of two grids, and folders that are no runs."""
    generator = random.Random(0)
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
    for number, path in enumerate(sorted(OUTPUTS.rglob("*"), reverse=True)):
        if "claims" not in path.parts:
            touch(path, NOW - 5000 + number)


def shown() -> list[dict[str, Any]]:
    """Everything that is known of each entry."""
    entries, left = Scan(OUTPUTS).update(NOW)
    found, numbers = [], Numbers(entry.run for entry in entries if entry.run)
    for entry, label in zip(entries, labels(entries), strict=True):
        run, grid = entry.run, entry.grid
        one: dict[str, Any] = {"label": label, "state": entry.state, "left": entry.left, "all left": left}
        one |= {
            "best": numbers.main(run),
            "reason": entry.reason,
            "command": entry.command,
            "overrides": entry.overrides,
        }
        one |= {"grid": grid and (grid.path, grid.left, grid.at_work, entry.index)}
        found.append(one | ({**vars(run), "shared": run.config, "end": run.end} if run else {}))
    return found


@pytest.fixture
def uncached(monkeypatch: pytest.MonkeyPatch) -> Uncached:
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

    def run(self: Runs, path: str, start: str, again: bool) -> dict[str, Any]:
        paths.append(path)
        return read_run(self, path, start, again)

    def record_of_grid(path: str | Path, *shape: Any, **named: bool) -> Any:
        if Path(path).parent.name == "jobs":
            paths.append(str(Path(path).relative_to(OUTPUTS)))
        return read_json(path, *shape, **named)

    monkeypatch.setattr(Runs, "_read", run)
    monkeypatch.setattr(files, "read_json", record_of_grid)
    return paths


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
    by_state = {one["state"].value: one["path"] for one in shown() if "path" in one}
    done, partial, failed = by_state["done"], by_state["partial"], by_state["failed"]

    def changed(*paths: str) -> dict[str, dict[str, Any]]:
        """Return what is shown now, and check that only the files of these paths were read for it."""
        read.clear()
        now = shown()
        assert {*read} <= {*paths} and now == uncached()
        return {one["path"]: one for one in now if "path" in one}

    make_done("a/new", 0.9, seed=9)
    assert changed("a/new")["a/new"]["best"] == {"knn/top1": 0.9}
    with open(OUTPUTS / partial / "metrics.jsonl", "a") as file:  # the run goes on
        file.write("\n" + json.dumps(rows(9)[-1]) + "\n")
    assert changed(partial, "a/new")[partial]["epoch"] == 9.0
    Lock(OUTPUTS / partial).take()
    assert changed(partial)[partial]["state"] == "running"
    shutil.rmtree(OUTPUTS / partial / "claims")
    finish(OUTPUTS / partial, 1.0, knn_top1=0.25)
    assert changed(partial)[partial]["best"] == {"knn/top1": 0.25}
    (OUTPUTS / failed / "failed.json").unlink()
    assert changed(partial, failed)[failed]["state"] == "partial"
    finish(OUTPUTS / done, 1.0, knn_top1=0.125)
    assert changed(failed, done)[done]["best"] == {"knn/top1": 0.125}
    record(OUTPUTS / ".sweeps/1", 7, ["seed=7"], Outcome.failed("late"))
    changed(done, ".sweeps/1/jobs/7.json")
    shutil.rmtree(OUTPUTS / done)
    shutil.rmtree(OUTPUTS / ".sweeps")
    left = changed(".sweeps/1/jobs/7.json")
    assert done not in left and all(one["grid"] is None for one in left.values())


def test_the_cache_has_what_is_there_and_nothing_else() -> None:
    scan = Scan(OUTPUTS)
    for number in range(3):
        make_done(f"a/{number}", epochs=number)
        scan.update(NOW)
    shutil.rmtree(OUTPUTS / "a/0")
    make_done("a/3", epochs=4)
    finished(OUTPUTS)
    names = [name for name in json.loads(CACHE.read_bytes())["content"]["values"] if not name.startswith("config ")]
    assert sorted(names) == ["a/1", "a/2", "a/3"]


def test_a_damaged_cache_counts_as_none_and_is_replaced(uncached: Uncached) -> None:
    make_many()
    expected = uncached()
    shown()
    content = CACHE.read_bytes()
    shapes = (b"{}", b"[]", b'{"version":"%s","values":3}' % VERSION.encode(), content.replace(b":true", b":null"))
    for damaged in (b"", content[: len(content) // 2], content.replace(b'"version":"', b'"version":"0.'), *shapes):
        CACHE.write_bytes(damaged)
        assert shown() == expected and json.loads(CACHE.read_bytes()) == json.loads(content)
    CACHE.unlink()
    CACHE.mkdir()  # it cannot be written
    assert shown() == expected


def test_runs_that_differ_in_their_seed_only_share_a_configuration() -> None:
    for number, (seed, inner) in enumerate([(3, 3), (4, 4), (4, 5)]):
        deeper = {"seed": seed, "x": [1, {"seed": 3}]}
        make_done(f"a/{number}", seed=seed, dataset={"seed": inner, "deeper": deeper})
    first, second, third = finished(OUTPUTS)
    assert first.shared is second.shared is not third.shared
    assert first.config["seed"] is None
    assert first.config["dataset"] == {"seed": None, "deeper": {"seed": None, "x": [1, {"seed": 3}]}}
    assert [run.seed for run in (first, second, third)] == [3, 4, 4]


def test_finished_runs_are_those_with_results_at_any_depth() -> None:
    make_done("a/0", 0.1, seed=0)
    make_done("b/deep/down/0", 0.9, seed=0)  # the same run_id
    make("a/partial", rows(3))
    (make_done("c/bare", seed=5) / "config.yaml").unlink()
    for name, text in {"list": "[]", "old": '{"metrics": {}}', "cut": "{", "number": '{"run_id": 1}'}.items():
        (OUTPUTS / "d" / name).mkdir(parents=True)
        (OUTPUTS / "d" / name / "results.json").write_text(text)
    for _ in range(2):
        runs = finished(OUTPUTS)
        assert [(run.path, run.run_id, run.seed) for run in runs] == [("a/0", "0", 0), ("c/bare", "bare", 5)]
        assert Numbers(runs).of(runs[0]) == {"knn/top1": 0.1, "knn_init/top1": 0.1}
        assert runs[0].config == configuration(seed=None)
    assert [one["path"] for one in shown()] == ["a/0", "a/partial", "b/deep/down/0", "c/bare"]
