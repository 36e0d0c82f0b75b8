"""Successive halving of a grid: what goes on, with which bits, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Train = Callable[..., tuple[int, str]]
SHORT = ["epochs=3", "evaluate=knn_val", "evaluate.baselines=[]", "dataset.size=12", "batch_size=b256"]  # 15 steps
GRID = ["-m", *SHORT, "optimizer.lr=0.3,1e-7,0.2,1e-6"]
HALVING = ["hydra/sweeper=halving", "hydra.sweeper.epochs=[1,2,3]", "hydra.sweeper.keep=0.5"]


def finished(outputs: str = "outputs") -> dict[float, dict[str, float]]:
    """The metrics of the finished runs by their learning rate."""
    paths = Path(outputs).glob("default/*/results.json")
    contents = [json.loads(path.read_text()) for path in paths]
    return {content["config"]["optimizer"]["lr"]: content["metrics"] for content in contents}


def rows_on_the_way(run: Path) -> list[dict[str, Any]]:
    """The rows of a run that say which evaluations made their numbers."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if "evaluations" in row]


@pytest.mark.slow
def test_the_best_goes_on_as_an_ordinary_run_and_the_same_command_does_nothing_more(train: Train) -> None:
    code, printed = train(*GRID, *HALVING)
    assert code == 0, printed
    lines = [line for line in printed.splitlines() if line.startswith("after epoch")]
    assert [line.partition(", ")[0] for line in lines] == ["after epoch 1: 2 of 4 go on", "after epoch 2: 1 of 2 go on"]
    assert "4 runs: 1 trained, 0 done before, 0 failed, 3 halted" in printed
    ((rate, metrics),) = finished().items()
    assert rate in (0.3, 0.2) and f"optimizer.lr={rate}" in lines[-1]
    (path,) = Path("outputs/default").glob("*/results.json")
    closing = f"optimizer.lr={rate}: knn_val/top1 {metrics['knn_val/top1']:.4g}, {path.parent}\n"
    closing += "optimizer.lr=0.3 is the largest of the grid: extend it\n" if rate == 0.3 else ""
    assert f"the best by knn_val/top1, of the settings that went on to the end:\n{closing}" in printed
    files = Path("outputs/default").glob("*/metrics.jsonl")
    halted = sorted(len(path.read_text().splitlines()) for path in files)
    assert halted[0] == halted[1] < halted[2] < halted[3]
    assert train(*SHORT, f"optimizer.lr={rate}", "paths.outputs=whole")[0] == 0
    assert finished("whole") == {rate: metrics}
    code, printed = train(*GRID, *HALVING)
    assert code == 0 and "negatives per anchor" not in printed and finished() == {rate: metrics}
    assert "4 runs: 0 trained, 1 done before, 0 failed, 3 halted" in printed and closing in printed
    (*_, best) = sorted(Path("outputs/.sweeps").glob("*/best.json"))
    assert json.loads(best.read_text())[0]["overrides"] == [f"optimizer.lr={rate}"]


@pytest.mark.slow
def test_runs_that_are_there_take_part_with_what_the_same_evaluation_measured_after_the_same_epoch(
    train: Train,
) -> None:
    """Those of a search by another k, which are past the first halt or wait there, and those of a grid."""
    grid = ["-m", "epochs=2", *SHORT[1:], "optimizer.lr=0.3,1e-7"]
    search = [*grid, "hydra/sweeper=halving", "hydra.sweeper.epochs=[1,2]", "hydra.sweeper.keep=0.3"]
    other = "evaluate.knn_val.k=3"

    def best(outputs: str) -> float:
        (*_, path) = sorted(Path(outputs, ".sweeps").glob("*/best.json"))
        return float(json.loads(path.read_text())[0]["value"])

    assert train(*grid, other, "evaluate.every=1", "paths.outputs=grid")[0] == 0
    runs = {path.parent.name: json.loads(path.read_text()) for path in Path("grid/default").glob("*/results.json")}
    after_1 = {run: rows_on_the_way(Path("grid/default", run)) for run in runs}
    assert [len(rows) for rows in after_1.values()] == [1, 1]
    good, bad = sorted(runs, key=lambda run: -runs[run]["config"]["optimizer"]["lr"])
    code, printed = train(*search, other, "paths.outputs=grid")
    ranked = f"after epoch 1: 1 of 2 go on, the best with knn_val/top1 {after_1[good][0]['knn_val/top1']:.4g}: "
    assert code == 0 and ranked in printed and "2 runs: 0 trained, 2 done before" in printed
    assert best("grid") == max(content["metrics"]["knn_val/top1"] for content in runs.values())
    code, printed = train(*search)
    assert code == 0 and "2 runs: 1 trained, 0 done before, 0 failed, 1 halted" in printed
    code, printed = train(*search, other)
    assert code == 0 and "optimizer.lr=0.3 goes on without a place: it was trained without a number" in printed, printed
    ranked = f"after epoch 1: 1 of 1 go on, the best with knn_val/top1 {after_1[bad][0]['knn_val/top1']:.4g}: "
    assert ranked in printed and best("outputs") == best("grid")
    first, again = rows_on_the_way(Path("outputs/default", bad))  # it waited at epoch 1
    assert again == after_1[bad][0] and first["evaluations"] != again["evaluations"] and first["epoch"] == 1


