"""The result of a comparison of runs, and its rows as a sheet.

Accuracies, their differences and the margin are in percent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ssl_bench.evaluate.metric import Metric
from ssl_bench.record.printing import Sheet, SheetEntry, plain
from ssl_bench.results import statistics


@dataclass
class Cell:
    """A comparison of runs that are equal but for the named setting and the seed.

    Attributes:
        where: what distinguishes it from the other cells; empty if it is the only one.
        of, to: what is compared.
        seeds: of the pairs, ``n`` of them.
        mean, to_mean, difference, low, high: NaN where ``n`` is too small.
        varies: ``images`` or ``seeds``, whichever contributes more to the interval; ``seeds only`` if the runs have not
            recorded which images are right.
        verdict: ``better``, ``worse`` (``higher``, ``lower`` of a metric that does not say what is better), ``no
            difference larger than`` the margin, ``undecided`` or ``no verdict``.
        more: pairs that would decide at the deviation seen; None: no number would, or it is decided.
        differ: what the runs differ in that was not named, in words.
        commands: that train what is missing.
    """

    where: str
    of: str
    to: str
    n: int = 0
    seeds: list[int] = field(default_factory=list)
    mean: float = math.nan
    to_mean: float = math.nan
    difference: float = math.nan
    low: float = math.nan
    high: float = math.nan
    varies: str = ""
    verdict: str = "no verdict"
    more: int | None = None
    differ: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """The cell as plain data."""
        return {name: plain(value) for name, value in vars(self).items()}


@dataclass
class Comparison:
    """The cells of a comparison.

    Attributes:
        by: the named settings.
        name, metric: what is compared.
        margin: a smaller difference does not matter; None: it was not asked.
        alone: runs whose counterpart is missing.
    """

    by: Sequence[str]
    name: str
    metric: Metric
    margin: float | None
    cells: list[Cell]
    alone: int = 0

    def record(self) -> dict[str, Any]:
        """The comparison as plain data."""
        meant = {"unit": "percent" if self.metric.scale == 100 else "number", "better": self.metric.better}
        own = {"by": list(self.by), "metric": self.name, **meant, "margin": self.margin, "alone": self.alone}
        return own | {"error": statistics.ERROR, "cells": [cell.record() for cell in self.cells]}

    def sheet(self) -> Sheet:
        """The comparison as rows."""
        several = len({cell.where for cell in self.cells}) > 1
        what = f"{self.name}{', percent' * (self.metric.scale == 100)}"
        title = f"{what}, by {', '.join(self.by)}, in pairs by seed"
        columns = ["runs", *(["cell"] * several), "n", "mean", "other", "difference"]
        sheet = Sheet([*columns, "95% interval", "varies by", "verdict", "more seeds"], left=1 + several, title=title)
        form = ".2f" if self.metric.scale == 100 else ".4g"
        for cell in self.cells:
            notes = sheet.numbers([f"different {each}" for each in cell.differ])
            row = [SheetEntry(f"{cell.of} less {cell.to}", notes), *([SheetEntry(cell.where)] * several)]
            row.append(SheetEntry(str(cell.n)))
            for number, sign in zip((cell.mean, cell.to_mean, cell.difference), "--+", strict=True):
                row.append(SheetEntry("" if math.isnan(number) else f"{number:{sign}{form}}"))
            row.append(SheetEntry("" if math.isnan(cell.low) else f"[{cell.low:+{form}}, {cell.high:+{form}}]"))
            more = "" if cell.more is None else str(cell.more)
            sheet.rows.append([*row, SheetEntry(cell.varies), SheetEntry(cell.verdict), SheetEntry(more)])
        decided = sum(cell.n > 1 for cell in self.cells)
        many = f" together for all {decided} comparisons (Holm)" if decided > 1 else ""
        margin = "" if self.margin is None else f" The margin is {self.margin:g}."
        sheet.below = [f"Verdicts have an error of {statistics.ERROR:.0%}{many}.{margin}"] if decided else []
        if any(cell.varies == "seeds only" for cell in self.cells):
            sheet.below.append("Seeds only: these runs have not recorded which images are right.")
        sheet.below += [f"{self.alone} run(s) have no counterpart that differs in {', '.join(self.by)} only."] * bool(
            self.alone
        )
        missing = list(dict.fromkeys(command for cell in self.cells for command in cell.commands))
        sheet.below += ["Fewer than two pairs give no verdict; these runs make them:", *missing] if missing else []
        sheet.data = self.record()
        sheet.records = [
            {name: "; ".join(map(str, value)) if isinstance(value, list) else value for name, value in cell.items()}
            for cell in sheet.data["cells"]
        ]
        return sheet
