"""The keys of a search with Optuna: what a key can be, as Optuna has it, and as a person would write it."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssl_bench.config.values import bounds, values
from ssl_bench.errors import ConfigError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


def distribution(override: Any, folder: Path | None) -> "BaseDistribution":
    """Optuna's form of the values of a key: choices as they are written, a range without its stop, an interval.

    Raises:
        ConfigError: it has no number, or a logarithm is asked for of numbers that have none.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    value = override.value()
    try:
        if override.is_range_sweep() and not value.shuffle:
            low, high = sorted(bounds(override)[1:])
            kind: Any = IntDistribution if isinstance(low, int) else FloatDistribution
            return kind(low, high, step=abs(value.step))
        if override.is_interval_sweep():
            kind = IntDistribution if isinstance(value.start, int) else FloatDistribution
            return kind(value.start, value.end, log="log" in value.tags)
        return CategoricalDistribution([text.partition("=")[2] for text in values(override, folder)])
    except (IndexError, ValueError) as error:
        raise ConfigError(f"{override.input_line}: {str(error).rstrip('.')}") from error


def rounded(value: Any, distribution: Any) -> Any:
    """A proposed number with the four digits that a person would write, inside its interval; others as they are."""
    if not isinstance(value, float):
        return value
    digits = 4 if distribution.step is None else 12
    return min(max(float(f"{value:.{digits}g}"), distribution.low), distribution.high)


def examples(distribution: Any) -> list[Any]:
    """Values to check a key by: all choices, or both ends of an interval and a number between."""
    if hasattr(distribution, "choices"):
        return list(distribution.choices)
    between = distribution.low + (distribution.high - distribution.low) / math.pi
    whole = isinstance(distribution.low, int)
    return [distribution.low, int(between) if whole else rounded(between, distribution), distribution.high]
