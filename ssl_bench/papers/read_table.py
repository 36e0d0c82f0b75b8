"""Read a table of a paper from its node in the YAML file: rows and columns become cells."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_bench.config.build import one_of
from ssl_bench.errors import ConfigError, require
from ssl_bench.papers.cells import Cell, CellMetric, Table, flat, merge
from ssl_bench.papers.keys import COLUMN_KEYS, OVERRIDES, ROW_KEYS, TABLE_KEYS, VALUE_KEYS, as_number, check_keys

PROVENANCE = ("text", "code", "derived", "recollection", "unknown")


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
    check_keys(row, ROW_KEYS, where)
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
        require(bool(re.match(r"~\w|[^=\s]+=", override)), f"{where}: set", override, OVERRIDES[1])
    return tuple(merge([f"name={paper}"], *parts))


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
