"""The keys of a paper's file, where each may stand, and what its value is."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from ssl_bench.config.ranges import near
from ssl_bench.errors import ConfigError, InvalidValue, require
from ssl_bench.files import fits

PAPER_KEYS = {"paper", "title", "cite", "recipes", "tables", "claims", "dropped"}
TABLE_KEYS = {
    *("title", "set", "metric", "metrics", "seeds", "provenance", "note", "missing"),
    *("rows", "columns", "each", "x", "y", "best"),
}
CLAIM_NEEDS = ("claim", "where", "kind", "seeds", "seeds_because", "criteria", "minutes")
CLAIM_KEYS = TABLE_KEYS | {*CLAIM_NEEDS, "by", "controls", "theory", "contradicted"}
CRITERION_KEYS = {"says", "statistic", "of", "minus"}
LIMITS = {"above", "below", "within"}
ROW_KEYS = {"set", "metric", "metrics", "values", "seeds", "provenance", "note", "missing"}
COLUMN_KEYS = {"set", "metric", "missing", "note", "x"}
VALUE_KEYS = {"is", "provenance", "note", "set", "missing"}
TEXT = (str, "a text, in quotes if it is a number")
FINITE = Meta(ge=-sys.float_info.max, le=sys.float_info.max)
NUMBER = (str | Annotated[float, FINITE], "a number")  # YAML reads 1e-9 as a text
MAPPING, OVERRIDES = (dict, "a mapping"), (list, "a list of overrides, such as [loss=dcl]")
SHAPES: dict[str, tuple[Any, str]] = {  # what the value of a key is, and in words what to set it to
    **dict.fromkeys(("paper", "title", "cite", "note", "missing", "metric", "y", "label"), TEXT),
    **dict.fromkeys(("claim", "where", "seeds_because", "contradicted", "says", "provenance", "statistic"), TEXT),
    **dict.fromkeys(("minutes", "is", *sorted(LIMITS)), NUMBER),
    **dict.fromkeys(("rows", "tables", "claims", "of", "minus"), MAPPING),
    **dict.fromkeys(("set", "each"), OVERRIDES),
    **dict.fromkeys(("criteria", "controls"), (list[dict], "a list of criteria")),
    **dict.fromkeys(("row", "column"), (str | float, "a name")),
    "kind": (Literal["exact", "trend", "comparison"], "exact, trend or comparison"),
    "by": (Literal["paper", "ours"], "paper or ours"),
    "best": (Literal["row", "column"], "row or column"),
    "doubling": (bool, "true or false"),
    "columns": (list[str | float] | dict, "a list of names, or a mapping from names to overrides"),
    "dropped": (dict[str, str], "a mapping from the names of claims to why they were dropped"),
    "theory": (dict[str, list | str], "a mapping from names to numbers, or to row"),
    "metrics": (dict[str, str], "a mapping from names to metrics"),
    "values": (list | dict[str, list], "a list with a number for each column"),
    "seeds": (list[int], "a list of integers, such as [0, 1, 2]"),
    "x": (dict | Annotated[float, FINITE], "a mapping with label, in a column to a number"),
}


def as_number(value: Any, key: str, remedy: str = "a number") -> float:
    """A value as a finite number, or an InvalidValue with the key."""
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise InvalidValue(key, value, remedy) from error
    require(math.isfinite(number), key, value, remedy)
    return number


def check_keys(node: Any, keys: set[str], where: str, needs: Sequence[str] = ()) -> None:
    """Refuse a node that is no mapping, has other keys or values of another shape, or lacks what it needs.

    Raises:
        ConfigError: it names the key and says what to set.
    """
    if not isinstance(node, Mapping):
        raise ConfigError(f"{where} must be a mapping, not {node!r}")
    for key, value in node.items():
        if key not in keys:
            raise ConfigError(f"{where}: there is no key {key}{near(str(key), keys)}")
        shape, remedy = SHAPES.get(key, (Any, ""))
        require(value is None or fits(value, shape), f"{where}: {key}", value, remedy)
    for key in needs:
        if not node.get(key):
            raise ConfigError(f"{where}: set {key} to {SHAPES[key][1]}")
