"""The rows of ``metrics.jsonl``, as readers get them: what is no row is left out, and counted aloud.

A row has ``step``, nearly always ``epoch``, and values by name. Rows of the training also have ``seconds``,
``images_per_second`` and ``loss``; rows of an evaluation have ``evaluations``, the marks
(:func:`ssl_bench.record.evaluations.mark`) of what made their metrics; the last rows of version 0.4 have none.
"""

import itertools
import math
import os
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ssl_bench import files

OF_TRAINING = ("step", "epoch", "seconds", "images_per_second", "loss")
TAIL = 2**16  # bytes at the end of a metrics file that have its last rows


class Progress(NamedTuple):
    """How far a training is.

    Attributes:
        step, epoch: of its last row; None: there is none.
        seconds: that the run has taken so far, in all its processes together.
        speed: in images per second.
        loss: of the last row.
        watched: the kNN accuracy that it has measured last on a sample of the training images.
        changed: time of change of the file, in seconds of the epoch.
    """

    step: float | None = None
    epoch: float | None = None
    seconds: float | None = None
    speed: float | None = None
    loss: float | None = None
    watched: float | None = None
    changed: float = 0.0


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; none without a file."""
    return files.read_json_lines(path, lambda row: "" if is_row(row) else "no row")


def is_row(row: Any) -> bool:
    """Whether a value is a row, with a step and, where there is one, an epoch."""
    return isinstance(row, dict) and finite(row, "step") is not None and type(row.get("epoch", 0)) in (int, float)


def parse(line: bytes) -> dict[str, Any] | None:
    """The row in a line; None for anything else, such as a row that a crash has cut short."""
    try:
        row: Any = files.parse_json(line)
    except ValueError:
        return None
    return row if is_row(row) else None


def progress(path: Path, ended: bool = False) -> Progress:
    """How far a training is, by the end of its file, which may grow meanwhile; ``watched`` unless it has ended."""

    def end(file: BinaryIO) -> tuple[float, list[bytes]]:
        status = os.fstat(file.fileno())
        file.seek(max(0, status.st_size - TAIL))
        return status.st_mtime, file.read().split(b"\n")[:-1]

    try:
        changed, lines = files.read_with(files.of_run(path), end)
    except OSError:
        return Progress()
    of_training = (row for line in reversed(lines) if (row := parse(line)) is not None and "seconds" in row)
    last = next(of_training, {})
    watching = (finite(row, "watch/knn_top1") for row in itertools.chain([last], of_training))
    watched = None if ended else next((value for value in watching if value is not None), None)
    step, epoch, seconds, speed, loss = (finite(last, name) for name in OF_TRAINING)
    return Progress(step, epoch, seconds, speed, loss, watched, changed)


def finite(node: Any, key: str) -> float | None:
    """The finite number at ``node[key]``; None if there is anything else, or ``node`` is not a mapping."""
    value: Any = node.get(key) if isinstance(node, dict) else None
    return value if type(value) in (int, float) and math.isfinite(value) else None
