"""The papers as data: files are checked, cells compose and can be trained, and numbers, settings and costs agree.

``recipes/<paper>.yaml`` is written by hand from the paper and from public codes; a fact that the cells do not have
fails by name.
"""

import fnmatch
import json
import math
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssl_bench.commands import hours, train
from ssl_bench.config import schema
from ssl_bench.config.build import build, directory
from ssl_bench.config.identity import run_id
from ssl_bench.papers import tables
from ssl_bench.papers.cells import Cell, CellMetric, merge
from ssl_bench.papers.selection import Selection
from tests.papers import small
from tests.papers.conftest import composed

TABLES = {table.name: table for table in tables.every()}
EXPECTED = {
    "dcl": "table1 table2 table3 table4 fig1 fig3a fig3b fig4",
    "eqco": "table1 table2 table3 table4 table5 table6 table7 table8 table9 fig1 fig2a fig2b fig3 fig4",
    "macl": "table1 table2 table3 table4 fig2 fig3",
    "less": "fig1a fig1b fig1c text_imagenet64 fig2a fig2b fig3a fig3b fig4a fig4b",
    "intriguing": "table2 table3 table4 tableA1 tableA2 tableA3 fig3 fig4 fig6a fig6b text_digits fig7_mnist figA1 "
    "figA2 figB1 figB2 figB3",
}


def cells(table: str, row: str = "", measure: str = "") -> list[Cell]:
    return [c for c in TABLES[table].cells if (not row or c.row == row) and c.measure == measure]


def numbers(table: str, row: str = "", measure: str = "") -> list[float | None]:
    return [cell.paper for cell in cells(table, row, measure)]


def test_every_table_and_figure_is_there() -> None:
    assert set(TABLES) == {f"{paper}/{name}" for paper, names in EXPECTED.items() for name in names.split()}
    assert all(bool(table.x) == ("fig" in name) for name, table in TABLES.items())


def test_a_cell_has_a_source_if_and_only_if_it_has_a_number() -> None:
    for table in TABLES.values():
        for cell in table.cells:
            assert (cell.paper is None) == (cell.provenance == "unknown"), (table.name, cell)
            assert cell.metric or not cell.available, (table.name, cell)
    assert {c.provenance for c in cells("eqco/table6")} == {"code"}
    assert [c.provenance for c in cells("dcl/table1", "CIFAR-100 SimCLR")] == ["recollection"] * 3 + [
        "text",
        "recollection",
    ]
    assert cells("dcl/fig3b", "MoCo")[-1].provenance == "derived"
    differences = {("eqco/table2", "MoCo v2"): 72.1 - 1.0, ("eqco/table5", "SiMo"): 68.5 - 0.2}  # of the text
    for place, number in differences.items():
        last = cells(*place)[-1]
        assert last.provenance == "derived" and last.paper == round(number, 1)


def test_related_numbers_agree() -> None:
    """Relations within and between tables, in which an error of transcription would show."""
    for row, gains in {"CIFAR-100": (2.8, 3.1), "ImageNet-100": (2.6, 3.5), "ImageNet-1K": (4.1, 5.1)}.items():
        base, *better = numbers("dcl/table3", row)
        assert [round(b - base, 1) for b in better if b and base] == list(gains)  # type: ignore[operator]
    baseline = cells("dcl/table3", "CIFAR-10")[0]
    assert baseline.paper == 81.8 and "81.1" in baseline.note  # as printed; the printed deltas imply 81.1
    assert [round(n - 81.1, 1) for n in numbers("dcl/table3", "CIFAR-10")[1:] if n] == [3.1, 3.7]
    last, first = numbers("dcl/table1", "ImageNet-100 SimCLR")[-1], numbers("dcl/table1", "ImageNet-100 SimCLR")[0]
    assert last is not None and first is not None and round(last - first, 1) == 7.1
    for row, drop in (("SimCLR", 8.3), ("DCL", 4.1)):
        small, *_, large = numbers("dcl/fig3a", row)
        assert small is not None and large is not None and round(large - small, 1) == drop
    for size in (512, 1024, 2048):
        for head, appendix in ((2, "tableA2"), (3, "tableA3")):
            main = numbers("intriguing/table2", f"{head} layers, batch {size}")
            assert main == numbers(f"intriguing/{appendix}", f"NT-Xent, batch {size}")
    for measure in ("LE", "kNN", "S"):  # table 4's MACL-a repeats tables 2 and 3
        cifar10, cifar100, stl10 = numbers("macl/table4", "MACL-a", measure)
        assert cifar10 == numbers("macl/table2", "MACL-a", measure)[8]
        assert cifar100 == numbers("macl/table3", "MACL-a", measure)[1]
        assert stl10 == numbers("macl/table2", "MACL-a", measure)[1]
    for cell in cells("macl/fig3"):
        k, tau = float(cell.row.split("= ")[1]), cell.x
        assert tau and cell.paper == round(k * math.exp(-2 / tau) / (1 + k * math.exp(-2 / tau)), 4)


