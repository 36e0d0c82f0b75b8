"""Print a design: a row and column in the place of its points, and the shares of variance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ssl_bench.papers.cells import Table
from ssl_bench.papers.fill import Filled
from ssl_bench.papers.surface import CLIFF, TRIALS, arms
from ssl_bench.papers.variance import complete, shares

LINES = ("optimum", "at", "difference", "best of n")  # of a printed row


@dataclass(frozen=True)
class Printed(Filled):
    """A row and column in the place of its points."""

    lines: dict[str, str] = field(default_factory=dict)

    @property
    def texts(self) -> dict[str, str]:
        """The numbers of the fit."""
        return self.lines


def printed(table: Table, filled: Sequence[Filled]) -> list[Filled]:
    """Filled cells with one for each row and column of a design in the place of its points."""
    optima = (Printed(replace(arm.cell, measure=""), [], [], "", [], lines=arm.texts) for arm in arms(table, filled))
    return [*optima, *(single for single in filled if not single.cell.over)]


def lines(table: Table, filled: Sequence[Filled]) -> list[str]:
    """Sentences that say what the printed numbers are, and the shares of variance."""
    found = arms(table, filled)
    metrics = [each.cell.metric for each in filled if each.cell.over]
    known = np.concatenate([arm.chosen for arm in found])
    placebos = {arm.cell.row: arm.cell.against for arm in found if arm.cell.placebo}
    of_placebos = "".join(f", of {row} to that of {equals}" for row, equals in placebos.items())
    words = [
        f"{np.isfinite(known).sum()} of {known.size} points have run, {sum(arm.diverged.sum() for arm in found)} more "
        f"diverged. optimum: the highest of a quadratic, ± standard error (points within {CLIFF:g} of the best, which "
        "it is fitted to); at: where it is, ! at an end of its range",
        *([f"difference: to the optimum of {table.reference}{of_placebos}"] if table.reference else []),
        f"best of n: the expected {metrics[-1]} of the best of {', '.join(map(str, TRIALS))} points by {metrics[0]}",
    ]
    text = ["; ".join(words) + "."]
    if parts := shares(found):
        told = ", ".join(f"{name} {share:.1f} [{low:.1f}, {high:.1f}]" for name, share, low, high in parts)
        text += [
            "",
            f"Shares of the variance of {metrics[-1]} in percent [95% interval, of other seeds]: {told}.",
        ]
        left_out = len({arm.cell.row for arm in found if not arm.cell.placebo}) - len(complete(found))
        text += [f"Without {left_out} rows that have points to run."] if left_out else []
    return text


def record(table: Table, filled: Sequence[Filled]) -> dict[str, Any]:
    """The fits and the shares of variance as plain data."""
    found = arms(table, filled)
    names = ("of", "percent", "low", "high")
    parts = [dict(zip(names, part, strict=True)) for part in shares(found)]
    return {"surface": [arm.record() for arm in found], "shares": parts}
