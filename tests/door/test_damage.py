"""Damage of every file that is read back: a command carries on or names the file, and no number is a wrong one.

The damages are drawn from a seed. One run and one grid are trained once; each damage is made in a copy of them.
"""

import copy
import itertools
import json
import os
import random
import shutil
import socket
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import ssl_bench
from ssl_bench import files
from ssl_bench.record import folders, results
from ssl_bench.train import main
from tests.conftest import SMALL, no_pictures
from tests.door.door import enter

COMMON = [o for o in SMALL if not o.startswith("evaluate")] + ["dataset=scattered_digits", "max_steps=2"]
COMMON += ["evaluate=[knn]", "evaluate.knn.k=5"]
RUN = ["train", *COMMON, "name=r", "seed=7"]
GRID = ["train", *COMMON, "-m", "name=g", "seed=0,1"]
TABLE = {"title": "t", "metric": "knn/top1", "set": COMMON, "seeds": [0, 1], "columns": {"simclr": []}}
PAPER = {
    "paper": "tiny",
    "title": "t",
    "cite": "nobody",
    "tables": {"table1": TABLE | {"rows": {"digits": {"values": [50.0]}}}},
}
ODD: list[Any] = [None, True, 0, -1, 7, 2**70, 0.5, float("nan"), float("inf"), 1e300, "", "x", "\ud800", [], {}]
ODD += [[1], ["x"], {"x": 1}, [[]], {"x": {"x": []}}]


def changed(value: Any, draw: random.Random) -> Any:
    """``value`` with a part at a random place replaced, removed, repeated or put into a list."""
    if draw.random() < 0.3 or not isinstance(value, dict | list) or not value:
        return draw.choice([*ODD, [value], {"x": value}])
    changed_value: Any = copy.copy(value)
    key: Any = draw.choice(list(value) if isinstance(value, dict) else range(len(value)))
    if draw.random() < 0.15:
        del changed_value[key]
    elif draw.random() < 0.1 and isinstance(value, list):
        changed_value.append(value[key])
    else:
        changed_value[key] = changed(value[key], draw)
    return changed_value


def reshaped(path: Path, content: bytes, draw: random.Random) -> bytes:
    """The content with another shape, still of the file's format."""
    if path.suffix == ".yaml":
        return yaml.safe_dump(json.loads(json.dumps(changed(yaml.safe_load(content), draw)))).encode(errors="replace")
    if path.suffix == ".jsonl":
        lines = content.splitlines(keepends=True)
        place = draw.randrange(len(lines))
        lines[place] = json.dumps(changed(json.loads(lines[place]), draw)).encode() + b"\n"
        return b"".join(lines)
    return json.dumps(changed(json.loads(content), draw)).encode() if path.suffix != ".txt" else b"\0'"


def damage(path: Path, draw: random.Random) -> str:
    """Damage a file in one of many ways; return which."""
    content = path.read_bytes()
    kinds = ["cut", "bytes", "bytes", *["shape"] * 5, "odd", "directory", "pipe", "link"]
    match kind := draw.choice(kinds):
        case "cut":
            path.write_bytes(content[: draw.randrange(len(content))])
        case "bytes":
            array = bytearray(content)
            for _ in range(draw.randint(1, 8)):
                array[draw.randrange(len(array))] = draw.choice([draw.randrange(256), *b'0123456789{}[],:" \n'])
            path.write_bytes(array)
        case "shape":
            path.write_bytes(reshaped(path, content, draw))
        case "odd":
            path.write_bytes(draw.choice([b"", b"null", b"[]", b"3", b'"x"', b"{}", b"\xff\xfe", b"[" * 5000, b"NaN"]))
        case _:
            path.unlink()
            {"directory": path.mkdir, "pipe": lambda: os.mkfifo(path), "link": lambda: path.symlink_to("no")}[kind]()
    return kind


# ---- the runs


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a run, a grid, a paper whose table the grid fills, and all the files that are read back."""
    before, folder = Path.cwd(), tmp_path_factory.mktemp("whole")
    os.chdir(folder)
    with no_pictures(), pytest.MonkeyPatch.context() as context:
        environment(context, folder)
        Path("papers/measured").mkdir(parents=True)
        Path("papers/tiny.yaml").write_text(yaml.safe_dump(PAPER))
        number = {"row": "digits", "column": "simclr", "metric": "knn/top1", "value": 50.0, "seed": 0}
        files.write_json(Path("papers/measured/tiny_table1.json"), {"errata": "none", "cells": [number]})
        for command in (RUN, GRID, ["train", *COMMON, "name=failed", "seed=8"]):
            assert main(command[1:]) == 0
        (failed,) = Path("outputs/failed").iterdir()
        (failed / "results.json").unlink()
        files.write_json(failed / "failed.json", {"reason": "no", "detail": ""})
        (failed / "claims").mkdir()
        owner = {"host": "elsewhere", "pid": 7, "since": 1e9, "machine": "elsewhere", "born": "1"}
        files.write_json(failed / "claims/1", owner)
        os.utime(failed / "claims/1", (1e9, 1e9))
        speed = {"section": "speed", "name": "resnet18 32px", "values": {"images_s": 9.0, "gflop_per_image": 1.0}}
        checked = Path(f"outputs/checks/{socket.gethostname()}-1/check.json")
        checked.parent.mkdir(parents=True)
        files.write_json(checked, {"machine": "here", "gpus": 0, "findings": [speed]})
    os.chdir(before)
    yield folder


def environment(context: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the caches and the papers be those of the folder, and the status keep its cache of few files."""
    context.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    context.setenv("SSL_BENCH_PAPERS", str(folder / "papers"))
    context.setattr("ssl_bench.record.cache.FEW_CHANGES", 0)


