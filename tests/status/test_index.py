"""The index of a results folder: it changes how long ``ssl-bench status`` takes, and never what it shows."""

import contextlib
import json
import random
import shutil
import sqlite3
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ssl_bench.launch.claim import Claim
from ssl_bench.launch.grid import record
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.status import index
from ssl_bench.status.configs import Configs
from ssl_bench.status.entries import RunFolder
from ssl_bench.status.index import Index, finished
from ssl_bench.status.labels import labels
from ssl_bench.status.scan import Scan
from tests.status.folders import OUTPUTS, claim_elsewhere, configuration, make, make_grid, rows, touch

INDEX = OUTPUTS / ".index.sqlite"
NOW = time.time()


@pytest.fixture(autouse=True)
def written_for_every_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "FEW", 0)
    monkeypatch.setattr(index, "SHARE", 0.0)


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
            one |= {"began": run.began, "config": run.config.with_seed(run.seed), "seconds": run.seconds}
            one |= {"run_id": run.run_id, "results": run.results}
        found.append(one)
    return found


@pytest.fixture
def without_index(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, Any]]]:
    """Function that scans without the index."""

    def scan() -> list[dict[str, Any]]:
        with monkeypatch.context() as patch:
            patch.setattr(index, "NAME", "no/such/folder")
            return shown()

    return scan


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the runs whose configuration is read, from now on."""
    paths: list[str] = []
    unchanged = RunFolder._read

    def counted(run: RunFolder, configs: Configs, start: str) -> bool:
        paths.append(run.path)
        return unchanged(run, configs, start)

    monkeypatch.setattr(RunFolder, "_read", counted)
    return paths


Plain = Callable[[], list[dict[str, Any]]]


@pytest.mark.parametrize("seed", range(3))
def test_the_index_gives_what_a_scan_without_it_gives(seed: int, without_index: Plain, read: list[str]) -> None:
    make_many(seed)
    expected = without_index()
    assert {str(one["state"].value) for one in expected} == {"done", "running", "partial", "failed", "waiting"}
    assert len(read) > 24 and not INDEX.exists()
    assert shown() == expected and INDEX.is_file()
    read.clear()
    written = INDEX.stat().st_ino
    assert shown() == expected and INDEX.stat().st_ino == written
    assert read == ["c"]  # it has a config.yaml that is none of ours


def test_whatever_changes_is_read_again(without_index: Plain, read: list[str]) -> None:
    make_many()
    first = {one["path"]: one for one in shown() if "path" in one}
    by_state = {one["state"].value: OUTPUTS / path for path, one in first.items()}
    done, partial, failed = by_state["done"], by_state["partial"], by_state["failed"]

    def changed(*folders: Path) -> dict[str, dict[str, Any]]:
        read.clear()
        now = shown()
        assert {*read} <= {"c", *(str(folder.relative_to(OUTPUTS)) for folder in folders)}
        assert now == without_index()
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
    changed(partial, new, failed, done)
    shutil.rmtree(done)
    assert str(done.relative_to(OUTPUTS)) not in changed(partial, new, failed)
    age()
    shutil.rmtree(OUTPUTS / "b")
    assert not [path for path in changed(*OUTPUTS.glob("a/*")) if path.startswith("b")]
    shutil.rmtree(OUTPUTS / ".sweeps")
    assert all(one["grid"] is None for one in changed(*OUTPUTS.glob("a/*")).values())


def test_a_young_folder_is_not_trusted(read: list[str]) -> None:
    age(make_done("a/old").parent)
    make_done("a/young")
    touch(OUTPUTS / "a/young", NOW - 5)
    for _ in range(2):
        read.clear()
        assert len(Index(OUTPUTS).runs(NOW)) == 2
        found = Index(OUTPUTS)
        found.runs(NOW)
        found.save(NOW)
    assert read == ["a/young", "a/young"]


def test_few_changes_do_not_write_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "FEW", 2)
    monkeypatch.setattr(index, "SHARE", 0.4)

    def inode_after(number: int) -> int | None:
        age(make_done(f"a/{number}"))
        shown()
        return INDEX.stat().st_ino if INDEX.exists() else None

    assert [inode_after(number) for number in range(2)] == [None, None]
    third = inode_after(2)
    assert third is not None and inode_after(3) == inode_after(4) == third
    assert inode_after(5) not in (None, third)


def sealed(content: bytes) -> bytes:
    return content[: index.SEAL.start] + index._seal(content) + content[index.SEAL.stop :]


def after(*statements: str) -> Callable[[bytes], bytes]:
    """An index whose content was changed by SQL, with the right checksum."""

    def change(content: bytes) -> bytes:
        path = Path("changed.sqlite")
        path.write_bytes(content)
        with contextlib.closing(sqlite3.connect(path)) as file, file:
            for statement in statements:
                file.execute(statement)
        return sealed(path.read_bytes())

    return change


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "cut by one": lambda content: content[:-1],
    "changed": lambda content: content.replace(b"knn/top1", b"knn/top5", 1),
    "garbage": lambda content: random.Random(0).randbytes(len(content)),
    "another version": lambda content: (
        content[:60] + zlib.crc32(content[100:], index.VERSION + 1).to_bytes(4, "big") + content[64:]
    ),
    "sealed nonsense": lambda content: sealed(content[:100] + random.Random(0).randbytes(len(content) - 100)),
    "no database": lambda content: sealed(bytes(5000)),
    "no tables": after(*(f"drop table {table}" for table in index.TABLES)),
    "wrong types": after("update runs set path = 7"),
    "wrong values": after("update runs set done = 'yes'"),
    "no such configuration": after("update runs set config = 999"),
    "no JSON": after("update grids set content = '{'"),
    "no column": after("alter table runs drop column final_json"),
    "wrong grid": after("""update grids set content = replace(content, '"runs"', '"walks"')"""),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_index_is_made_again(damage: str, without_index: Plain, read: list[str]) -> None:
    make_many()
    expected = without_index()
    shown()
    good = INDEX.read_bytes()
    INDEX.write_bytes(DAMAGE[damage](good))
    assert INDEX.read_bytes() != good
    assert shown() == expected
    read.clear()
    assert shown() == expected and read == ["c"]


@pytest.mark.parametrize("place", ["folder", "unreadable", "unwritable", "deleted"])
def test_an_index_that_cannot_be_used_is_left_out(
    place: str, without_index: Plain, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_many()
    expected = without_index()
    shown()
    INDEX.unlink()
    if place == "folder":
        (INDEX / "inside").mkdir(parents=True)
    elif place == "unreadable":
        INDEX.symlink_to(INDEX.name)  # a chain of links without an end
    elif place == "unwritable":
        monkeypatch.setattr(index, "NAME", "no/such/folder/index")
    before = sorted(OUTPUTS.glob(".*"))
    assert shown() == expected and shown() == expected
    assert capfd.readouterr() == ("", "")
    assert {*OUTPUTS.glob(".*")} - {*before} <= {INDEX}


def test_processes_that_write_and_read_at_once() -> None:
    for number in range(100):
        make_done(f"a/{number:03d}", number / 100, seed=number)
    age()
    code = f"""
