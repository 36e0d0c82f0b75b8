"""Which test images an evaluation classifies correctly, a bit for each, in ``<run>/hits/``.

With the bits of two runs that are compared on the same images, an interval covers other images, too, and not only other
seeds.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssl_bench import files
from ssl_bench.disk.patience import make_folder
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
        make_folder(folder / FOLDER)
        files.write_bytes(folder / path, np.packbits(right.cpu().numpy()).tobytes())
        records[name] = {"file": path, "images": len(right)}
    return {**entry, "hits": records} if records else entry


def read(folder: Path, entry: Entry, metric: str) -> np.ndarray | None:
    """The bits of an accuracy, 0 or 1 [N]; None if the run has none, or a damaged file."""
    record = entry.get("hits", {}).get(metric)
    packed = _packed(folder, record) if record else b""
    if not packed or _differ(packed, record, entry["metrics"].get(metric)):
        return None
    import numpy as np

    return np.unpackbits(np.frombuffer(packed, dtype=np.uint8))[: record["images"]]


def wrong(folder: Path, entries: Iterable[Entry]) -> str:
    """Where the bits of an accuracy do not give it; empty: nowhere. A file that is not there says nothing."""
    for entry in entries:
        for metric, record in entry.get("hits", {}).items():
            packed, value = _packed(folder, record), entry["metrics"].get(metric)
            if packed is not None and _differ(packed, record, value):
                return f"{metric}={value}, and {record['file']} does not give it"
    return ""


def _packed(folder: Path, record: Mapping[str, Any]) -> bytes | None:
    """The content of a file of bits; None if it cannot be read."""
    try:
        return files.read_bytes(files.of_run(f"{files.of_run(folder / FOLDER)}/{os.path.basename(record['file'])}"))
    except (OSError, ValueError):  # a name may have a null character
        return None


def _differ(packed: bytes, record: Mapping[str, Any], value: float | None) -> bool:
    """Whether bits are not those of an accuracy: so many, of which this share is 1."""
    count = record["images"]
    if value is None or len(packed) != -(-count // 8):
        return True
    right = (int.from_bytes(packed) >> (8 * len(packed) - count)).bit_count()  # the bits that fill the last byte are 0
    return not abs(right / count - value) * count < 0.5
