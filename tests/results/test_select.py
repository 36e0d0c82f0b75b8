"""Which runs words select, on every command and in ``--json``, ``--csv`` and ``--sort`` of ``ssl-bench status``."""

import json
import re
import shutil
from pathlib import Path

import pytest
from pandas import Series

from ssl_bench.errors import ConfigError
from ssl_bench.results.table import finished_folders, read_condition
from tests.results.conftest import Status
from tests.results.folders import OUTPUTS, configuration, finish, make, make_grid, rows, touch


@pytest.fixture
def places() -> dict[str, str]:
    """The number of each of six runs by its run_id: two losses with three rates, one of each failed, one not begun."""
    runs, begun, numbers = list[str](), dict[int, Path](), dict[str, str]()
    for place, (loss, lr) in enumerate([(loss, lr) for loss in ("dcl", "dclw") for lr in (0.3, 0.03, 3)]):
        values = {"optimizer": {"lr": lr}, "seed": place % 2, "mean": [0.1, 0.2], "tags": ["a b", "c"]}
        choices = configuration()["choices"] | {"loss": loss}
        folder = make("a/", rows(10 - place), choices=choices, note="x=1,y", **values)
        if lr == 3:
            (folder / "failed.json").write_text('{"reason": "no memory"}')
        else:
            finish(folder, 100.0, knn_top1=0.5 + place / 10 * (-1) ** place, linear_top1=0.5)
        touch(folder / "config.yaml", 1e9 + place)  # the order of their starts
        runs.append(f"name=a loss={loss} optimizer.lr={lr}")
        begun[place], numbers[folder.name] = folder, str(place)
    make_grid("1", [*runs, "name=a loss=eqco 'note=x=2,y'"], begun)
    return numbers


def names(status: Status, places: dict[str, str], *arguments: str) -> str:
    """The numbers of the runs that are listed, "w" of the one that is not begun."""
    done = status("--json", *arguments)
    assert done.returncode == 0 and done.stderr == ""
    return "".join(places.get(record["run_id"], "w") for record in json.loads(done.stdout))


CONDITIONS: list[tuple[list[str], str]] = [
    (["loss=dcl"], "012"),
    (["loss=dcl,dclw"], "012345"),
    (["optimizer.lr=0.30"], "03"),
    (["optimizer.lr=3e-2,3.0"], "1245"),
    (["loss=dcl", "optimizer.lr=0.3"], "0"),
    (["state=failed"], "25"),
    (["loss!=dcl"], "345w"),
    (["loss!=dcl,dclw"], "w"),
    (["optimizer.lr>0.03", "optimizer.lr<3"], "03"),
    (["optimizer.lr>=0.3"], "0235"),
    (["optimizer.lr<=0.3", "state!=failed"], "0134"),
    (["knn/top1>45"], "04"),  # percent, as it is printed
    (["knn/top1>0.45"], "04"),
    (["knn/top1=90,50"], "04"),
    (["a"], "012345w"),
    (["outputs", "loss=dcl"], "012"),
    (["./outputs/a", "loss=dcl"], "012"),
    (["loss=dcl", "a"], "012"),
    (["state=failed,finished", "loss=dclw"], "345"),
    (["seed=1"], "135"),
    (["linear/top1=0.5"], "0134"),
    (["mean=[0.1,0.2]"], "012345"),
    (["tags=[a b,c]"], "012345"),
    (["max_steps=null"], "012345w"),
    (["note=x=1,y"], "012345"),
    (["loss=eqco,dclw", "state=not begun,finished"], "34w"),
    (["note=x=2,y"], "w"),
]


def test_conditions_and_names(status: Status, places: dict[str, str]) -> None:
    for conditions, expected in CONDITIONS:
        assert "".join(sorted(names(status, places, *conditions))) == expected, conditions
    for run_id, number in places.items():
        assert names(status, places, run_id[:6]) == names(status, places, f"a/{run_id}", "seed<2") == number
    two = [f"outputs/a/{run_id}" for run_id, number in places.items() if number in "34"]
    assert names(status, places, *two) == "34"


@pytest.mark.parametrize(
    "word", ["loss=none", "mean=[0.1,0.3]", "mean=0.1", "knn/top1>nan", "lr=1", "name=a", "ab", "state=done"]
)
def test_what_selects_nothing_by_mistake_is_refused(word: str, status: Status, places: dict[str, str]) -> None:
    done = status(word)
    assert done.returncode == 2 and done.stderr.startswith(f"ssl-bench: {re.split('[=>]', word)[0]}")


