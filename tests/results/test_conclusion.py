"""The end of a grid of several seeds: tables of what it varies, the highest mean, and the line that compares."""

import json
from collections.abc import Callable
from math import pi, sqrt
from pathlib import Path
from statistics import mean, stdev

from ssl_bench.results.conclusion import finished_entries, of_one_seed, tables
from tests.results.folders import finish, make

Train = Callable[..., tuple[int, str]]
GRID = ("-m", "name=g", "seed=0,1", "loss=dcl,infonce", "batch_size=b64,b128", "max_steps=2", "evaluate=knn")


def test_the_end_of_a_grid_is_a_table_of_what_it_varies(train: Train) -> None:
    code, text = train(*GRID, "evaluate.baselines=[init]")
    places: dict[tuple[str, int], list[float]] = {}
    found = [json.loads(path.read_text()) for path in Path("outputs").glob("g/*/results.json")]
    for content in found:
        key = content["config"]["choices"]["loss"], content["config"]["batch_size"]["size"]
        places.setdefault(key, []).append(100 * content["metrics"]["knn/top1"])
    assert code == 0 and len(places) == 4
    head, *rows = text[text.index("knn/top1 (%)\n") :].splitlines()[1:4]
    assert head.split() == ["loss", "batch_size=64", "batch_size=128"]
    for row, loss in zip(rows, ("dcl", "infonce"), strict=True):
        numbers = [f"{mean(places[loss, n]):.2f} ± {stdev(places[loss, n]):.2f} (2)" for n in (64, 128)]
        assert row.split() == [loss, *" ".join(numbers).split()]
    loss, size = max(places, key=lambda key: mean(places[key]))
    begun = mean(content["metrics"]["knn_init/top1"] for content in found)
    assert (
        f"highest mean: loss={loss} batch_size={size} (n=2). The networks at initialisation: {100 * begun:.1f}%" in text
    )
    assert text.rstrip().endswith("is one better? ssl-bench compare --by loss name=g")
    small = [
        path.parent for path in sorted(Path("outputs").glob("g/*/results.json")) if '"size": 64' in path.read_text()
    ]
    (sheet,) = tables(finished_entries({"any": [(run, None) for run in small]}))  # one setting makes one column
    assert sheet.columns == ["loss", "knn/top1 (%)"] and [row[0].text for row in sheet.rows] == ["dcl", "infonce"]


def test_runs_that_have_gone_on_to_more_epochs_have_a_line_each(train: Train) -> None:
    asked = ("optimizer.schedule=constant", "loss=dcl,infonce", "seed=0,1", "evaluate=knn", "batch_size=b512")
    assert "highest mean: loss=" in train("-m", "epochs=1", *asked)[1]
    assert train("epochs=2", "loss=dcl", "seed=0", asked[0], *asked[3:])[0] == 0
    text = train("-m", "epochs=1", *asked)[1]
    assert "4 runs: 0 trained, 4 done before" in text and "highest mean:" not in text and "\nloss=dcl " in text


def test_one_cell_has_no_highest_mean(train: Train) -> None:
    asked = ("max_steps=1", "evaluate=knn", "name=g")
    assert "highest mean: loss=" in train("-m", "loss=dcl,infonce", "seed=0,1", *asked)[1]
    runs = [path.parent for path in Path("outputs").glob("g/*/results.json") if '"loss": "dcl"' in path.read_text()]
    (sheet,) = tables(finished_entries({"loss=dcl": [(run, None) for run in runs]}))
    assert len(runs) == 2 and not any("highest mean" in line for line in sheet.below)


def test_a_grid_of_one_seed_says_that_its_best_is_flattered_and_by_how_much(train: Train) -> None:
    grid = ("-m", "loss=dcl,infonce", "max_steps=1", "evaluate=knn", "name=g")
    sentence = "the best of 2 settings by one seed is flattered by chance"
    assert f"{sentence}: train it with several seeds before" in train(*grid)[1]
    assert sentence not in train(*grid, "seed=0,1,2")[1]
    values: dict[str, list[float]] = {}
    for path in Path("outputs").glob("g/*/results.json"):
        content = json.loads(path.read_text())
        values.setdefault(content["config"]["choices"]["loss"], []).append(100 * content["metrics"]["knn/top1"])
    deviation = sqrt(mean(stdev(of_loss) ** 2 for of_loss in values.values()))
    amount = (
        f"by {deviation / sqrt(pi):.3g} points if all were equal, at the deviation of {deviation:.3g} between seeds"
    )
    assert f"{sentence}, {amount}: " in train(*grid)[1]


def test_what_ranks_nothing_has_no_best() -> None:
    folders = [make(f"g/{loss}", choices={"loss": loss}, seed=0, name="g") for loss in ("dcl", "infonce")]
    for number, folder in enumerate(folders):
        finish(folder, 1.0, **{"own/energy": float(number)})
    assert of_one_seed(2, folders) == ""
