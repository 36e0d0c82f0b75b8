"""A paper's tables from its YAML file.

A file has ``paper``, ``title``, ``cite``, ``recipes`` (lists of overrides to refer to) and ``tables``. A table is a
matrix: its own overrides (``set``), those of a row and those of a column together are a cell's, the later one winning
where two say the same key. In its YAML

set          overrides of ``ssl-bench train``; lists in the list are flattened; ``~temperature`` takes back what was set
             of a group before
metric       what fills a cell; ``{column}`` is the column's name; ``name@50`` is the value at epoch 50. A row with
             several numbers has ``metrics``, by their names in the paper
values       in a row: a number per column, or several such lists by the names of ``metrics``. A number alone has the
             table's ``provenance``, ``49.4 recollection`` its own; null is a number that is not known
columns      overrides by name, or a list of names for which ``each`` has the overrides, ``{column}`` being the name
seeds, note  of the table, a row or a cell
missing      what a row, a column or a cell needs that this package does not have
command      train (default) | mi | weight | none: nothing is run
x, y         of a figure: label and unit of the axes; the columns' names, or their ``x``, are the places

and a value can be ``{is: NUMBER, provenance:, note:, set:, missing:}``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ssl_bench.config.build import near
from ssl_bench.errors import ConfigError

PROVENANCE = ("text", "code", "derived", "recollection", "unknown")
COMMANDS = ("train", "mi", "weight", "none")
PAPER = {"paper", "title", "cite", "recipes", "tables"}
TABLE = {
    *("title", "set", "metric", "metrics", "seeds", "provenance", "note", "missing", "command"),
    *("rows", "columns", "each", "x", "y"),
}
ROW = {"set", "metric", "metrics", "values", "seeds", "provenance", "note", "missing"}
COLUMN = {"set", "metric", "missing", "note", "x"}
VALUE = {"is", "provenance", "note", "set", "missing"}


@dataclass(frozen=True)
class Cell:
    """One number of a table."""

    row: str
    column: str
    measure: str  # the number's name where a row has several; else ""
    metric: str
    overrides: tuple[str, ...]
    paper: float | None
    provenance: str
    seeds: tuple[int, ...]
    command: str
    note: str
    missing: str
    x: float | None

    @property
    def label(self) -> str:
        """The row as a table shows it."""
        return f"{self.row} {self.measure}".rstrip()

    @property
    def reported(self) -> str:
        """The paper's number as text; empty where it is not known."""
        if self.paper is None:
            return ""
        text = f"{self.paper:.4f}".rstrip("0")
        return text + "0" if text.endswith(".") else text

    @property
    def runs(self) -> bool:
        """Whether a run of this package fills it."""
        return not self.missing and self.command != "none"


@dataclass(frozen=True)
class Table:
    """A table or figure. ``x`` and ``y`` are a figure's axis labels."""

    name: str
    title: str
    cite: str
    note: str
    cells: tuple[Cell, ...]
    x: str
    y: str
    doubling: bool  # x grows by factors

    def axes(self, cell: Cell) -> dict[str, str]:
        """What tells a cell from the others of the table, and its dataset; how it is trained and judged is left out."""
        settings = [dict(o.split("=", 1) for o in each.overrides) for each in self.cells if each.runs]
        own = dict(o.split("=", 1) for o in cell.overrides)
        aside = ("optimizer", "evaluate", "name")
        return {
            key: value
            for key, value in own.items()
            if key == "dataset"
            or (key.split(".")[0] not in aside and any(other.get(key) != value for other in settings))
        }

    def rows(self) -> list[str]:
        return list(dict.fromkeys(cell.row for cell in self.cells))

    def columns(self) -> list[str]:
        return list(dict.fromkeys(cell.column for cell in self.cells))


def percent(metric: str) -> bool:
    """Whether papers print this metric times a hundred."""
    return "top1" in metric or "top5" in metric


def directory() -> Path:
    """Where the papers' files are; ``SSL_BENCH_PAPERS`` names another folder, such as one of your own tables."""
    return Path(os.environ.get("SSL_BENCH_PAPERS") or Path(__file__).parent)


def papers() -> list[str]:
    return sorted(path.stem for path in directory().glob("*.yaml"))


def every() -> list[Table]:
    """Every table of every paper."""
    return [table for paper in papers() for table in load(paper)]


def find(name: str) -> list[Table]:
    """The tables of a name: ``dcl/table1``; ``dcl/fig3`` is all its panels and ``dcl`` all tables of a paper.

    Raises:
        ConfigError: there is none.
    """
    paper, _, rest = name.partition("/")
    if paper not in papers():
        raise ConfigError(f"there is no paper {paper!r}{near(paper, papers())}: set it to one of {', '.join(papers())}")
    tables = load(paper)
    exact = [table for table in tables if table.name == name]
    panels = [table for table in tables if table.name[:-1] == name and table.name[-1].isalpha()]
    found = tables if not rest else exact or panels
    if not found:
        names = [table.name for table in tables]
        raise ConfigError(f"there is no table {name!r}{near(name, names)}: set it to one of {', '.join(names)}")
    return list(found)


