"""The end of a grid: tables of what it varies, what they decide, and what one seed hides."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from ssl_bench.commands import dry_run
from ssl_bench.commands.grid_end import can_show, summarise
from ssl_bench.config.command import Command
from ssl_bench.launch.grid import Grid
from ssl_bench.launch.processes import Outcome, Run, State
from tests.results import folders
from tests.results.folders import finish, rows

Capture = pytest.CaptureFixture[str]
Cell = tuple[str, int]  # a loss and a batch size


def run(cell: Cell, seed: int, percent: float, epochs: int = 10) -> Path:
    """A finished run; the network at initialisation has 30% for seed 0, 10 points more for each further one."""
    loss, size = cell
    folder = folders.run("g/", None, rows(epochs), loss=loss, batch_size=size, seed=seed, epochs=epochs)
    finish(folder, 1.0, knn_top1=percent / 100, **{"knn_init/top1": 0.3 + seed / 10})
    return folder


def cells(values: Mapping[Cell, Sequence[float]], **settings: Any) -> dict[Cell, list[Path]]:
    """Runs with the seeds 0, 1, ... of each cell."""
    return {cell: [run(cell, *pair, **settings) for pair in enumerate(of)] for cell, of in values.items()}


def end(cells: Mapping[Cell, Sequence[Path]], capfd: Capture) -> str:
    """The output at the end of a grid with ``epochs=10``."""
    runs = [
        Run(("name=g", f"loss={loss}", f"batch_size=b{size}", f"seed={seed}"), {"epochs": 10}, folder, "")
        for (loss, size), folders in cells.items()
        for seed, folder in enumerate(folders)
    ]
    loss, size, seed = (",".join(dict.fromkeys(run.overrides[n].partition("=")[2] for run in runs)) for n in (1, 2, 3))
    grid = Grid(Command.of(["name=g", f"loss={loss}", f"batch_size={size}", f"seed={seed}"], None, True))
    grid.runs = [replace(run, number=number) for number, run in enumerate(runs)]
    grid.ends = {run.number: Outcome(State.DONE, folder=str(run.folder)) for run in grid.runs}
    capfd.readouterr()
    assert summarise(grid) == 0
    return capfd.readouterr().out


def test_the_end_of_a_grid_is_a_table_of_what_it_varies(capfd: Capture) -> None:
    values = {("dcl", 64): (50, 53), ("dcl", 128): (61, 60), ("infonce", 64): (40, 47), ("infonce", 128): (44, 45)}
    grid = cells(values)
    text = end(grid, capfd)
    head, *lines = text[text.index("knn/top1 (%)\n") :].splitlines()[1:4]
    assert head.split() == ["loss", "batch_size=64", "batch_size=128"]
    for line, loss in zip(lines, ("dcl", "infonce"), strict=True):
        numbers = [f"{mean(values[loss, n]):.2f} ± {stdev(values[loss, n]):.2f} (2)" for n in (64, 128)]
        assert line.split() == [loss, *" ".join(numbers).split()]
    assert "knn/top1, percent: 4 cells of 2 seeds" in text
    one_size = end({cell: folders for cell, folders in grid.items() if cell[1] == 64}, capfd)
    assert re.search(r"^loss +knn/top1 \(%\)$", one_size, re.MULTILINE) and "cells of" not in one_size


def test_runs_that_have_gone_on_to_more_epochs_show_the_numbers_of_these_epochs(capfd: Capture) -> None:
    grid = cells({("dcl", 64): (50, 51), ("infonce", 64): (40, 41)}) | cells({("eqco", 64): (60, 61)}, epochs=20)
    for folder in grid["eqco", 64]:
        path = folder / "results.json"
        content = json.loads(path.read_text())
        before = [
            {**entry, "epochs": 10, "metrics": dict.fromkeys(entry["metrics"], 0.2)} for entry in content["evaluations"]
        ]
        path.write_text(json.dumps(content | {"evaluations": [*before, *content["evaluations"]]}))
    for one_seed in (False, True):
        text = end({cell: of[:1] if one_seed else of for cell, of in grid.items()}, capfd)
        assert re.search(r"^eqco +20\.0", text, re.MULTILINE) and "60" not in text


def grid_of(*words: str) -> Grid:
    grid = Grid(Command.of(["name=g", "evaluate=knn", "tracking=off", *words], None, True))
    grid.every(False)
    return grid


def test_a_grid_says_beforehand_what_it_can_show(capfd: Capture) -> None:
    """By the images alone (450 of the digits), then by the deviation of finished runs of the experiment."""
    words = "loss=infonce,dcl", "batch_size=b32,b128"
    of_two, of_one = can_show(grid_of(*words, "seed=0,1")), can_show(grid_of(*words))
    assert "450 test images" in of_two and "2.3 points" in of_two and "seed=0,1" not in of_two
    assert "2.9 points" in of_one and "seed=0,1,2,3,4" in of_one
    assert can_show(grid_of("seed=0,1")) == can_show(grid_of(*words, "seed=0,1", "evaluate=[]")) == ""
    cells({("dcl", 64): (50, 52), ("dcl", 128): (60, 62)})
    by_runs = can_show(grid_of(*words, "seed=0,1"))
    assert "1.41" in by_runs and "450" not in by_runs
    dry_run.show(grid_of(*words, "seed=0,1"), False, False)
    assert " ".join(by_runs.split()) in " ".join(capfd.readouterr().out.split())


def test_one_cell_has_nothing_to_compare(capfd: Capture) -> None:
    text = end(cells({("dcl", 64): (50, 51)}), capfd)
    assert "50.50 ± 0.71 (2)" in text and "Bold" not in text and "cells of" not in text


def test_warnings_of_runs_are_footnotes(capfd: Capture) -> None:
    grid = cells({("dcl", 64): (50,), ("infonce", 64): (70,), ("eqco", 64): (60,)})
    path = grid["eqco", 64][0] / "results.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"warnings": ["the embeddings have collapsed"]}))
    text = end(grid, capfd)
    lines = dict(line.split(maxsplit=1) for line in text.splitlines() if line.startswith(("dcl", "eqco", "infonce")))
    assert lines["infonce"].startswith("70.00 (1)") and lines["eqco"].startswith("60.00 (1)")
    assert "the embeddings have collapsed" in text


def test_more_tables_than_one_reads_are_a_list(capfd: Capture) -> None:
    grid = {}
    for n in range(14):
        settings: dict[str, Any] = {"loss": f"l{n % 2}", "batch_size": 32 + n // 2 % 2, "optimizer__lr": n + 1.0}
        grid["dcl", n] = [folders.run("g/", n / 100, rows(10), **settings, seed=0)]
    assert "optimizer.lr=14.0" in end(grid, capfd)


def test_what_ranks_nothing_has_no_best(capfd: Capture) -> None:
    made = {(loss, 64): [folders.run("g/", None, loss=loss, seed=0)] for loss in ("dcl", "infonce")}
    for number, (folder,) in enumerate(made.values()):
        finish(folder, 1.0, **{"own/energy": float(number)})
    text = end(made, capfd)
    assert "Bold" not in text and "own/energy" in text
