"""Files that other processes are still writing: when they have changed, and what the rows of a training say."""

from __future__ import annotations

import contextlib
import math
import os
import stat
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from ssl_bench import files

Mark = tuple[int, int, int]  # time of change in ns, size, inode: a file or folder with the same mark has not changed

LARGEST = 2**63 - 1  # larger whole numbers have no place in a float
QUANTITY = 1e15  # larger epochs, steps and seconds are an error
TAIL = 2**16  # bytes at the end of a metrics file that are enough for the rate: about a hundred rows
WINDOW = 20  # smallest number of rows over which the rate is taken


def find_mark(path: str) -> Mark | None:
    """The mark of the file or folder at ``path``; None if there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino & LARGEST


@dataclass
class Metrics:
    """What the rows of a run's ``metrics.jsonl`` say.

    Attributes:
        step, epoch, seconds: of the last row of the training; ``seconds`` is the time that the run has taken so far, in
            all its processes together. None: there is no row.
        speed: images per second of that row.
        best: highest accuracy of each evaluator during the training.
        loss: of the last row. The cache has neither it nor the two below.
        window: epoch and seconds of the last rows.
        changed: the file's time of change, in seconds of the epoch.
    """

    step: float | None = None
    epoch: float | None = None
    seconds: float | None = None
    speed: float | None = None
    best: dict[str, float] = field(default_factory=dict)
    loss: float | None = None
    window: deque[tuple[float, float]] = field(default_factory=deque)
    changed: float = 0.0

    def rate(self, batch_size: float | None) -> float | None:
        """Epochs per second over the last rows, which include the pause of an evaluation if there are evaluations.

        The ``seconds`` of a single row include the start of the run. The rate is then its images per second over the
        images of an epoch, ``batch_size`` times the steps of an epoch.
        """
        if len(self.window) > 1:
            (before, since), (epoch, seconds) = self.window[0], self.window[-1]
            return (epoch - before) / (seconds - since) if epoch > before and seconds > since else None
        if not (self.step and self.epoch and self.speed and batch_size):
            return None
        return self.speed / (batch_size * self.step / self.epoch)

    def add(self, row: Any, span: float) -> None:
        """Take the next row; the window covers ``span`` epochs and WINDOW rows, or all rows if these are fewer."""
        step, epoch = quantity(row, "step"), quantity(row, "epoch")
        if step is None or epoch is None:
            return
        seconds = quantity(row, "seconds")
        if seconds is None:
            self.best |= {name: max(value, self.best.get(name, value)) for name, value in accuracies(row).items()}
            return
        self.step, self.epoch, self.seconds = step, epoch, seconds
        self.speed, self.loss = quantity(row, "images_per_second"), finite(row, "loss")
        self.window.append((epoch, seconds))
        while len(self.window) > WINDOW and self.window[1][0] <= epoch - span:
            self.window.popleft()


def read_metrics(path: str, span: float, last_only: bool = False) -> Metrics:
    """Read a run's rows: a file that grows, and may end in half a row.

    Args:
        span: epochs between two evaluations. If it is 0 only the end of the file is read, else all of it, for the best
            evaluation.
        last_only: read only the last row of the training, which is all that matters of a finished run.
    """
    metrics = Metrics()
    try:
        with files.open_regular(path) as file:
            status = os.fstat(file.fileno())
            file.seek(max(0, status.st_size - (files.LARGEST if span and not last_only else TAIL)))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return metrics
    metrics.changed = status.st_mtime
    for line in reversed(lines) if last_only else lines:
        with contextlib.suppress(ValueError):  # cut short, by a crash or at the start of the end
            metrics.add(files.parse_json(line), span)
        if last_only and metrics.step is not None:
            break
    return metrics


def accuracies(metrics: Any) -> dict[str, float]:
    """The top-1 accuracies among ``metrics``, without those of the baselines."""
    names = [name for name in metrics if name.endswith("/top1")] if isinstance(metrics, dict) else []
    trained = [name for name in names if not name.partition("/")[0].endswith(("_init", "_raw"))]
    return {name: value for name in trained if (value := finite(metrics, name)) is not None}


def finite(node: Any, key: str) -> float | None:
    """The finite number at ``node[key]``; None if there is anything else, or ``node`` is not a mapping."""
    value = node.get(key) if isinstance(node, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int):
        return value if -LARGEST <= value <= LARGEST else None
    return value if math.isfinite(value) else None


def quantity(node: Any, key: str) -> float | None:
    """The number at ``node[key]`` if it can be a number of epochs, steps, images or seconds, else None."""
    value = finite(node, key)
    return value if value is not None and 0 <= value <= QUANTITY else None
