"""Recipes in words, and the settings of ten cells of each paper against facts with sources.

``recipes/<paper>.yaml`` is written by hand from the paper and from public codes; a fact that the cells do
not have fails by name.
"""

import fnmatch
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssl_bench.commands import reproduce
from ssl_bench.config.build import KINDS, build
from ssl_bench.config.compose import load_of_many
from ssl_bench.config.identity import canonical
from ssl_bench.config.schema import directory
from ssl_bench.papers import tables
from ssl_bench.papers.recipe import LEFT_OUT, describe
from tests.papers.conftest import composed

FACTS = {path.stem: yaml.safe_load(path.read_text()) for path in (Path(__file__).parent / "recipes").glob("*.yaml")}
Output = pytest.CaptureFixture[str]


@cache
def config(paper: str, name: str) -> dict[str, Any]:
    """The composed configuration of a cell with a name such as ``table1 CIFAR-10 DCL | 256``."""
    found = {f"{t.stem} {c.row} | {c.column}": c for t in tables.find(paper) for c in t.cells}
    return composed(found[name].overrides)


def configs(paper: str) -> list[dict[str, Any]]:
    """The configurations of the ten cells of a paper."""
    return [config(paper, name) for name in FACTS[paper]["cells"]]


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


def test_a_recipe_names_each_class_with_its_settings() -> None:
    cell = config("eqco", "fig2b SimCLR + EqCo, alpha 4096 | 256")
    lines = describe(cell)
    assert lines[0] == (
        "  training    200 epochs, 256 images per step, precision auto, tf32 yes, compile no, reduction sum, "
        "similarity cosine, evaluate every 0"
    )
    assert "  loss        EqCo (InfoNCE with the sum over the negatives weighted by alpha / K): alpha 4,096" in lines
    assert [line.split()[0] for line in lines[1:]] == [
        *("dataset", "augment", "backbone", "head", "framework", "loss", "negatives", "temperature", "optimizer"),
        "evaluate",
    ]
    batch = {"batch_size": {"size": 2048, "chunk": None}}
    assert describe(cell | batch)[-2].endswith("which makes a rate of 2.4 here")
    toy = describe(config("eqco", "table9 MI 10 EqCo | 64"))
    assert toy[0] == "  training    0 epochs, 64 images per step, precision auto, tf32 yes, evaluate every 0"
    assert "information 10, dimensions 20" in toy[1] and "steps 5,000, evaluations 1,000, lr 0.0005" in toy[-1]
    assert [line.split()[0] for line in toy[-4:]] == ["framework", "loss", "temperature", "evaluate"]


# ---- nothing is left out: a change of any key that is in run_id changes the words


def leaves(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from leaves(value, (*path, key))
    else:
        yield path, node


def node_of(config: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The node that has the last key of a path."""
    for part in path[:-1]:
        config = config[part]
    return config


# Keys without words: seeds, and what is recorded beside the results.
SILENT = {("seed",), ("scale",), ("evaluate", "baselines"), ("diagnostics", "npc_histogram"), ("plugins",)}
OTHER = {"rule": ("linear", "sqrt"), "schedule": ("cosine", "step")}


def changed(key: str, value: Any) -> Any:
    """Another value, which the optimiser's constructor accepts."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return type(value)(value / 2) or type(value)(value + 1)
    if isinstance(value, list):
        return [changed(key, each) for each in value] or ["other"]
    return next((each for each in OTHER.get(key, ()) if each != value), f"{value} other")


@pytest.mark.slow
def test_every_key_that_is_in_run_id_is_in_words() -> None:
    told = set()
    for settings in (each for paper in FACTS for each in configs(paper)):
        words = describe(settings)
        for path, value in leaves(json.loads(canonical(settings))):
            key = path[0], str(node_of(settings, path).get("_target_")), path[-1]
            if path in SILENT or value is None or path[-1] in {*LEFT_OUT.get(path[0], ()), "_target_"} or key in told:
                continue
            copy = json.loads(json.dumps(settings))
            node_of(copy, path)[path[-1]] = changed(path[-1], value)
            assert describe(copy) != words, path
            told.add(key)
    assert len(told) > 150


# ---- the command


def printed(capsys: Output, *arguments: str) -> str:
    capsys.readouterr()
    assert reproduce.main([*arguments, "--recipe"]) == 0
    return capsys.readouterr().out


def test_reproduce_prints_the_recipe_of_a_cell_with_its_overrides(capsys: Output) -> None:
    cell = ("dcl/table1", "row=CIFAR-10 DCL", "col=512")
    text = printed(capsys, *cell)
    lines = describe(config("dcl", "table1 CIFAR-10 DCL | 512"))
    assert text == "\n".join(["dcl/table1 CIFAR-10 DCL | 512", *lines, "", ""])
    other = printed(capsys, *cell, "optimizer.lr=0.06", "devices=4").splitlines()
    (line,) = (a for a, b in zip(other, text.splitlines(), strict=True) if a != b)
    assert line.startswith("  optimizer   SGD (torch's SGD with momentum): lr 0.06, ") and line.endswith(
        "rate of 0.12 here"
    )
    assert reproduce.main([*cell, "--recipe", "optimizer.rate=1"]) == 2
    assert "there is no key optimizer.rate" in capsys.readouterr().err


def test_equal_recipes_are_printed_once_and_cells_without_one_say_why(capsys: Output, tiny: None) -> None:
    blocks = printed(capsys, "tiny", "--all").strip().split("\n\n")
    heads = [[line for line in block.splitlines() if not line.startswith("  ")] for block in blocks]
    assert heads[0] == ["tiny/table1 digits | infonce", "tiny/table2 digits | infonce"]
    assert heads[1] == ["tiny/table1 digits | dcl", "tiny/table2 digits | dcl"]
    assert heads[2] == ["tiny/table1 other | infonce", "tiny/table1 other | dcl"]
    assert "there is no such option" in blocks[2]
    assert blocks[3].splitlines()[-1] == "  no recipe: needs npid"


@pytest.mark.exhaustive
def test_every_option_of_every_group_is_described() -> None:
    for path in sorted(directory().glob("*/*.yaml")):
        kind, option = path.parent.name, path.stem
        if kind in KINDS:
            lines = describe(load_of_many(["dataset=cifar10", f"{kind}={option}"]))
            assert {line.split()[0] for line in lines} >= {"training", "dataset", "framework"}, path
            assert all("(" in line for line in lines[1:]), path
