"""Which test images an evaluation classifies correctly, a bit for each, in ``<run>/hits/``.

With the bits of two runs that are compared on the same images, an interval covers other images, too, and not only other
seeds.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ssl_bench import files
from ssl_bench.disk.patience import make_folder
from ssl_bench.record.evaluations import Entry

FOLDER = "hits"


def written(folder: Path, entry: Entry) -> Entry:
    """Write which images the accuracies of an entry count into the run's folder; the entry then names the files.

    An accuracy that knows its images is an ``evaluate.accuracy.Accuracy``.
    """
    records = {}
    for name, value in entry["metrics"].items() if not entry["network"] else ():
        right = getattr(value, "right", None)
        if right is None:
            continue
        path = f"{FOLDER}/{name.replace('/', '-')}_{entry['id']}_{entry['epochs']}.bits"
        make_folder(folder / FOLDER)
        files.write_bytes(folder / path, np.packbits(right.cpu().numpy()).tobytes())
        records[name] = {"file": path, "images": len(right)}
    return {**entry, "hits": records} if records else entry


def read(folder: Path, entry: Entry, metric: str) -> np.ndarray | None:
    """The bits of an accuracy, 0 or 1 [N]; None if the run has none, or a damaged file."""
    by_metric: Any = entry.get("hits")
    record = by_metric.get(metric) if isinstance(by_metric, Mapping) else None
    if not isinstance(record, Mapping) or type(count := record.get("images")) is not int or count < 1:
        return None
    try:
        packed = np.frombuffer(files.read_bytes(folder / FOLDER / Path(str(record.get("file"))).name), dtype=np.uint8)
    except OSError:
        return None
    return np.unpackbits(packed)[:count] if len(packed) == -(-count // 8) else None
