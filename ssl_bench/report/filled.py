"""The papers' tables, figures and claims that the runs of a results folder fill."""

from pathlib import Path
from typing import Any

from ssl_bench.errors import printable
from ssl_bench.papers import reduced, tables, verdicts
from ssl_bench.papers.cell_runs import Results, value
from ssl_bench.papers.cells import Cell, Table
from ssl_bench.results.runs import Run


def of_papers(outputs: Path) -> dict[str, Any]:
    """The tables that have a value of a run, and the claims that these runs judge, as plain data.

    A judged claim is a table, too.
    """
    every, claims = tables.every(), verdicts.named(())
    results = Results(outputs, [cell for table in (*every, *claims) for cell in table.cells])
    filled = [_table(table, results) for table in every]
    judged = [verdicts.judge(claim, results) for claim in claims]
    own = [each for each in judged if each.source == "ours" and each.was_run]
    filled += [_table(each.claim, results) for each in own]
    return {
        "tables": [table for table in filled if any(cell["ours"] or cell["reduced"] for cell in table["cells"])],
        "claims": [each.record() for each in own],
    }


def _table(table: Table, results: Results) -> dict[str, Any]:
    short = reduced.find(table, results)
    return {
        "name": table.name,
        "title": table.title,
        "cite": table.cite,
        "x": table.x,
        "y": table.y,
        "doubling": table.doubling,
        "cells": [_cell(cell, results, short.get(cell, ([], ""))[0]) for cell in table.cells],
    }


def _cell(cell: Cell, results: Results, short: list[Run]) -> dict[str, Any]:
    """A cell with the paper's number, those of the runs, accuracies in percent, and the paths of these runs."""
    numbers = (value(run, cell.metric) for run in short)
    return {
        "row": cell.label,
        "column": cell.column,
        "x": cell.x,
        "paper": cell.paper,
        "reported": cell.reported,
        "ours": list(results.values(cell).values()),
        "runs": [printable(run.path) for run in (*results.of_cell(cell), *short)],
        "reduced": [number for number in numbers if number is not None],
    }
