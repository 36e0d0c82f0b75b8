"""``results.json``: the last file that a run writes. A run is finished if the file is there and whole."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from ssl_bench import files
from ssl_bench.disk.patience import exists
from ssl_bench.errors import ConfigError
from ssl_bench.evaluate.metric import Metric
from ssl_bench.record import evaluations

NAME = "results.json"


class RunResults(TypedDict):
    """What readers need of ``results.json``."""

    run_id: str
    config: dict[str, Any]
    metrics: dict[str, float]
    seconds: float
    evaluations: list[evaluations.Evaluated]
    environment: NotRequired[dict[str, Any]]
    facts: NotRequired[dict[str, Any]]
    warnings: NotRequired[list[str]]
    units: NotRequired[dict[str, dict[str, Metric]]]


# Conditions that the bits of a result depend on beside what its run_id says, in words: by the names of its
# ``environment``, and the keys of its configuration that say how it is computed.
ENVIRONMENT = {"device": "processors", "instructions": "instructions", "threads": "numbers of threads"}
ENVIRONMENT |= {"ranks": "numbers of ranks", "torch": "versions of torch", "cuda": "versions of CUDA"}
ENVIRONMENT |= {"precision": "number formats", "images": "images"}
OF_CPUS, OF_GPUS = ("instructions", "threads"), ("compile_views", "graph", "images_on")
SETTINGS = {name: f"values of {name}" for name in ("cosines", *OF_GPUS)}


def conditions(config: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    """The conditions of a result by name, as far as they were recorded and count on its kind of device."""
    every = {name: environment.get(name) for name in ENVIRONMENT} | {name: config.get(name) for name in SETTINGS}
    without = OF_CPUS if environment.get("cuda") else OF_GPUS
    return {name: value for name, value in every.items() if value is not None and name not in without}


def different(results: Sequence[Mapping[str, Any]], names: Mapping[str, str] = ENVIRONMENT | SETTINGS) -> list[str]:
    """The conditions in which results differ, each in words with its values.

    Args:
        results: the conditions of each.
        names: in words, of those that count.
    """
    values = {name: {_text(of[name]) for of in results if of.get(name) is not None} for name in names}
    return [f"{names[name]} ({', '.join(sorted(those))})" for name, those in values.items() if len(those) > 1]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def mixed(results: Iterable[Mapping[str, Any]]) -> str:
    """Name the conditions in which runs of one mean differ, as a footnote; empty if there are none."""
    words = ", ".join(different(list(results)))
    return f"mean over runs with different {words}" if words else ""


def read(folder: Path) -> dict[str, Any] | None:
    """The results of the run in ``folder``; None if it has none, or a damaged or foreign file, which is named."""
    content, wrong = examined(folder)
    if wrong:
        files.say_damaged(folder / NAME, wrong)
    return content


def examined(folder: Path) -> tuple[dict[str, Any] | None, str]:
    """The results of the run in ``folder``, and what is wrong in them: one of them is None or empty, both without any.

    They are wrong if they are no JSON or lack a part that readers need.
    """
    content, wrong = files.examined(folder / NAME, RunResults, of_a_run=True)
    return content, wrong


def is_finished(folder: Path) -> bool:
    """Whether the run with the directory ``folder`` has its results; takes about 0.1 ms."""
    results = read(folder)
    return results is not None and results["run_id"] == folder.name


def is_complete(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether the run in ``folder`` is trained as long as ``config`` asks or longer, and has all its evaluations."""
    results = read(folder)
    if results is None or results["run_id"] != folder.name:
        return False
    if (results["config"].get("epochs") or 0) < (config.get("epochs") or 0):
        return False
    return not evaluations.missing(results["evaluations"], config)


def set_damaged_aside(folder: Path) -> None:
    """Rename a ``results.json`` that is no result of the run in ``folder``, and say so; to be called by its owner.

    Raises:
        ConfigError: the file cannot be read, so that it may be a good one.
        OSError: it cannot be renamed.
    """
    path = folder / NAME
    if not exists(path) or is_finished(folder):
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
