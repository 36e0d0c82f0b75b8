"""Pictures of runs: embedded in the report up to a total size, and linked beyond it."""

import base64
import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from ssl_bench import files
from ssl_bench.errors import printable
from ssl_bench.record.runs import Run

EMBEDDED_BYTES = 1_500_000  # of all pictures in a report together
FOLDER = "figures"


def of(runs: Iterable[Run], start: Path) -> Iterable[list[dict[str, str]]]:
    """The pictures of each run: ``name``, and ``src``, the content, or ``href``, a link to the file.

    Args:
        start: the folder in which the report will lie, where links start. Pictures are linked once EMBEDDED_BYTES are
            used up.
    """
    remaining = EMBEDDED_BYTES
    for run in runs:
        links = []
        for path in _paths(run.folder / FOLDER) if run.folder else ():
            picture = {"name": printable(path.name)}
            try:
                content = files.read_bytes(files.of_run(path), remaining)
                remaining -= len(content)
                picture["src"] = f"data:image/png;base64,{base64.b64encode(content).decode()}"
            except OSError:  # larger than what remains, or removed meanwhile
                picture["href"] = quote(os.fsencode(os.path.relpath(path, start)))
            links.append(picture)
        yield links


def _paths(folder: Path) -> list[Path]:
    try:
        with os.scandir(files.of_run(folder)) as inside:
            names = [entry.name for entry in inside if entry.is_file(follow_symlinks=False)]
    except OSError:
        return []
    return [folder / name for name in sorted(names) if name.endswith(".png") and name[0] != "."]