TARGETS = [
    *["outputs/r/*/results.json"] * 6,
    *["outputs/g/*/results.json"] * 2,
    *["outputs/r/*/config.yaml"] * 3,
    *["outputs/r/*/metrics.jsonl"] * 2,
    "outputs/r/*/command.txt",
    "outputs/failed/*/failed.json",
    "outputs/failed/*/config.yaml",
    "outputs/failed/*/metrics.jsonl",
    "outputs/failed/*/claims/1",
    *["outputs/.baselines/*.json"] * 2,
    *["outputs/.runs.json"] * 2,
    "outputs/.sweeps/*/grid.json",
    "outputs/.sweeps/*/jobs/*.json",
    "outputs/checks/*/check.json",
    "papers/measured/*.json",
    "cache/ssl_bench/compositions*.json",
]


class Case:
    """Damaged runs, and the commands that are tried on them."""

    def __init__(self, number: int, whole: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.draw, self.folder, self.capfd = random.Random(number), folder, capfd
        shutil.copytree(whole, folder)
        os.chdir(folder)
        self.truth = {path.parent.name: json.loads(path.read_bytes())["metrics"] for path in self.results()}
        (self.run,), self.name = Path("outputs/r").iterdir(), ""

    @staticmethod
    def results() -> list[Path]:
        return sorted(Path().glob("outputs/*/*/results.json"))

    def break_one(self) -> None:
        """Damage a file; a cache is filled before."""
        target = self.draw.choice(TARGETS)
        if "runs.json" in target:
            self.enter("status --json")
            folders._index.cache_clear()
        if "cache" in target:
            self.enter("table tiny/table1 --format json")
        path = self.draw.choice(sorted(Path().glob(target)))
        if ".baselines" in target:
            (self.run / "results.json").unlink()
        self.name = f"{damage(path, self.draw)} of {path}"

    def enter(self, command: str) -> tuple[int, str]:
        with no_pictures():
            answer = enter(command, self.capfd)
        lines = answer.err.splitlines()
        assert answer.code in (0, 1, 2) and "Traceback" not in answer.out, (self.name, command, answer)
        assert all(line.startswith("ssl-bench: ") for line in lines), (self.name, command, answer)
        assert len(lines) <= 3 and (answer.code == 0 or lines), (self.name, command, answer)
        return answer.code, answer.out

    def is_true(self, run: str, metrics: dict[str, Any]) -> None:
        """Assert that the numbers are those of the run."""
        for name, value in metrics.items():
            if name in self.truth.get(Path(run).name, {}) and value is not None and value == value:
                assert value == self.truth[Path(run).name][name], (self.name, run, name, value)

    def look(self) -> None:
        """List the runs, in a command and in Python."""
        code, out = self.enter("status --json")
        assert code == 0
        for record in json.loads(out):
            if record["state"] == "done":
                self.is_true(record["folder"], record["best"])
        for row in ssl_bench.runs().to_dict("records"):
            if row["state"] == "done":
                self.is_true(row["path"], row)
        self.capfd.readouterr()

    def fill(self) -> None:
        """Fill a table by the runs, and read them by some other commands."""
        code, out = self.enter("table tiny/table1 --format json")
        if code == 0:
            seeds = [100 * metrics["knn/top1"] for metrics in self.truth.values()]
            (cell,) = json.loads(out)["cells"]
            possible = [statistics.mean(some) for n in (1, 2, 3) for some in itertools.combinations(seeds, n)]
            assert cell["mean"] in (None, *map(pytest.approx, possible)), (self.name, cell["mean"], possible)
        more = ["status", "status --csv", "report", "reproduce tiny/table1 --dry-run", "table tiny/table1"]
        for command in self.draw.sample(more, 2):
            self.enter(command)

    def use(self) -> None:
        """Evaluate and export the run, train it and the grid again: the numbers are the same ones as before."""
        other = self.draw.choice([f"evaluate {self.run}", f"export {self.run} --out exported", ""])
        if other:
            self.enter(other)
        grid = "/g/" in self.name or ".sweeps" in self.name
        command = " ".join(GRID if grid else RUN)
        if self.enter(command)[0]:  # the file is in the way, and was named: without it the run goes on
            path = Path(self.name.partition(" of ")[2])
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            assert self.enter(command)[0] == 0, self.name
        for run in Path("outputs/g" if grid else "outputs/r").iterdir():
            content = results.read(run)
            assert content is not None and self.truth[run.name].items() <= content["metrics"].items(), self.name


@pytest.fixture
def try_out(whole: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Function that makes the damage of a number in a copy of the runs, and tries all commands."""

    def one(number: int) -> None:
        folder = Path.cwd() / str(number)
        before = Path.cwd()
        environment(monkeypatch, folder)
        case = Case(number, whole, folder, capfd)
        try:
            case.break_one()
            case.look()
            case.fill()
            case.use()
            case.look()
        except BaseException as error:
            error.add_note(f"damage {number}: {case.name}")
            raise
        finally:
            os.chdir(before)
            shutil.rmtree(folder)

    return one


@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", [pytest.param(n, marks=pytest.mark.exhaustive if n else ()) for n in range(38)])
def test_damages_drawn_from_a_seed(block: int, try_out: Callable[[int], None]) -> None:
    """304 damages in all."""
    for number in range(8 * block, 8 * (block + 1)):
        try_out(number)