@pytest.mark.slow
def test_a_run_past_the_halt_without_rows_goes_on_to_the_end(train: Train) -> None:
    grid = ["epochs=3", *SHORT[1:]]
    assert train(*grid, "optimizer.lr=1e-7", "halt_at=2")[0] == 0
    (rows,) = Path("outputs/default").glob("*/metrics.jsonl")
    rows.unlink()  # only its checkpoint says how far it is
    search = ["-m", *grid, "optimizer.lr=0.3,1e-7", "hydra/sweeper=halving", "hydra.sweeper.epochs=[1,3]"]
    code, printed = train(*search)
    assert code == 0 and "after epoch 1: 1 of 1 go on" in printed, printed
    assert "optimizer.lr=1e-07 goes on without a place" in printed and "2 runs: 2 trained, 0 done before" in printed


@pytest.mark.exhaustive
def test_groups_choose_their_own_best_and_test_images_are_said_to_be_none_to_choose_by(train: Train) -> None:
    grouped = [*HALVING[:2], "hydra.sweeper.keep=0.1", "hydra.sweeper.group_by=loss", "loss=infonce,dcl"]
    grouped += ["-m", *SHORT, "evaluate=knn", "optimizer.lr=0.3,1e-7"]
    code, printed = train(*grouped, "hydra.sweeper.metric=knn/top2")
    assert code == 2 and "knn/top2: set hydra.sweeper.metric to a number of knn that says whether high or" in printed
    code, printed = train(*grouped, "hydra.sweeper.metric=knn/top1")
    assert code == 0 and "after epoch 1: 1 of 2 loss=infonce go on" in printed, printed
    assert "after epoch 1: 1 of 2 loss=dcl go on" in printed and "2 trained" in printed
    closing = printed.partition("of the settings that went on to the end:\n")[2].splitlines()
    assert closing[0].startswith("loss=infonce optimizer.lr=0.3: knn/top1 0.") and closing[2].startswith("loss=dcl ")
    assert closing[1] == "optimizer.lr=0.3 is the largest of the grid (loss=infonce): extend it"
    assert closing[4].startswith("knn/top1 is measured on test images: choose by knn_val/top1 or linear/val_top1")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("hydra.sweeper.epochs=[2,1]", "hydra.sweeper.epochs=[2,1]: set hydra.sweeper.epochs to two or more rising"),
        ("hydra.sweeper.epochs=[1,2]", "hydra.sweeper.epochs=[1,2]: set hydra.sweeper.epochs to end with epochs=3"),
        ("hydra.sweeper.epochs=[1,x]", "hydra.sweeper.epochs=[1,x]: set hydra.sweeper.epochs to two or more rising"),
        ("hydra.sweeper.keep=x", "hydra.sweeper.keep=x: set hydra.sweeper.keep to a number"),
        ("hydra.sweeper.metric=null", "hydra.sweeper.metric=null: set hydra.sweeper.metric to text"),
        ("+hydra.sweeper.foo=1", "there is no key hydra.sweeper.foo"),
        ("batch_size.size=64,2000", "4 of 8 runs cannot be: batch_size.size=2000: set batch_size.size to 1347 or less"),
        ("hydra.sweeper.keep=1.5", "hydra.sweeper.keep=1.5: set hydra.sweeper.keep to a number between 0 and 1"),
        (
            "hydra.sweeper.metric=knn/top1",
            "knn/top1: set hydra.sweeper.metric to a metric of knn_val, or evaluate to",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_the_first_run(train: Train, override: str, says: str) -> None:
    code, printed = train(*GRID, *HALVING, override)
    assert code == 2 and says in printed and not Path("outputs/default").exists()