def load(paper: str) -> tuple[Table, ...]:
    """The tables of a paper, checked."""
    path = directory() / f"{paper}.yaml"
    return _load(path, path.stat().st_mtime_ns)


@cache
def _load(path: Path, changed: int) -> tuple[Table, ...]:
    try:
        data = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    _known(data, PAPER, str(path))
    return tuple(_table(f"{data['paper']}/{name}", data, node) for name, node in data["tables"].items())


def _table(name: str, paper: Mapping[str, Any], node: Mapping[str, Any]) -> Table:
    _known(node, TABLE, name)
    columns = node["columns"]
    if isinstance(columns, list):
        columns = dict.fromkeys(columns, node.get("each"))
    columns = {str(label): _node(entry) for label, entry in columns.items()}
    for label, column in columns.items():
        _known(column, COLUMN, f"{name} column {label}")
    x = node.get("x") or {}
    cells = [
        cell
        for label, entry in node["rows"].items()
        for cell in _row(name, str(label), _node(entry), node, columns, paper["paper"], bool(x))
    ]
    return Table(
        name=name,
        title=node["title"],
        cite=paper["cite"],
        note=" ".join(str(node.get("note", "")).split()),
        cells=tuple(cells),
        x=x.get("label", ""),
        y=node.get("y", ""),
        doubling=bool(x.get("doubling", False)),
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
    where = f"{name} row {label}"
    _known(row, ROW, where)
    metrics = row.get("metrics") or ({"": row["metric"]} if "metric" in row else table.get("metrics"))
    metrics = metrics or {"": table.get("metric", "")}
    lists = row.get("values") or {}
    lists = lists if isinstance(lists, Mapping) else {"": lists}
    if set(lists) - set(metrics):
        raise ConfigError(f"{where}: its values have names that its metrics have not: {sorted(set(lists))}")
    for measure, metric in metrics.items():
        values = lists.get(measure) or [None] * len(columns)
        if len(values) != len(columns):
            raise ConfigError(f"{where} {measure}: set {len(columns)} values, one per column, not {len(values)}")
        for (heading, column), value in zip(columns.items(), values, strict=True):
            number, provenance, own = _value(value, row.get("provenance", table.get("provenance", "text")), where)
            place = [o.replace("{column}", heading) for o in _flat(column.get("set"))]
            cell = [_flat(row.get("set")), place, _flat(own.get("set"))]
            command = table.get("command", "train")
            if command not in COMMANDS:
                raise ConfigError(f"{name}: command={command}: set command to one of {', '.join(COMMANDS)}")
            notes = [own.get("note"), row.get("note"), column.get("note")]
            yield Cell(
                row=label,
                column=heading,
                measure=measure,
                metric=str(column.get("metric", metric)).replace("{column}", heading),
                overrides=tuple(merge([f"name={paper}"], _flat(table.get("set")), *cell)),
                paper=number,
                provenance=provenance,
                seeds=tuple(row.get("seeds") or table.get("seeds") or (0,)),
                command=command,
                note="; ".join(" ".join(str(note).split()) for note in notes if note),
                missing=own.get("missing") or row.get("missing") or column.get("missing") or table.get("missing") or "",
                x=float(column.get("x", heading)) if figure else None,
            )


def _value(value: Any, provenance: str, where: str) -> tuple[float | None, str, Mapping[str, Any]]:
    """A number, where it comes from, and what else its cell says."""
    own: Mapping[str, Any] = value if isinstance(value, Mapping) else {"is": value}
    _known(own, VALUE, where)
    number, provenance = own.get("is"), own.get("provenance", provenance)
    if isinstance(number, str):
        text, _, provenance = number.partition(" ")
        number = float(text)
    if number is None:
        provenance = "unknown"
    if provenance not in PROVENANCE:
        raise ConfigError(f"{where}: provenance={provenance}: set it to one of {', '.join(PROVENANCE)}")
    return None if number is None else float(number), provenance, own


def _node(entry: Any) -> Mapping[str, Any]:
    """A list of overrides is short for ``{set: [...]}``."""
    return entry if isinstance(entry, Mapping) else {"set": entry or []}


def _flat(overrides: Any) -> list[str]:
    if overrides is None:
        return []
    return [o for entry in overrides for o in (_flat(entry) if isinstance(entry, list) else [str(entry)])]


def merge(*parts: Sequence[str]) -> list[str]:
    """The overrides in order, each key once: the last one that sets it stays, at its own place.

    ``~temperature`` takes back what was set of a group before it.
    """
    kept: dict[str, str] = {}
    for override in (o for part in parts for o in part):
        if override.startswith("~"):
            kept = {key: o for key, o in kept.items() if key.split(".")[0] != override[1:]}
            continue
        key = override.split("=", 1)[0]
        if kept.get(key) != override:
            kept.pop(key, None)
            kept[key] = override
    return list(kept.values())


def _known(node: Any, keys: set[str], where: str) -> None:
    if not isinstance(node, Mapping):
        raise ConfigError(f"{where} must be a mapping, not {node!r}")
    for key in node:
        if key not in keys:
            raise ConfigError(f"{where}: there is no key {key}{near(str(key), keys)}")
