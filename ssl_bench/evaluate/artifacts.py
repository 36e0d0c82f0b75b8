"""Results of an evaluator that are more than one number: they are written as JSON and drawn by ``record/plots.py``.

The fields are plain lists of finite numbers, so that ``dataclasses.asdict`` is the content of the file. ``label`` is
the text of an axis, with the unit.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Histogram:
    """Frequencies of a quantity in bins, for one or several groups with the same bins."""

    counts: dict[str, list[int]]  # by group, [bins]
    edges: list[float]  # [bins + 1], ascending; a bin includes its lower edge, the last one both
    label: str
    of: str  # the things that are counted
    groups: str  # the kind of the groups


@dataclass(frozen=True)
class Distribution:
    """A few values of a quantity, such as one per class, for one or several groups."""

    values: dict[str, list[float]]  # by group
    label: str
    of: str  # the things that have a value each


@dataclass(frozen=True)
class Curve:
    """Quantities as functions of one setting, each on its own scale."""

    x: list[float]
    lines: dict[str, list[float]]  # by label, as long as x
    label: str  # of x
    doubling: bool = False  # draw x on a logarithmic scale, base 2


@dataclass(frozen=True)
class Regions:
    """Clusters of the locations of a photo, in several ways: a string per row, a hexadecimal digit per location."""

    photo: str  # path of the file
    columns: int  # maps side by side
    maps: dict[str, list[str]]  # by title
    instances: list[str] | None  # annotated objects; "." is background, "x" a crowd


Artifact = Histogram | Distribution | Curve | Regions
