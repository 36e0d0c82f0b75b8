"""The values that the overrides of a grid give their keys, in Hydra's grammar: ``loss=dcl,infonce``, ``range(0,3)``."""

import math
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override

from ssl_bench.config import with_hydra
from ssl_bench.errors import ConfigError

MOST_RUNS = 100_000  # runs of a grid
UNLISTED = {"framework": {"frozen"}}  # options that train nothing, by group


def parsed(overrides: Iterable[str]) -> list[Override]:
    """Overrides as Hydra reads them."""
    return list(OverridesParser.create().parse_overrides(list(overrides)))


def options(group: str, folder: Path | None = None) -> list[str]:
    """The options of a group that are listed, with those in the folder of ``--config-dir``."""
    with with_hydra.opened():
        names = GlobalHydra.instance().config_loader().get_group_options(group, ObjectType.CONFIG)
    place = Path(folder or "", group)
    of_folder = [str(p.relative_to(place).with_suffix("")) for p in place.rglob("*.yaml") if folder]
    return sorted({*names, *of_folder} - UNLISTED.get(group, set()))


def check_size(count: int) -> None:
    """Refuse a grid of too many runs."""
    if count > MOST_RUNS:
        raise ConfigError(f"these are {count:,} runs: a grid has {MOST_RUNS:,} or fewer: give its keys fewer values")


def bounds(override: Override) -> tuple[int, float, float]:
    """How many numbers a range has, its first and its last one.

    Raises:
        ConfigError: it has none, or does not end.
    """
    value: Any = override.value()
    start, stop, step = (Decimal(number) for number in (value.start, value.stop, value.step))
    try:
        count = math.ceil((stop - start) / step)
    except (ArithmeticError, ValueError) as error:
        remedy = "write a range as range(start,stop,step), with finite numbers"
        raise ConfigError(f"{override.input_line}: {remedy}") from error
    if count < 1:
        raise ConfigError(f"{override.input_line}: there is no number from {start} to {stop} in steps of {step}")
    kind = float if float in map(type, (value.start, value.stop, value.step)) else int
    return count, kind(start), kind(start + (count - 1) * step)


def length(override: Override, folder: Path | None = None) -> int:
    """How many values an override of a grid gives its key.

    Raises:
        ConfigError: none, or those of an interval.
    """
    if override.is_interval_sweep():
        remedy = "write several values, such as 0.1,0.3; scripts/examples/search.py searches an interval"
        raise ConfigError(f"{override.input_line}: {remedy}")
    return bounds(override)[0] if override.is_range_sweep() else len(values(override, folder))


def values(override: Override, folder: Path | None = None) -> list[str]:
    """An override of a grid as overrides with one value each.

    Raises:
        ConfigError: there are none, or too many.
    """
    key, value = override.get_key_element(), override.value()
    if isinstance(value, Glob):
        texts = value.filter(options(override.key_or_group, folder))
    elif override.is_sweep_override():
        check_size(bounds(override)[0] if override.is_range_sweep() else 0)
        texts = list(override.sweep_string_iterator())
    else:
        texts = [override.get_value_element_as_str()]
    if not texts:
        raise ConfigError(f"{override.input_line}: there is no such option: write the values, such as seed=0,1,2")
    return [f"{key}={text}" for text in texts]
