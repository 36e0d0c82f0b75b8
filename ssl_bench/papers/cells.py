"""The cells of a paper's tables: what is measured, the options that make it, and the paper's number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssl_bench.errors import ConfigError
from ssl_bench.record import evaluations

METRIC = re.compile(r"(?P<name>[^@]+)(@(?P<choice>best$|mean|(?=\d))(?P<epoch>\d+(\.\d+)?)?)?")


@dataclass(frozen=True)
class CellMetric:
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

    @classmethod
    def read(cls, text: str) -> CellMetric:
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
        metric: the metric that fills the cell, in a form that :class:`CellMetric` reads.
        overrides: arguments of `ssl-bench train`, without the seed.
        paper: the reported number, accuracies in percent; None if it is not known.
        provenance: where that number comes from, one of :data:`ssl_bench.papers.read_table.PROVENANCE`.
        missing: a feature that the cell needs and this package lacks; empty for none.
        x: the column's value on the x axis of a figure.
    """

    row: str
    column: str
    measure: str
    metric: str
    overrides: tuple[str, ...]
    paper: float | None
    provenance: str
    seeds: tuple[int, ...]
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
        return re.sub(r"(\.\d+?)0*$", r"\1", f"{self.paper:.4f}")

    @property
    def share(self) -> bool:
        """Whether the metric is a share, by its name: in percent in papers."""
        return evaluations.metric_of(CellMetric.read(self.metric).name, None).unit == "share"

    @property
    def needs(self) -> str:
        """The package lacks this, in words; empty: nothing."""
        return f"needs {self.missing}" if self.missing else ""

    @property
    def available(self) -> bool:
        """Whether a run of this package can fill the cell."""
        return not self.missing

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
        best: ``row`` or ``column``, in which the best numbers are bold; empty for none.
        source: its file.
    """

    name: str
    title: str
    cite: str
    note: str
    cells: tuple[Cell, ...]
    x: str
    y: str
    doubling: bool
    best: str
    source: Path

    @property
    def stem(self) -> str:
        """The name without the paper."""
        return self.name.partition("/")[2]

    def rows(self) -> list[str]:
        """Names of the rows, in order."""
        return list(dict.fromkeys(cell.row for cell in self.cells))

    def columns(self) -> list[str]:
        """Names of the columns, in order."""
        return list(dict.fromkeys(cell.column for cell in self.cells))


def flat(overrides: Any) -> list[str]:
    """Overrides of nested lists as one list; None is an empty one."""
    if overrides is None:
        return []
    return [o for entry in overrides for o in (flat(entry) if isinstance(entry, list) else [str(entry)])]


def merge(*parts: Sequence[str]) -> list[str]:
    """Join lists of overrides, keeping the last override of each key.

    ``~temperature`` removes the overrides of that group before it.
    """
    by_key: dict[str, str] = {}
    for override in (o for part in parts for o in part):
        if override.startswith("~"):
            by_key = {key: o for key, o in by_key.items() if key.split(".")[0] != override[1:]}
            continue
        key = override.split("=", 1)[0]
        if by_key.get(key) != override:
            by_key.pop(key, None)
            by_key[key] = override
    return list(by_key.values())
