"""A number is a value with what made it: after each of several actions, each reader shows the right one or refuses."""

import csv
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ssl_bench
from ssl_bench.commands import table
from ssl_bench.papers import tables
from ssl_bench.papers.cell_runs import Results
from ssl_bench.report.collect import Collector
from ssl_bench.results.comparison import compare
from ssl_bench.results.numbers import Numbers
from ssl_bench.results.runs import finished
from tests.conftest import SMALL, no_pictures
from tests.door.door import enter

Capture = pytest.CaptureFixture[str]
Truth = dict[tuple[str, int, int], float]  # kNN accuracy by loss, seed and k
RUN = [*SMALL, "max_steps=1", "evaluate=knn", "evaluate.knn.k=20", "evaluate.baselines=[]", "tracking=off"]
RUN += ["evaluate.watch=0", "batch_size=b256"]


def run_quietly(*words: str) -> None:
    from ssl_bench.commands import evaluate, train

    with no_pictures():
        assert {"train": train.main, "evaluate": evaluate.main}[words[0]](list(words[1:])) == 0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two losses with two seeds, each trained for a step and evaluated with k = 20."""
    before, folder = Path.cwd(), tmp_path_factory.mktemp("made")
    os.chdir(folder)
    for loss in ("dcl", "infonce"):
        for seed in (0, 1):
            run_quietly("train", *RUN, "name=g", f"loss={loss}", f"seed={seed}")
    os.chdir(before)
    yield folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(made / "outputs", tmp_path / "work" / "outputs")
    monkeypatch.chdir(tmp_path / "work")


def folders(loss: str, outputs: str = "outputs") -> list[Path]:
    paths = sorted(Path(outputs).glob("g/*/results.json"))
    return [path.parent for path in paths if json.loads(path.read_text())["config"]["choices"]["loss"] == loss]


def truth() -> Truth:
    """The accuracies that the evaluations in the files have, by their settings."""
    values: Truth = {}
    for path in Path("outputs").glob("g/*/results.json"):
        content = json.loads(path.read_text())
        for entry in content["evaluations"]:
            if entry["evaluator"] == "knn":
                key = content["config"]["choices"]["loss"], content["config"]["seed"], entry["settings"]["k"]
                values[key] = entry["metrics"]["knn/top1"]
    return values


# ---- what is done with runs that are there


def nothing() -> None:
    pass


def another_k_of_one_loss() -> None:
    for folder in folders("dcl"):
        run_quietly("evaluate", str(folder), "evaluate.knn.k=1")


def another_k_of_all() -> None:
    for loss in ("dcl", "infonce"):
        for folder in folders(loss):
            run_quietly("evaluate", str(folder), "evaluate.knn.k=1")


def another_evaluator_of_one_loss() -> None:
    for folder in folders("dcl"):
        run_quietly("evaluate", str(folder), "evaluate=geometry")


def a_copy_of_a_run() -> None:
    shutil.copytree(folders("dcl")[0], Path("outputs/copies") / folders("dcl")[0].name)


def one_trained_with_another_k() -> None:
    run_quietly("train", *RUN, "evaluate.knn.k=1", "name=g", "loss=infonce", "seed=2")
    run_quietly("train", *RUN, "name=g", "loss=dcl", "seed=2")


ACTIONS = [nothing, another_k_of_one_loss, another_k_of_all, another_evaluator_of_one_loss, a_copy_of_a_run]
ACTIONS += [one_trained_with_another_k]


# ---- who reads numbers


def by_k(name: str, ks: set[int]) -> int:
    """The k that a name says; the only one of all runs if it says none."""
    if name == "knn/top1":
        assert len(ks) == 1, "a plain name where there are several evaluations"
        return next(iter(ks))
    assert name.startswith("knn[k=") and name.endswith("]/top1"), name
    return int(name[len("knn[k=") :].partition("]")[0])


def named_values(rows: list[dict[str, Any]], loss: str, seed: str, values: Truth) -> None:
    """Assert that each accuracy of a row is that of its name, and that none is missing."""
    ks, shown = {k for *_, k in values}, {}
    for row in rows:
        for name in filter(_is_accuracy, row):
            if row[name] not in (None, "") and float(row[name]) == float(row[name]):
                shown[row[loss], int(row[seed]), by_k(name, ks)] = float(row[name])
    assert shown == pytest.approx(values)


def runs_in_python(values: Truth, capfd: Capture) -> None:
    named_values(ssl_bench.runs().to_dict("records"), "loss", "seed", values)


def status_as_csv(values: Truth, capfd: Capture) -> None:
    capfd.readouterr()
    answer = enter("status --csv", capfd)
    named_values(list(csv.DictReader(io.StringIO(answer.out))), "loss", "seed", values)


def status_as_json(values: Truth, capfd: Capture) -> None:
    capfd.readouterr()
    records = json.loads(enter("status --json", capfd).out)
    ks = {k for *_, k in values}
    for record in records:
        for name, value in record["metrics"].items():
            if (name.startswith("knn") and name.endswith("]/top1")) or name == "knn/top1":
                assert value in {v for (*_, k), v in values.items() if k == by_k(name, ks)}


def report(values: Truth, capfd: Capture) -> None:
    data = Collector(Path("outputs")).collect(Path.cwd())
    ks = {k for *_, k in values}
    shown = [(by_k(n, ks), v) for run in data["runs"] for n, v in run["metrics"].items() if _is_accuracy(n)]
    copies = len(list(Path("outputs/copies").glob("*")))
    assert len(shown) == len(values) + copies
    assert {pair for pair in shown} == {(k, value) for (*_, k), value in values.items()}
    assert all(name in data["metrics"] for run in data["runs"] for name in run["metrics"])


def _is_accuracy(name: str) -> bool:
    return name == "knn/top1" or (name.startswith("knn[") and name.endswith("]/top1"))


def means(values: Truth, k: int) -> dict[str, float]:
    losses = {loss for loss, *_ in values}
    return {
        loss: 100 * sum(of) / len(of)
        for loss in losses
        if (of := [value for (one, _, its_k), value in values.items() if one == loss and its_k == k])
    }


def table_of_means(values: Truth, capfd: Capture) -> None:
    for k in {k for *_, k in values}:
        several = len({k for *_, k in values}) > 1
        name = f"knn[k={k}]/top1" if several else "knn/top1"
        capfd.readouterr()
        assert table.main(["name=g", "--rows", "loss", "--metric", name, "--format", "csv"]) == 0
        rows = list(csv.DictReader(io.StringIO(capfd.readouterr().out)))
        assert {row["loss"]: float(row["mean"]) for row in rows} == pytest.approx(means(values, k))


def figure_of_means(values: Truth, capfd: Capture) -> None:
    several = len({k for *_, k in values}) > 1
    axis = ssl_bench.figure(x="loss", metric="knn[k=20]/top1" if several else "knn/top1", where={"name": "g"}).axes[0]
    heights = [float(y) for line in axis.lines for y in line.get_ydata() if len(line.get_ydata()) > 0]
    assert set(means(values, 20).values()) <= {pytest.approx(height) for height in heights}


def comparison(values: Truth, capfd: Capture) -> None:
    runs = finished(Path("outputs"))
    several = len({k for *_, k in values}) > 1
    for k in {k for *_, k in values}:
        (row,) = compare(runs, "loss", "infonce", f"knn[k={k}]/top1" if several else "knn/top1").rows or (None,)
        pairs = sorted({s for loss, s, its_k in values if its_k == k and loss == "dcl"}
                       & {s for loss, s, its_k in values if its_k == k and loss == "infonce"})  # fmt: skip
        if row is None:
            assert not pairs
            continue
        assert row.seeds == pairs
        if pairs:
            expected = [100 * (values["dcl", seed, k] - values["infonce", seed, k]) for seed in pairs]
            assert row.difference == pytest.approx(sum(expected) / len(expected))


def plain_name(values: Truth, capfd: Capture) -> None:
    """The plain name of several evaluations is the one that all runs have, which is said, or refused with the list."""
    runs = finished(Path("outputs"))
    numbers, ks = Numbers(runs), {k for *_, k in values}
    of_all = [k for k in ks if sum(its_k == k for *_, its_k in values) == len({(l, s) for l, s, _ in values})]  # noqa: E741
    capfd.readouterr()
    code = table.main(["name=g", "--rows", "loss", "--metric", "knn/top1", "--format", "md"])
    printed = capfd.readouterr()
    if len(ks) == 1:
        assert code == 0 and numbers.choose("--metric", "knn/top1", runs) == ("knn/top1", "")
    elif len(of_all) == 1:
        assert code == 0 and f"knn/top1 is knn[k={of_all[0]}]/top1, which all of these runs have." in printed.out
    else:
        assert code == 2 and "--metric=knn/top1: set --metric to one of knn[k=20]/top1, knn[k=1]/top1" in printed.err


def papers_cell(values: Truth, capfd: Capture) -> None:
    """A table of one's own asks for k = 20 and for k = 1."""
    sets = [word for word in RUN if not word.startswith(("evaluate.knn.k", "tracking", "evaluate.watch"))]
    node = {"title": "t", "metric": "knn/top1", "set": [*sets, "evaluate.watch=0"], "seeds": [0, 1, 2]}
    node |= {"columns": {"20": ["evaluate.knn.k=20"], "1": ["evaluate.knn.k=1"]}}
    node |= {"rows": {loss: {"set": [f"loss={loss}"]} for loss in ("dcl", "infonce")}}
    Path("own.yaml").write_text(json.dumps({"paper": "own", "cite": "me", "tables": {"t": node}}))
    (own,) = tables.find("own.yaml")
    results = Results(Path("outputs"), own.cells)
    for cell in own.cells:
        expected = {s: 100 * v for (loss, s, k), v in values.items() if (loss, str(k)) == (cell.row, cell.column)}
        assert results.values(cell) == pytest.approx(expected)


