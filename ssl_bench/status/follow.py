"""Files that other processes are still writing: when they have changed, and what the rows of a training say."""

import contextlib
import math
import os
import stat
from dataclasses import dataclass, field
from typing import Any

from ssl_bench import files

Mark = tuple[int, int, int]  # time of change in ns, size, inode: a file or folder with the same mark has not changed

QUANTITY = 1e15  # larger epochs, steps and seconds are an error
TAIL = 2**16  # bytes at the end of a metrics file that have its last row


def find_mark(path: str) -> Mark | None:
    """The mark of the file or folder at ``path``; None if there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


@dataclass
class Metrics:
    """The rows of a run's ``metrics.jsonl``, summed up.

    Attributes:
        step, epoch, seconds, speed, loss: of the last row of the training; ``seconds`` is the time that the run has
            taken so far, in all its processes together, ``speed`` is in images per second. None: there is no row.
        best: highest accuracy of each evaluator during the training.
        changed: the file's time of change, in seconds of the epoch.
    """

    step: float | None = None
    epoch: float | None = None
    seconds: float | None = None
    speed: float | None = None
    loss: float | None = None
    best: dict[str, float] = field(default_factory=dict)
    changed: float = 0.0

    def add(self, row: Any) -> None:
        """Take the next row."""
        step, epoch, seconds = (quantity(row, name) for name in ("step", "epoch", "seconds"))
        if step is None or epoch is None:
            return
        if seconds is None:
            self.best |= {name: max(value, self.best.get(name, value)) for name, value in accuracies(row).items()}
            return
        self.step, self.epoch, self.seconds = step, epoch, seconds
        self.speed, self.loss = quantity(row, "images_per_second"), finite(row, "loss")


def read_metrics(path: str, whole: bool) -> Metrics:
    """Read a run's rows: a file that grows, and may end in half a row.

    Args:
        whole: read all of it, for the best evaluation; otherwise only its end, for the last row.
    """
    metrics = Metrics()
    try:
        with files.open_regular(path) as file:
            status = os.fstat(file.fileno())
            file.seek(max(0, status.st_size - (files.LARGEST if whole else TAIL)))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return metrics
    metrics.changed = status.st_mtime
    for line in lines if whole else reversed(lines):
        with contextlib.suppress(ValueError):  # cut short, by a crash or at the start of the end
            metrics.add(files.parse_json(line))
        if not whole and metrics.step is not None:
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
    return value if -(2**63) < value < 2**63 or (isinstance(value, float) and math.isfinite(value)) else None


def quantity(node: Any, key: str) -> float | None:
    """The number at ``node[key]`` if it can be a number of epochs, steps, images or seconds, else None."""
    value = finite(node, key)
    return value if value is not None and 0 <= value <= QUANTITY else None
