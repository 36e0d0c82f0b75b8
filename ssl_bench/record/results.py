"""``results.json``: the last file that a run writes. A run is finished if the file is there and whole."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.errors import ConfigError
from ssl_bench.record import evaluations

NAME = "results.json"
LARGEST = 2**63  # of whole numbers: larger ones have no place in a float or a database


def complete(content: Any) -> bool:
    """Whether ``content`` has all that a run writes: its run_id, its configuration, numbers as metrics, its seconds."""
    if not isinstance(content, dict) or not isinstance(content.get("run_id"), str):
        return False
    metrics: Any = content.get("metrics")
    if not all(isinstance(part, dict) for part in (content.get("config"), metrics, content.get("facts", {}))):
        return False
    return all(map(is_number, (*metrics.values(), content.get("seconds"))))


def is_number(value: Any) -> bool:
    """Whether a value is a number that computations can use; NaN and infinity are."""
    return isinstance(value, float) or (type(value) is int and -LARGEST < value < LARGEST)


def read(folder: Path) -> dict[str, Any] | None:
    """The results of the run in ``folder``; None if it has none, or a damaged or foreign file."""
    content: Any = files.read_json(folder / NAME)
    return content if complete(content) else None


def finished(folder: Path) -> bool:
    """Whether the run with the directory ``folder`` has its results; takes about 0.1 ms."""
    results = read(folder)
    return results is not None and results["run_id"] == folder.name


def answers(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether the run in ``folder`` is trained as long as ``config`` asks, and has all its evaluations."""
    results = read(folder)
    if results is None or results["run_id"] != folder.name:
        return False
    return not evaluations.missing(evaluations.entries(results), config)


def set_damaged_aside(folder: Path) -> None:
    """Rename a ``results.json`` that is no result of the run in ``folder``, and say so; to be called by its owner.

    Raises:
        ConfigError: the file cannot be read, so that it may be a good one.
        OSError: it cannot be renamed.
    """
    path = folder / NAME
    if not os.path.lexists(path) or finished(folder):
        return
    try:
        files.read_bytes(path)
    except PermissionError as error:
        raise ConfigError(f"{path}: {error.strerror}; make it readable, or remove it to compute it again") from error
    except OSError:
        pass  # a directory, a pipe, a link to nothing
    aside = files.unused(path)
    os.rename(path, aside)
    print(f"{path} is no result of this run: it is now {aside.name}, and the run goes on", flush=True)
