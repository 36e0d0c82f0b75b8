"""The caches of a results folder: they change how long ``ssl-bench status`` takes, and never what it shows."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ssl_bench import files
from ssl_bench.launch.claim import Claim
from ssl_bench.launch.grid import record
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.status import cache, runs
from ssl_bench.status.follow import Mark
from ssl_bench.status.labels import labels
from ssl_bench.status.runs import SEED, Run, Runs, finished, without_seed
from ssl_bench.status.scan import Scan
from ssl_bench.status.view import lines
from tests.status.folders import OUTPUTS, claim_elsewhere, configuration, make, make_grid, rows, touch

CACHE, RECORDS = OUTPUTS / ".runs.jsonl", OUTPUTS / ".sweeps/1/.records.jsonl"
NOW = time.time()


@pytest.fixture(autouse=True)
def written_for_every_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "FEW", 0)
    monkeypatch.setattr(cache, "SHARE", 0.0)


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
            one |= {"began": run.began, "config": run.config.text, "seed": run.seed, "seconds": run.seconds}
            one |= {"run_id": run.run_id, "results": run.results}
        found.append(one)
    return found


@pytest.fixture
def uncached(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, Any]]]:
    """Function that scans without caches."""

    def scan() -> list[dict[str, Any]]:
        with monkeypatch.context() as patch:
            patch.setattr(cache, "LARGEST", -1)
            patch.setattr(cache, "FEW", 10**6)
            return shown()

    return scan


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the runs, and of the records of grids, that are read from now on."""
    paths: list[str] = []
    read_run, read_json = Runs._read, files.read_json

    def run(self: Runs, path: str, start: str, marks: Sequence[Mark | None]) -> Run | None:
        paths.append(path)
        return read_run(self, path, start, marks)

    def record_of_grid(path: Path) -> Any:
        if path.parent.name == "jobs":
            paths.append(str(path.relative_to(OUTPUTS)))
        return read_json(path)

    monkeypatch.setattr(Runs, "_read", run)
    monkeypatch.setattr(files, "read_json", record_of_grid)
    return paths


Uncached = Callable[[], list[dict[str, Any]]]


@pytest.mark.parametrize("seed", range(3))
def test_a_scan_with_caches_gives_what_one_without_them_gives(seed: int, uncached: Uncached, read: list[str]) -> None:
    make_many(seed)
    expected = uncached()
    assert {str(one["state"].value) for one in expected} == {"done", "running", "partial", "failed", "waiting"}
    assert len(read) > 24 and not CACHE.exists() and not RECORDS.exists()
    assert shown() == expected and CACHE.is_file() and RECORDS.is_file()
    read.clear()
    written = CACHE.stat().st_ino, RECORDS.stat().st_ino
    assert shown() == expected and (CACHE.stat().st_ino, RECORDS.stat().st_ino) == written
    assert read == ["c"]  # it has a config.yaml that is none of ours


def test_whatever_changes_is_read_again(uncached: Uncached, read: list[str]) -> None:
    make_many()
    first = {one["path"]: one for one in shown() if "path" in one}
    by_state = {one["state"].value: OUTPUTS / path for path, one in first.items()}
    done, partial, failed = by_state["done"], by_state["partial"], by_state["failed"]

    def changed(*folders: Path) -> dict[str, dict[str, Any]]:
        read.clear()
        now = shown()
        assert {*read} <= {"c", *(str(folder.relative_to(OUTPUTS)) for folder in folders)}
        assert now == uncached()
        return {one["path"]: one for one in now if "path" in one}

    new = make_done("a/new", 0.9, seed=9)
    assert changed(new)["a/new"]["best"] == {"knn/top1": 0.9}
    with open(partial / "metrics.jsonl", "a") as file:  # the run goes on
        file.write("\n" + json.dumps(rows(9)[-1]) + "\n")
    assert changed(partial, new)[str(partial.relative_to(OUTPUTS))]["metrics"][1] == 9.0
    Claim(partial).take()
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


def test_few_changes_do_not_write_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "FEW", 2)
    monkeypatch.setattr(cache, "SHARE", 0.4)

    def inode_after(number: int) -> int | None:
        make_done(f"a/{number}")
        shown()
        return CACHE.stat().st_ino if CACHE.exists() else None

    assert [inode_after(number) for number in range(2)] == [None, None]
    third = inode_after(2)
    assert third is not None and inode_after(3) == inode_after(4) == third
    assert inode_after(5) not in (None, third)


