"""Files that other processes are still writing: each update reads only what has changed since the last one."""

import json
import math
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

TAIL = 2**16  # bytes at the end of a metrics file that are enough for the rate: about a hundred rows
WINDOW = 20  # smallest number of rows over which the rate is taken


class Cache:
    """Results of ``read``, by path. A file is read again if its time of change, its size or its inode is different."""

    def __init__(self, read: Callable[[Path], Any]) -> None:
        self.read = read
        self._kept: dict[Path, tuple[tuple[int, int, int], Any]] = {}

    def __call__(self, path: Path) -> tuple[Any, float]:
        """Return the content, or None if there is no such file, and the time of change in seconds of the epoch."""
        try:
            now = path.stat()
        except OSError:
            self._kept.pop(path, None)
            return None, 0.0
        mark = now.st_mtime_ns, now.st_size, now.st_ino
        if path not in self._kept or self._kept[path][0] != mark:
            self._kept[path] = mark, self.read(path)
        return self._kept[path][1], now.st_mtime


class MetricsFile:
    """Rows of a run's ``metrics.jsonl``: it grows, may end in half a row, and is cut when the run resumes.

    Args:
        path: of the file.
        span: epochs between two evaluations. If it is 0 only the end of the file is read, else all of it, once, for
            the best evaluation.

    Attributes:
        step, epoch, seconds: of the last row of the training; ``seconds`` is the time that the run has taken so far, in
            all its processes together. None: there is no row.
        speed: images per second of that row.
        best: highest accuracy of each evaluator during the training.
        changed: the file's time of change, in seconds of the epoch.
    """

    def __init__(self, path: Path, span: float) -> None:
        self.path, self.span = path, span
        self._inode = 0
        self._restart(0)

    def _restart(self, offset: int) -> None:
        self._offset = offset
        self.step: float | None = None
        self.epoch: float | None = None
        self.seconds: float | None = None
        self.speed: float | None = None
        self.best: dict[str, float] = {}
        self.changed = 0.0
        self._window: deque[tuple[float, float]] = deque()  # epoch, seconds

    def update(self) -> None:
        """Read the rows that were added since the last update."""
        try:
            now = self.path.stat()
            if (now.st_ino, now.st_mtime) == (self._inode, self.changed) and now.st_size == self._offset:
                return
            if now.st_ino != self._inode or now.st_size < self._offset:
                self._inode = now.st_ino
                self._restart(0 if self.span else max(0, now.st_size - TAIL))
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                added = file.read()
        except OSError:
            self._inode = 0
            self._restart(0)
            return
        self.changed = now.st_mtime
        complete = added.rfind(b"\n") + 1
        self._offset += complete
        for line in added[:complete].splitlines():
            try:
                self._add(json.loads(line))
            except (ValueError, RecursionError):  # cut short, by a crash or at the start of the tail
                continue

    def _add(self, row: Any) -> None:
        step, epoch = finite(row, "step"), finite(row, "epoch")
        if step is None or epoch is None:
            return
        seconds = finite(row, "seconds")
        if seconds is None:
            for name, value in accuracies(row).items():
                self.best[name] = max(value, self.best.get(name, value))
            return
        self.step, self.epoch, self.seconds = step, epoch, seconds
        self.speed = finite(row, "images_per_second")
        self._window.append((epoch, seconds))
        while len(self._window) > WINDOW and self._window[1][0] <= epoch - self.span:
            self._window.popleft()

    def rate(self, batch_size: float | None) -> float | None:
        """Epochs per second over the last rows, which include the pause of an evaluation if there are evaluations.

        The ``seconds`` of a single row include the start of the run. The rate is then its images per second over the
        images of an epoch, ``batch_size`` times the steps of an epoch.
        """
        if len(self._window) > 1:
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
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value
