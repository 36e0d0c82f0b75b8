"""``results.json``: the last file that a run writes. A run is finished if the file is there and whole."""

import marshal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from ssl_bench import files
from ssl_bench.evaluate.metric import Metric
from ssl_bench.record import evaluations

NAME = "results.json"
_FIRST = dict[bytes, Any]()  # of equal parts of results, by their content


class Config(TypedDict, total=False):
    """What all readers need of a configuration."""

    choices: dict
    dataset: dict | None
    evaluate: dict
    epochs: float | None


class RunResults(TypedDict):
    """What readers need of ``results.json``."""

    run_id: str
    config: Config
    metrics: dict[str, float]
    seconds: float
    evaluations: list[evaluations.Evaluated]
    environment: NotRequired[dict]
    facts: NotRequired[dict]
    warnings: NotRequired[list[str]]
    units: NotRequired[dict[str, dict[str, Metric]]]


# Conditions that the bits of a result depend on beside what its run_id says: names of its ``environment``, and keys of
# its configuration that say how it is computed.
ENVIRONMENT = ("device", "instructions", "threads", "ranks", "torch", "cuda", "precision", "images")
OF_CPUS, OF_GPUS = ("instructions", "threads"), ("compile_views", "graph", "images_on")
SETTINGS = ("cosines", *OF_GPUS)


def conditions(config: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    """The conditions of a result by name, as far as they were recorded and count on its kind of device."""
    every = {name: environment.get(name) for name in ENVIRONMENT} | {name: config.get(name) for name in SETTINGS}
    without = OF_CPUS if environment.get("cuda") else OF_GPUS
    return {name: value for name, value in every.items() if value is not None and name not in without}


def different(results: Sequence[Mapping[str, Any]], names: Sequence[str] = (*ENVIRONMENT, *SETTINGS)) -> list[str]:
    """The conditions in which results differ, each with its values.

    Args:
        results: the conditions of each.
        names: of those that count.
    """
    values = {name: {of[name]: None for of in results if of.get(name) is not None} for name in names}
    return [f"{name} ({', '.join(sorted(map(str, those)))})" for name, those in values.items() if len(those) > 1]


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
    content, wrong = files.examined(f"{folder}/{NAME}", RunResults, of_a_run=True)
    if content is not None:
        content["config"] = shared(content["config"])
        for entry in content["evaluations"]:
            entry["settings"] = _first(entry["settings"])
    return content, wrong


def shared(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration whose groups are the first ones with their content: the runs of a grid share nearly all."""
    return {name: _first(node) if isinstance(node, dict | list) else node for name, node in config.items()}


def _first(node: Any) -> Any:
    return _FIRST.setdefault(marshal.dumps(node, 2), node)


def is_finished(folder: Path) -> bool:
    """Whether the run with the directory ``folder`` has its results; takes about 0.1 ms."""
    results = read(folder)
    return results is not None and results["run_id"] == folder.name


def is_complete(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether the run in ``folder`` is trained as long as ``config`` asks or longer, and has all its evaluations."""
    results = read(folder)
    if results is None or results["run_id"] != folder.name:
        return False
    longer = (results["config"].get("epochs") or 0) >= (config.get("epochs") or 0)
    return longer and not evaluations.missing(results["evaluations"], config)
