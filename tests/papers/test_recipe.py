"""Recipes in words: what ten cells of each paper say, against the recorded texts and against facts with sources.

``recipes/<paper>.yaml`` is written by hand from the paper and from public codes; a fact that the recipe does not state
fails by name. ``recipes/<paper>.txt`` has the recipes as they are: ``python -m tests.papers.test_recipe --record``.
"""

import fnmatch
import itertools
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from ssl_bench.commands import reproduce
from ssl_bench.config.build import build
from ssl_bench.config.compositions import compositions
from ssl_bench.config.identity import canonical
from ssl_bench.config.schema import directory
from ssl_bench.papers import runs, tables
from ssl_bench.papers.recipe import describe
from tests.composed import load

RECIPES = Path(__file__).parent / "recipes"
PAPERS = sorted(path.stem for path in RECIPES.glob("*.yaml"))
Output = pytest.CaptureFixture[str]


def written(paper: str) -> dict[str, Any]:
    """The cells and the facts of a paper."""
    content: dict[str, Any] = yaml.safe_load((RECIPES / f"{paper}.yaml").read_text())
    return content


def selected(paper: str) -> dict[str, tables.Cell]:
    """The ten cells of a paper by name, such as ``table1 CIFAR-10 DCL | 256``."""
    found = {f"{t.name.split('/')[1]} {c.row} | {c.column}": c for t in tables.find(paper) for c in t.cells}
    return {name: found[name] for name in written(paper)["cells"]}


@cache
def configs(paper: str) -> dict[str, dict[str, Any]]:
    """The composed configurations of the ten cells."""
    return {name: runs.compose(cell.overrides, cell.command) for name, cell in selected(paper).items()}


def rendered(paper: str) -> str:
    """The recipes of the ten cells, as they are recorded."""
    return "\n\n".join("\n".join([name, *describe(config)]) for name, config in configs(paper).items()) + "\n"


def facts() -> list[Any]:
    """A parameter for each fact: the paper, the line of the recipe that it is about, and the fact."""
    every = [(paper, line, fact) for paper in PAPERS for line, each in written(paper)["facts"].items() for fact in each]
    return [pytest.param(paper, line, fact, id=f"{paper}, {line}: {worded(fact)}") for paper, line, fact in every]


def worded(fact: dict[str, Any]) -> str:
    return f"lacks {fact['lacks']}" if "lacks" in fact else str(fact["says"])


def unmet(paper: str, line: str, fact: dict[str, Any]) -> list[str]:
    """The cells whose recipe contradicts a fact."""
    about = [name for name in configs(paper) if any(fnmatch.fnmatchcase(name, each) for each in fact["cells"])]
    assert about, f"no cell of {paper} matches {fact['cells']}"
    texts = {name: [text for text in describe(configs(paper)[name]) if text.split()[0] == line] for name in about}
    if "lacks" in fact:
        return [name for name, found in texts.items() if fact["lacks"] in "\n".join(found)]
    return [name for name, found in texts.items() if fact["says"] not in "\n".join(found)]


@pytest.mark.slow
@pytest.mark.parametrize(("paper", "line", "fact"), facts())
def test_a_recipe_states_the_facts_of_its_sources(paper: str, line: str, fact: dict[str, Any]) -> None:
    assert set(fact) in ({"says", "cells", "source"}, {"lacks", "cells", "source"}) and fact["source"]
    assert not unmet(paper, line, fact), f"{fact['source']}: {unmet(paper, line, fact)}"


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_recipes_are_as_recorded(paper: str) -> None:
    recorded = (RECIPES / f"{paper}.txt").read_text()
    assert len(configs(paper)) == 10
    assert rendered(paper) == recorded, "if this is meant: python -m tests.papers.test_recipe --record"


def test_there_are_facts_for_every_paper() -> None:
    assert sorted({table.name.split("/")[0] for table in tables.every()}) == PAPERS


# ---- the words are right: numbers of the recipe against the objects that the configuration builds


