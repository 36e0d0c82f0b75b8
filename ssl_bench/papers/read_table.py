"""Read a table of a paper from its node in the YAML file: rows, columns and the points of a design become cells."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ssl_bench.config.build import one_of
from ssl_bench.errors import ConfigError, require
from ssl_bench.papers.cells import BASELINES, Cell, CellMetric, Over, Table, flat, merge
from ssl_bench.papers.keys import COLUMN_KEYS, OVERRIDES, ROW_KEYS, TABLE_KEYS, VALUE_KEYS, as_number, check_keys

PROVENANCE = ("text", "code", "derived", "recollection", "unknown")
GAP, ERROR = 10.0, 0.05  # of a comparison that names none
# The first points of Sobol's sequence in the square (Sobol 1967), in sixteenths. Each of 16 parts of either axis has
# one of them, and so has each of 4 x 4 parts of the square; of the first 8, each of 4 x 2; of 4, each of 2 x 2.
SOBOL = (
    (0, 8, 12, 4, 6, 14, 10, 2, 3, 11, 15, 7, 5, 13, 9, 1),
    (0, 8, 4, 12, 6, 14, 2, 10, 5, 13, 1, 9, 3, 11, 7, 15),
)


def line(text: Any) -> str:
    """A text of a file in one line."""
    return " ".join(str(text or "").split())


def read_table(name: str, path: Path, paper: Mapping[str, Any], node: Mapping[str, Any]) -> Table:
    """A table.

    Args:
        path: of the file.
        paper: the content of the file.
        node: the table's part of it.

    Raises:
        ConfigError: it does not have the format.
    """
    check_keys(node, TABLE_KEYS, name, ("title", "columns", "rows"))
    if node.get("best"):
        one_of(f"{name}.best", node["best"], ("row", "column"))
    compared = _compared(name, node)
    if node.get("points") and (node.get("x") or node.get("best")):
        raise ConfigError(f"{name}: leave out x and best: a table with points prints what it fits to them")
    columns = node["columns"]
    if isinstance(columns, list):
        columns = dict.fromkeys(columns, node.get("each"))
    columns = {str(label): _as_mapping(entry) for label, entry in columns.items()}
    for label, column in columns.items():
        check_keys(column, COLUMN_KEYS, f"{name} column {label}")
    x = node.get("x") or {}
    check_keys(x, {"label", "doubling"}, f"{name} x", ("label",) if x else ())
    cells = [
        cell
        for label, entry in node["rows"].items()
        for cell in _row(name, str(label), _as_mapping(entry), node, columns, paper["paper"], bool(x))
    ]
    if compared["reference"] and (compared["gap"] or "points" in node):
        cells += _baselines(cells, compared["reference"])
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
        **compared,
    )


def _compared(name: str, node: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a table that are about its comparison."""
    compare = node.get("compare") or {}
    check_keys(compare, {"to", "margin", "gap", "error"}, f"{name} compare")
    if compare and compare.get("to") not in node["rows"]:
        raise ConfigError(f"{name}: compare: set to to the name of a row")
    text = str(compare.get("margin", 0))
    gap, error = (as_number(compare.get(k, v), f"{name} compare: {k}") for k, v in (("gap", GAP), ("error", ERROR)))
    relative, margin = text.endswith("%"), as_number(text.removesuffix("%"), f"{name} compare: margin")
    margin /= 100 if relative else 1
    if compare and not (margin > 0 or "points" in node):
        raise ConfigError(f"{name}: compare: set margin to a positive number, or to a share such as 10%")
    if gap < 0 or not 0 < error < 1 or (relative and not gap):
        raise ConfigError(f"{name}: compare: set gap to a positive number, or to 0 without a share, error to 0 to 1")
    return {"reference": compare.get("to", ""), "margin": margin, "relative": relative, "gap": gap, "error": error}


