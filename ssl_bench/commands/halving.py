"""Successive halving of a grid (Jamieson and Talwalkar 2016, arXiv 1502.07943): stop early what is hopeless.

All runs halt after the first of some numbers of epochs. The best share of them goes on to the next, and so on to the
end. ``halt_at`` is no part of a run: what goes on to the end is the ordinary run, bit for bit, and a sweep that was
interrupted goes on by the same command.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.commands.sweeper import GridSweeper
from ssl_bench.errors import require
from ssl_bench.launch import grid
from ssl_bench.launch.outcome import State


class HalvingSweeper(GridSweeper):
    """Carries out a grid by successive halving.

    Args:
        metric: of the trained network, such as knn_val/top1; the larger the better.
        epochs: rising, at which the runs are compared; the last one is the epochs of every run.
        keep: share in (0, 1) of the runs that go on, rounded up.
        group_by: a key of the grid: the best are chosen among the runs with the same value; None: among all.
    """

    def __init__(
        self, metric: str, epochs: Sequence[int], keep: float, group_by: str | None, params: Any, max_batch_size: Any
    ) -> None:
        super().__init__(params, max_batch_size)
        self.metric, self.epochs, self.keep, self.group_by = metric, list(epochs), keep, group_by

    def setup(self, **given: Any) -> None:
        """Prepare as for any grid.

        Raises:
            InvalidValue: an argument of the sweeper cannot be used.
        """
        rising = len(self.epochs) > 1 and self.epochs == sorted(set(self.epochs)) and self.epochs[0] >= 1
        require(rising, "hydra.sweeper.epochs", self.epochs, "two or more rising numbers, such as [5,20,80]")
        require(0 < self.keep < 1, "hydra.sweeper.keep", self.keep, "a number between 0 and 1, such as 0.34")
        super().setup(**given)

    def check_run(self, config: Mapping[str, Any]) -> None:
        """Refuse a run of another length, or one that is not evaluated by the metric."""
        last, evaluator = self.epochs[-1], self.metric.partition("/")[0]
        require(config["epochs"] == last, "hydra.sweeper.epochs", self.epochs, f"end with epochs={config['epochs']}")
        known = [name for name, node in config["evaluate"].items() if isinstance(node, Mapping)]
        remedy = f"a metric of {', '.join(known) or 'an evaluator'}, or evaluate to one that gives it"
        require(evaluator in known, "hydra.sweeper.metric", self.metric, remedy)

    def carry_out(self, runs: Sequence[Sequence[str]], finished: Mapping[int, Path]) -> None:
        """Train the runs from halt to halt, fewer each time."""
        alive, launched = [*range(len(runs))], 0
        for epoch in self.epochs:
            last = epoch == self.epochs[-1]
            left = [number for number in alive if number not in finished]
            halt = [] if last else [f"halt_at={epoch}"]
            self.launch([[*runs[number], *halt] for number in left], launched)
            launched += len(left)
            if last or any(grid.outcome(self.grid, n).state is State.INTERRUPTED for n in left):
                return
            alive = self._best(runs, {number: self._value(number, epoch, finished) for number in alive}, epoch)

    def _best(self, runs: Sequence[Sequence[str]], values: Mapping[int, float | None], epoch: int) -> list[int]:
        """The runs that go on; one without a value has failed or diverged and does not."""
        groups: dict[str, list[int]] = {}
        for number in values:
            given = [override for override in runs[number] if override.startswith(f"{self.group_by}=")]
            groups.setdefault("".join(given), []).append(number)
        kept = list[int]()
        for name, members in groups.items():
            known = {number: value for number in members if (value := values[number]) is not None}
            best = sorted(known, key=lambda number: -known[number])[: max(1, math.ceil(self.keep * len(members)))]
            kept += best
            text = f", the best with {self.metric} {known[best[0]]:.4g}: {' '.join(runs[best[0]])}" if best else ""
            print(f"after epoch {epoch}: {len(best)} of {len(members)} {name}".rstrip() + f" go on{text}", flush=True)
        return sorted(kept)

    def _value(self, number: int, epoch: int, finished: Mapping[int, Path]) -> float | None:
        """The metric of a run at an epoch; at its end if it was finished before and has none there."""
        outcome = grid.outcome(self.grid, number)
        folder = finished.get(number) or (Path(outcome.folder) if outcome.folder else None)
        if folder is None or (number not in finished and outcome.state is State.FAILED):
            return None
        rows = [row for row in files.read_json_lines(folder / "metrics.jsonl") if isinstance(row, dict)]
        measured = [row for row in rows if isinstance(row.get(self.metric), float) and math.isfinite(row[self.metric])]
        at = [row[self.metric] for row in measured if abs(row.get("epoch", 0.0) - epoch) < 1e-6]
        value: float | None = at[-1] if at else measured[-1][self.metric] if measured else None
        return value