@pytest.mark.slow
def test_the_rate_the_warm_up_and_the_milestones_are_those_of_the_optimiser() -> None:
    checked = set()
    for config in (c for paper in PAPERS for c in configs(paper).values() if "epochs" in c):
        words = next(line for line in describe(config) if line.startswith("  optimiser"))
        optimizer, epochs = build(config["optimizer"], "optimizer"), config["epochs"]
        lr = optimizer.scaled_lr(config["batch_size"]["size"])
        if here := re.search(r"\(([\d.e-]+) here\)", words):
            assert float(here[1]) == pytest.approx(lr, rel=1e-3)
        else:
            assert float(words.split(" at every")[0].split()[-1]) == lr
        if warm := re.search(r"(\d+) epochs of warm-up from ([\d.e-]+)", words):
            end = int(warm[1]) / epochs
            assert optimizer.factor(0.0, end) == float(warm[2]) and optimizer.factor(end, end) == 1.0
        if steps := re.search(r"times 0.1 after epochs (\d+(?: and \d+)*)", words):
            for number, epoch in enumerate(map(int, steps[1].split(" and "))):
                around = [optimizer.factor((epoch + side) / epochs, 0.0) for side in (-0.5, 0.5)]
                assert around == pytest.approx([0.1**number, 0.1 ** (number + 1)])
        checked |= {"here" * bool(here), "warm" * bool(warm), "steps" * bool(steps)}
    assert checked == {"", "here", "warm", "steps"}


@pytest.mark.slow
def test_the_widths_and_norms_of_the_head_are_those_of_the_network() -> None:
    seen = set()
    for config in (c for paper in PAPERS for c in configs(paper).values() if "epochs" in c):
        words = next(line for line in describe(config) if line.startswith("  head"))
        shape = re.search(r"\d+(-\d+)+", words)
        if words in seen or not shape:
            continue
        seen.add(words)
        head = build(config["head"], "head", inputs=int(shape[0].split("-")[0]))
        linears = [each for each in head.modules() if isinstance(each, nn.Linear)]
        assert shape[0] == "-".join(map(str, [linears[0].in_features, *(each.out_features for each in linears)]))
        norms = [each for each in head.modules() if isinstance(each, nn.BatchNorm1d)]
        assert (words.rsplit(", ", 1)[1] == "no BN") == (not norms)
        assert ("no shift" in words) == (bool(norms) and not norms[-1].bias.requires_grad)
    assert len(seen) > 8


@pytest.mark.slow
@pytest.mark.parametrize("option", ["resnet18_cifar", "resnet50", "resnet50_x2", "resnet50_x4", "conv_n"])
def test_the_width_of_the_features_is_that_of_the_network(option: str) -> None:  # imports timm
    config = runs.compose(["dataset=mnist", f"backbone={option}", "head=linear"])
    with torch.device("meta"):
        width = build(config["backbone"], "backbone").num_features
    assert f"linear {width}-128" in "\n".join(describe(config))


def test_random_keys_and_drawn_negatives_are_counted_as_the_run_counts_them() -> None:
    kinds = {
        ("negatives=in_batch",): "254, both views of the 127 other images of the batch",
        ("negatives=cross_view",): "the 127 other images of the batch in the view of the positive",
        ("negatives=random_k", "negatives.k=5"): "5 drawn per anchor and step from 254, both views of the 127 other",
        ("framework=moco_v2", "negatives.k=127"): "127 random keys of the previous batch",
        ("framework=moco_v2", "negatives.k=128"): "the last 128 keys",
        ("negatives=memory_bank",): "all other images, one remembered key each",
    }
    for overrides, words in kinds.items():
        lines = describe(runs.compose(["dataset=cifar10", "batch_size=b128", *overrides]))
        assert f"  negatives   {words}" in "\n".join(lines)


# ---- nothing is left out: a change of any key that is in run_id changes the words of some recipe