def _baselines(cells: Sequence[Cell], reference: str) -> list[Cell]:
    """Rows of raw pixels and of the network at initialisation, by the runs of the reference row."""
    first: dict[tuple[str, str], Cell] = {}
    for cell in cells:
        if cell.row == reference:
            first.setdefault((cell.column, cell.metric), cell)
    return [
        replace(
            cell,
            row=row,
            measure=" ".join(cell.measure.split()[: -len(cell.over) or None]),
            metric=cell.metric.replace("/", f"{mark}/", 1),
            paper=None,
            provenance="unknown",
            note="",
            over=(),
        )
        for row, mark in BASELINES.items()
        for cell in first.values()
    ]


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
    check_keys(row, ROW_KEYS, where)
    seeds = tuple(row.get("seeds") or table.get("seeds") or (0,))
    require(min(seeds) >= 0, f"{where}: seeds", list(seeds), "integers of 0 or more")
    over, (against, placebo) = _over(where, row, table), _against(where, label, row, table)
    metrics = row.get("metrics") or ({"": row["metric"]} if "metric" in row else table.get("metrics"))
    metrics = metrics or {"": table.get("metric") or ""}
    provenance = row.get("provenance", table.get("provenance", "text"))
    for measure, values in _values(where, row, metrics, len(columns)).items():
        for point, ((heading, column), value) in itertools.product(
            _points(over, table), zip(columns.items(), values, strict=True)
        ):
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
                measure=" ".join(filter(None, [measure, *point])),
                metric=metric,
                overrides=_overrides(where, paper, [*parts, point]),
                paper=number,
                provenance=source,
                seeds=seeds,
                note="; ".join(line(node["note"]) for node in (entry, row, column) if node.get("note")),
                missing=missing,
                x=as_number(column.get("x", heading), f"{name} column {heading}: x") if figure else None,
                over=over,
                against=against,
                placebo=placebo,
                spread=str(row.get("spread", "")),
            )


def _against(where: str, label: str, row: Mapping[str, Any], table: Mapping[str, Any]) -> tuple[str, bool]:
    """The row with which a row is compared, empty for none, and whether it is known to equal that.

    Raises:
        ConfigError: there is no such row, or the table compares none.
    """
    compare, placebo = table.get("compare") or {}, row.get("placebo") or False
    equal = compare.get("to", "") if placebo is True else placebo or ""
    if (equal or not row.get("compared", True)) and not compare:
        raise ConfigError(f"{where}: leave out placebo and compared: its table has no compare")
    if equal and (equal not in table["rows"] or equal == label):
        raise ConfigError(f"{where}: placebo={equal}: set placebo to the row that it equals, or to true")
    against = equal or (compare.get("to", "") if row.get("compared", True) else "")
    return "" if against == label else against, bool(equal)


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
    """The overrides of a cell from those of the table, the row, the column, the entry and the point.

    Raises:
        InvalidValue: one of them is no override.
    """
    for override in (override for part in parts for override in part):
        require(bool(re.match(r"~\w|[^=\s]+=", override)), f"{where}: set", override, OVERRIDES[1])
    return tuple(merge([f"name={paper}"], *parts))


def _over(where: str, row: Mapping[str, Any], table: Mapping[str, Any]) -> Over:
    """The keys of a design with their ranges; empty for a row whose cells have one point."""
    if "points" not in table:
        if "over" in row or "over" in table:
            raise ConfigError(f"{where}: over needs points, the number of points of the table's design")
        return ()
    count, ranges = table["points"], row.get("over", table.get("over", {}))
    if type(count) is not int or count not in (4, 8, 16):
        raise ConfigError(f"{where}: points={count}: set points to 4, 8 or 16")
    if not isinstance(ranges, Mapping) or len(ranges) not in (0, len(SOBOL)):
        raise ConfigError(f"{where}: set over to two keys with their ranges, such as {{optimizer.lr: [0.03, 10], ...}}")
    over = []
    for key, ends in ranges.items():
        if not (isinstance(ends, list) and len(ends) == 2 and all(type(end) in (int, float) for end in ends)):
            raise ConfigError(f"{where}: over: set {key} to two numbers, the ends of its range")
        if not 0 < ends[0] < ends[1] < math.inf:
            raise ConfigError(f"{where}: over: set {key} to two positive numbers in ascending order: its axis is a log")
        over.append((str(key), float(ends[0]), float(ends[1])))
    return tuple(over)


def _points(over: Over, table: Mapping[str, Any]) -> list[list[str]]:
    """The overrides of each point of a design, evenly over the logarithm of each key; without keys one of none."""
    if not over:
        return [[]]
    shares = ([(place + 0.5) / len(axis) for place in axis[: table["points"]]] for axis in SOBOL)
    return [
        [f"{key}={low * (high / low) ** share:.3g}" for (key, low, high), share in zip(over, point, strict=True)]
        for point in zip(*shares, strict=True)
    ]


def _value(value: Any, provenance: str, where: str) -> tuple[float | None, str, Mapping[str, Any]]:
    """A number, where it comes from, and the mapping that it stands in."""
    entry: Mapping[str, Any] = value if isinstance(value, Mapping) else {"is": value}
    check_keys(entry, VALUE_KEYS, where)
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
