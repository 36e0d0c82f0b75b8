"""Results of an evaluator that are more than one number: they are written as JSON and drawn by ``record/drawing.py``.

The fields are plain lists of finite numbers, so that ``dataclasses.asdict`` is the content of the file. ``label`` is
the text of an axis, with the unit.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Histogram:
    """Frequencies of a quantity in bins, for one or several groups with the same bins.

    Attributes:
        counts: by group, [bins].
        edges: [bins + 1], ascending; a bin includes its lower edge, the last one both.
        label: of the quantity.
        of: the things that are counted.
        groups: the kind of the groups.
    """

    counts: dict[str, list[int]]
    edges: list[float]
    label: str
    of: str
    groups: str


@dataclass(frozen=True)
class Distribution:
    """A few values of a quantity, such as one per class, for one or several groups.

    Attributes:
        values: by group.
        label: of the quantity.
        of: the things that have a value each.
    """

    values: dict[str, list[float]]
    label: str
    of: str


@dataclass(frozen=True)
class Curve:
    """Quantities as functions of one setting, each on its own scale.

    Attributes:
        x: values of the setting.
        lines: by label, as long as x.
        label: of x.
        doubling: draw x on a logarithmic scale, base 2.
    """

    x: list[float]
    lines: dict[str, list[float]]
    label: str
    doubling: bool = False


@dataclass(frozen=True)
class Regions:
    """Clusters of the locations of a photo, in several ways: a string per row, a hexadecimal digit per location.

    Attributes:
        photo: path of the file.
        columns: maps side by side.
        maps: by title.
        instances: annotated objects; "." is background, "x" a crowd.
    """

    photo: str
    columns: int
    maps: dict[str, list[str]]
    instances: list[str] | None


Artifact = Histogram | Distribution | Curve | Regions