OTHER = {
    **{"rule": ["linear", "sqrt", "none"], "schedule": ["cosine", "linear", "constant", "step"]},
    **{"final_norm": ["none", "scale", "affine"], "stem": ["cifar", "imagenet"], "norm": ["sync", "shuffle"]},
    **{"views": ["all", "cross"], "views_forward": ["joint", "separate"], "reduction": ["mean", "sum"]},
    **{
        "placement": ["random", "grid"],
        "optimizer": ["sgd", "adam"],
        "form": ["paper", "official"],
        "constants": ["once", "pixel"],
    },
}
FOR_NONE = {
    "sizes": [20],
    "layers": ["layer1"],
    "jitter": [0.1, 0.1, 0.1, 0.1],
    "windows": [[16, 8]],
    "classes": "list",
}
# Keys without words: seeds, where data lie, what follows from other keys, and what is recorded beside the results.
SILENT = {
    *("seed", "scale", "torchvision", "num_classes", "channels", "in_channels", "train_images", "knn_k", "workers"),
    *("dim", "per_class", "bins", "baselines", "npc_histogram", "sharded"),
    *("dataset.epochs", "temperature.epochs", "framework.size", "framework.mean", "framework.std", "backbone.size"),
    *("loss.loss", "negatives.negatives", "temperature.temperature"),  # absent groups of methods without them
}


def leaves(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from leaves(value, (*path, key))
    else:
        yield path, node


def changed(key: str, value: Any) -> Any:
    """Another value."""
    if value is None:
        return FOR_NONE.get(key, 7)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, list):
        return [changed(key, each) for each in value] or ["other"]
    return next((each for each in OTHER.get(key, ()) if each != value), f"{value}.Other")


