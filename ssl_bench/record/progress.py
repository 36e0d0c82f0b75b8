"""Progress of a training: a bar on a terminal, plain lines anywhere else."""

import logging
import math
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

log = logging.getLogger("ssl_bench")

FIRST = 10  # steps that are not timed: they are slower, since kernels are chosen and memory grows
STEPS, SECONDS = 20, 3.0  # least number and time of the steps that an estimate is made from
RECENT = 30.0  # seconds of steps after which older ones are forgotten


class Pace:
    """How long the coming steps will take: as long as the recent ones, evaluations not counted."""

    def __init__(self) -> None:
        self._first, self._steps, self._seconds = 0, 0, 0.0
        self._timed: deque[tuple[int, float]] = deque()

    def add(self, steps: int, seconds: float) -> None:
        """Count ``steps`` more steps, which took ``seconds``."""
        if self._first < FIRST:
            self._first += steps
            return
        self._timed.append((steps, seconds))
        self._steps, self._seconds = self._steps + steps, self._seconds + seconds
        steps, seconds = self._timed[0]
        while self._steps - steps >= STEPS and self._seconds - seconds >= RECENT:
            self._timed.popleft()
            self._steps, self._seconds = self._steps - steps, self._seconds - seconds
            steps, seconds = self._timed[0]

    def seconds(self, steps: int) -> float | None:
        """Seconds that ``steps`` coming steps will take; None before enough of them were timed."""
        if self._steps < STEPS or self._seconds < SECONDS:
            return None
        return self._seconds / self._steps * steps


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
        self._printed, self._pace, self._announced = time.monotonic(), Pace(), False
        self.restart(done)
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> "Progress":
        if self.shown and sys.stdout.isatty():
            from rich.progress import BarColumn, Progress, TextColumn

            columns = [TextColumn("epoch {task.fields[epoch]}"), BarColumn(None), TextColumn("{task.fields[text]}")]
            self._bar = Progress(*columns, transient=True)
            self._bar.start()
            self._task = self._bar.add_task(
                "", total=self.steps, completed=self.done, epoch=self._epoch(self.done), text=""
            )
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
        self._pace.add(steps, seconds)
        self.restart(step)
        return steps / seconds

    def advance(self, step: int) -> None:
        """Move the bar to ``step``."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step)

    def show(self, step: int, row: Mapping[str, float]) -> None:
        """Show the row of metrics of ``step``. Without a bar: a line at most every ten seconds, and one at the end."""
        if not self.shown:
            return
        left = self._pace.seconds(self.steps - step) if step < self.steps else None
        if left is not None and not self._announced:
            log.info("about %s of training to go", clock(left))
            self._announced = True
        tau = f"  tau {row['tau']:.4g}" if "tau" in row else ""
        numbers = f"loss {row['loss']:.4f}  lr {row['lr']:.4g}{tau}  {row['images_per_second']:.0f} images/s"
        numbers += f"  {clock(left)} left" if left is not None else ""
        if self._bar is not None:
            self._bar.update(self._task, completed=step, epoch=self._epoch(step), text=numbers)
        now = time.monotonic()
        if self._bar is None and (now - self._printed >= 10 or step == self.steps):
            self._printed = now
            log.info("epoch %s  step %d/%d  %s", self._epoch(step), step, self.steps, numbers)

    def _epoch(self, step: int) -> str:
        return f"{math.ceil(step / self.per_epoch)}/{self.epochs}"


def clock(seconds: float) -> str:
    """Seconds as 42s, 3m07s, 2h05m or 3d04h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole // 60 % 60:02d}m"
    return f"{whole // 86400}d{whole // 3600 % 24:02d}h"
