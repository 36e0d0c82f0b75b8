"""``results.json``: the last file that a run writes. A run is finished if the file is there and whole."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from ssl_bench import files
from ssl_bench.config.identity import run_id
from ssl_bench.disk.patience import exists
from ssl_bench.errors import ConfigError
from ssl_bench.record import evaluations

NAME = "results.json"

Node = dict[str, Any] | None  # of a group


class Evaluate(TypedDict, total=False):
    """Settings of ``evaluate`` that are those of no evaluator."""

    every: int
    baselines: list[str]
    on: Node | list[Node]
    labels: list[Any]


class Config(TypedDict, total=False):
    """The keys of a run's configuration that are read, of ``config.yaml`` and of ``results.json``; some lack a part."""

    choices: dict[str, Any]
    name: str
    epochs: int
    threads: int | None
    paths: dict[str, str]
    init: Node
    batch_size: Node
    dataset: Node
    backbone: Node
    framework: Node
    negatives: Node
    temperature: Node
    optimizer: Node
    evaluate: Evaluate
    tracking: Node
    steady: list[str]


class RunResults(TypedDict):
    """Content of ``results.json``."""

    run_id: str
    config: Config
    metrics: dict[str, float]
    seconds: float
    evaluations: list[evaluations.Evaluated]
    environment: NotRequired[dict[str, Any]]
    facts: NotRequired[dict[str, Any]]
    warnings: NotRequired[list[str]]
    units: NotRequired[dict[str, Any]]


class Failure(TypedDict):
    """Content of a run's ``failed.json``: why it failed, in a sentence."""

    reason: str


# Conditions that the bits of a result depend on beside its configuration, by the names of its ``environment``.
CONDITIONS = {"device": "processors", "instructions": "instructions", "threads": "numbers of threads"}
CONDITIONS |= {"ranks": "numbers of ranks", "torch": "versions of torch", "images": "images"}
OF_CPUS = ("instructions", "threads")


def mixed(environments: Iterable[Mapping[str, Any]]) -> str:
    """Name the conditions in which runs of one mean differ, as a footnote; empty if there are none."""
    every, different = list(environments), list[str]()
    for name, words in CONDITIONS.items():
        counted = (environment for environment in every if not (environment.get("cuda") and name in OF_CPUS))
        values = {str(environment[name]) for environment in counted if environment.get(name) is not None}
        different += [f"{words} ({', '.join(sorted(values))})"] if len(values) > 1 else []
    return f"mean over runs with different {', '.join(different)}" if different else ""


def read(folder: Path) -> dict[str, Any] | None:
    """The results of the run in ``folder``; None if it has none, or a damaged or foreign file."""
    content: dict[str, Any] | None = files.read_json(folder / NAME, RunResults)
    if content is None:
        return None
    if not _consistent(content, folder):
        files.say_damaged(folder / NAME)
        return None
    return content


def _consistent(content: Mapping[str, Any], folder: Path) -> bool:
    """Whether there is a configuration, and what stands twice is the same: each number, and the configuration."""
    if not content["config"]:
        return False
    numbers, named = evaluations.flat(content["evaluations"], content["config"].get("epochs")), content["run_id"]
    if json.dumps(numbers, sort_keys=True) != json.dumps(content["metrics"], sort_keys=True):  # as texts, NaN is NaN
        return False
    if run_id(content["config"]) == named:
        return True
    stored = files.read_yaml(folder / "config.yaml", Config, named=False)
    return stored is None or run_id(stored) != named


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
    return not evaluations.missing(evaluations.entries(results), config)


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