def test_names_are_texts(status: Status) -> None:
    for name in ("007", "7", "1e3", "1000", "lr=0.1"):
        make(f"{name}/", seed=len(name))
    for name in ("007", "7", "1e3", "1000", "./outputs/lr=0.1"):
        (record,) = json.loads(status("--json", name).stdout)
        assert record["folder"] == f"outputs/{name.removeprefix('./outputs/')}/{record['run_id']}"


def test_results_folders_are_joined(status: Status) -> None:
    """Of two copies of a run both are listed, unless one experiment is named."""
    make("a/", rows(2))
    shutil.copytree(OUTPUTS, "others/outputs")
    shutil.move("others/outputs/a", "others/outputs/b")

    def folders(*words: str) -> list[str]:
        return [str(Path(record["folder"]).parent) for record in json.loads(status("--json", *words).stdout)]

    assert folders("outputs", "others/outputs") == ["outputs/a", "others/outputs/b"]
    assert folders("a", "others/outputs/b") == ["outputs/a", "others/outputs/b"]
    assert folders("a", "./outputs") == ["outputs/a"]
    assert folders("b", "paths.outputs=others/outputs") == folders("--outputs", "others/outputs", "b")
    assert folders("others/outputs/b") == ["others/outputs/b"]


def test_of_two_copies_that_a_grid_asked_for_the_one_in_its_experiment_is_selected(status: Status) -> None:
    run = make("b/", rows(2))
    make_grid("1", ["name=a seed=0"], {0: run})
    shutil.copytree(run, OUTPUTS / "a" / run.name)
    records = json.loads(status("--json", "a").stdout)
    assert [record["folder"] for record in records] == [f"outputs/a/{run.name}"]


@pytest.mark.parametrize(
    ("word", "holding"), [("m>=1", [1.0]), ("m=1", [1.0]), ("m<1", [0.0, 0.5]), ("m>2", [0.5, 1.0])]
)
def test_of_a_share_one_is_all_and_two_are_two_percent(word: str, holding: list[float]) -> None:
    condition, values = read_condition(word), Series([0.0, 0.5, 1.0])
    assert condition is not None and [*values[condition.holds(values, 100)]] == holding


ORDERS = [
    ("knn/top1", "401325"),  # 0.9, 0.5, 0.4, 0.2
    ("-knn/top1", "310425"),
    ("optimizer.lr", "140325"),
    ("-optimizer.lr", "250314"),
    ("loss", "012345"),
    ("-loss", "345012"),
    ("seed", "024135"),
    ("state", "250134"),
]


def test_order(status: Status, places: dict[str, str]) -> None:
    """Runs without a value come last."""
    for key in ("knn/top1", "-seed"):
        assert names(status, places, f"--sort={key}")[-1] == "w"
    (OUTPUTS / "a" / "grid-1.json").unlink()
    for key, expected in ORDERS:
        assert names(status, places, f"--sort={key}") == expected, key


def test_metrics_are_named_among_the_selected_runs(status: Status) -> None:
    """Another experiment has been evaluated with another k."""
    numbers = dict[str, str]()
    for name, k, values in (("a", 20, (0.5, 0.7)), ("b", 1, (0.9,))):
        for seed, value in enumerate(values):
            node = {"knn": {"_target_": "ssl_bench.evaluate.knn.KNN", "k": k}}
            folder = make(f"{name}/", rows(10), seed=seed, evaluate=node, note=name)
            finish(folder, 100.0, knn_top1=value)
            numbers[folder.name] = str(seed)
    assert names(status, numbers, "a", "--sort", "knn/top1") == "10"
    assert names(status, numbers, "a", "--sort", "knn/top1", "knn/top1>60") == "1"
    assert names(status, numbers, "knn/top1>60", "note=a") == "1"
    assert status("--sort", "knn/top1").returncode == 2


def test_finished_folders(places: dict[str, str]) -> None:
    folders = finished_folders(["a"])
    assert "".join(places[folder.name] for folder in folders) == "0134"
    failed = next(run_id for run_id, number in places.items() if number == "2")
    assert finished_folders([failed]) == [OUTPUTS / "a" / failed]  # the only one: a command says what it lacks
    for words in ([], ["state=failed"]):
        with pytest.raises(ConfigError):
            finished_folders(words)
