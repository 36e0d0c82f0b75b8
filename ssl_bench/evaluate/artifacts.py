"""What an evaluator yields where one number does not say it: data that is kept as JSON and drawn by ``plots.py``.

Plain lists of finite numbers, so that ``dataclasses.asdict`` is the file. ``label`` says what is on the axis, unit
included.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Histogram:
    """How often a quantity was where, for one or several groups over the same bins."""

    counts: dict[str, list[int]]  # by group, [bins]
    edges: list[float]  # [bins + 1], ascending; a value on an edge counts above it, on the last edge below it
    label: str
    of: str  # what is counted
    groups: str  # what the groups are


@dataclass(frozen=True)
class Distribution:
    """A few values of a quantity, such as one for each class, for one or several groups."""

    values: dict[str, list[float]]  # by group
    label: str
    of: str  # what has a value


@dataclass(frozen=True)
class Curve:
    """Quantities as functions of one setting, each on its own scale."""

    x: list[float]
    lines: dict[str, list[float]]  # by label, as long as x
    label: str  # of x
    doubling: bool = False  # x grows by factors


@dataclass(frozen=True)
class Regions:
    """Which places of a photo belong together, in several ways: a hexadecimal digit a place, a string a row of them."""

    photo: str  # file
    columns: int  # maps side by side
    maps: dict[str, list[str]]  # by title
    instances: list[str] | None  # annotated objects; "." is background, "x" a crowd


Artifact = Histogram | Distribution | Curve | Regions
