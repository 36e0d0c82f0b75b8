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
    ours = [judgement for judgement in judged if judgement.source == "ours" and judgement.was_run]
    filled += [_table(judgement.claim, results) for judgement in ours]
    return {
        "tables": [table for table in filled if any(cell["ours"] or cell["reduced"] for cell in table["cells"])],
        "claims": [judgement.record() for judgement in ours],
    }


def _table(table: Table, results: Results) -> dict[str, Any]:
    texts = {name: getattr(table, name) for name in ("name", "title", "cite", "x", "y", "doubling")}
    return texts | {"cells": [_cell(filled) for filled in fill(table, table.cells, results)]}


def _cell(filled: Filled) -> dict[str, Any]:
    """A cell with the paper's number, those of the runs, accuracies in percent, and the paths of these runs."""
    return {
        "row": filled.cell.label,
        **{name: getattr(filled.cell, name) for name in ("column", "x", "paper", "reported")},
        "ours": filled.values,
        "runs": [printable(run.path) for run in filled.runs],
        "reduced": filled.reduced,
    }
