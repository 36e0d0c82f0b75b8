"""A journal: a file to which a program appends one JSON object per line. A power cut can leave a part of a line."""

import os
from pathlib import Path

from ssl_bench import files
from ssl_bench.errors import ConfigError


def mend(path: Path) -> None:
    """Keep the lines of a journal up to the first one that is not whole, and say how many are lost.

    The damaged file stays beside it. Nothing is done if there is no journal.

    Raises:
        ConfigError: it is no file that can be read.
    """
    if not os.path.lexists(path):
        return
    try:
        lines = list(files.read_lines(path))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}: remove it, and the same command makes it again") from error
    whole = next((number for number, line in enumerate(lines) if not _is_whole(line)), len(lines))
    if whole == len(lines):
        return
    aside = files.unused(path)
    os.rename(path, aside)
    files.write(path, lambda file: file.writelines(lines[:whole]))
    lost = f"what follows line {whole} is lost, and done again; the damaged file is now {aside.name}"
    print(f"{path} is damaged in line {whole + 1} of {len(lines)}: {lost}", flush=True)


def _is_whole(line: bytes) -> bool:
    """Whether a line ends, and holds a JSON object."""
    try:
        return line.endswith(b"\n") and isinstance(files.parse_json(line), dict)
    except ValueError:
        return False