READERS: list[Callable[[Truth, Capture], None]] = [runs_in_python, status_as_csv, status_as_json, report]
READERS += [table_of_means, figure_of_means, comparison, plain_name, papers_cell]


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
def test_every_reader_shows_a_number_with_what_made_it(action: Callable[[], None], here: None, capfd: Capture) -> None:
    first = [read for read in READERS if read is not papers_cell]
    for read in first:  # and again after the action, in the same process
        read(truth(), capfd)
    action()
    for read in READERS:
        read(truth(), capfd)


def test_one_training_with_other_numbers_in_two_folders_is_refused_with_both(here: None, capfd: Capture) -> None:
    first = folders("dcl")[0]
    other = Path("outputs/copies") / first.name
    shutil.copytree(first, other)
    content = json.loads((other / "results.json").read_text())
    (entry,) = [entry for entry in content["evaluations"] if entry["evaluator"] == "knn"]
    entry["metrics"]["knn/top1"] = content["metrics"]["knn/top1"] = 0.99
    del entry["hits"]
    (other / "results.json").write_text(json.dumps(content))
    for command in ("table --rows loss --columns seed loss=dcl,infonce", "compare --by loss"):
        answer = enter(command, capfd)
        assert answer.code == 2 and str(first) in answer.err and str(other) in answer.err, (command, answer)
        assert "knn/top1 of one training and seed is" in answer.err
