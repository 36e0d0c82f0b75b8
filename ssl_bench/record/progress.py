"""Progress of a training: a bar on a terminal, plain lines anywhere else."""

import logging
import math
import sys
import time
from collections.abc import Mapping
from typing import Any

from ssl_bench.record.log import is_quiet

log = logging.getLogger("ssl_bench")

PAUSE = 10.0  # seconds between two lines, without a terminal


class Progress:
    """Context manager that shows epoch, loss, learning rate, tau, images/s and the time left.

    Args:
        steps: step at which the training ends.
        done: steps done by earlier processes of the run.
        per_epoch: steps per epoch.
        epochs: of the whole training.
        shown: False on all ranks but rank 0.
    """

    def __init__(self, steps: int, done: int, per_epoch: int, epochs: int, shown: bool) -> None:
        self.steps, self.done, self.per_epoch, self.epochs, self.shown = steps, done, per_epoch, epochs, shown
        self._printed = time.monotonic()
        self._rows, self._pace = 0, 0.0  # rows shown; seconds per step, mostly of the last five rows
        self._look = ""  # the last one at the network
        self.restart(done)
        self._bar: Any = None

    def __enter__(self) -> "Progress":
        if self.shown and sys.stdout.isatty() and not is_quiet():
            from rich.progress import BarColumn, Progress, TextColumn

            self._bar = Progress(TextColumn("{task.description}"), BarColumn(None), transient=True)
            self._bar.add_task(f"epoch {self._epoch(self.done)}", total=self.steps, completed=self.done)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def restart(self, step: int) -> None:
        """Time the steps after ``step`` from now on: what has happened since the last one is none of theirs."""
        self._since, self._before = time.monotonic(), step

    def rate(self, step: int) -> float:
        """Steps per second since the last call, or :meth:`restart`, until ``step``."""
        steps, seconds = step - self._before, time.monotonic() - self._since
        self._rows += 1
        if self._rows > 1:  # the first one does not count: kernels are chosen in its steps, and memory grows
            self._pace = seconds / steps if self._rows == 2 else 0.8 * self._pace + 0.2 * seconds / steps
        self.restart(step)
        return steps / seconds

    def show(self, step: int, row: Mapping[str, float]) -> None:
        """Show the row of metrics of ``step``. Without a bar: a line at most every PAUSE, and one at the end."""
        if not self.shown:
            return
        left = self._pace * (self.steps - step) if self._rows > 1 and step < self.steps else None
        tau = f"  tau {row['tau']:.4g}" if "tau" in row else ""
        numbers = f"loss {row['loss']:.4f}  lr {row['lr']:.4g}{tau}  {row['images_per_second']:.0f} images/s"
        if "watch/effective_rank" in row:
            accuracy = f"  kNN {100 * row['watch/knn_top1']:.1f}%" if "watch/knn_top1" in row else ""
            self._look = f"{accuracy}  rank {row['watch/effective_rank']:.1f}"
        numbers += self._look
        numbers += f"  {clock(left)} left" if left is not None else ""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=step, description=f"epoch {self._epoch(step)}  {numbers}")
        elif time.monotonic() - self._printed >= PAUSE or step == self.steps:
            self._printed = time.monotonic()
            log.info("epoch %s  step %d/%d  %s", self._epoch(step), step, self.steps, numbers)

    def _epoch(self, step: int) -> str:
        return f"{math.ceil(step / self.per_epoch)}/{self.epochs}"


def clock(seconds: float) -> str:
    """Seconds as 3m07s, from an hour on as 52h05m."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}h{minutes % 60:02d}m" if minutes >= 60 else f"{minutes}m{rest:02d}s"
