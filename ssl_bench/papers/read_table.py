"""Read a table or a claim of a paper from its node in the YAML file.

The rows and columns of a table become cells. A claim is a table with criteria that its cells must pass.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ssl_bench.config.ranges import one_of
from ssl_bench.errors import ConfigError, require
from ssl_bench.papers import keys
from ssl_bench.papers.cells import Cell, CellMetric, Table, flat, merge
from ssl_bench.papers.claims import STATISTICS, Criterion, PaperClaim
from ssl_bench.papers.keys import as_number, check_keys

PROVENANCE = ("text", "code", "derived", "recollection", "unknown")


def line(text: Any) -> str:
    """A text of a file in one line."""
    return " ".join(str(text or "").split())


def read_table(name: str, path: Path, paper: Mapping[str, Any], node: Mapping[str, Any]) -> Table:
    """A table.

    Args:
        path: path of the file.
        paper: the content of the file.
        node: the table's part of it.

    Raises:
        ConfigError: it does not have the format.
    """
    check_keys(node, keys.TABLE_KEYS, name, ("title", "columns", "rows"))
    columns = node["columns"]
    if isinstance(columns, list):
        columns = dict.fromkeys(columns, node.get("each"))
    columns = {str(label): _as_mapping(entry) for label, entry in columns.items()}
    for label, column in columns.items():
        check_keys(column, keys.COLUMN_KEYS, f"{name} column {label}")
    x = node.get("x") or {}
    check_keys(x, {"label", "doubling"}, f"{name} x", ("label",) if x else ())
    cells = [
        cell
        for label, entry in node["rows"].items()
        for cell in _row(name, str(label), _as_mapping(entry), node, columns, paper["paper"], bool(x))
    ]
    return Table(
        name=name,
        title=node["title"],
        cite=paper["cite"],
        note=line(node.get("note")),
        cells=tuple(cells),
        x=x.get("label", ""),
        y=str(node.get("y") or ""),
        doubling=bool(x.get("doubling", False)),
        best=str(node.get("best", "")),
        source=path,
    )


def _row(
    name: str,
    label: str,
    row: Mapping[str, Any],
    table: Mapping[str, Any],
    columns: Mapping[str, Mapping[str, Any]],
    paper: str,
    figure: bool,
) -> Iterator[Cell]:
    """The cells of a row, measure by measure."""
    where = f"{name} row {label}"
    check_keys(row, keys.ROW_KEYS, where)
    seeds = tuple(row.get("seeds") or table.get("seeds") or (0,))
    require(min(seeds) >= 0, f"{where}: seeds", list(seeds), "integers of 0 or more")
    metrics = row.get("metrics") or ({"": row["metric"]} if "metric" in row else table.get("metrics"))
    metrics = metrics or {"": table.get("metric") or ""}
    provenance = row.get("provenance", table.get("provenance", "text"))
    for measure, values in _values(where, row, metrics, len(columns)).items():
        for (heading, column), value in zip(columns.items(), values, strict=True):
            number, source, entry = _value(value, provenance, where)
            missing = next(filter(None, [node.get("missing") for node in (entry, row, column, table)]), "")
            metric = str(column.get("metric", metrics[measure])).replace("{column}", heading)
            if metric or not missing:
                CellMetric.read(metric)
            parts = [flat(node.get("set")) for node in (table, row, column, entry)]
            parts[2] = [override.replace("{column}", heading) for override in parts[2]]
            yield Cell(
                row=label,
                column=heading,
                measure=measure,
                metric=metric,
                overrides=_overrides(where, paper, parts),
                paper=number,
                provenance=source,
                seeds=seeds,
                note="; ".join(line(node["note"]) for node in (entry, row, column) if node.get("note")),
                missing=missing,
                x=as_number(column.get("x", heading), f"{name} column {heading}: x") if figure else None,
            )


def _values(where: str, row: Mapping[str, Any], metrics: Mapping[str, str], count: int) -> dict[str, list[Any]]:
    """The values of a row by measure, one for each of ``count`` columns; None where it has none.

    Raises:
        ConfigError: there is no such measure, or another number of values.
    """
    lists = row.get("values") or {}
    lists = lists if isinstance(lists, Mapping) else {"": lists}
    if unknown := sorted(set(lists) - set(metrics)):
        raise ConfigError(f"{where}: values has {', '.join(unknown)}: set metrics to a mapping with the same names")
    values = {measure: lists.get(measure) or [None] * count for measure in metrics}
    for measure, of_measure in values.items():
        if len(of_measure) != count:
            raise ConfigError(f"{where} {measure}: set {count} values, one per column, not {len(of_measure)}")
    return values


def _overrides(where: str, paper: str, parts: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The overrides of a cell from those of the table, the row, the column and the entry.

    Raises:
        InvalidValue: one of them is no override.
    """
    for override in (override for part in parts for override in part):
        require(bool(re.match(r"~\w|[^=\s]+=", override)), f"{where}: set", override, keys.OVERRIDES[1])
    return tuple(merge([f"name={paper}"], *parts))


def _value(value: Any, provenance: str, where: str) -> tuple[float | None, str, Mapping[str, Any]]:
    """A number, where it comes from, and the mapping that it stands in."""
    entry: Mapping[str, Any] = value if isinstance(value, Mapping) else {"is": value}
    check_keys(entry, keys.VALUE_KEYS, where)
    number, provenance = entry.get("is"), entry.get("provenance", provenance)
    if isinstance(number, str):
        text, _, provenance = number.partition(" ")
        number = as_number(text, f"{where}: values", "numbers such as 49.4, or 49.4 recollection")
    if number is None:
        provenance = "unknown"
    one_of(f"{where}.provenance", provenance, PROVENANCE)
    return None if number is None else float(number), provenance, entry


def _as_mapping(entry: Any) -> Mapping[str, Any]:
    """``entry``, or ``{set: entry}`` for a list of overrides."""
    return entry if isinstance(entry, Mapping) else {"set": entry or []}


# ---- claims


def read_claim(name: str, path: Path, paper: Mapping[str, Any], node: Mapping[str, Any]) -> PaperClaim:
    """A claim: a table whose trainings all have ``scale=reduced``, so that they never fill a cell of the paper."""
    check_keys(node, keys.CLAIM_KEYS, name, keys.CLAIM_NEEDS)
    ours = node.get("by") == "ours"
    as_table = {key: value for key, value in node.items() if key in keys.TABLE_KEYS}
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
    check_keys(node, keys.LIMITS | keys.CRITERION_KEYS, f"{where} criterion")
    sides, statistic = keys.LIMITS & set(node), str(node.get("statistic", "mean"))
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
