"""A curve in one line of text."""

from collections.abc import Sequence
from itertools import pairwise

BARS = "▁▂▃▄▅▆▇█"


def sparkline(numbers: Sequence[float], width: int) -> str:
    """A curve of finite numbers, from the lowest bar at their minimum to the highest one at their maximum.

    Args:
        width: largest number of characters. More numbers than these are divided into as many groups of equal size, the
            first of which may have one number less, and each is shown by its mean.
    """
    count = min(width, len(numbers))
    ends = [len(numbers) * place // count for place in range(count + 1)] if count else []
    means = [sum(numbers[a:b]) / (b - a) for a, b in pairwise(ends)]
    low, high = min(means, default=0.0), max(means, default=0.0)
    steps = (int((mean - low) / (high - low) * len(BARS)) if high > low else 0 for mean in means)
    return "".join(BARS[min(step, len(BARS) - 1)] for step in steps)
