"""Successive halving of a grid: what goes on, with which bits, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Train = Callable[..., tuple[int, str]]
SHORT = ["-m", "epochs=3", "evaluate=knn_val", "evaluate.baselines=[]"]
GRID = [*SHORT, "optimizer.lr=0.3,1e-7,0.2,1e-6"]
HALVING = ["hydra/sweeper=halving", "hydra.sweeper.epochs=[1,2,3]", "hydra.sweeper.keep=0.5"]


def finished(outputs: str = "outputs") -> dict[float, dict[str, float]]:
    """The metrics of the finished runs by their learning rate."""
    paths = Path(outputs).glob("default/*/results.json")
    contents = [json.loads(path.read_text()) for path in paths]
    return {content["config"]["optimizer"]["lr"]: content["metrics"] for content in contents}


@pytest.mark.slow
def test_the_best_goes_on_as_an_ordinary_run_and_the_same_command_does_nothing_more(train: Train) -> None:
    code, printed = train(*GRID, *HALVING)
    assert code == 0, printed
    lines = [line for line in printed.splitlines() if line.startswith("after epoch")]
    assert [line.partition(", ")[0] for line in lines] == ["after epoch 1: 2 of 4 go on", "after epoch 2: 1 of 2 go on"]
    assert "4 runs: 1 trained, 0 done before, 0 failed, 3 halted" in printed
    ((rate, metrics),) = finished().items()
    assert rate in (0.3, 0.2) and f"optimizer.lr={rate}" in lines[-1]
    files = Path("outputs/default").glob("*/metrics.jsonl")
    halted = sorted(len(path.read_text().splitlines()) for path in files)
    assert halted[0] == halted[1] < halted[2] < halted[3]
    assert train(*GRID, "paths.outputs=whole")[0] == 0
    whole = finished("whole")
    assert whole[rate] == metrics and len(whole) == 4
    code, printed = train(*GRID, *HALVING)
    assert code == 0 and "step 42/63" not in printed and finished() == {rate: metrics}


def test_groups_choose_their_own_best(train: Train) -> None:
    grouped = [*HALVING[:2], "hydra.sweeper.keep=0.1", "hydra.sweeper.group_by=loss", "loss=infonce,dcl"]
    code, printed = train(*SHORT, *grouped, "optimizer.lr=0.3,1e-7")
    assert code == 0 and "after epoch 1: 1 of 2 loss=infonce go on" in printed, printed
    assert "after epoch 1: 1 of 2 loss=dcl go on" in printed and "2 trained" in printed


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("hydra.sweeper.epochs=[2,1]", "hydra.sweeper.epochs=[2,1]: set hydra.sweeper.epochs to two or more rising"),
        ("hydra.sweeper.epochs=[1,2]", "hydra.sweeper.epochs=[1,2]: set hydra.sweeper.epochs to end with epochs=3"),
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
