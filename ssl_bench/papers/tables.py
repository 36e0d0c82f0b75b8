"""Read and check the tables of a paper from its YAML file, whose format README.md describes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from ssl_bench.config.build import near
from ssl_bench.errors import ConfigError
from ssl_bench.papers.overrides import flat, merge

PROVENANCE = ("text", "code", "derived", "recollection", "unknown")
COMMANDS = ("train", "mi", "weight", "none")
PAPER_KEYS = {"paper", "title", "cite", "recipes", "tables"}
TABLE_KEYS = {
    *("title", "set", "metric", "metrics", "seeds", "provenance", "note", "missing", "command"),
    *("rows", "columns", "each", "x", "y"),
}
ROW_KEYS = {"set", "metric", "metrics", "values", "seeds", "provenance", "note", "missing"}
COLUMN_KEYS = {"set", "metric", "missing", "note", "x"}
METRIC = re.compile(r"(?P<name>[^@]+)(@(?P<choice>best$|mean|(?=\d))(?P<epoch>\d+(\.\d+)?)?)?")
VALUE_KEYS = {"is", "provenance", "note", "set", "missing"}


@dataclass(frozen=True)
class Metric:
    """The metric of a cell, and which of its recorded values.

    ``name`` is the result of the run, ``name@50`` the value recorded at epoch 50, ``name@best`` the largest recorded
    one, ``name@mean50`` the mean of those recorded in epoch 50 (after epoch 49 and up to 50), ``name@mean`` the mean of
    those of the last epoch.

    Attributes:
        choice: ``best``, ``mean``, or "" for one value.
        epoch: the epoch that the form names; None if it names none.
    """

    name: str
    choice: str
    epoch: float | None

    @property
    def last(self) -> bool:
        """Whether the metric is the result of a run."""
        return not self.choice and self.epoch is None

    @classmethod
    def read(cls, text: str) -> Metric:
        """Read a metric.

        Raises:
            ConfigError: it has none of the forms.
        """
        parts = METRIC.fullmatch(text)
        if parts is None:
            raise ConfigError(f"metric={text}: set metric to name, name@50, name@best, name@mean or name@mean50")
        return cls(parts["name"], parts["choice"] or "", None if parts["epoch"] is None else float(parts["epoch"]))


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    Attributes:
        measure: the number's name in the paper if a row has several numbers per column, else "".
        metric: the metric that fills the cell, in a form that :class:`Metric` reads.
        overrides: arguments of the command that trains it, without the seed.
        paper: the reported number, accuracies in percent; None if it is not known.
        provenance: where that number comes from, one of PROVENANCE.
        missing: what this package lacks for the cell; empty if nothing.
        x: the column's place on the axis of a figure.
    """

    row: str
    column: str
    measure: str
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
        """The row's name with that of the measure."""
        return f"{self.row} {self.measure}".rstrip()

    @property
    def reported(self) -> str:
        """The paper's number as text; empty if it is not known."""
        if self.paper is None:
            return ""
        text = f"{self.paper:.4f}".rstrip("0")
        return text + "0" if text.endswith(".") else text

    @property
    def available(self) -> bool:
        """Whether a run of this package can fill the cell."""
        return not self.missing and self.command != "none"

    @property
    def settings(self) -> dict[str, str]:
        """The overrides as a mapping from key to value."""
        return dict(override.split("=", 1) for override in self.overrides)


@dataclass(frozen=True)
class Table:
    """A table or figure of a paper.

    Attributes:
        name: such as ``dcl/table1``.
        x, y: axis labels of a figure; empty for a table.
        doubling: the x axis is logarithmic to the base 2.
    """

    name: str
    title: str
    cite: str
    note: str
    cells: tuple[Cell, ...]
    x: str
    y: str
    doubling: bool

    @property
    def paper(self) -> str:
        """The paper's part of the name."""
        return self.name.partition("/")[0]

    @property
    def stem(self) -> str:
        """The name without the paper."""
        return self.name.partition("/")[2]

    def axes(self, cell: Cell) -> dict[str, str]:
        """The cell's dataset and the settings in which it differs from other cells of the table.

        The settings of the optimiser and of the evaluation are left out.
        """
        return {key: value for key, value in cell.settings.items() if key == "dataset" or key in self._varying}

    @cached_property
    def _varying(self) -> set[str]:
        """The settings in which available cells differ, without those of the optimiser and of the evaluation."""
        available = [cell.settings for cell in self.cells if cell.available]
        keys = {key for settings in available for key in settings}
        return {
            key
            for key in keys
            if key.split(".")[0] not in ("optimizer", "evaluate", "name")
            and len({settings.get(key) for settings in available}) > 1
        }

    def rows(self) -> list[str]:
        """Names of the rows, in order."""
        return list(dict.fromkeys(cell.row for cell in self.cells))

    def columns(self) -> list[str]:
        """Names of the columns, in order."""
        return list(dict.fromkeys(cell.column for cell in self.cells))


def is_accuracy(metric: str) -> bool:
    """Whether a metric is an accuracy: a share in runs, a percentage in papers."""
    return "top1" in metric or "top5" in metric


def directory() -> Path:
    """Folder of the papers' files: the one that ``SSL_BENCH_PAPERS`` names, or this package's."""
    return Path(os.environ.get("SSL_BENCH_PAPERS") or Path(__file__).parent)


def papers() -> list[str]:
    """Names of all papers."""
    return sorted(path.stem for path in directory().glob("*.yaml"))


