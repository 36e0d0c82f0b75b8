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
from ssl_bench.results.statistics import Estimate


@dataclass
class Comparison:
    """One value of the named setting compared with another, in runs that are equal but for it and the seed.

    Attributes:
        where: what distinguishes it from the other comparisons; empty if it is the only one.
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

    def bound(self, estimate: Estimate, images: bool) -> None:
        """Set the interval of the difference.

        Args:
            images: whether the estimate knows which images are right.
        """
        self.low, self.high = (float(end) for end in estimate.interval())
        self.varies = "seeds only" if not images else "images" if estimate.images > estimate.seeds else "seeds"

    def texts(self, form: str) -> list[str]:
        """The numbers and the verdict as texts; those that are not known are empty.

        Args:
            form: of a number, such as ``.2f``.
        """
        numbers = zip((self.mean, self.to_mean, self.difference), ("", "", "+"), strict=True)
        interval = "" if math.isnan(self.low) else f"[{self.low:+{form}}, {self.high:+{form}}]"
        return [
            str(self.n),
            *("" if math.isnan(number) else f"{number:{sign}{form}}" for number, sign in numbers),
            interval,
            self.varies,
            self.verdict,
            "" if self.more is None else str(self.more),
        ]

    def record(self) -> dict[str, Any]:
        """The comparison as plain data."""
        return {name: plain(value) for name, value in vars(self).items()}


@dataclass
class Comparisons:
    """The comparisons of the values of a setting with one of them, whose verdicts hold together.

    Attributes:
        by: the named settings.
        name, metric: what is compared.
        margin: a smaller difference does not matter; None: it was not asked.
        unpaired: number of runs whose counterpart is missing.
        chosen: a sentence on which number was chosen among several.
    """

    by: Sequence[str]
    name: str
    metric: Metric
    margin: float | None
    rows: list[Comparison]
    unpaired: int = 0
    chosen: str = ""

    def record(self) -> dict[str, Any]:
        """The comparisons as plain data."""
        unit = "percent" if self.metric.scale == 100 else "number"
        record: dict[str, Any] = {"by": list(self.by), "metric": self.name, "unit": unit, "better": self.metric.better}
        record |= {"margin": self.margin, "alone": self.unpaired, "error": statistics.ERROR}
        return record | {"cells": [comparison.record() for comparison in self.rows]}

    def sheet(self) -> Sheet:
        """The comparisons as rows."""
        several = len({comparison.where for comparison in self.rows}) > 1
        what = f"{self.name}{', percent' * (self.metric.scale == 100)}"
        title = f"{what}, by {', '.join(self.by)}, in pairs by seed"
        columns = ["runs", *(["cell"] * several), "n", "mean", "other", "difference"]
        columns += ["95% interval", "varies by", "verdict", "more seeds"]
        sheet = Sheet(columns, left=1 + several, words=("varies by", "verdict"), title=title)
        form = ".2f" if self.metric.scale == 100 else ".4g"
        for comparison in self.rows:
            notes = sheet.numbers([f"different {condition}" for condition in comparison.differ])
            row = [SheetEntry(f"{comparison.of} less {comparison.to}", notes)]
            row += [SheetEntry(comparison.where)] * several
            row += [SheetEntry(text) for text in comparison.texts(form)]
            sheet.rows.append(row)
        sheet.below = self._below()
        sheet.data = self.record()
        sheet.records = [
            {name: "; ".join(map(str, value)) if isinstance(value, list) else value for name, value in record.items()}
            for record in sheet.data["cells"]
        ]
        return sheet

    def _below(self) -> list[str]:
        """The sentences below the table."""
        sentences = [self.chosen] * bool(self.chosen)
        if decided := sum(comparison.n > 1 for comparison in self.rows):
            together = f" together for all {decided} comparisons (Holm)" if decided > 1 else ""
            margin = "" if self.margin is None else f" The margin is {self.margin:g}."
            sentences.append(f"Verdicts have an error of {statistics.ERROR:.0%}{together}.{margin}")
        if any(comparison.varies == "seeds only" for comparison in self.rows):
            sentences.append("Seeds only: these runs have not recorded which images are right.")
        if self.unpaired:
            sentences.append(f"{self.unpaired} run(s) have no counterpart that differs in {', '.join(self.by)} only.")
        if commands := list(dict.fromkeys(command for comparison in self.rows for command in comparison.commands)):
            sentences += ["Fewer than two pairs give no verdict; these runs make them:", *commands]
        return sentences
