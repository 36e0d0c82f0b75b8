"""Which test images an evaluation classifies correctly, a bit for each, in ``<run>/hits/``.

With the bits of two runs that are compared on the same images, an interval covers other images, too, and not only other
seeds.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ssl_bench import files
from ssl_bench.record.evaluations import Entry

if TYPE_CHECKING:
    import numpy as np

FOLDER = "hits"


def written(folder: Path, entry: Entry) -> Entry:
    """Write which images the accuracies of an entry count into the run's folder; the entry then names the files.

    An accuracy that knows its images is an ``evaluate.accuracy.Accuracy``.
    """
    import numpy as np  # takes a tenth of a second, which those who only list runs need not wait

    records = {}
    for name, value in entry["metrics"].items() if not entry["network"] else ():
        right = getattr(value, "right", None)
        if right is None:
            continue
        of = "_".join(str(part) for part in (entry["id"], entry.get("images"), entry["epochs"]) if part is not None)
        path = f"{FOLDER}/{name.replace('/', '-')}_{of}.bits"
        files.make_folder(folder / FOLDER)
        files.write_bytes(folder / path, np.packbits(right.cpu().numpy()).tobytes())
        records[name] = {"file": path, "images": len(right)}
    return {**entry, "hits": records} if records else entry


def read(folder: Path, entry: Entry, metric: str) -> np.ndarray | None:
    """The bits of an accuracy, 0 or 1 [N]; None if the run has none, or a file that does not give the accuracy."""
    record = entry.get("hits", {}).get(metric)
    if record is None:
        return None
    import numpy as np

    try:
        name = os.path.basename(record["file"])
        packed = files.read_bytes(files.of_run(f"{files.of_run(folder / FOLDER)}/{name}"))
    except (OSError, ValueError):  # a name may have a null character
        return None
    bits: np.ndarray = np.unpackbits(np.frombuffer(packed, dtype=np.uint8))[: record["images"]]
    whole = len(bits) == record["images"] and abs(bits.sum() - entry["metrics"][metric] * len(bits)) < 0.5
    return bits if whole else None
