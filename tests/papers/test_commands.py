"""``ssl-bench table``, ``figure`` and ``reproduce`` on made-up results and on a made-up paper of tiny cells."""

import contextlib
import csv
import io
import json
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssl_bench.commands import figure, reproduce, table
from ssl_bench.config.identity import run_id
from ssl_bench.papers import tables
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import Cell
from ssl_bench.papers.drawing import draw
from ssl_bench.papers.fill import fill
from ssl_bench.record import runs
from tests.evaluated import with_evaluations
from tests.papers.conftest import cell_run_id, composed
from tests.ranks import wait_for

Output = pytest.CaptureFixture[str]
ROW, COLUMN = "CIFAR-10 DCL", "256"


def cell(name: str = "dcl/table1", row: str = ROW, column: str = COLUMN) -> Cell:
    return next(c for t in tables.find(name) for c in t.cells if (c.row, c.column) == (row, column))


def write_result(
    of: Cell,
    seed: int,
    metrics: dict[str, float],
    *extra: str,
    outputs: Path = Path("outputs"),
    **written: Any,
) -> Path:
    """Write the results.json of a run with the overrides of a cell, and what else is ``written``."""
    config = composed([*of.overrides, *extra], seed)
    folder = outputs / config["name"] / run_id(config)
    folder.mkdir(parents=True, exist_ok=True)
    record = {"run_id": folder.name, "name": config["name"], "config": config, "metrics": metrics, "seconds": 1.0}
    record |= written
    (folder / "results.json").write_text(json.dumps(with_evaluations(record)))
    return folder