import time, zlib
from pathlib import Path
from ssl_bench.status import index
index.FEW, index.SHARE = -1, -1.0
for _ in range(15):
    found = index.Index(Path("outputs"))
    runs = found.runs({NOW})
    found.save({NOW})
    assert sorted(run.final["knn/top1"] for run in runs) == [n / 100 for n in range(100)]
    content = Path("outputs/.index.sqlite").read_bytes()
    assert content[60:64] == zlib.crc32(content[100:], index.VERSION).to_bytes(4, "big")
"""
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0, 0, 0, 0]
    assert [path.name for path in OUTPUTS.glob(".*")] == [".index.sqlite"]
    with contextlib.closing(sqlite3.connect(INDEX)) as file:
        assert file.execute("pragma integrity_check").fetchall() == [("ok",)]


# ---- configurations


def test_configurations_are_restored_exactly() -> None:
    nested = {"dataset": {"seed": 3, "deeper": {"seed": 3, "x": [1, {"seed": 3}]}, "empty": {}, "none": None}}
    configs: list[dict[str, Any]] = [
        {"seed": 3, **nested},
        {"seed": 4, **nested},
        {"seed": 4, "dataset": {"seed": 4, "deeper": {"seed": 4, "x": [1, {"seed": 3}]}, "empty": {}, "none": None}},
        {"seed": 3, "dataset": {"seed": None}},
        {"seed": 3, "dataset": {"seed": 3.0}},
        {"seed": 1, "dataset": {"seed": True}},
        {"seed": None, "dataset": {"seed": None, "b": 1, "a": 2}},
        {"seed": [1, 2], "dataset": {"seed": [1, 2]}},
        {"dataset": {"seed": 3}},
        {"seed": "x", "lr": 0.1, "wide": 1e300, "text": 'é "\n', "yes": True},
        {},
    ]
    pool = Configs()
    added = [pool.add(config) for config in configs]
    settings = json.loads(json.dumps(pool.settings))
    again = Configs([(tuple(path), value) for path, value in settings], [config.text for config in pool.known])
    for config, (shared, seed) in zip(configs, added, strict=True):
        for restored in (shared.with_seed(seed), again.known[shared.key].with_seed(seed)):
            assert json.dumps(restored) == json.dumps(config)  # the order of the keys too
    assert [shared.key for shared, _ in added] == [0, 1, 0, 2, 3, 4, 5, 6, 7, 8, 9]
    assert added[0][0].seedless["seed"] is None and added[0][0].seedless["dataset"]["deeper"]["seed"] is None
    assert added[3][0].seedless == {"seed": None, "dataset": {"seed": None}}
    assert again.add(configs[2])[0] is again.known[0]


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
    age()
    for attempt in range(2):
        runs = finished(OUTPUTS)
        assert INDEX.is_file()
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
