"""``compare`` of any table: equal to that of the same runs by name, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from pandas import DataFrame

import ssl_bench
from ssl_bench.commands import compare
from ssl_bench.errors import ConfigError
from tests.results.folders import run

SEEDS = {"infonce": (0.50, 0.52, 0.54), "dcl": (0.60, 0.63, 0.635)}


@pytest.fixture
def frame() -> DataFrame:
    """The table of runs that are in the folder ``g``, too: two losses at two rates."""
    rows = list[dict[str, Any]]()
    for loss, values in SEEDS.items():
        for lr in (0.1, 0.3):
            for seed, value in enumerate(values):
                run("g/", value - lr * seed / 10, loss=loss, optimizer__lr=lr, seed=seed)
                row = {"loss": loss, "optimizer.lr": lr, "seed": seed, "knn/top1": value - lr * seed / 10}
                rows.append(row | {"name": f"run {len(rows)}", "knn/top5": 0.9 + seed / 100})
    return DataFrame(rows)


@pytest.mark.parametrize("margin", [None, 20.0])
def test_a_table_has_the_verdicts_of_its_runs(
    frame: DataFrame, margin: float | None, capfd: pytest.CaptureFixture[str]
) -> None:
    frame.to_csv("runs.csv", index=False)
    asked: dict[str, Any] = {"by": "loss", "to": "infonce", "metric": "knn/top1", "margin": margin}
    of_runs, of_rows = ssl_bench.compare("outputs/g", **asked), ssl_bench.compare(frame, **asked)
    assert isinstance(of_rows, DataFrame)
    numbers = ["n", "mean", "to_mean", "difference", "low", "high", "single_low", "single_high", "verdict", "varies"]
    assert of_rows[numbers].equals(of_runs[numbers]) and len(of_rows) == 3  # type: ignore[index]
    assert of_rows["where"].tolist() == ["all cells", "optimizer.lr=0.1", "optimizer.lr=0.3"]
    flags = ["--by", "loss", "--to", "infonce", "--format", "json"] + ([] if margin is None else ["--margin", "20"])
    cells = list[Any]()
    for words in (["g"], ["runs.csv", "--metric", "knn/top1"]):
        assert compare.main([*words, *flags]) == 0
        cells.append([{n: cell[n] for n in numbers} for cell in json.loads(capfd.readouterr().out)["cells"]])
    assert cells[0] == cells[1]
    assert compare.main(["runs.csv", "optimizer.lr=0.1", "--metric", "knn/top1", *flags]) == 0
    assert len(json.loads(capfd.readouterr().out)["cells"]) == 1


def test_another_number_is_taken_as_it_is(frame: DataFrame) -> None:
    frame["acc"], frame["run"] = 100 * frame["knn/top1"], frame["seed"]
    found: Any = ssl_bench.compare(frame.drop(columns="seed"), by="loss", to="dcl", metric="acc", seed="run")
    assert found["difference"][0] == pytest.approx(-10.17, abs=0.01) and found["verdict"][0] == "lower"
    of_percent: Any = ssl_bench.compare(frame.drop(columns="run"), metric="acc")
    assert of_percent.settings["setting"].tolist()[0] == "loss" and "points" not in str(of_percent)
    of_one: Any = ssl_bench.compare(frame[frame["seed"] == 0].drop(columns="run"), by="loss", metric="acc")
    assert {*of_one["verdict"]} == {"no verdict"} and of_one["low"].isna().all()
    frame.loc[0, "acc"] = None  # a run that has no number is left out
    assert ssl_bench.compare(frame.drop(columns="run"), by="loss", metric="acc")["n"][0] == 5  # type: ignore[index]


@pytest.mark.parametrize(("column", "value"), [("acc", "71%"), ("seed", "first"), ("seed", 0.5), ("seed", None)])
def test_what_is_no_number_is_refused(frame: DataFrame, column: str, value: Any) -> None:
    wrong = frame.assign(acc=frame["knn/top1"]).astype({column: object})
    wrong.loc[2, column] = value
    with pytest.raises(ConfigError, match=f"^{'metric' if column == 'acc' else 'seed'}={column}: .*{value}"):
        ssl_bench.compare(wrong, by="loss", metric="acc")


def test_two_rows_of_one_run_are_refused_unless_they_agree(frame: DataFrame) -> None:
    twice = DataFrame([*frame.to_dict("records"), frame.loc[0].to_dict()])
    assert ssl_bench.compare(twice, by="loss", metric="knn/top1")["n"][0] == 6  # type: ignore[index]
    twice.loc[len(frame), "knn/top1"] = 0.9
    with pytest.raises(ConfigError, match=r"0\.5 in row 1 and 0\.9 in row 13"):
        ssl_bench.compare(twice, by="loss", metric="knn/top1")
    assert not Path("row 1").exists()
