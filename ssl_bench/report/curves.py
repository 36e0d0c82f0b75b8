"""Learning curves of a run, with at most a given number of points each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.status.follow import finite

CLOCKS = {"step", "epoch", "seconds"}
LARGEST = 1e300  # of a value that has a point
DIGITS = 4  # significant ones, more than a screen can show


@dataclass(frozen=True)
class Series:
    """One number of a run over the steps, thinned.

    Attributes:
        steps, values: of the points that are kept; finite, in the order of the steps.
        total: number of rows that have the number.
        not_finite: number of those rows in which it is NaN, infinite or beyond 1e300; they have no point.
    """

    steps: list[float]
    values: list[float]
    total: int
    not_finite: int


def read(path: Path, most: int) -> tuple[dict[str, Series], float | None]:
    """The curves in ``metrics.jsonl`` that have two rows or more, and the number of steps of an epoch.

    Args:
        most: largest number of points of a curve, at least 4.
    """
    columns: dict[str, tuple[list[float], list[float]]] = {}  # steps and values
    steps_per_epoch = None
    for row in files.read_json_lines(path):
        step = finite(row, "step")
        if step is None:
            continue
        steps_per_epoch = step / epoch if (epoch := finite(row, "epoch")) else steps_per_epoch
        for name, value in row.items():
            if type(value) is float or type(value) is int:  # a truth value is neither
                steps, values = columns.setdefault(name, ([], []))
                steps.append(step)
                values.append(value)
    curves = {name: curve for name in columns.keys() - CLOCKS if (curve := _series(*columns[name], most)).total > 1}
    return {name: curves[name] for name in columns if name in curves}, steps_per_epoch


def _series(steps: Sequence[float], values: Sequence[float], most: int) -> Series:
    """A thinned curve of numbers, which may be NaN, infinite, or whole numbers that no float can hold."""
    good = [place for place, value in enumerate(values) if -LARGEST < value < LARGEST]
    finite_values = values if len(good) == len(values) else [values[place] for place in good]
    kept = [good[place] for place in thin(finite_values, most)]
    shown = [float(f"{values[place]:.{DIGITS}g}") for place in kept]
    return Series([steps[place] for place in kept], shown, len(values), len(values) - len(good))


def thin(values: Sequence[float], most: int) -> list[int]:
    """Places of at most ``most`` values that keep the look of a curve, in order.

    The first and the last value stay. The others are divided into equal stretches, and of each stretch the smallest and
    the largest value stay. So no extreme is lost.
    """
    count = len(values)
    if count <= most:
        return list(range(count))
    stretches = (most - 2) // 2
    kept = {0, count - 1}
    for number in range(stretches):
        start, end = (1 + (count - 2) * place // stretches for place in (number, number + 1))
        stretch = values[start:end]
        kept |= {start + stretch.index(min(stretch)), start + stretch.index(max(stretch))}
    return sorted(kept)


def as_data(curves: Mapping[str, Series]) -> dict[str, Any]:
    """The curves for the page: ``{name: [steps, values, total, not_finite]}``. Whole numbers are written as such."""
    return {name: [_whole(c.steps), _whole(c.values), c.total, c.not_finite] for name, c in curves.items()}


def _whole(numbers: Sequence[float]) -> list[float]:
    """Numbers that are written shorter: 3 instead of 3.0."""
    return [int(number) if number.is_integer() and abs(number) < 1e15 else number for number in map(float, numbers)]
