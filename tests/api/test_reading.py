"""``ssl_bench.runs``, ``curves`` and ``load``: the runs of a results folder; and refusals of all functions."""

import shutil
from math import isnan
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import ssl_bench
from tests.door.door import refused
from tests.results.folders import OUTPUTS, configuration, finish, make, rows

REFUSED = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text())


@pytest.fixture
def made() -> list[Path]:
    """Three finished runs, of which one has another size than its option, and one that has begun."""
    folders = list[Path]()
    for loss, size, top1 in (("dcl", 64, 0.5), ("dcl", 48, 0.6), ("eqco", 64, 0.7), ("eqco", 64, 0)):
        choices = configuration()["choices"] | {"loss": loss, "batch_size": "b64"}
        values = {"choices": choices, "batch_size": {"size": size}, "seed": len(folders), "dim": 128}
        folders.append(make(f"a/{len(folders)}", rows(2), **values))
        if top1:
            finish(folders[-1], 20.0, knn_top1=top1, **{"geometry/uniformity": -2.0})
    return folders


def test_runs_are_rows_with_groups_all_settings_and_metrics(made: list[Path]) -> None:
    table = ssl_bench.runs(all=True)
    first, second, _, last = table.to_dict("records")
    main = {"run_id": made[0].name, "experiment": "a", "loss": "dcl", "batch_size": 64, "dataset": "mnist", "seed": 0}
    end = {"state": "finished", "seconds": 20.0, "warnings": "", "path": str(made[0])}
    others: dict[str, Any] = {"batch_size.size": 64, "dim": 128, "epochs": 10, "max_steps": None}
    others |= {"geometry/uniformity": -2.0, "positives": "view", "similarity": "cosine"}
    others["loss.own_view"] = False  # as the two before it: a configuration need not say it
    assert first == main | {"knn/top1": 0.5} | end | others and table["seed"].dtype == table["batch_size"].dtype == int
    names = [*main, "knn/top1", *end]
    assert list(ssl_bench.runs()) == list(first)[: len(names)] == names
    choices = configuration()["choices"] | {"batch_size": "b64"}
    folder = make("a/4", choices=choices, batch_size={"size": 64}, dim=64, other=1)  # one follows from the other
    where: dict[str, Any] = {"epochs": 10, "state": ["finished", "interrupted"]}
    assert list(ssl_bench.runs(where=where)) == [*names[:5], "dim", *names[5:7], "epochs", *names[7:]]
    shutil.rmtree(folder)
    (only,) = ssl_bench.runs(where={"seed": 3}).to_dict("records")  # in which nothing varies
    assert only["loss"] == "eqco" and only["batch_size"] == 64
    assert second["batch_size"] == 48 and list(second) == list(first)
    assert (last["state"], last["seconds"]) == ("interrupted", 20.0) and isnan(last["knn/top1"])
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({"loss": "dcl"}, [0, 1]),
        ({"batch_size": 64, "state": "finished"}, [0, 2]),
        ({"batch_size": "b64", "seed": [0, 3]}, [0, 3]),
        ({"batch_size.size": [48], "experiment": "a"}, [1]),
        ({"experiment": ["a"], "knn/top1": ">0.65"}, [2]),
    ]
    for where, expected in cases:
        assert list(ssl_bench.runs("outputs", where)["seed"]) == expected
    for where, words in (({"los": "dcl"}, "los loss"), ({"loss": "swd"}, "loss=swd"), ({"experiment": "b"}, "b")):
        with refused(words):
            ssl_bench.runs(where=where)
    with refused("outputz paths.outputs"):
        ssl_bench.runs("outputz")
    for run in (last, str(made[3])):
        assert ssl_bench.curves(run).to_dict("records") == rows(2)
    with refused("outputs/metrics.jsonl"):
        ssl_bench.curves(Path("outputs"))


def test_tables_are_those_of_pandas_of_the_results_folder_of_the_commands(
    made: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ssl_bench.runs(where={"state": "finished"})
    assert table.groupby("loss")["knn/top1"].mean().tolist() == [0.55, 0.7]
    assert ssl_bench.curves(table.iloc[0])["step"].tolist() == [2, 4]
    OUTPUTS.rename("elsewhere")
    monkeypatch.setenv("SSL_BENCH_OUTPUTS", "elsewhere")
    assert len(ssl_bench.runs()) == 4 and len(ssl_bench.runs(where={"seed": "<1", "loss": "!=eqco"})) == 1


@pytest.mark.parametrize(("call", "arguments", "names"), REFUSED)
def test_a_refusal_names_the_argument(call: str, arguments: dict[str, Any], names: str, made: list[Path]) -> None:
    with refused(names):
        getattr(ssl_bench, call)(**arguments)


def test_load_gives_the_trained_backbone(trained: Path) -> None:
    backbone = ssl_bench.load(trained)
    state = torch.load(trained / "checkpoints" / "last.pt", weights_only=True)["method"]
    (weight,) = (
        value for name, value in state.items() if name.endswith("backbone.stem.0.weight") and "key" not in name
    )
    assert not backbone.training and torch.equal(backbone.state_dict()["stem.0.weight"], weight)
    assert backbone(torch.zeros(3, 1, 20, 20)).shape[0] == 3