def test_settings_that_the_papers_or_their_codes_state() -> None:
    every = [cell for table in TABLES.values() for cell in table.cells]
    decoupled = [set(c.overrides) for c in every if "loss=decoupled_nt_xent" in c.overrides]
    assert decoupled and all({"loss.form=official", "loss.scale=1000.0"} <= overrides for overrides in decoupled)
    assert all("epochs=2000" in c.overrides for name, t in TABLES.items() if name.startswith("less/") for c in t.cells)
    one = {(c.overrides, c.metric.partition("/")[0]) for c in TABLES["eqco/fig4"].cells}
    assert len(one) == 1  # a single training, measured at every K
    assert all("reduction=sum" in c.overrides for c in cells("eqco/fig2b"))
    small = [c for name, t in TABLES.items() if name.startswith("dcl/") for c in t.cells if "knn" in c.metric]
    assert {len(c.seeds) for c in small} == {5}
    sgd = [cell for cell in TABLES["dcl/table4"].cells if cell.row.endswith(", SGD")]
    assert sgd and all({"optimizer=sgd", "optimizer.lr=0.0375", "batch_size=b256"} <= {*each.overrides} for each in sgd)


def test_every_option_that_a_cell_names_exists() -> None:
    folder = directory()
    groups = {entry.name for entry in folder.iterdir() if entry.is_dir()}
    named = {o for table in TABLES.values() for cell in table.cells if cell.available for o in cell.overrides}
    for override in named:
        group, _, option = override.partition("=")
        for each in option.strip("[]").split(",") if group in groups else ():
            assert (folder / group / f"{each}.yaml").is_file(), override


@pytest.mark.slow
def test_the_first_cells_compose_and_all_have_places_of_their_own() -> None:
    for table in TABLES.values():
        for cell in [cell for cell in table.cells if cell.available][:1]:
            settings = composed(cell.overrides, seed=1)
            schema.check(settings)
            assert settings["seed"] == 1 and len(run_id(settings)) == 10
            assert ((hours.steps(settings) or 0) > 0) == (settings["epochs"] > 0) and hours.gflop_of_a_step(settings)
        places = [(cell.label, cell.column, cell.metric) for cell in table.cells]
        assert len(set(places)) == len(places)


def test_a_later_override_replaces_an_earlier_one_and_a_group_can_be_removed() -> None:
    earlier = ["framework=simclr", "temperature=macl_a", "temperature.tau=0.07", "head.out=64"]
    assert merge(earlier, ["head.out=8"], ["head.out=64"]) == earlier
    assert merge(earlier, ["~temperature", "framework=vae"]) == ["head.out=64", "framework=vae"]
    assert merge(["~temperature"], earlier) == earlier


def test_measured_numbers_of_eqco_table_9_agree_with_the_paper() -> None:
    """Within 0.15 nats in at least 38 of 40 cells; the paper seems to cut its numbers off instead of rounding them."""
    measured = json.loads((Path(tables.__file__).parent / "measured" / "eqco_table9.json").read_text())
    ours = {(cell["row"], cell["column"], cell["metric"]): cell["value"] for cell in measured["cells"]}
    papers = {(cell.row, cell.column, cell.metric): cell.paper for cell in TABLES["eqco/table9"].cells}
    assert ours.keys() == papers.keys() and len(ours) == 40
    assert sum(abs(ours[place] - (number or math.nan)) < 0.15 for place, number in papers.items()) >= 38


def test_the_readme_counts_the_cells() -> None:
    folder = Path(tables.__file__).parent
    text, main = (" ".join((place / "README.md").read_text().split()) for place in (folder, folder.parents[1]))
    every = [cell for table in TABLES.values() for cell in table.cells]
    of = Counter(cell.provenance for cell in every if cell.paper is not None)
    count = f"{len(TABLES)} tables and figures with {len(every):,} cells"
    assert count in main and f"{count}. {of.total()} have" in text
    assert all(f"{of[kind]} from" in text or f"{of[kind]} derived" in text for kind in of)


# ---- facts with sources

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


