"""The runs that tests damage, and every change of a field of a file."""

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import SMALL

RUN = [o for o in SMALL if not o.startswith("evaluate")] + ["dataset=scattered_digits", "max_steps=1"]
RUN += ["evaluate=[knn]", "evaluate.knn.k=5"]
GRID = [*RUN, "-m", "name=g", "seed=0,1", "loss=dcl,infonce"]
TABLE = {"title": "t", "metric": "knn/top1", "set": RUN, "seeds": [0, 1], "columns": {"simclr": []}}
TABLE["rows"] = {"digits": {"values": [50.0]}}
PAPER = {"paper": "tiny", "title": "t", "cite": "nobody", "tables": {"table1": TABLE}}
VALUES = [None, True, 7, -3, math.nan, math.inf, "text", "", [1], [[1]], {"a": 1}]
MISSING = object()  # in place of a value: the field is removed
Change = tuple[tuple[Any, ...], Any]
# Of how many changes of results.json, config.yaml and metrics.jsonl one is tried: another one on each day.
SHARES = [
    pytest.param((28, 44, 68), id="some"),
    pytest.param((7, 11, 17), id="a_part", marks=pytest.mark.slow),
    pytest.param((1, 1, 1), id="all", marks=[pytest.mark.exhaustive, pytest.mark.timeout(3600)]),
]


def environment(context: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the caches and the papers be those of the folder."""
    context.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    context.setenv("SSL_BENCH_PAPERS", str(folder / "papers"))


def fields(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all fields in a node, of a list the first one."""
    items = node.items() if isinstance(node, dict) else enumerate(node[:1]) if isinstance(node, list) else ()
    for key, value in items:
        yield (*at, key)
        yield from fields(value, (*at, key))


def changed(node: Any, path: Sequence[Any], value: Any) -> Any:
    """A copy of a node with another value at a path."""
    copy = json.loads(json.dumps(node))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    if value is MISSING:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return copy


def changes(content: Any) -> list[Change]:
    """Each field with each kind of value."""
    return list(itertools.product(fields(content), [*VALUES, MISSING]))


def some_changes(content: Any, every: int) -> list[Change]:
    """One of so many changes, from the one on whose turn the day is."""
    return changes(content)[date.today().toordinal() % every :: every]


def as_yaml(content: Any) -> str:
    return yaml.safe_dump(content, sort_keys=False)


def as_lines(content: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in content)
