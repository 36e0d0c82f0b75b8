"""Pictures of runs: inside the report as long as there is room for them, else links."""

import base64
import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from ssl_bench import files
from ssl_bench.errors import printable

ROOM = 1_500_000  # bytes of all pictures inside a report
DRAWN = "curves.png"  # the report draws the learning curves itself
FOLDER = "figures"

Picture = dict[str, str]  # name, and src (data) or href (link)


def names(run: Path) -> list[str]:
    """File names of a run's pictures."""
    try:
        with os.scandir(run / FOLDER) as inside:
            found = [entry.name for entry in inside if entry.is_file(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(name for name in found if name.endswith(".png") and name[0] != "." and name != DRAWN)


def embedded(runs: Iterable[tuple[Path, list[str]]], start: Path) -> dict[Path, list[Picture]]:
    """The pictures of runs, as data until ROOM is used up, then as links.

    Args:
        runs: folder and file names, the most important run first.
        start: the folder that links are relative to.
    """
    left, found = ROOM, dict[Path, list[Picture]]()
    for run, its_names in runs:
        found[run] = []
        for name in its_names:
            path = run / FOLDER / name
            picture = {"name": printable(name)}
            try:
                content = files.read_bytes(path, left)
                left -= len(content)
                picture["src"] = f"data:image/png;base64,{base64.b64encode(content).decode()}"
            except OSError:  # too large for what is left, or gone
                picture["href"] = quote(os.fsencode(os.path.relpath(path, start)))
            found[run].append(picture)
    return found
