"""Pictures of runs: inside the report as long as there is room for them, else links."""

import base64
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from ssl_bench import files
from ssl_bench.errors import printable

ROOM = 1_500_000  # bytes of all pictures inside a report
DRAWN = "curves.png"  # the report draws the learning curves itself
FOLDER = "figures"


def names(run: Path) -> list[str]:
    """File names of a run's pictures."""
    try:
        with os.scandir(files.of_run(run / FOLDER)) as inside:
            files_inside = [entry.name for entry in inside if entry.is_file(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(name for name in files_inside if name.endswith(".png") and name[0] != "." and name != DRAWN)


def listed(outputs: Path, runs: Iterable[tuple[str, Sequence[str]]], start: Path) -> Iterable[list[dict[str, str]]]:
    """The pictures of each run: ``name``, and ``src`` for one that is shown or ``href`` for a link.

    Args:
        runs: path below ``outputs``, and file names.
        start: the folder of the report, which has the pictures as data until ROOM is used up, then links from there.
    """
    left = ROOM
    for run, its_names in runs:
        links = []
        for name in its_names:
            path, picture = outputs / run / FOLDER / name, {"name": printable(name)}
            try:
                content = files.read_bytes(path, left)
                left -= len(content)
                picture["src"] = f"data:image/png;base64,{base64.b64encode(content).decode()}"
            except OSError:  # too large for what is left, or gone
                picture["href"] = quote(os.fsencode(os.path.relpath(path, start)))
            links.append(picture)
        yield links