def as_json(capsys: Output, *arguments: str) -> list[dict[str, Any]]:
    """The cells that ``ssl-bench table`` prints as JSON."""
    capsys.readouterr()
    assert table.main([*arguments, "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {"table", "title", "cite", "cells", "below"}
    cells: list[dict[str, Any]] = printed["cells"]
    return cells


def test_a_cell_has_the_mean_the_deviation_and_the_number_of_its_finished_seeds(capsys: Output) -> None:
    for seed, top1 in enumerate((0.84, 0.85, 0.86)):
        write_result(cell(), seed, {"knn/top1": top1})
    write_result(cell(), 0, {"knn/top1": 0.84}, outputs=Path("outputs/copy"))  # the same run again counts once
    cells = {(c["row"], c["column"]): c for c in as_json(capsys, "dcl/table1")}
    assert len(cells) == 40 and set(cells[ROW, COLUMN]) == {
        *("row", "column", "metric", "paper", "mean", "std", "n", "note", "project", "project_std", "project_n"),
        *("difference", "best"),
    }
    filled = cells[ROW, COLUMN]
    assert (filled["paper"], filled["n"], filled["note"], filled["metric"]) == (84.2, 3, None, "knn/top1")
    assert filled["mean"] == pytest.approx(85.0) and filled["std"] == pytest.approx(1.0)
    empty = cells[ROW, "128"]
    assert (empty["paper"], empty["mean"], empty["std"], empty["n"]) == (84.4, None, None, 0)
    assert cells["STL-10 DCL", "128"]["paper"] is None
    again = as_json(capsys, "dcl/table2", "row=CIFAR-10", "col=DCL")[0]  # the same runs fill a cell of another table
    assert again["n"] == 3 and again["paper"] == 84.1
    assert table.main(["dcl/table1", f"row={ROW}", "--format", "csv"]) == 0
    (row,) = [row for row in csv.DictReader(io.StringIO(capsys.readouterr().out)) if row["column"] == COLUMN]
    assert list(row) == ["table", *filled, "about"] and (row["table"], row["paper"], row["n"]) == (
        "dcl/table1",
        "84.2",
        "3",
    )
    assert float(row["mean"]) == pytest.approx(85.0)
    assert table.main(["dcl/fig3", "--format", "json"]) == 0
    assert [one["table"] for one in json.loads(capsys.readouterr().out)] == ["dcl/fig3a", "dcl/fig3b"]


def test_a_run_of_other_settings_fills_the_cells_of_a_table_with_these_settings(capsys: Output) -> None:
    write_result(cell(), 0, {"knn/top1": 0.6}, "epochs=20")  # full scale, but another configuration
    for seed, top1 in enumerate((0.7, 0.72)):
        write_result(cell(), seed, {"knn/top1": top1}, "epochs=20", "scale=reduced")
    place = ("dcl/table1", f"row={ROW}", f"col={COLUMN}")
    (empty,) = as_json(capsys, *place)
    assert empty["mean"] is None and empty["n"] == 0
    (filled,) = as_json(capsys, *place, "epochs=20")
    assert filled["mean"] == pytest.approx(71) and (filled["n"], filled["paper"]) == (2, 84.2)
    (full,) = as_json(capsys, *place, "epochs=20", "scale=full")
    assert (full["mean"], full["n"]) == (60, 1)
    assert table.main([*place, "epochs=20", "--format", "md"]) == 0
    printed = capsys.readouterr().out
    assert "## dcl/table1: " in printed and "\nOurs: with epochs=20 scale=reduced " in printed
    assert table.main(["dcl/table1", "epochs=20", "--format", "md"]) == 0
    assert "`ssl-bench reproduce dcl/table1 epochs=20 scale=reduced`: " in capsys.readouterr().out
    for wrong in ("epoch=20", "epochs=x", "device=cpu", "scale=half", "seed=1"):
        for command in (table.main, figure.main):
            assert command(["dcl/fig3", wrong]) == 2
            assert wrong.partition("=")[0] in capsys.readouterr().err
    assert table.main(["--claims", "dcl", "epochs=20"]) == 2 and "epochs=20" in capsys.readouterr().err


def test_a_cell_says_what_its_mean_mixes_and_what_its_runs_warn_of(capsys: Output) -> None:
    for seed, threads in enumerate((1, 2)):
        write_result(cell(), seed, {"knn/top1": 0.84}, environment={"threads": threads, "torch": "2.6.0"})
    warning = "knn/top1 is below that of its initialisation"
    write_result(cell(), 2, {"knn/top1": 0.84}, environment={"threads": 2, "torch": "2.6.0"}, warnings=[warning])
    assert table.main(["dcl/table1", f"row={ROW}", f"col={COLUMN}", "--format", "md"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "|  | ours | 84.00 ± 0.00 (3)<sup>1, 2</sup> |" in lines
    mixed = "mean over runs with different threads (1, 2)"
    assert {f"<sup>1</sup> {mixed}", f"<sup>2</sup> seed 2: {warning}"} <= {*lines}
    (filled,) = as_json(capsys, "dcl/table1", f"row={ROW}", f"col={COLUMN}")
    assert filled["note"] == f"{mixed}; seed 2: {warning}"


@pytest.mark.slow
def test_a_figure_is_drawn_over_the_papers_points(capsys: Output) -> None:
    write_result(cell("dcl/fig3a", "DCL", "256"), 0, {"linear_opensel/layer4_top1": 0.66})
    assert figure.main(["dcl/fig3", "--out", "fig.png"]) == 0
    assert Path("fig.png").read_bytes()[1:4] == b"PNG"
    both = tables.find("dcl/fig3")
    results = Results(Path("outputs"), [cell for table in both for cell in table.cells])
    left, right = draw([(t, fill(t, t.cells, results)) for t in both], results).axes
    assert left.get_title().startswith("dcl/fig3a\n")
    assert left.get_xlabel() == "batch size (images)" and left.get_ylabel() == "top-1 accuracy (%)"
    legend = left.get_legend()
    assert legend is not None
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["SimCLR (paper)", "DCL (paper)", "DCL"] and right.get_xscale() == "log"
    assert left.get_ylim() == right.get_ylim()
    assert figure.main(["less/fig1a", "--out", "empty.pdf"]) == 0  # no numbers at all


def test_a_dry_run_prints_the_commands_of_what_is_missing(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_BENCH_DATA", raising=False)
    for seed in range(5):
        write_result(cell(column="32"), seed, {"knn/top1": 0.8})
    write_result(cell(column="64"), 1, {"knn/top1": 0.8})
    arguments = ["dcl/table1", f"row={ROW}", "col=[36][24]", "devices=8", "--dry-run"]
    assert reproduce.main(arguments) == 0
    out = capsys.readouterr().out
    assert "   1 cells  done" in out and "1/5 seeds  dcl/table1 CIFAR-10 DCL | 64" in out
    assert "4 runs to go in 1 cells, 624,800 steps" in out and "data missing: dataset=cifar10" in out
    (line,) = [x for x in out.splitlines() if x.startswith("ssl-bench")]
    assert shlex.split(line)[3:] == [*cell(column="64").overrides, "devices=8", "seed=0,2,3,4"]
    assert reproduce.main([*arguments, "epochs=20", "seed=0"]) == 0
    out = capsys.readouterr().out
    assert "count as scale=reduced" in out and "epochs=20 " in out and "epochs=200" not in out
    assert "scale=reduced devices=8 seed=0" in out
    assert reproduce.main([*arguments, "epochs=20", "scale=reduced"]) == 0
    assert "count as scale=reduced" not in capsys.readouterr().out
    assert reproduce.main([*arguments, "batch_size=b64", "seed=0"]) == 0  # makes the two cells one run
    assert "1 runs to go in 1 cells" in capsys.readouterr().out


@pytest.mark.slow
def test_an_interrupted_reproduction_goes_on_with_what_is_missing(tiny: None, capsys: Output) -> None:
    assert reproduce.main(["tiny/table1", "col=infonce", "seed=0"]) == 0
    out = capsys.readouterr().out
    assert "not available: needs npid" in out and "not available: dataset=nowhere: there is no such option" in out
    assert "1 runs to go in 1 cells" in out and "1 trained, 0 done before, 0 failed" in out
    trained = {path: path.stat().st_mtime_ns for path in Path("outputs").glob("tiny/*/results.json")}
    assert len(trained) == 1
    assert reproduce.main(["tiny/table1", "col=infonce"]) == 0
    out = capsys.readouterr().out
    assert "1/2 seeds  tiny/table1 digits | infonce" in out and "1 trained, 0 done before, 0 failed" in out
    assert all(path.stat().st_mtime_ns == changed for path, changed in trained.items())
    for path in trained:  # its process was killed after it had written the results
        (path.parent / "failed.json").write_text('{"reason": "its file system does not answer"}')
    assert reproduce.main(["tiny/table1", "col=infonce"]) == 0
    assert "0 runs to go in 0 cells" in capsys.readouterr().out
    assert not list(Path("outputs").glob("tiny/*/failed.json"))
    filled = as_json(capsys, "tiny/table1", "row=digits")
    assert [c["n"] for c in filled] == [2, 0] and 0 < filled[0]["mean"] < 100 and filled[0]["paper"] == 50.0


def test_a_run_that_sets_images_apart_fills_its_cell() -> None:
    """It records the 35,000 of 50,000 images that it trains on; a run on all of them is another one."""
    cell = tables.find("dcl/small_batches")[0].cells[0]
    for images, found in ((50_000, {}), (35_000, {0: 60.0})):
        write_result(cell, 0, {"knn/top1": 0.6}, f"dataset.train_images={images}")
        assert Results(Path("outputs"), [cell]).values(cell) == found


@pytest.mark.slow
def test_a_signal_stops_the_whole_reproduction() -> None:
    command = [sys.executable, "-m", "ssl_bench", "reproduce", "eqco/table9", "row=MI 2 *"]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    # Where the tests run in the background of a shell, SIGINT is ignored, and a process would begin with that.
    options["preexec_fn"] = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, **options) as started:
        assert started.stdout is not None
        wait_for(lambda: list(Path("outputs").glob("*/*/config.yaml")))  # of the first of eight
        for _ in range(12):  # one may be lost: an exception in code that a library calls from C is only printed
            started.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(5)
                break
        printed = started.stdout.read()
        # If the signal arrives in code that Python runs from a string, Python ends by the signal: 130 for a shell too.
        assert started.wait(60) in (130, -signal.SIGINT), printed
        assert "interrupted" in printed and len(list(Path("outputs").glob("*/*/config.yaml"))) <= 3, printed


@pytest.mark.slow
def test_a_launcher_trains_the_cells_as_one_grid(tiny: None, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["tiny/table1", "row=digits", "seed=0", "launcher=local", "launcher.jobs=2"]
    assert reproduce.main(arguments) == 0
    out = capfd.readouterr().out
    assert "runs count as scale=reduced" not in out and "2 runs: 2 trained, 0 done before, 0 failed" in out
    assert "2 of 2  tiny/table1 digits | " in out
    assert "beside the papers' numbers: ssl-bench table tiny/table1 paths.outputs=outputs" in out
    assert "compare --by" not in out
    folders = [path.parent for path in Path("outputs").glob("*/*/results.json")]
    expected = {cell_run_id(cell, 0) for cell in tables.find("tiny/table1")[0].cells if cell.row == "digits"}
    assert {folder.name for folder in folders} == expected and len(expected) == 2
    (path,) = Path("outputs").glob("*/grid-*.json")
    assert json.loads(path.read_text())["command"] == shlex.join(["ssl-bench", "reproduce", *arguments])
    command = runs.read(folders[0]).command
    assert command.startswith("ssl-bench train name=tiny dataset=scattered_digits ") and command.endswith(" seed=0")


@pytest.mark.slow
def test_a_network_that_two_cells_evaluate_is_trained_once_and_first_for_what_is_recorded_on_the_way(
    tiny: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "papers" / "tiny.yaml"
    paper = yaml.safe_load(path.read_text())
    table = paper["tables"]["table1"]
    table["columns"] = {"end": {"set": ["evaluate=[geometry]"], "metric": "geometry/effective_rank"}}
    table["columns"] |= {"way": {"set": ["evaluate.every=1"], "metric": "knn/top1@best"}}
    table["rows"] = {"digits": {"values": [1, 2]}}
    path.write_text(yaml.safe_dump(paper, sort_keys=False))
    assert reproduce.main(["tiny/table1", "seed=0", "launcher=local", "launcher.jobs=2"]) == 0
    assert "2 runs: 2 trained" in capfd.readouterr().out
    (run,) = Path("outputs").glob("*/*/results.json")
    (table_now,) = tables.find("tiny/table1")
    results = Results(Path("outputs"), table_now.cells)
    assert [list(results.values(cell)) for cell in table_now.cells] == [[0], [0]]
    rows = [json.loads(line) for line in (run.parent / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == [1, 2]
