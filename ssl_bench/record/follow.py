"""Files that other processes are still writing: when they have changed, and what the rows of a training say."""

import contextlib
import math
import os
from collections.abc import Mapping
from typing import Any, BinaryIO

from ssl_bench import files
from ssl_bench.disk import patience
from ssl_bench.record import rows, units

WATCHED = "watch/knn_top1"  # in rows of a training
TAIL = 2**16  # bytes at the end of a metrics file that have its last row


def find_mark(path: str) -> files.Mark | None:
    """The mark of the file or folder at ``path``; None if there is none."""
    try:
        status = patience.status(path)
    except OSError:
        return None
    return files.mark(status) if status else None


def read_rows(
    path: str, going: bool, evaluated: bool, recorded: Any = None, config: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The last row of a training, its evaluations and the file's time of change, as attributes of a ``RunFolder``.

    The file may grow meanwhile, and end in half a row. Rows that cannot be are left out: ``damaged`` says how many, and
    what is wrong in the first.

    Args:
        going: it will grow: its last kNN accuracy of watching counts, too.
        evaluated: if it will grow, read all of it, for its best evaluation; otherwise only its end is read.
        recorded: the units of the values, which say which are best, as :func:`ssl_bench.record.units.metric` has them.
        config: of the run, as :func:`ssl_bench.record.rows.read` has it.
    """

    def end(file: BinaryIO) -> tuple[float, list[bytes]]:
        status = os.fstat(file.fileno())
        start = max(0, status.st_size - (files.LARGEST_FILE if going and evaluated else TAIL))
        file.seek(start)
        return status.st_mtime, file.read().split(b"\n")[start > 0 : -1]

    try:
        changed, lines = files.read_with(files.of_run(path), end)
    except OSError:
        return {}
    best, last, watched, damaged = dict[str, float](), dict[str, Any](), None, list[str]()
    for line in lines if going else reversed(lines):
        row: Any = None
        with contextlib.suppress(ValueError):  # a row that a crash has cut short, and the next one behind it
            row = files.parse_json(line)
        if wrong := rows.wrong(row, config):
            damaged.append(wrong)
            continue
        seen = finite(row, WATCHED)
        watched = watched if seen is None else seen
        step, epoch, seconds = (finite(row, name) for name in ("step", "epoch", "seconds"))
        if step is None or epoch is None:
            continue
        if seconds is None:
            evaluate = config.get("evaluate") if config else None
            for name in units.main(row, recorded, evaluate):
                value, sign = finite(row, name), units.metric(name, recorded, evaluate).sign
                if value is not None and not name.startswith("watch/"):
                    best[name] = sign * max(sign * value, sign * best.get(name, value))
            continue
        speed, loss = finite(row, "images_per_second"), finite(row, "loss")
        last = {"step": step, "epoch": epoch, "trained": seconds, "speed": speed, "loss": loss}
        if not going:
            break
    return {**last, "watched": watched, "evaluated": best, "changed": changed, "damaged": damaged}


def finite(node: Any, key: str) -> float | None:
    """The finite number at ``node[key]``; None if there is anything else, or ``node`` is not a mapping."""
    value = node.get(key) if isinstance(node, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if -(2**63) < value < 2**63 or (isinstance(value, float) and math.isfinite(value)) else None