def varied(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with what few cells have: groups of batch statistics, milestones, a warm-up, a scaled rate."""
    optimizer = config["optimizer"] | {"schedule": "step", "rule": "linear", "warmup_epochs": 3}
    return config | {"framework": config["framework"] | {"norm": "local", "groups": 2}, "optimizer": optimizer}


def node_of(config: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The node that has the last key of a path."""
    for part in path[:-1]:
        config = config[part]
    return config


@pytest.mark.slow
def test_every_key_that_is_in_run_id_is_in_words() -> None:
    """A key may have no effect beside others, such as a blur's width without a blur: one recipe has to tell."""
    more = ["dataset=imagenet", "evaluate=[linear_opensel]", "evaluate.linear_opensel.windows=null", "framework=relic"]
    cells = [*(c for paper in PAPERS for c in configs(paper).values()), runs.compose([*more, "loss.own_view=true"])]
    told: dict[tuple[str, str, str], bool] = {}
    for config in [*cells, *(varied(c) for c in cells if "epochs" in c)]:
        words = describe(config)
        for path, value in leaves(json.loads(canonical(config))):
            key = (path[0], str(node_of(config, path).get("_target_", "")).rpartition(".")[2], path[-1])
            if SILENT & {path[-1], f"{path[0]}.{path[-1]}"} or told.get(key):
                continue
            copy = json.loads(json.dumps(config))
            node_of(copy, path)[path[-1]] = changed(path[-1], value)
            told[key] = describe(copy) != words
    assert len(told) > 200
    assert not (untold := [".".join(key) for key, one in told.items() if not one]), untold


def test_an_option_without_words_is_printed_with_its_name() -> None:
    config = runs.compose(["dataset=cifar10"])
    config["loss"]["new_option"] = 0.25
    config["optimizer"]["other"] = [1, 2]
    text = "\n".join(describe(config))
    assert "new option 0.25" in text and "other 1 2" in text


# ---- the command


def printed(capsys: Output, *arguments: str) -> str:
    capsys.readouterr()
    assert reproduce.main([*arguments, "--recipe"]) == 0
    return capsys.readouterr().out


def test_reproduce_prints_the_recipe_of_a_cell_with_its_overrides(capsys: Output) -> None:
    cell = ("dcl/table1", "row=CIFAR-10 DCL", "col=512")
    text = printed(capsys, *cell)
    lines = describe(configs("dcl")["table1 CIFAR-10 DCL | 512"])
    assert text == "\n".join(["dcl/table1 CIFAR-10 DCL | 512 (knn/top1)", *lines, "", ""])
    assert 8 <= len(lines) <= 12
    assert printed(capsys, *cell) == text
    other = printed(capsys, *cell, "optimizer.lr=0.06", "devices=4").splitlines()
    assert [a for a, b in zip(other, text.splitlines(), strict=True) if a != b] == [
        next(line for line in lines if "optimiser" in line).replace(
            "0.03 for 256 images (0.06", "0.06 for 256 images (0.12"
        )
    ]


def test_equal_recipes_are_printed_once_and_cells_without_one_say_why(capsys: Output, tiny: None) -> None:
    blocks = printed(capsys, "tiny", "--all").strip().split("\n\n")
    heads = [[line for line in block.splitlines() if not line.startswith("  ")] for block in blocks]
    assert heads[0] == ["tiny/table1 digits | infonce (knn/top1)", "tiny/table2 digits | infonce (knn/top1)"]
    assert heads[1] == ["tiny/table1 digits | dcl (knn/top1)", "tiny/table2 digits | dcl (knn/top1)"]
    assert heads[2] == ["tiny/table1 other | infonce, dcl (knn/top1)"] and "there is no such option" in blocks[2]
    assert blocks[3] == "tiny/table1 npid | infonce, dcl (knn/top1)\n  no recipe: needs npid"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dry-run"], "leave --dry-run out"),
        (["--dry-run", "seed=1"], "leave --dry-run and seed= out"),
        (["scale=smoke"], "leave scale= out"),
        (["hydra/launcher=local"], "leave hydra/launcher= out"),
    ],
)
def test_a_recipe_refuses_what_is_about_training(arguments: list[str], words: str, capsys: Output) -> None:
    assert reproduce.main(["dcl/table1", "--recipe", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.endswith(f"{words}\n") and error.count("\n") == 1


def test_a_wrong_override_is_refused(capsys: Output) -> None:
    assert reproduce.main(["dcl/table1", "row=CIFAR-10 DCL", "col=32", "--recipe", "optimizer.rate=1"]) == 2
    assert "there is no key optimizer.rate" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_every_cell_of_every_paper_has_a_recipe_of_at_most_twelve_lines() -> None:
    cells = [c for table in tables.every() for c in table.cells if c.available]
    texts = [describe(each.config(0)) for each in compositions(map(runs.request, cells)).values()]
    assert len(texts) > 700 and max(map(len, texts)) <= 12
    assert all(", ," not in line and "None" not in line for line in itertools.chain(*texts))


@pytest.mark.slow
def test_every_option_of_every_group_is_described() -> None:
    others = {"evaluate", "hydra", "tracking", "batch_size"}
    for kind in sorted({entry.name for entry in directory().iterdir() if entry.is_dir()} - others):
        for path in sorted((directory() / kind).glob("*.yaml")):
            lines = describe(load(["dataset=cifar10", f"{kind}={path.stem}"]))
            topics = " ".join(line.split()[0] for line in lines)
            assert topics.startswith("images training optimiser network head views method loss")
    for path in sorted((directory() / "evaluate").glob("*.yaml")):
        lines = describe(load(["dataset=cifar10", f"evaluate=[{path.stem}]"]))
        assert lines[-1].startswith(f"  evaluation  {path.stem}: ")


if __name__ == "__main__":
    if sys.argv[1:] != ["--record"]:
        sys.exit("usage: python -m tests.papers.test_recipe --record")
    for paper in PAPERS:
        (RECIPES / f"{paper}.txt").write_text(rendered(paper))
        for line, each in written(paper)["facts"].items():
            for fact in each:
                if cells := unmet(paper, line, fact):
                    print(f"{paper}, {line}: {worded(fact)} ({fact['source']}): {'; '.join(cells)}")
