"""``results.json``: the last file that a run writes. A run is finished if the file is there and whole."""

import itertools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.errors import ConfigError
from ssl_bench.record import evaluations

NAME = "results.json"
LARGEST = 2**63  # of whole numbers: larger ones have no place in a float or a database

# What the bits of a result depend on beside its configuration, by the names of its ``environment``.
CONDITIONS = {"device": "processors", "instructions": "instructions", "threads": "numbers of threads"}
CONDITIONS |= {"ranks": "numbers of ranks", "torch": "versions of torch", "images": "images"}
OF_CPUS = ("instructions", "threads")


def mixed(environments: Iterable[Mapping[str, Any]]) -> str:
    """Name the conditions in which runs of one mean differ, as a footnote; empty if there are none."""
    known, different = list(environments), list[str]()
    for name, words in CONDITIONS.items():
        counted = (each for each in known if not (each.get("cuda") and name in OF_CPUS))
        values = {str(each[name]) for each in counted if each.get(name) is not None}
        different += [f"{words} ({', '.join(sorted(values))})"] if len(values) > 1 else []
    return f"mean over runs with different {', '.join(different)}" if different else ""


def warnings(content: Mapping[str, Any]) -> list[str]:
    """The sentences in ``results.json`` that warn of the run's own result."""
    found = content.get("warnings")
    return [str(sentence) for sentence in found] if isinstance(found, list) else []


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
    """The results of the run in ``folder``; None if it has none, or a damaged or foreign file.

    Those of version 0.2 are returned with the evaluations that it wrote to ``evaluations/<id>.json``.
    """
    content: Any = files.read_json(folder / NAME)
    if not complete(content):
        return None
    if "evaluations" in content:
        return content  # type: ignore[no-any-return]
    later = [files.read_json(path) for path in sorted(folder.glob("evaluations/*.json"))]
    metrics = [each.get("metrics") if isinstance(each, dict) else None for each in later]
    whole = [isinstance(each, dict) and all(map(is_number, each.values())) for each in metrics]
    return evaluations.adopted(content, list(itertools.compress(later, whole)))


def finished(folder: Path) -> bool:
    """Whether the run with the directory ``folder`` has its results; takes about 0.1 ms."""
    results = read(folder)
    return results is not None and results["run_id"] == folder.name


def answers(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether the run in ``folder`` is trained as long as ``config`` asks or longer, and has all its evaluations."""
    results = read(folder)
    if results is None or results["run_id"] != folder.name:
        return False
    if (results["config"].get("epochs") or 0) < (config.get("epochs") or 0):
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
