"""A cache of what the files of runs and grids say, ``<outputs>/.runs.json``: unchanged files are not read again."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ssl_bench import __version__, files

NAME = ".runs.json"
VERSION = f"{__version__}/8"  # of this package and of the form of the values
FEW_CHANGES = 20  # so many files are read in no time: the cache is not written again for fewer changes


class Cache:
    """Values by name, each with the marks of the files it was read from: ``{name: [marks, value]}``.

    The file may be deleted at any time. One that is damaged or of another version counts as missing, and a folder that
    cannot be written gets none.

    Args:
        outputs: the results folder; names are paths in it.
    """

    def __init__(self, outputs: Path) -> None:
        self._outputs, self._changes, self._used = outputs, 0, set[str]()
        content: dict[str, Any] = files.read_cache(outputs / NAME) or {}
        self._values: dict[str, list[Any]] = content["values"] if content.get("version") == VERSION else {}

    def get(self, name: str, marks: str, read: Callable[[], Any]) -> Any:
        """The value that was read when the files had these marks, otherwise that of ``read``.

        None, of damaged files, is not kept: they are named each time.
        """
        self._used.add(name)
        kept = self._values.get(name)
        if kept is None or kept[0] != marks:
            kept = [marks, read()]
            if kept[1] is None:
                return None
            self._values[name] = kept
            self._changes += 1
        return kept[1]

    def save(self) -> None:
        """Write the file if many values are new; those that nobody asked for stay if their files exist."""
        if self._changes > FEW_CHANGES:
            values = {n: v for n, v in self._values.items() if n in self._used or (self._outputs / n).exists()}
            content = {"version": VERSION, "values": values}
            with contextlib.suppress(OSError):
                files.write_cache(self._outputs / NAME, content)
            self._changes = 0
