"""The papers' tables, figures and claims that the runs of a results folder fill."""

from pathlib import Path
from typing import Any

from ssl_bench.errors import printable
from ssl_bench.papers import tables, verdicts
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import Table
from ssl_bench.papers.fill import Filled, fill


def of_papers(outputs: Path) -> dict[str, Any]:
    """The tables that have a value of a run, and the claims that these runs judge, as plain data.

    A judged claim is a table, too.
    """
    every, claims = tables.every(), verdicts.claims_of(())
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
    told = {name: getattr(table, name) for name in ("name", "title", "cite", "x", "y", "doubling")}
    return told | {"cells": [_cell(each) for each in fill(table, table.cells, results)]}


def _cell(each: Filled) -> dict[str, Any]:
    """A cell with the paper's number, those of the runs, accuracies in percent, and the paths of these runs."""
    return {
        "row": each.cell.label,
        **{name: getattr(each.cell, name) for name in ("column", "x", "paper", "reported")},
        "ours": each.values,
        "runs": [printable(run.path) for run in each.runs],
        "reduced": each.reduced,
    }