def odd_values(content: bytes) -> bytes:
    """Each line of a cache once for each of its values, which is replaced by one of another type, or another number."""
    odd: Any
    made: list[Any] = []
    for line in map(json.loads, content.splitlines()):
        for place in range(len(line)) if isinstance(line, list) else ():
            for odd in (None, True, 0, -1, 10**30, float("nan"), "x", "\ud800", [], ["x"], {}, {"a": "b"}, {"a": []}):
                made.append([*line[:place], odd, *line[place + 1 :]])
        made += [line] if isinstance(line, dict) else [line[:-1], [*line, None]]
    return "\n".join(map(json.dumps, [*made, {"choices": 3}, 3, None, "text", []])).encode()


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "garbage": lambda content: random.Random(0).randbytes(len(content)),
    "one line": lambda content: content.replace(b"\n", b" "),
    "an enormous line": lambda content: b"[" * (2**22) + b"\n" + content,
    "nested": lambda content: b"\n".join([b"[" * 900 + b"]" * 900, b'{"a":' * 900 + b"1" + b"}" * 900]),
    "another order": lambda content: b"\n".join(reversed(content.splitlines())),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_line_counts_as_missing(damage: str, uncached: Uncached, read: list[str]) -> None:
    make_many()
    expected = uncached()
    shown()
    for path in (CACHE, RECORDS):
        path.write_bytes(DAMAGE[damage](path.read_bytes()))
    for _ in range(2):
        found = shown()
        assert [one | {"config": ""} for one in found] == [one | {"config": ""} for one in expected]
        assert [run.config["epochs"] for run in finished(OUTPUTS)]
    read.clear()
    assert shown() == found and read == ["c"]


def test_values_of_any_type_stop_no_command() -> None:
    make_many()
    grids = [one["grid"] for one in shown()]
    for path in (CACHE, RECORDS):
        path.write_bytes(odd_values(path.read_bytes()))
    assert [one["grid"] for one in shown()] == grids
    for path in (CACHE, RECORDS):
        path.write_bytes(odd_values(path.read_bytes()))
    entries, left = Scan(OUTPUTS).update(NOW)
    assert len(list(lines(OUTPUTS, entries, labels(entries), left))) > 24
    assert {type(run.run_id) for run in finished(OUTPUTS)} == {str}


PLACES = ("folder", "link to itself", "link to a file", "device", "pipe", "too large", "unwritable")


@pytest.mark.parametrize("place", PLACES)
def test_a_cache_that_cannot_be_used_is_left_out(
    place: str, uncached: Uncached, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_many()
    expected = uncached()
    Path("victim").write_text("text\n")
    for path in (CACHE, RECORDS):
        if place == "folder":
            (path / "inside").mkdir(parents=True)
        elif place == "pipe":
            os.mkfifo(path)
        elif place == "too large":
            with open(path, "wb") as file:
                file.truncate(2**40)  # a file with a hole
        elif place == "unwritable":
            monkeypatch.setattr(runs, "NAME", "no/such/folder/cache")
        else:
            targets: dict[str, str | Path] = {"link to itself": path.name, "link to a file": Path("victim").absolute()}
            path.symlink_to(targets.get(place, "/dev/zero"))
    before = {*OUTPUTS.rglob(".*")}
    assert shown() == expected and shown() == expected
    assert capfd.readouterr() == ("", "") and Path("victim").read_text() == "text\n"
    assert {*OUTPUTS.rglob(".*")} - before <= {CACHE, RECORDS, OUTPUTS / ".sweeps/2/.records.jsonl"}
    assert place in ("folder", "unwritable") or (CACHE.is_file() and not CACHE.is_symlink())


def test_processes_that_write_and_read_at_once() -> None:
    for number in range(100):
        make_done(f"a/{number:03d}", number / 100, seed=number)
    code = """
from pathlib import Path
from ssl_bench.status import cache
from ssl_bench.status.runs import Runs
cache.FEW, cache.SHARE = -1, -1.0
for _ in range(15):
    runs = Runs(Path("outputs")).find()
    assert sorted(run.results["knn/top1"] for run in runs) == [n / 100 for n in range(100)]
    assert len([*cache.load(Path("outputs/.runs.jsonl"))]) == 101
"""
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0, 0, 0, 0]
    assert [path.name for path in OUTPUTS.glob(".*")] == [".runs.jsonl"]


# ---- configurations


def test_runs_that_differ_in_their_seed_only_share_a_configuration() -> None:
    nested = {"dataset": {"seed": 3, "deeper": {"seed": 3, "x": [1, {"seed": 3}]}, "empty": {}, "none": None}}
    first, seed = without_seed({"seed": 3, **nested})
    assert seed == "3" and first.content["seed"] is None
    assert first.content["dataset"] == {
        **{"seed": None, "deeper": {"seed": None, "x": [1, {"seed": 3}]}, "empty": {}, "none": None},
    }
    assert first.settings["seed",] == first.settings["dataset", "deeper", "seed"] == SEED
    odd = "\"\0the run's seed"
    assert without_seed({"seed": 3, odd: odd})[0].content == {"seed": None, odd: odd}
    assert first.settings["dataset", "empty"] == "{}" and first.settings["dataset", "deeper", "x"] == '[1,{"seed":3}]'
    also = {"dataset": {"seed": 4, "deeper": {"seed": 4, "x": [1, {"seed": 3}]}, "empty": {}, "none": None}}
    assert without_seed({"seed": 4, **also})[0].key == first.key
    others: list[dict[str, Any]] = [
        {"seed": 4, **nested},
        {"seed": 3, "dataset": {"seed": None}},
        {"seed": 3, "dataset": {"seed": 3.0}},
        {"seed": 1, "dataset": {"seed": True}},
        {"dataset": {"seed": 3}},
        {},
    ]
    assert len({without_seed(config)[0].key for config in others} - {first.key}) == 6
    assert [without_seed(config)[1] for config in others] == ["4", "3", "3", "1", None, None]


# ---- finished runs


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