def every() -> list[Table]:
    """All tables of all papers."""
    return [table for paper in papers() for table in load(paper)]


def find(name: str) -> list[Table]:
    """The tables of a name: ``dcl/table1``, all panels of ``dcl/fig3``, or all tables of ``dcl``.

    Raises:
        ConfigError: there is none.
    """
    paper, _, rest = name.partition("/")
    if paper not in papers():
        raise ConfigError(f"there is no paper {paper!r}{near(paper, papers())}: set it to one of {', '.join(papers())}")
    tables = load(paper)
    if not rest:
        return list(tables)
    exact = [table for table in tables if table.name == name]
    panels = [table for table in tables if table.name[:-1] == name and table.name[-1].isalpha()]
    if not exact and not panels:
        names = [table.name for table in tables]
        raise ConfigError(f"there is no table {name!r}{near(name, names)}: set it to one of {', '.join(names)}")
    return exact or panels


def load(paper: str) -> tuple[Table, ...]:
    """The tables of a paper. A file is read again when it has changed.

    Raises:
        ConfigError: the file does not have the format.
    """
    path = directory() / f"{paper}.yaml"
    return _load(path, path.stat().st_mtime_ns)


@cache
def _load(path: Path, changed: int) -> tuple[Table, ...]:
    try:
        data = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    _check_keys(data, PAPER_KEYS, str(path))
    return tuple(_table(f"{data['paper']}/{name}", data, node) for name, node in data["tables"].items())


def _table(name: str, paper: Mapping[str, Any], node: Mapping[str, Any]) -> Table:
    _check_keys(node, TABLE_KEYS, name)
    columns = node["columns"]
    if isinstance(columns, list):
        columns = dict.fromkeys(columns, node.get("each"))
    columns = {str(label): _as_mapping(entry) for label, entry in columns.items()}
    for label, column in columns.items():
        _check_keys(column, COLUMN_KEYS, f"{name} column {label}")
    x = node.get("x") or {}
    cells = [
        cell
        for label, entry in node["rows"].items()
        for cell in _row(name, str(label), _as_mapping(entry), node, columns, paper["paper"], bool(x))
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
    """The cells of a row, measure by measure."""
    where = f"{name} row {label}"
    _check_keys(row, ROW_KEYS, where)
    command = table.get("command", "train")
    _check_one_of(COMMANDS, "command", command, name)
    metrics = row.get("metrics") or ({"": row["metric"]} if "metric" in row else table.get("metrics"))
    metrics = metrics or {"": table.get("metric", "")}
    lists = row.get("values") or {}
    lists = lists if isinstance(lists, Mapping) else {"": lists}
    if unknown := sorted(set(lists) - set(metrics)):
        raise ConfigError(f"{where}: values has {', '.join(unknown)}, which metrics lacks")
    for measure, metric in metrics.items():
        values = lists.get(measure) or [None] * len(columns)
        if len(values) != len(columns):
            raise ConfigError(f"{where} {measure}: set {len(columns)} values, one per column, not {len(values)}")
        for (heading, column), value in zip(columns.items(), values, strict=True):
            number, provenance, entry = _value(value, row.get("provenance", table.get("provenance", "text")), where)
            column_overrides = [o.replace("{column}", heading) for o in flat(column.get("set"))]
            overrides = [flat(table.get("set")), flat(row.get("set")), column_overrides, flat(entry.get("set"))]
            notes = [node.get("note") for node in (entry, row, column)]
            missing = [node.get("missing") for node in (entry, row, column, table)]
            measured = str(column.get("metric", metric)).replace("{column}", heading)
            if measured:
                Metric.read(measured)
            yield Cell(
                row=label,
                column=heading,
                measure=measure,
                metric=measured,
                overrides=tuple(merge([f"name={paper}"], *overrides)),
                paper=number,
                provenance=provenance,
                seeds=tuple(row.get("seeds") or table.get("seeds") or (0,)),
                command=command,
                note="; ".join(" ".join(str(note).split()) for note in notes if note),
                missing=next(filter(None, missing), ""),
                x=float(column.get("x", heading)) if figure else None,
            )


def _value(value: Any, provenance: str, where: str) -> tuple[float | None, str, Mapping[str, Any]]:
    """A number, where it comes from, and the mapping that it stands in."""
    entry: Mapping[str, Any] = value if isinstance(value, Mapping) else {"is": value}
    _check_keys(entry, VALUE_KEYS, where)
    number, provenance = entry.get("is"), entry.get("provenance", provenance)
    if isinstance(number, str):
        text, _, provenance = number.partition(" ")
        number = float(text)
    if number is None:
        provenance = "unknown"
    _check_one_of(PROVENANCE, "provenance", provenance, where)
    return None if number is None else float(number), provenance, entry


def _as_mapping(entry: Any) -> Mapping[str, Any]:
    """``entry``, or ``{set: entry}`` for a list of overrides."""
    return entry if isinstance(entry, Mapping) else {"set": entry or []}


def _check_keys(node: Any, keys: set[str], where: str) -> None:
    if not isinstance(node, Mapping):
        raise ConfigError(f"{where} must be a mapping, not {node!r}")
    for key in node:
        if key not in keys:
            raise ConfigError(f"{where}: there is no key {key}{near(str(key), keys)}")


def _check_one_of(options: Sequence[str], key: str, value: str, where: str) -> None:
    if value not in options:
        raise ConfigError(
            f"{where}: {key}={value}: set {key} to one of {', '.join(options)}{near(str(value), options)}"
        )
