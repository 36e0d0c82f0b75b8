"""Curves over the training, with mean and deviation over the seeds: a line for each of what varies.

A line has points of one evaluation: each row of ``metrics.jsonl`` says which evaluations made its numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ssl_bench.config.ranges import near
from ssl_bench.errors import ConfigError
from ssl_bench.evaluate.metric import Metric
from ssl_bench.record import evaluations, runs
from ssl_bench.record.drawing import COLOURS, DASHES, Line, figure_of, of_seeds, plot, through_means
from ssl_bench.record.evaluations import Entry
from ssl_bench.record.runs import METRICS, Run
from ssl_bench.results import table as runs_table
from ssl_bench.results.table import repr_of, text_of, varying

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_LINES = 12  # of a figure
CLOCKS = {"step", "epoch", "seconds"}
WATCHED = {"watch/knn_top1": "kNN", "watch/effective_rank": "effective rank"}


@dataclass(frozen=True)
class SeedCurve:
    """A value over the epochs, from runs that differ in their seed only.

    Attributes:
        label: the settings, and the evaluation, that distinguish it from the other curves, and its number of seeds.
        x: the epochs at which all its runs have the value [P].
        values: of each seed, a share in percent [P, seeds].
    """

    label: str
    x: np.ndarray
    values: np.ndarray


Rows = Sequence[Mapping[str, Any]]
Points = dict[float, float]  # by epoch


def read_rows(table: DataFrame) -> dict[str, Rows]:
    """The rows of the runs that have begun, by their directory."""
    return {str(run.folder): runs.read_rows(run.folder / METRICS) for run in table["run"] if run.folder is not None}


def main_names(table: DataFrame, recorded: Sequence[Rows]) -> list[str]:
    """The names of the values to watch trainings by, the main one first: of those that some rows have.

    kNN on a sample of the training images comes first, then the main metrics, and for runs without labels the effective
    rank. Values of different losses are not compared: ``loss`` is there if all runs have the same loss.
    """
    keys = sorted({name for rows in recorded for row in rows for name in row if _has(row, name)})
    units = next((run.results["units"] for run in table["run"] if run.results.get("units")), None)
    one_loss, (knn, rank) = len({*map(repr_of, table.get("loss", ()))}) < 2, WATCHED
    names = dict.fromkeys([knn, *evaluations.main(keys, units), rank, *["loss"] * one_loss])
    return [name for name in names if name in keys]


def curves(
    table: DataFrame, name: str | None = None, read: Mapping[str, Rows] | None = None
) -> tuple[list[SeedCurve], str, list[str]]:
    """The curves of a value of ``metrics.jsonl``, its name with its unit, and sentences on the runs that are left out.

    Args:
        name: ``loss``, ``knn/top1`` of ``evaluate.every``, or any other value of the rows; None: the first of
            :func:`main_names`.
        read: the rows from :func:`read_rows`; None: they are read.

    Raises:
        ConfigError: no run has such rows, there are too many lines, or two folders have the same training and seed, and
            different values.
    """
    read = read_rows(table) if read is None else read
    recorded = [read.get(str(run.folder), ()) for run in table["run"]]
    name = name or next(iter(main_names(table, recorded)), "")
    having = [any(_has(row, name) for row in of_run) for of_run in recorded]
    if not any(having):
        keys = sorted({key for of_run in recorded for row in of_run[:50] for key in row} - CLOCKS)
        what = f"a value of metrics.jsonl, which has {', '.join(keys) or 'nothing yet'}{near(name, keys)}"
        refused = f"--metric={name}" if name else "nothing but the values of different losses is recorded"
        raise ConfigError(f"{refused}: set --metric to {what}")
    drawn = runs_table.with_one_name(table[having])
    settings = varying(drawn)
    entries = [_entries(run) if "/" in name else [] for run in drawn["run"]]
    by_mark = {evaluations.mark(entry): entry for of_run in entries for entry in of_run}
    lines = dict[tuple[str, str], list[tuple[Run, Points]]]()  # by settings and by evaluation
    for place, run, of_run in zip(drawn.index, drawn["run"], entries, strict=True):
        line = " ".join(f"{n}={text_of(drawn.at[place, n])}" for n in settings)
        by_evaluation = dict[str, Points]()  # if an epoch was repeated, its last value
        for row in (row for row in read[str(run.folder)] if _has(row, name)):
            by_evaluation.setdefault(_made_by(row, name, of_run, by_mark), {})[row["epoch"]] = row[name]
        for mark, points in by_evaluation.items():
            lines.setdefault((line, mark), []).append((run, points))
    marks = {mark for _, mark in lines}
    named = evaluations.names({name: {mark: evaluations.made_by(by_mark[mark]) for mark in marks if mark in by_mark}})
    ends = {mark: named.get((name, mark), mark) if len(marks) > 1 else "" for mark in marks}
    metric = runs_table.meaning(drawn, name)
    of_lines = [_curve(f"{line} {ends[mark]}".strip(), of, name, metric) for (line, mark), of in lines.items()]
    if len(of_lines) > MOST_LINES:
        raise ConfigError(f"{len(of_lines)} lines, more than {MOST_LINES}: set some of {', '.join(settings)}")
    title = f"{WATCHED[name]} on a sample of the training images" if name in WATCHED else name
    return of_lines, runs_table.label(title, metric), runs_table.left_out(table, name, having)


def figure(found: Sequence[SeedCurve], label: str, below: Sequence[str] = ()) -> Any:
    """Draw curves (:func:`curves`): a line for each, its seeds as small points, and its deviation as a band."""
    lines = list[Line]()
    for i, curve in enumerate(found):
        style = {"label": curve.label, "markevery": max(1, len(curve.x) // 30)}
        style["linestyle"] = DASHES[i // len(COLOURS) % len(DASHES)]
        lines.append(through_means(i, curve.x, curve.values, style, band=curve.values.shape[1] > 1))
    axes = {"xlabel": "epoch", "ylabel": of_seeds(label, [curve.values.shape[1] for curve in found])}
    panel = partial(plot, lines=lines, axes=axes, legend={})
    return figure_of([panel], (6.4, 4.3), below=below)


def _has(row: Mapping[str, Any], name: str) -> bool:
    return type(row.get(name)) in (int, float) and "epoch" in row


def _entries(run: Run) -> list[Entry]:
    """The evaluations of a run; without results those that its configuration requests, which may import torch."""
    with contextlib.suppress(ConfigError, ImportError):  # they are not known on this machine
        return list(run.results["evaluations"]) if run.results else evaluations.asked(run.config)
    return []


def _made_by(row: Mapping[str, Any], name: str, entries: Sequence[Entry], by_mark: Mapping[str, Entry]) -> str:
    """The mark of the evaluation that made a metric of a row; empty for a value of the training.

    Args:
        entries: the evaluations of the run; a row of an earlier version does not say which of them made it.
        by_mark: the evaluations of all runs.
    """
    marks, candidates = row.get("evaluations", ()), [*evaluations.after(entries, row["epoch"]), *entries]
    entry = evaluations.made(name, [by_mark[mark] for mark in marks if mark in by_mark] if marks else candidates)
    return evaluations.mark(entry) if entry else " ".join(marks)


def _curve(label: str, members: Sequence[tuple[Run, Points]], name: str, metric: Metric) -> SeedCurve:
    """The curve of a line from its runs and their points."""
    from pandas import DataFrame

    by_seed = dict[Any, tuple[Run, Points]]()
    for run, points in members:
        first, first_points = by_seed.setdefault(run.seed, (run, points))
        runs_table.refuse_two_recipes(first, run)
        if first_points != points:
            raise ConfigError(f"{name} of one training and seed differs in {first.folder} and {run.folder}: name one")
    frame = metric.scale * DataFrame([points for _, points in by_seed.values()]).sort_index(axis=1).dropna(axis=1)
    label = f"{label or 'all'} ({len(frame)} seed{'s' * (len(frame) > 1)})"
    return SeedCurve(label, frame.columns.to_numpy(float), frame.to_numpy().T)
