"""Files that other processes are still writing: each update reads only what has changed since the last one."""

from __future__ import annotations

import math
import os
import stat
from collections import deque
from typing import Any

from ssl_bench import files

Mark = tuple[int, int, int]  # time of change in ns, size, inode: a file or folder with the same mark has not changed

LARGEST = 2**63 - 1  # integer that SQLite can store
QUANTITY = 1e15  # larger epochs, steps and seconds are an error
TAIL = 2**16  # bytes at the end of a metrics file that are enough for the rate: about a hundred rows
WINDOW = 20  # smallest number of rows over which the rate is taken
LOSSES = 120  # number of rows whose losses are kept


def find_mark(path: str) -> Mark | None:
    """The mark of the file or folder at ``path``; None if there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino & LARGEST


class MetricsFile:
    """Rows of a run's ``metrics.jsonl``: it grows, may end in half a row, and is cut when the run resumes.

    Args:
        span: epochs between two evaluations. If it is 0 only the end of the file is read, else all of it, once, for
            the best evaluation.

    Attributes:
        step, epoch, seconds: of the last row of the training; ``seconds`` is the time that the run has taken so far, in
            all its processes together. None: there is no row.
        speed: images per second of that row.
        losses: of the last rows of the training, LOSSES at most; empty in what the index restored.
        best: highest accuracy of each evaluator during the training.
        latest: last accuracy of each evaluator; empty in what the index restored.
        mark: of the file when it was read; None: it was not there, or not read.
    """

    __slots__ = ("_offset", "_window", "best", "epoch", "latest", "losses", "mark", "seconds", "span", "speed", "step")

    def __init__(self, span: float) -> None:
        self.span = span
        self._restart()

    def _restart(self, offset: int = 0) -> None:
        self.mark: Mark | None = None
        self._offset = offset
        self.step: float | None = None
        self.epoch: float | None = None
        self.seconds: float | None = None
        self.speed: float | None = None
        self.best: dict[str, float] = {}
        self.latest: dict[str, float] = {}
        self.losses = deque[float](maxlen=LOSSES)
        self._window: deque[tuple[float, float]] | None = None  # epoch, seconds

    @classmethod
    def restored_from(cls, span: float, values: tuple[Any, ...], mark: Mark | None) -> MetricsFile:
        """Make the rows from the index; a file that has changed since is read from the start.

        Args:
            values: step, epoch, seconds, speed and best.
        """
        made = cls.__new__(cls)
        made.step, made.epoch, made.seconds, made.speed, made.best = values
        made.span, made.mark, made._offset, made._window = span, mark, -1, None
        made.latest, made.losses = {}, deque[float](maxlen=LOSSES)
        return made

    @property
    def restored(self) -> bool:
        """Whether an earlier process read the file: then the rate is not known."""
        return self._offset < 0

    @property
    def changed(self) -> float:
        """The file's time of change, in seconds of the epoch."""
        return self.mark[0] / 1e9 if self.mark else 0.0

    def update(self, path: str, mark: Mark | None, last_only: bool = False) -> None:
        """Read the rows that were added since the last update.

        Args:
            mark: present mark of the file.
            last_only: read only the last row of the training, which is all that matters of a finished run.
        """
        if mark == self.mark:
            return
        if mark is None:
            self._restart()
            return
        if self.mark is None or self.restored or mark[2] != self.mark[2] or mark[1] < self._offset:
            self._restart(max(0, mark[1] - TAIL) if last_only or not self.span else 0)
        self._offset = max(self._offset, mark[1] - files.LARGEST)
        try:
            with files.open_regular(path) as file:
                file.seek(self._offset)
                added = file.read()
        except OSError:
            self._restart()
            return
        self.mark = mark
        complete = added.rfind(b"\n") + 1
        self._offset += complete
        lines = added[:complete].splitlines()
        for line in reversed(lines) if last_only else lines:
            try:
                self._add(files.parse_json(line))
            except ValueError:  # cut short, by a crash or at the start of the tail
                continue
            if last_only and self.step is not None:
                break

    def _add(self, row: Any) -> None:
        step, epoch = quantity(row, "step"), quantity(row, "epoch")
        if step is None or epoch is None:
            return
        seconds = quantity(row, "seconds")
        if seconds is None:
            self.latest |= (found := accuracies(row))
            self.best |= {name: max(value, self.best.get(name, value)) for name, value in found.items()}
            return
        self.step, self.epoch, self.seconds = step, epoch, seconds
        self.speed = quantity(row, "images_per_second")
        if (loss := finite(row, "loss")) is not None and abs(loss) <= QUANTITY:
            self.losses.append(loss)
        if self._window is None:
            self._window = deque()
        self._window.append((epoch, seconds))
        while len(self._window) > WINDOW and self._window[1][0] <= epoch - self.span:
            self._window.popleft()

    def rate(self, batch_size: float | None) -> float | None:
        """Epochs per second over the last rows, which include the pause of an evaluation if there are evaluations.

        The ``seconds`` of a single row include the start of the run. The rate is then its images per second over the
        images of an epoch, ``batch_size`` times the steps of an epoch.
        """
        if self._window and len(self._window) > 1:
            (before, since), (epoch, seconds) = self._window[0], self._window[-1]
            return (epoch - before) / (seconds - since) if epoch > before and seconds > since else None
        if not (self.step and self.epoch and self.speed and batch_size):
            return None
        return self.speed / (batch_size * self.step / self.epoch)


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
