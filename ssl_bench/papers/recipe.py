"""Say in words what a composed configuration does: the recipe of a cell, with every setting that changes results.

    training    200 epochs, 512 images per step, precision auto, tf32 yes, reduction mean
    loss        EqCo (InfoNCE with the sum over the negatives weighted by alpha / K): alpha 256

Each part is named by its class, with the first sentence of the class's docstring, and has all of its settings. What is
null or empty is left out, and so are seeds, how a run is carried out, and what follows from other settings.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ssl_bench.config.build import KINDS, build, find_target
from ssl_bench.config.identity import (
    NOT_HASHED,
    NOT_IN_RUN_ID,
    NOT_IN_RUN_ID_OF,
    OWN,
    evaluators,
    read_alone,
    untrained,
)
from ssl_bench.papers.plan import PlannedRuns

# Keys of a group that are seeds, follow from other keys, or say what is recorded beside the results.
LEFT_OUT = {
    "dataset": OWN
    | NOT_IN_RUN_ID_OF["dataset"]
    | {"seed", "torchvision", "num_classes", "channels", "epochs", "knn_k"},
    "backbone": {"in_channels", "size"},
    "framework": {"seed", "channels", "size", "mean", "std"},
    "loss": {"seed"},
    "negatives": {"seed", "dim"},
    "positives": {"seed", "dim"},
    "temperature": {"epochs"},
    "evaluate": {"per_class", "bins", "hold_out"},
}


def recipes(planned: Sequence[PlannedRuns]) -> dict[str, list[str]]:
    """The recipes of runs: each with the names of the cells that have it."""
    cells: dict[str, list[str]] = {}
    for runs in planned:
        text = f"  no recipe: {runs.unavailable}" if runs.unavailable else "\n".join(describe(runs.config))
        cells.setdefault(text, []).extend(runs.cells)
    return cells


def describe(config: Mapping[str, Any]) -> list[str]:
    """Say what a resolved configuration does: its settings, then a line for a part.

    Raises:
        ConfigError: it names a class that cannot be used.
    """
    normal, folder = {key: config["dataset"].get(key) for key in ("mean", "std")}, f"{config['paths']['data']}/"
    if untrained(config):
        kept = read_alone(config) | {"epochs", "evaluate"}
        config = {key: value for key, value in config.items() if key in kept}
    lines = [f"  {'training':<12}{', '.join(_top(config))}"]
    for group, name, node in _parts(config):
        as_dataset = {k for k, v in normal.items() if group != "dataset" and node.get(k) == v}
        left_out = {"_target_", *LEFT_OUT.get(group, ()), *as_dataset}
        target = find_target(node, group)
        sentence = " ".join((inspect.getdoc(target) or "").split("\n\n")[0].replace("``", "").split()).rstrip(".")
        words = f"{name}{target.__name__}{f' ({sentence})' * bool(sentence)}"
        said = {k: v for k, v in node.items() if k not in left_out and (k, v) != ("freeze", False)}
        settings = _in_words(said)
        if group == "optimizer":
            rate = build(node, group).scaled_lr(config["batch_size"]["size"])
            settings.append(f"which makes a rate of {rate:.4g} here")
        line = f"{words}: {', '.join(settings)}" if settings else words
        lines.append(f"  {group:<12}{line.replace(folder, '')}")
    return lines


def _top(config: Mapping[str, Any]) -> list[str]:
    """The settings of no part, and those of all evaluators."""
    rest = {k: v for k, v in config.items() if k not in {*NOT_IN_RUN_ID, *KINDS, "seed", "scale"}}
    batch = dict(rest.pop("batch_size", {}))
    recorded = rest.get("diagnostics", {}).items()
    rest["diagnostics"] = {k: v for k, v in recorded if k != "npc_histogram" and v is not None}
    rest |= {"init": config["init"]["weights"]} if config.get("init") else {}  # where they are is private
    head = [f"{text(rest.pop('epochs'))} epochs, {text(batch.pop('size'))} images per step"] if batch else []
    return [*head, *_in_words(rest | batch), *_in_words({"evaluate every": config["evaluate"].get("every")})]


def _parts(config: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Each part's group, its name and a colon if the group has several, and its node."""
    unsaid: tuple[Any, ...] = ({}, None, NOT_HASHED["positives"])
    for group in (group for group in KINDS if config.get(group) not in unsaid):
        if "_target_" in config[group]:
            yield group, "", config[group]
        else:
            yield from ((group, f"{name}: ", node) for name, node in evaluators(config[group]).items())


def _in_words(settings: Mapping[str, Any]) -> list[str]:
    """Settings with their names in words, without those that are null or empty."""
    return [f"{key.replace('_', ' ')} {text(value)}" for key, value in settings.items() if value not in (None, [], {})]


def text(value: Any) -> str:
    """A value as a paper prints it: 65,536, 0.0005, a list with spaces, yes, no or none."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, Mapping):
        return " ".join(_in_words(value)) or "none"
    if isinstance(value, list | tuple):
        return " ".join(map(text, value)) or "none"
    return f"{value:,}" if isinstance(value, int | float) else str(value)