@pytest.mark.slow
@pytest.mark.parametrize("paper", sorted(FACTS))
def test_ten_cells_of_a_paper_have_the_settings_that_its_sources_name(paper: str) -> None:
    cells = FACTS[paper]["cells"]
    assert set(FACTS) == set(tables.paths()) and len(cells) == 10
    for fact in FACTS[paper]["facts"]:
        assert set(fact) == {"is", "cells", "source"}
        names = {name for each in fact["cells"] for name in fnmatch.filter(cells, each) or [each]}
        for settings, (key, wanted) in ((config(paper, name), of) for name in names for of in fact["is"].items()):
            found = [] if key == "rate" else values(settings, key.split("."))
            if key == "rate":
                found = [round(build(settings["optimizer"], "optimizer").scaled_lr(settings["batch_size"]["size"]), 3)]
            found = [each.rpartition(".")[2] for each in found] if key.endswith("_target_") else found
            assert wanted in found, f"{fact['cells']}, {fact['source']}: {key} is {found}"


# ---- two steps of a cell

AVAILABLE = {name: [cell for cell in table.cells if cell.available] for name, table in TABLES.items()}
ONE_A_PAPER = {name.partition("/")[0]: name for name, some in reversed(AVAILABLE.items()) if some}.values()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*ONE_A_PAPER, "intriguing/fig7_mnist"}))
def test_two_steps_of_the_first_cell_have_its_metric(name: str, tmp_path: Path) -> None:
    """Where it names a size, which is small here, any metric of its evaluator counts."""
    cell = AVAILABLE[name][0]
    words = merge(cell.overrides, small.overrides(composed(cell.overrides), tmp_path / "data"))
    small.write(composed(words))
    assert train.main([*words, "seed=0", f"paths.outputs={tmp_path}"]) == 0, words
    (path,) = tmp_path.glob("*/*/results.json")
    rows = (path.parent / "metrics.jsonl").read_text().splitlines()
    names = set(json.loads(path.read_text())["metrics"]).union(*map(json.loads, rows))
    names |= {picture.stem for picture in path.parent.glob("figures/**/*.*")}
    metric = CellMetric.read(cell.metric).name
    evaluator = metric.partition("/")[0]
    sized = evaluator in ("npc", "local_features", "projections")
    assert metric in names or (sized and any(each.startswith(evaluator) for each in names))


# ---- the selection of tables, rows and columns


@pytest.mark.parametrize(
    ("table", "wanted", "expected"),
    [
        ("dcl/table1", "CIFAR-10 DCL", ["CIFAR-10 DCL"]),  # the exact name
        ("dcl/table1", "CIFAR-10*", ["CIFAR-10 SimCLR", "CIFAR-10 DCL", "CIFAR-100 SimCLR", "CIFAR-100 DCL"]),
        ("dcl/table1", "DCL", ["ImageNet-100 DCL", "CIFAR-10 DCL", "CIFAR-100 DCL", "STL-10 DCL"]),  # a word
        ("dcl/table1", "CIFAR-10", ["CIFAR-10 SimCLR", "CIFAR-10 DCL"]),  # not CIFAR-100
        ("dcl/table4", "SimCLR", ["SimCLR"]),  # an exact name comes before words: not SimCLR + DCL
        ("eqco/table2", "SiMo", ["SiMo, alpha 256, 16 negatives", "SiMo, alpha 65536, 16 negatives"]),
        ("eqco/table7", "2x", ["ResNet-50 (2x)"]),
    ],
)
def test_rows_are_selected_by_name_pattern_or_words(table: str, wanted: str, expected: list[str]) -> None:
    selected = {cell.row for cell in Selection.read([table], False, [f"row={wanted}"]).cells(TABLES[table])}
    assert [row for row in TABLES[table].rows() if row in selected] == expected


def test_columns_are_selected_by_words_and_tables_by_the_beginnings_of_names() -> None:
    found = Selection.read(["macl/table2"], False, ["col=tau 0.1", "row=DCL"]).cells(TABLES["macl/table2"])
    assert {(cell.row, cell.column) for cell in found} == {("DCL", "STL-10 tau 0.1")}  # not 0.15
    found = Selection.read(["dcl/table2"], False, ["col=DCL"]).cells(TABLES["dcl/table2"])
    assert {cell.column for cell in found} == {"DCL"}  # not DCLW
    assert [t.name for t in Selection.read(["dcl"], True, []).tables()] == [t.name for t in tables.find("dcl")]
    assert len(Selection.read([], True, []).tables()) == len(tables.every())
    assert [t.name for t in Selection.read(["dcl/fig3"], False, []).tables()] == ["dcl/fig3a", "dcl/fig3b"]
