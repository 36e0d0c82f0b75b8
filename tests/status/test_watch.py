"""``ssl-bench status --watch``: the losses and the last accuracies of running runs."""

import pytest
from rich.console import Console

from ssl_bench.commands.status import Shown
from ssl_bench.launch.claim import Claim
from ssl_bench.status.follow import LOSSES, read_metrics
from ssl_bench.status.select import RunFilter
from ssl_bench.status.sparkline import sparkline
from tests.status.folders import OUTPUTS, finish, make, rows


@pytest.mark.parametrize(
    ("numbers", "width", "expected"),
    [
        ([], 5, ""),
        ([2.0], 5, "▁"),
        ([3.0, 3.0], 5, "▁▁"),
        ([0, 1, 2, 3, 4, 5, 6, 7], 8, "▁▂▃▄▅▆▇█"),
        ([8.0, 0.0, 4.0], 5, "█▁▅"),
        ([0.0, 2.0, 4.0, 6.0, 14.0, 16.0], 3, "▁▃█"),  # the means are 1, 5 and 15
        ([5.0, 1.0, 2.0], 2, "█▁"),  # the means are 5 and 1.5
        ([-1e15, 1e15], 2, "▁█"),
    ],
)
def test_a_sparkline_is_the_means_of_groups(numbers: list[float], width: int, expected: str) -> None:
    assert sparkline(numbers, width) == expected


def watched(width: int = 120) -> list[str]:
    """The screen of ``--watch``."""
    shown = Shown(OUTPUTS, RunFilter([], None), False, live=True)
    shown.update()
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(shown.screen(width))
    return [line.rstrip() for line in captured.get().splitlines()]


def falling(epochs: int) -> list[dict[str, float]]:
    """Rows whose loss falls from 9 by 1 in each epoch, with an evaluation in each."""
    evaluations = [{"step": 2 * e, "epoch": float(e), "knn/top1": a} for e, a in ((1, 0.3), (2, 0.6), (3, 0.5))]
    losses = [row | {"loss": 10.0 - e} for e, row in enumerate(rows(epochs), 1)]
    return [row for pair in zip(losses, evaluations, strict=False) for row in pair]


def test_the_last_losses_are_kept() -> None:
    strange = [{"step": 1, "epoch": 0.1, "seconds": 1.0, "loss": value} for value in ("x", 1e300, None)]
    folder = make("a/x", [*strange, *({**row, "loss": float(k)} for k, row in enumerate(rows(LOSSES + 5)))])
    metrics = read_metrics(str(folder / "metrics.jsonl"), span=1.0)
    assert list(metrics.losses) == [float(k) for k in range(5, LOSSES + 5)] and metrics.latest == {}


def test_a_running_run_has_its_losses_and_its_last_accuracy() -> None:
    Claim(make("a/0", falling(3), evaluate={"every": 1}, seed=0)).take()
    make("a/1", falling(3), evaluate={"every": 1}, seed=1)
    finish(make("a/2", falling(3), evaluate={"every": 1}, seed=2), 100.0, knn_top1=0.7)
    screen = watched()
    assert screen[0].split() == ["folder", "run", "state", "epoch", "images/s", "ETA", "loss", "knn"]
    running, partial, done = ([*line.split()[2:4], *line.split()[6:]] for line in screen[1:4])
    assert running == ["running", "3.0/10", "█▅▁", "7", "50.0%"]  # the last accuracy, not the best one
    assert partial[:2] == ["partial", "3.0/10"] and screen[2].endswith("60.0%")
    assert done[:2] == ["done", "3.0/10"] and screen[3].endswith("70.0%")
    assert max(map(len, watched(80))) <= 80 and "█▅▁ 7" in watched(80)[1]
    assert watched(36)[0].split() == ["run", "state", "epoch", "knn"]


def test_running_runs_are_listed_below_a_large_grid() -> None:
    for number in range(41):
        finish(make(f"a/{number}", seed=number), 1.0, knn_top1=0.5)
    screen = watched()
    assert len(screen) == 4 and "41" in screen[1]
    for seed in (50, 51):
        Claim(make(f"a/{seed}", falling(2), evaluate={"every": 1}, seed=seed)).take()
    screen = watched()
    assert [line.split()[1:3] for line in screen[4:6]] == [["seed=50", "running"], ["seed=51", "running"]]
    assert screen[-1].startswith("41 done, 2 running, 0 partial, 0 failed")
