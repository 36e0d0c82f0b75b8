"""Read a claim of a paper from its node in the YAML file: a table, and criteria that its cells must pass."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ssl_bench.config.build import one_of
from ssl_bench.errors import ConfigError
from ssl_bench.papers.cells import Cell, CellMetric, Table, flat
from ssl_bench.papers.claims import STATISTICS, Criterion, PaperClaim
from ssl_bench.papers.keys import CLAIM_KEYS, CLAIM_NEEDS, CRITERION_KEYS, LIMITS, TABLE_KEYS, as_number, check_keys
from ssl_bench.papers.read_table import line, read_table


def read_claim(name: str, path: Path, paper: Mapping[str, Any], node: Mapping[str, Any]) -> PaperClaim:
    """A claim: a table whose trainings all have ``scale=reduced``, so that they never fill a cell of the paper."""
    check_keys(node, CLAIM_KEYS, name, CLAIM_NEEDS)
    ours = node.get("by") == "ours"
    as_table = {key: value for key, value in node.items() if key in TABLE_KEYS}
    table = read_table(name, path, paper, as_table | {"set": [flat(node.get("set")), ["scale=reduced"]]})
    theory = dict[str, list[float]]()
    for curve, of in (node.get("theory") or {}).items():
        given = [] if of == "row" else flat(of)
        theory[str(curve)] = [as_number(n, f"{name}: theory {curve}", "numbers, or to row") for n in given]
    for curve, numbers in theory.items():
        if len(numbers) != len(table.columns()) and (numbers or curve not in {cell.label for cell in table.cells}):
            raise ConfigError(f"{name}: theory {curve}: set a number for each column, or row if it is one of the rows")
    criteria = [_criterion(control, table, name, True) for control in node.get("controls") or []]
    criteria += [_criterion(criterion, table, name, False) for criterion in node["criteria"]]
    if node["kind"] == "equivalence" and not all(one.control or "within" in one.limit for one in criteria):
        raise ConfigError(f"{name}: kind=equivalence: set within in each of its criteria")
    return PaperClaim(
        **{field.name: getattr(table, field.name) for field in fields(Table)},
        says="Ours: " * ours + line(node["claim"]),
        ours=ours,
        where=str(node["where"]),
        kind=node["kind"],
        seeds_because=line(node["seeds_because"]),
        criteria=tuple(criteria),
        minutes=as_number(node["minutes"], f"{name}: minutes"),
        theory=theory,
        contradicted=line(node.get("contradicted", "contradicted")),
    )


def _criterion(node: Any, table: Table, where: str, control: bool) -> Criterion:
    check_keys(node, LIMITS | CRITERION_KEYS, f"{where} criterion")
    sides, statistic = LIMITS & set(node), str(node.get("statistic", "mean"))
    if "says" not in node or "of" not in node or len(sides) != 1:
        raise ConfigError(f"{where}: a criterion has says, of, and one of above, below and within")
    one_of(f"{where}: statistic", statistic, tuple(STATISTICS))
    (side,) = sides
    limit = as_number(node[side], f"{where} criterion: {side}")
    ends = {"above": (limit, math.inf), "below": (-math.inf, limit), "within": (-limit, limit)}[side]
    of, minus = (_selected(node[key], table, where) if key in node else () for key in ("of", "minus"))
    if statistic == "slope" and not (table.doubling and len({cell.column for cell in of}) > 1):
        raise ConfigError(f"{where}: statistic=slope: set x: {{doubling: true}}, and of to two columns or more")
    return Criterion(line(node["says"]), f"{side} {limit:g}", ends, statistic, of, minus, control)


def _selected(node: Any, table: Table, where: str) -> tuple[Cell, ...]:
    """The cells that ``{row: PATTERN, column: PATTERN}`` names; a row is named with its measure.

    With ``metric`` they are those of another metric of the same runs.
    """
    check_keys(node, {"row", "column", "metric"}, f"{where} criterion")
    row, column = (str(node.get(key, "*")) for key in ("row", "column"))
    cells = tuple(cell for cell in table.cells if _is(cell.label, row) and _is(cell.column, column))
    if not cells:
        raise ConfigError(f"{where}: no cell has row {row} and column {column}")
    if metric := node.get("metric"):
        CellMetric.read(metric)
        return tuple(replace(cell, metric=metric) for cell in cells)
    return cells


def _is(name: str, pattern: str) -> bool:
    return name == pattern or fnmatch.fnmatchcase(name, pattern)
