"""Curves over the training, with mean and deviation over the seeds: a line for each of what varies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ssl_bench.config.build import near
from ssl_bench.errors import ConfigError, InvalidValue
from ssl_bench.evaluate.metric import Metric
from ssl_bench.record import rows
from ssl_bench.record.index import METRICS
from ssl_bench.results.arrange import dividing
from ssl_bench.results.differing import differing, requested
from ssl_bench.results.numbers import Numbers
from ssl_bench.results.runs import RunFolder
from ssl_bench.results.scan import Entry

MOST_LINES = 12  # of a figure
CLOCKS = {"step", "epoch", "seconds"}


@dataclass(frozen=True)
class SeedCurve:
    """A value over the epochs, from runs that differ in their seed only.

    Attributes:
        label: the settings that distinguish it from the other curves; empty for the only one.
        x: the epochs at which all its runs have the value [P].
        mean, deviation: over the seeds, a share in percent [P]; the deviation of one seed is 0.
        seeds: their number.
        end: the last x that one of its runs has, beyond the others' if a run is not finished.
    """

    label: str
    x: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    seeds: int
    end: float

    @property
    def legend(self) -> str:
        """Its label, with the number of seeds, and where it ends if some of them go on."""
        of = f"{self.seeds} seed{'s' * (self.seeds > 1)}"
        last = self.x[-1] if len(self.x) else 0
        cut = f", to epoch {last:g} of {self.end:g}: one has no more" if last < self.end else ""
        return f"{self.label or 'all'} ({of}{cut})"


Rows = Sequence[Mapping[str, Any]]
Points = tuple[RunFolder, np.ndarray, object]  # of one run: x and value [P, 2], and what made them


def read_rows(entries: Sequence[Entry]) -> dict[str, Rows]:
    """The rows of the runs that have begun, by their path."""
    runs = [entry.run for entry in entries if entry.run]
    return {run.path: rows.read(run.folder / METRICS, run.config) for run in runs}


def curves(
    entries: Sequence[Entry], name: str | None = None, read: Mapping[str, Rows] | None = None
) -> tuple[list[SeedCurve], str]:
    """The curves of a value of ``metrics.jsonl``, and its name with its unit.

    Args:
        name: ``loss``, ``knn/top1`` of ``evaluate.every``, or any other value of the rows; None: ``loss``.
        read: what :func:`read_rows` gives; None: it is called.

    Raises:
        ConfigError: no run has such rows, there are too many lines, or the runs of one line were not evaluated alike.
    """
    name, begun = name or "loss", [entry for entry in entries if entry.run]
    varying, members = differing(begun), dict[tuple[str, ...], list[Points]]()
    settings, there = dividing(varying, requested(begun)), dict[str, None]()
    read = read_rows(begun) if read is None else read
    for entry, values in zip(begun, varying.values, strict=True):
        if (run := entry.run) is None:
            continue
        recorded = read[run.path]
        having = [row for row in recorded if type(row.get(name)) in (int, float) and "epoch" in row]
        there |= dict.fromkeys(key for row in recorded[:50] for key in row if key not in CLOCKS)
        if having:
            line = tuple(f"{n}={v}" for n, v in zip(varying.names, values, strict=True) if n in settings)
            made_by = {tuple(row.get("evaluations", ())) for row in having} if "/" in name else set()
            points = np.array([(row["epoch"], row[name]) for row in having], dtype=float)
            members.setdefault(line, []).append((run, points, made_by))
    if not members:
        words = ", ".join(sorted(there)) or "nothing yet"
        raise InvalidValue("--metric", name, f"a value of metrics.jsonl, which has {words}{near(name, sorted(there))}")
    _check_count(len(members), settings)
    metric = Numbers(entry.run for entry in begun if entry.run).meaning(name)
    label = f"{name} (%)" if metric.unit == "share" else name
    return [_curve(" ".join(line), of, name, metric) for line, of in members.items()], label


def _check_count(lines: int, settings: Sequence[str]) -> None:
    if lines > MOST_LINES:
        raise ConfigError(f"{lines} lines, more than {MOST_LINES}: set some of {', '.join(settings)}")


def _curve(label: str, of: Sequence[Points], name: str, metric: Metric) -> SeedCurve:
    """The curve of the runs of a line, each with its points and what made them."""
    first, _, made_by = of[0]
    for run, _, its in of[1:]:
        if its != made_by:
            raise ConfigError(
                f"{name} of {first.folder} and of {run.folder} is of different evaluations: set one aside"
            )
    if len({run.seed for run, _, _ in of}) < len(of):
        raise ConfigError(f"two runs with one seed differ in no setting, such as {first.folder}: name one of them")
    by_run = [dict(points.tolist()) for _, points, _ in of]  # of an epoch that was repeated the last value
    shared = sorted(set(by_run[0]).intersection(*by_run[1:]))
    values = metric.scale * np.array([[points[x] for x in shared] for points in by_run])
    spread = values.std(0, ddof=1) if len(of) > 1 else np.zeros(len(shared))
    end = max(float(points[:, 0].max()) for _, points, _ in of)
    return SeedCurve(label, np.array(shared), values.mean(0), spread, len(of), end)
