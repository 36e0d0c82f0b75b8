"""The settings of ten cells of each paper against facts with sources.

``recipes/<paper>.yaml`` is written by hand from the paper and from public codes; a fact that the cells do
not have fails by name.
"""

import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssl_bench.config.build import build
from ssl_bench.papers import tables
from tests.papers.conftest import composed

FACTS = {path.stem: yaml.safe_load(path.read_text()) for path in (Path(__file__).parent / "recipes").glob("*.yaml")}


@cache
def config(paper: str, name: str) -> dict[str, Any]:
    """The composed configuration of a cell with a name such as ``table1 CIFAR-10 DCL | 256``."""
    found = {f"{t.stem} {c.row} | {c.column}": c for t in tables.find(paper) for c in t.cells}
    return composed(found[name].overrides)


def values(node: Any, path: list[str]) -> list[Any]:
    """The values of a key, in which ``*`` stands for any key of a mapping."""
    if not path:
        return [node]
    if path[0] == "*":
        return [value for each in node.values() if isinstance(each, dict) for value in values(each, path[1:])]
    if isinstance(node, list):
        return values(node[int(path[0])], path[1:])
    return values(node[path[0]], path[1:]) if path[0] in node else []


def facts() -> list[Any]:
    every = [(paper, fact) for paper in sorted(FACTS) for fact in FACTS[paper]["facts"]]
    return [pytest.param(paper, fact, id=f"{paper}: {fact['is']}, {fact['cells'][0]}") for paper, fact in every]


@pytest.mark.slow
@pytest.mark.parametrize(("paper", "fact"), facts())
def test_a_cell_has_the_settings_that_its_sources_name(paper: str, fact: dict[str, Any]) -> None:
    assert set(fact) == {"is", "cells", "source"}
    names = {name for each in fact["cells"] for name in fnmatch.filter(FACTS[paper]["cells"], each) or [each]}
    for settings in (config(paper, name) for name in names):
        for key, wanted in fact["is"].items():
            if key == "rate":
                found = [round(build(settings["optimizer"], "optimizer").scaled_lr(settings["batch_size"]["size"]), 3)]
            else:
                found = values(settings, key.split("."))
            found = [each.rpartition(".")[2] for each in found] if key.endswith("_target_") else found
            assert wanted in found, f"{fact['source']}: {key} is {found}"


def test_there_are_facts_about_ten_cells_of_every_paper() -> None:
    assert {*FACTS} == {*tables.paths()} and {len(each["cells"]) for each in FACTS.values()} == {10}
