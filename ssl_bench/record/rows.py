"""The rows of ``metrics.jsonl``, as readers get them: what is no row is left out, and counted aloud.

A row has ``step``, nearly always ``epoch``, and values by name. Rows of the training also have ``seconds``,
``images_per_second`` and ``loss``; rows of an evaluation have ``evaluations``, the marks
(:func:`ssl_bench.record.evaluations.mark`) of what made their metrics; the last rows of version 0.4 have none.
"""

import contextlib
import math
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ssl_bench import files
from ssl_bench.record import units

READ = ("step", "epoch", "seconds", "images_per_second", "loss")  # of the last row
WATCHED = "watch/knn_top1"  # in rows of a training
TAIL = 2**16  # bytes at the end of a metrics file that have its last row


class Progress(NamedTuple):
    """How far a training is.

    Attributes:
        step, epoch: of its last row; None: there is none.
        seconds: that the run has taken so far, in all its processes together.
        speed: in images per second.
        loss: of the last row.
        watched: the last kNN accuracy that it has measured on the way.
        best: the best value of each main metric so far.
        changed: time of change of the file, in seconds of the epoch.
    """

    step: float | None = None
    epoch: float | None = None
    seconds: float | None = None
    speed: float | None = None
    loss: float | None = None
    watched: float | None = None
    best: Mapping[str, float] = {}
    changed: float = 0.0


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; none without a file."""
    return files.read_json_lines(path, lambda row: "" if is_row(row) else "no row")


def is_row(row: Any) -> bool:
    """Whether a value is a row, with a step and, where there is one, an epoch."""
    return isinstance(row, dict) and finite(row, "step") is not None and type(row.get("epoch", 0)) in (int, float)


def progress(
    path: Path, evaluated: Collection[str] = (), recorded: Any = None, config: Mapping[str, Any] | None = None
) -> Progress:
    """How far a training is whose file may grow meanwhile, and end in half a row.

    Args:
        evaluated: marks of the evaluations whose best values are sought in all of it; none: only its end is read.
        recorded: the units of the values, which say which are best, as :func:`ssl_bench.record.units.metric` has them.
        config: of the run.
    """

    def end(file: BinaryIO) -> tuple[float, list[bytes]]:
        status = os.fstat(file.fileno())
        start = max(0, status.st_size - (files.LARGEST_FILE if evaluated else TAIL))
        file.seek(start)
        return status.st_mtime, file.read().split(b"\n")[start > 0 : -1]

    try:
        changed, lines = files.read_with(files.of_run(path), end)
    except OSError:
        return Progress()
    best, last, watched, evaluate = dict[str, float](), Progress(), None, (config or {}).get("evaluate")
    for line in reversed(lines):
        row: Any = None
        with contextlib.suppress(ValueError):  # a row that a crash has cut short, and the next one behind it
            row = files.parse_json(line)
        if not is_row(row):
            continue
        if finite(row, "seconds") is not None:
            watched = finite(row, WATCHED) if watched is None else watched
            if last.step is None:
                step, epoch, seconds, speed, loss = (finite(row, name) for name in READ)
                last = Progress(step, epoch, seconds, speed, loss)
        made_by = marks(row)
        for name in units.main(row, recorded, evaluate) if made_by and {*evaluated}.issuperset(made_by) else ():
            value, sign = finite(row, name), units.metric(name, recorded, evaluate).sign
            if value is not None and not name.startswith("watch/"):
                best[name] = sign * max(sign * value, sign * best.get(name, value))
        if not evaluated and last.step is not None and (watched is not None or len(lines) < 2):
            break
    return last._replace(watched=watched, best=best, changed=changed)


def marks(row: Mapping[str, Any]) -> list[str]:
    """The marks of what made the metrics of a row; none of a row of the training."""
    found = row.get("evaluations")
    return [*map(str, found)] if isinstance(found, list) else []


def finite(node: Any, key: str) -> float | None:
    """The finite number at ``node[key]``; None if there is anything else, or ``node`` is not a mapping."""
    value: Any = node.get(key) if isinstance(node, dict) else None
    return value if type(value) in (int, float) and math.isfinite(value) else None
