"""Runs as a table: states, what varies, one recipe, names of numbers, each training once."""

import json
import math
import shutil
from pathlib import Path

import pytest
from pandas import DataFrame

from ssl_bench.errors import ConfigError, InvalidValue
from ssl_bench.results import table
from ssl_bench.results.table import chosen
from tests.results.grids import RUNS, STATES


def runs(grids: Path, *words: str) -> DataFrame:
    return chosen(words, grids / "outputs")


def test_every_run_is_a_row_with_its_state(grids: Path) -> None:
    every = table.read(grids / "outputs")
    for name, count in RUNS.items():
        states = every["state"][every["experiment"] == name].value_counts().to_dict()
        others = STATES.get(name, {})
        assert states == others | {table.FINISHED: count - sum(others.values())}, name
    assert {*every["experiment"]} == {*RUNS}
    assert every["run_id"][every["state"] != "not begun"].str.fullmatch("[0-9a-f]{10}").all()


VARYING = {
    "losses": ["loss", "negatives.k"],
    "data": ["loss", "dataset"],
    "edited": ["temperature.tau", "optimizer.lr"],  # no command has set the second one
    "plugin": ["loss", "plugins.edited"],
    "versions": ["loss"],
    "untrained": ["backbone.width"],
    "7": [],
}


@pytest.mark.parametrize("name", VARYING)
def test_a_setting_varies_if_results_depend_on_it_and_it_follows_from_no_other(name: str, grids: Path) -> None:
    of_name = runs(grids, name)
    assert table.varying(of_name) == VARYING[name]
    begun = of_name[of_name["path"].notna()]
    values = [tuple(map(table.repr_of, row)) for row in begun[VARYING[name]].itertuples(index=False)]
    recipes = list(table.same_recipe(begun))
    assert len({*recipes}) == len({*values}) == len({*zip(recipes, values, strict=True)})


# Of 0.3, 0.4 and now there is one recipe for each loss; runs of 0.3 lack keys that have been added since.
def test_runs_of_former_versions_are_of_the_same_recipe(grids: Path) -> None:
    of_name = runs(grids, "versions")
    assert of_name.groupby("loss")["run"].agg(lambda some: len({run.recipe for run in some})).to_dict() == {
        "dcl": 1,
        "infonce": 1,
    }
    assert of_name["knn/top1"].notna().all()


def test_a_number_is_named_by_its_evaluation_where_the_selected_runs_have_several(grids: Path) -> None:
    assert {"knn[k=20]/top1", "knn[k=1]/top1", "knn_init/top1"} <= {*runs(grids, "ks")}
    assert "knn/top1" in runs(grids, "ks", "loss=infonce")
    digits = runs(grids, "digits")
    assert digits["run"].map(lambda run: run.evaluations[0]["settings"]["k"]).nunique() == 2
    assert digits["knn/top1"].notna().all()  # each data set has set its own k


def test_the_plain_name_of_several_numbers_is_refused_with_the_list(grids: Path) -> None:
    assert table.choose(runs(grids, "ks"), "--metric", None) == "knn[k=20]/top1"
    with pytest.raises(InvalidValue, match=r"knn\[k=20\]/top1, knn\[k=1\]/top1"):
        table.choose(runs(grids, "ks"), "--metric", "knn/top1")
    with pytest.raises(InvalidValue, match="did you mean knn/top"):
        table.choose(runs(grids, "007"), "--metric", "knn/top")


def test_a_training_counts_once_whatever_folders_it_is_in(grids: Path, tmp_path: Path) -> None:
    both = runs(grids, "ks", "ks_copy")
    assert len(both) == 12 and len(table.once(both, "knn[k=20]/top1")) == 6
    shutil.copytree(grids / "outputs/ks", tmp_path / "outputs/ks")
    shutil.copytree(grids / "outputs/ks", tmp_path / "outputs/other")
    path = next((tmp_path / "outputs/other").glob("*/results.json"))
    content = json.loads(path.read_text())
    content["evaluations"][0]["metrics"]["knn/top1"] = 0.99
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=f"0.99 in {path.parent}"):
        table.once(chosen([], tmp_path / "outputs"), "knn[k=20]/top1")
    assert len(table.once(chosen(["ks"], tmp_path / "outputs"), "knn[k=20]/top1")) == 6


def test_values_in_order_and_as_text() -> None:
    assert table.in_order([64, "a", 1.5, None, 8, 64]) == [1.5, 8, 64, "a", None]
    assert [table.text_of(value) for value in (True, 1e-06, "b", None, math.nan)] == ["true", "1e-06", "b", "", ""]
