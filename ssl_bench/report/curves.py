"""Learning curves of a run, with at most a given number of points each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ssl_bench.errors import ConfigError, printable
from ssl_bench.record import evaluations, runs
from ssl_bench.record.drawing import pooled
from ssl_bench.record.evaluations import evaluator_of
from ssl_bench.record.runs import METRICS, Run, finite
from ssl_bench.results.curves import SeedCurve, curves, main_names, read_rows

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_RUNS, MOST_NAMES = 300, 6  # of an experiment whose means over seeds are in the report; its curves
CLOCKS = {"step", "epoch", "seconds"}
LARGEST_VALUE = 1e300  # of a value that has a point
DIGITS = 4  # significant ones, more than a screen can show

# Steps and values of the remaining points; number of rows with the value; number of rows in which it is NaN, infinite
# or beyond 1e300, which have no point.
Curve = list[Any]


def read(run: Run, most: int) -> tuple[dict[str, Curve], float | None]:
    """The curves in a run's ``metrics.jsonl`` that have two rows or more, and the number of steps of an epoch.

    Of a metric that several evaluations made the last one has a curve.

    Args:
        most: largest number of points of a curve, at least 4.
    """
    columns, made_by = dict[str, tuple[list[float], list[float]]](), dict[str, list[str]]()  # steps and values
    evaluators = {evaluations.mark(entry): entry["evaluator"] for entry in run.results.get("evaluations", ())}
    steps_per_epoch = None
    for row in runs.read_rows(run.folder / METRICS) if run.folder else ():
        step, marks = row["step"], row.get("evaluations", ())
        steps_per_epoch = step / epoch if (epoch := finite(row, "epoch")) else steps_per_epoch
        for name, value in row.items():
            if name in CLOCKS or type(value) not in (int, float):
                continue
            its = [mark for mark in marks if evaluators.get(mark) in (None, evaluator_of(name))] if "/" in name else []
            if its and made_by.setdefault(name, its) != its:
                columns.pop(name)
            made_by[name] = its or made_by.get(name, its)
            steps, values = columns.setdefault(name, ([], []))
            steps.append(step)
            values.append(value)
    return {name: _curve(*of, most) for name, of in columns.items() if len(of[0]) > 1}, steps_per_epoch


def _curve(steps: Sequence[float], values: Sequence[float], most: int) -> Curve:
    good = [place for place, value in enumerate(values) if -LARGEST_VALUE < value < LARGEST_VALUE]
    indices = [good[place] for place in thin([values[place] for place in good], most)]
    shown = [float(f"{values[place]:.{DIGITS}g}") for place in indices]
    return [_whole(steps[place] for place in indices), _whole(shown), len(values), len(values) - len(good)]


def thin(values: Sequence[float], most: int) -> list[int]:
    """The indices, in order, of at most ``most`` values with which a curve looks as it does with all.

    These are the first and the last value, and of equal stretches between them the smallest and the largest value each,
    so that no extreme is lost.
    """
    count = len(values)
    if count <= most:
        return list(range(count))
    stretches = (most - 2) // 2
    indices = {0, count - 1}
    for number in range(stretches):
        start, end = (1 + (count - 2) * place // stretches for place in (number, number + 1))
        stretch = values[start:end]
        indices |= {start + stretch.index(min(stretch)), start + stretch.index(max(stretch))}
    return sorted(indices)


def _whole(numbers: Iterable[float]) -> list[float]:
    """Numbers in their shortest form: 3 in place of 3.0."""
    return [int(number) if number.is_integer() and abs(number) < 1e15 else number for number in map(float, numbers)]


def over_seeds(table: DataFrame, most: int) -> dict[str, list[dict[str, Any]]]:
    """Mean and deviation over seeds of an experiment's curves, by name, with at most so many points each.

    There are none of a value whose runs make no lines, or if no two runs differ in their seed only.
    """
    if len(table) > MOST_RUNS:
        return {}
    read, by_name = read_rows(table), dict[str, list[dict[str, Any]]]()
    for name in main_names(table, [*read.values()])[:MOST_NAMES]:
        try:
            lines, *_ = curves(table, name, read)
        except ConfigError:
            continue
        if any(line.values.shape[0] > 1 and line.values.shape[1] > 1 for line in lines):
            by_name[name] = [_of_seeds(line, most) for line in lines]
    return by_name


def _of_seeds(line: SeedCurve, most: int) -> dict[str, Any]:
    """A curve as plain data, of at most ``most`` epochs at equal distances, among them the last one."""
    shown, numbers = slice(None, None, -(-len(line.x) // most) * -1), (line.x, line.values.mean(1))
    epochs, mean = (_whole(float(f"{n:.{DIGITS}g}") for n in values[shown][::-1]) for values in numbers)
    return {"label": printable(line.label), "epochs": epochs, "mean": mean, "deviation": pooled(line.values)}
