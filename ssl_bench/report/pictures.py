"""Pictures of runs: inside the report as long as there is room for them, else links."""

import base64
import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from ssl_bench import files
from ssl_bench.errors import printable
from ssl_bench.record.runs import Run

ROOM = 1_500_000  # bytes of all pictures inside a report
FOLDER = "figures"


def of(runs: Iterable[Run], start: Path) -> Iterable[list[dict[str, str]]]:
    """The pictures of each run: ``name``, and ``src`` for one that is shown or ``href`` for a link.

    Args:
        start: the folder of the report, which has the pictures as data until ROOM is used up, then links from there.
    """
    left = ROOM
    for run in runs:
        links = []
        for path in _paths(run.folder / FOLDER) if run.folder else ():
            picture = {"name": printable(path.name)}
            try:
                content = files.read_bytes(files.of_run(path), left)
                left -= len(content)
                picture["src"] = f"data:image/png;base64,{base64.b64encode(content).decode()}"
            except OSError:  # too large for what is left, or gone
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
