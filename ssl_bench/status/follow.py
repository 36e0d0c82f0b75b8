"""Files that other processes are writing, looked at again and again: only what has changed is read."""

import json
import math
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

TAIL = 2**16  # bytes of a journal that are enough for its speed: a hundred rows
FEW = 20  # rows over which the speed is taken, at least


class Cache:
    """What ``read`` makes of files, each read again when its time, size or inode is another one."""

    def __init__(self, read: Callable[[Path], Any]) -> None:
        self.read = read
        self._kept: dict[Path, tuple[tuple[int, int, int], Any]] = {}

    def __call__(self, path: Path) -> tuple[Any, float]:
        """The content, None if there is no such file, and when it changed, in seconds of the epoch."""
        try:
            now = path.stat()
        except OSError:
            self._kept.pop(path, None)
            return None, 0.0
        mark = now.st_mtime_ns, now.st_size, now.st_ino
        if path not in self._kept or self._kept[path][0] != mark:
            self._kept[path] = mark, self.read(path)
        return self._kept[path][1], now.st_mtime


class Journal:
    """The rows of a run's ``metrics.jsonl``: it grows, may end in half a row, and is cut when the run resumes.

    Args:
        path: of the file.
        span: epochs between two evaluations. If there are any, the file is read from its start once, for the best of
            them; else from near its end.

    Attributes:
        step, epoch, seconds: of the last row of the training; ``seconds`` is what the run has taken so far, in all its
            starts together. None: there is no row.
        speed: images per second of that row.
        best: the highest accuracy of every probe that was judged on the way.
        changed: when the file did, in seconds of the epoch.
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

    def look(self) -> None:
        """Reads the rows that have come since the last look."""
        try:
            now = self.path.stat()
            if (now.st_ino, now.st_mtime) == (self._inode, self.changed) and now.st_size == self._offset:
                return
            if now.st_ino != self._inode or now.st_size < self._offset:
                self._inode = now.st_ino
                self._restart(0 if self.span else max(0, now.st_size - TAIL))
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                fresh = file.read()
        except OSError:
            self._inode = 0
            self._restart(0)
            return
        self.changed = now.st_mtime
        whole = fresh.rfind(b"\n") + 1
        self._offset += whole
        for line in fresh[:whole].splitlines():
            try:
                self._add(json.loads(line))
            except (ValueError, RecursionError):  # cut short, by a crash or at the start of the tail
                continue

    def _add(self, row: Any) -> None:
        step, epoch = (number(row.get(key)) for key in ("step", "epoch")) if isinstance(row, dict) else (None, None)
        if step is None or epoch is None:
            return
        seconds = number(row.get("seconds"))
        if seconds is None:
            for name, value in accuracies(row).items():
                self.best[name] = max(value, self.best.get(name, value))
            return
        self.step, self.epoch, self.seconds = step, epoch, seconds
        self.speed = number(row.get("images_per_second"))
        self._window.append((epoch, seconds))
        while len(self._window) > FEW and self._window[1][0] <= epoch - self.span:
            self._window.popleft()

    def rate(self, batch_size: float | None) -> float | None:
        """Epochs per second over the last rows, with the pauses of at least one evaluation if there are some.

        Of a single row, whose ``seconds`` have the start of the run in them, it is the images per second over the
        images of an epoch, which are ``batch_size`` times its steps.
        """
        if len(self._window) > 1:
            (before, since), (epoch, seconds) = self._window[0], self._window[-1]
            return (epoch - before) / (seconds - since) if epoch > before and seconds > since else None
        if not (self.step and self.epoch and self.speed and batch_size):
            return None
        return self.speed / (batch_size * self.step / self.epoch)


def accuracies(metrics: Any) -> dict[str, float]:
    """The top-1 accuracies among metrics, those of the baselines left out."""
    found = metrics.items() if isinstance(metrics, dict) else ()
    numbers = {name: number(value) for name, value in found if name.endswith("/top1")}
    return {
        name: value
        for name, value in numbers.items()
        if value is not None and not name.partition("/")[0].endswith(("_init", "_raw"))
    }


def number(value: Any) -> float | None:
    """A finite number as it is, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value
