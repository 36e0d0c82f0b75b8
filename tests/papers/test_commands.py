"""``ssl-bench table``, ``figure`` and ``reproduce`` on made-up results, on tiny cells, and on a file of the user's."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssl_bench.commands import figure, reproduce, table
from ssl_bench.config.identity import run_id
from ssl_bench.papers import tables
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import Cell
from ssl_bench.record import runs
from tests.door.door import refused
from tests.papers.conftest import composed, content, write_result

Output = pytest.CaptureFixture[str]
ROW, COLUMN = "CIFAR-10 DCL", "256"
PLACE = ("dcl/table1", f"row={ROW}", f"col={COLUMN}")


def cell(name: str = "dcl/table1", row: str = ROW, column: str = COLUMN) -> Cell:
    return next(c for t in tables.find(name) for c in t.cells if (c.row, c.column) == (row, column))


def as_json(capsys: Output, *arguments: str) -> list[dict[str, Any]]:
    """The cells that ``ssl-bench table`` prints as JSON."""
    capsys.readouterr()
    assert table.main([*arguments, "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {"table", "title", "cite", "cells", "below"}
    cells: list[dict[str, Any]] = printed["cells"]
    return cells


def planned(capsys: Output, *arguments: str) -> list[list[str]]:
    """The words of the commands that ``ssl-bench reproduce --dry-run`` prints."""
    capsys.readouterr()
    assert reproduce.main([*arguments, "--dry-run"]) == 0
    return [shlex.split(line) for line in capsys.readouterr().out.splitlines() if line.startswith("ssl-bench")]


def trained_now(capsys: Output) -> int:
    return len(re.findall(r"^\d+ of \d+ ", capsys.readouterr().out, re.MULTILINE))


def test_a_cell_has_the_mean_the_deviation_and_the_number_of_its_finished_seeds(capsys: Output) -> None:
    for seed, top1 in enumerate((0.84, 0.85, 0.86)):
        write_result(cell(), seed, {"knn/top1": top1}, environment={"threads": 1 + (seed > 0)}, warnings=["w"][seed:])
    write_result(cell(), 2, {"knn/top1": 0.86}, outputs=Path("outputs/copy"))  # the same run again counts once
    cells = {(c["row"], c["column"]): c for c in as_json(capsys, "dcl/table1")}
    assert len(cells) == 40 and set(cells[ROW, COLUMN]) == {
        *("row", "column", "metric", "paper", "mean", "std", "n", "note", "project", "project_std", "project_n"),
        *("difference", "best"),
    }
    filled = cells[ROW, COLUMN]
    assert (filled["paper"], filled["n"], filled["metric"]) == (84.2, 3, "knn/top1")
    assert filled["mean"] == pytest.approx(85.0) and filled["std"] == pytest.approx(1.0)
    assert "threads (1, 2)" in filled["note"] and "seed 0: w" in filled["note"]
    empty = cells[ROW, "128"]
    assert (empty["paper"], empty["mean"], empty["std"], empty["n"]) == (84.4, None, None, 0)
    assert cells["STL-10 DCL", "128"]["paper"] is None
    again = as_json(capsys, "dcl/table2", "row=CIFAR-10", "col=DCL")[0]  # the same runs fill a cell of another table
    assert again["n"] == 3 and again["paper"] == 84.1


def test_a_run_of_other_settings_fills_the_cells_of_a_table_with_these_settings(capsys: Output) -> None:
    write_result(cell(), 0, {"knn/top1": 0.6}, "epochs=20")  # full scale, but another configuration
    for seed, top1 in enumerate((0.7, 0.72)):
        write_result(cell(), seed, {"knn/top1": top1}, "epochs=20", "scale=reduced")
    (empty,) = as_json(capsys, *PLACE)
    assert empty["mean"] is None and empty["n"] == 0
    (filled,) = as_json(capsys, *PLACE, "epochs=20")
    assert filled["mean"] == pytest.approx(71) and (filled["n"], filled["paper"]) == (2, 84.2)
    (full,) = as_json(capsys, *PLACE, "epochs=20", "scale=full")
    assert (full["mean"], full["n"]) == (60, 1)
    for wrong in ("epoch=20", "epochs=x", "device=cpu", "scale=half", "seed=1"):
        for command in (table.main, figure.main):
            assert command(["dcl/fig3", wrong]) == 2
            assert wrong.partition("=")[0] in capsys.readouterr().err
    assert table.main(["--claims", "dcl", "epochs=20"]) == 2 and "epochs=20" in capsys.readouterr().err


def test_a_run_that_sets_images_apart_fills_its_cell() -> None:
    """It records the 35,000 of 50,000 images that it trains on; a run on all of them is another one."""
    first = tables.find("dcl/small_batches")[0].cells[0]
    for images, found in ((50_000, {}), (35_000, {0: 60.0})):
        write_result(first, 0, {"knn/top1": 0.6}, f"dataset.train_images={images}")
        assert Results(Path("outputs"), [first]).values(first) == found


def test_a_dry_run_prints_the_commands_of_what_is_missing(capsys: Output) -> None:
    for seed in range(5):
        write_result(cell(column="32"), seed, {"knn/top1": 0.8})
    write_result(cell(column="64"), 1, {"knn/top1": 0.8})
    words = ["dcl/table1", f"row={ROW}", "col=[36][24]", "devices=8"]
    (command,) = planned(capsys, *words)
    assert command == ["ssl-bench", "train", "-m", *cell(column="64").overrides, "devices=8", "seed=0,2,3,4"]
    changed = planned(capsys, *words, "epochs=20", "seed=0")  # fills no cell of the paper
    assert len(changed) == 2 and all(each[-3:] == ["scale=reduced", "devices=8", "seed=0"] for each in changed)
    assert all("epochs=20" in each and "epochs=200" not in each for each in changed)
    assert len(planned(capsys, *words, "batch_size=b64", "seed=0")) == 1  # makes the two cells one run


@pytest.mark.slow
def test_an_interrupted_reproduction_goes_on_with_what_is_missing(tiny: Path, capsys: Output) -> None:
    assert reproduce.main(["tiny/table1", "col=infonce", "seed=0"]) == 0 and trained_now(capsys) == 1
    first = {path: path.stat().st_mtime_ns for path in Path("outputs").glob("tiny/*/results.json")}
    assert len(first) == 1
    assert reproduce.main(["tiny/table1", "col=infonce"]) == 0 and trained_now(capsys) == 1
    assert all(path.stat().st_mtime_ns == changed for path, changed in first.items())
    assert reproduce.main(["tiny/table1", "col=infonce"]) == 0 and trained_now(capsys) == 0
    filled = as_json(capsys, "tiny/table1", "row=digits")
    assert [c["n"] for c in filled] == [2, 0] and 0 < filled[0]["mean"] < 100 and filled[0]["paper"] == 50.0


@pytest.mark.slow
def test_a_launcher_trains_the_cells_as_one_grid(tiny: Path, capfd: Output) -> None:
    arguments = ["tiny/table1", "row=digits", "seed=0", "launcher=local", "launcher.jobs=2"]
    assert reproduce.main(arguments) == 0
    folders = [path.parent for path in Path("outputs").glob("*/*/results.json")]
    cells = [each for each in tables.find("tiny/table1")[0].cells if each.row == "digits"]
    assert {folder.name for folder in folders} == {run_id(composed(each.overrides)) for each in cells}
    (path,) = Path("outputs").glob("*/grid-*.json")
    assert json.loads(path.read_text())["command"] == shlex.join(["ssl-bench", "reproduce", *arguments])
    command = runs.read(folders[0]).command.split()
    assert command[:4] == ["ssl-bench", "train", "name=tiny", "dataset=scattered_digits"] and command[-1] == "seed=0"


@pytest.mark.slow
def test_a_network_that_two_cells_evaluate_is_trained_once_and_first_for_what_is_recorded_on_the_way(
    tiny: Path, capfd: Output
) -> None:
    paper = yaml.safe_load(tiny.read_text())
    table = paper["tables"]["table1"]
    table["columns"] = {"end": {"set": ["evaluate=[geometry]"], "metric": "geometry/effective_rank"}}
    table["columns"] |= {"way": {"set": ["evaluate.every=1"], "metric": "knn/top1@best"}}
    table["rows"] = {"digits": {"values": [1, 2]}}
    tiny.write_text(yaml.safe_dump(paper, sort_keys=False))
    assert reproduce.main(["tiny/table1", "seed=0", "launcher=local", "launcher.jobs=2"]) == 0
    (run,) = Path("outputs").glob("*/*/results.json")
    (table_now,) = tables.find("tiny/table1")
    results = Results(Path("outputs"), table_now.cells)
    assert [list(results.values(each)) for each in table_now.cells] == [[0], [0]]
    rows = [json.loads(line) for line in (run.parent / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == [1, 2]


# ---- files of the user's own


@pytest.fixture
def folder() -> Path:
    """``conf/papers/mine.yaml``, whose first cell needs a loss in ``conf/loss``."""
    path = Path("conf/papers/mine.yaml")
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(content(), sort_keys=False))
    Path("conf/loss").mkdir()
    Path("conf/loss/mine.yaml").write_text("_target_: ssl_bench.objective.losses.EqCo\nalpha: 17\n")
    return path


def numbers(capsys: Output, *words: str) -> list[int]:
    """How many runs fill each cell."""
    return [each["n"] for each in as_json(capsys, *words)]


def test_two_cells_are_planned_trained_and_shown(folder: Path, capsys: Output) -> None:
    words = [f"{folder}/table1", "--config-dir", "conf"]
    assert numbers(capsys, *words) == [0, 0]
    start = ["ssl-bench", "train", "-m", "--config-dir", "conf", "name=mine"]
    assert [each[:6] for each in planned(capsys, *words)] == [start] * 2
    assert table.main([*words, "--format", "md"]) == 0
    (command,) = re.findall("`ssl-bench reproduce (.*)`", capsys.readouterr().out)  # to paste
    assert len(planned(capsys, *shlex.split(command))) == 2
    assert reproduce.main(words) == 0
    assert numbers(capsys, *words) == [1, 1]
    paths = list(Path("outputs/mine").glob("*/results.json"))
    assert sorted(json.loads(path.read_text())["config"]["choices"]["loss"] for path in paths) == ["dcl", "mine"]
    assert figure.main([*words, "--out", "own.png"]) == 0 and Path("own.png").read_bytes()[1:4] == b"PNG"
    assert numbers(capsys, str(folder)) == [0, 1]  # without that option the first cell cannot be composed
    assert planned(capsys, *words) == []


def test_committed_numbers_and_claims_stand_beside_the_file(capsys: Output) -> None:
    known = content("dcl", columns={"DCL": {"set": ["loss=dcl"], "x": 2}}, rows={"digits": {"values": [50]}})
    claim = {"title": "t", "claim": "DCL is better.", "where": "table 1", "kind": "comparison", "minutes": 1}
    claim |= {"seeds": [0, 1], "seeds_because": "two", "criteria": [{"says": "s", "of": {}, "above": 0}]}
    known["claims"] = {"better": {**known["tables"]["table1"], **claim, "rows": {"digits": []}}}
    Path("a b/measured").mkdir(parents=True)
    Path("a b/dcl.yaml").write_text(yaml.safe_dump(known))  # the name of a paper of the package
    assert table.main(["--claims", "a b/dcl.yaml", "--format", "json"]) == 0
    assert [each["verdict"] for each in json.loads(capsys.readouterr().out)] == ["not run"]
    assert figure.main(["a b/dcl.yaml/claims"]) == 0 and Path("dcl-claims.png").exists()
    (only,) = tables.find("a b/dcl.yaml")[0].cells
    place = {"row": only.label, "column": only.column, "metric": only.metric, "seed": 0, "value": 12.5}
    Path("a b/measured/dcl_table1.json").write_text(json.dumps({"cells": [place]}))
    assert as_json(capsys, "a b/dcl.yaml")[0]["project"] == 12.5


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"paper": None}, "paper"),
        ({"paper": "yours"}, "paper=yours mine"),
        ({"cite": 3}, "cite=3"),
        ({"command": "train"}, "command"),
        ({"tables": None}, "tables"),
        ({"tables": {"a/b": content()["tables"]["table1"]}}, "name=a/b"),
        ({"tables": {"t": []}}, "mine/t []"),
        ({"title": None}, "mine/table1 title"),
        ({"colums": [1]}, "colums columns"),
        ({"columns": None}, "mine/table1 columns"),
        ({"rows": []}, "mine/table1 rows=[]"),
        ({"rows": {"a": {"values": [1]}}}, "mine/table1 2 1"),
        ({"metric": None}, "metric= name@50"),
        ({"seeds": 3}, "mine/table1 seeds=3 [0, 1, 2]"),
        ({"seeds": [-1]}, "mine/table1 digits seeds=[-1] 0"),
        ({"set": ["dataset"]}, "mine/table1 digits set=dataset"),
        ({"rows": {"a": {"values": ["much", 2]}}}, "mine/table1 a values=much"),
        ({"rows": {"a": {"values": ["1 hearsay", 2]}}}, "mine/table1 a.provenance=hearsay"),
        ({"rows": {"a": {"values": {"kNN": [1, 2]}}}}, "mine/table1 a values kNN metrics"),
        ({"rows": {"a": {"values": [[1], 2]}}}, "mine/table1 a is=[1]"),
        ({"x": {"doubling": True}}, "mine/table1 x label"),
        ({"columns": {"A": [], "B": []}}, "mine/table1 A x=A"),
    ],
)
def test_a_wrong_file_says_what_to_set(changed: dict[str, Any], names: str) -> None:
    top = {key: value for key, value in changed.items() if key in ("paper", "cite", "tables")}
    known = content(**{key: value for key, value in changed.items() if key not in top}) | top
    Path("mine.yaml").write_text(yaml.safe_dump(known))
    with refused(names):
        tables.find("mine.yaml")
