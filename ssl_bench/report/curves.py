"""Learning curves of a run, with at most a given number of points each."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_bench.record import rows
from ssl_bench.record.follow import finite

CLOCKS = {"step", "epoch", "seconds"}
LARGEST_VALUE = 1e300  # of a value that has a point
DIGITS = 4  # significant ones, more than a screen can show

# Steps and values of the points that are kept; number of rows that have the value; number of those rows in which it is
# NaN, infinite or beyond 1e300, which have no point.
Curve = list[Any]


def read(path: Path, most: int, config: Mapping[str, Any]) -> tuple[dict[str, Curve], float | None]:
    """The curves in ``metrics.jsonl`` that have two rows or more, and the number of steps of an epoch.

    Args:
        most: largest number of points of a curve, at least 4.
        config: of the run.
    """
    columns: dict[str, tuple[list[float], list[float]]] = {}  # steps and values
    steps_per_epoch = None
    for row in rows.read(path, config):
        step = row["step"]
        steps_per_epoch = step / epoch if (epoch := finite(row, "epoch")) else steps_per_epoch
        for name, value in row.items():
            if name not in CLOCKS and type(value) in (int, float):
                steps, values = columns.setdefault(name, ([], []))
                steps.append(step)
                values.append(value)
    return {name: _curve(*column, most) for name, column in columns.items() if len(column[0]) > 1}, steps_per_epoch


def _curve(steps: Sequence[float], values: Sequence[float], most: int) -> Curve:
    good = [place for place, value in enumerate(values) if -LARGEST_VALUE < value < LARGEST_VALUE]
    kept = [good[place] for place in thin([values[place] for place in good], most)]
    shown = [float(f"{values[place]:.{DIGITS}g}") for place in kept]
    return [_whole(steps[place] for place in kept), _whole(shown), len(values), len(values) - len(good)]


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


def _whole(numbers: Iterable[float]) -> list[float]:
    """Numbers that are written shorter: 3 instead of 3.0."""
    return [int(number) if number.is_integer() and abs(number) < 1e15 else number for number in map(float, numbers)]
