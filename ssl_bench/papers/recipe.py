"""Say in words what a composed configuration does: the recipe of a cell, with every setting that changes results.

    training    200 epochs, 512 images per step, precision auto, tf32 yes, reduction mean
    loss        EqCo (InfoNCE with the sum over the negatives weighted by alpha / K): alpha 256

Each part is named by its class, with the first sentence of the class's docstring, and has all of its settings. What is
null or empty is left out, and so are seeds, how a run is carried out, and what follows from other settings.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from ssl_bench.config.build import KINDS, build, find_target
from ssl_bench.config.compositions import Progress, compositions
from ssl_bench.config.identity import VOLATILE
from ssl_bench.errors import ConfigError
from ssl_bench.papers.cells import Metric, merge
from ssl_bench.papers.plan import Request

# Keys of a group that are seeds, follow from other keys, or say what is recorded beside the results.
LEFT_OUT = {
    "dataset": {"seed", "torchvision", "num_classes", "channels", "train_images", "epochs", "knn_k", "workers"},
    "backbone": {"in_channels", "size"},
    "framework": {"seed", "sharded", "channels", "size", "mean", "std"},
    "loss": {"seed"},
    "negatives": {"seed", "dim"},
    "temperature": {"epochs"},
    "evaluate": {"per_class", "bins"},
}


def recipes(request: Request, progress: Progress = lambda each, count: each) -> dict[str, list[str]]:
    """The recipes of the selected cells: each with the cells that have it, one text for each row of a table.

    Args:
        progress: iterates over the configurations that are composed.

    Raises:
        ConfigError: the selection or an override does not fit.
    """
    selected = [(table.name, cell) for table in request.selection.tables() for cell in request.selection.cells(table)]
    asked = {cell: (cell.command, tuple(merge(cell.overrides, request.overrides))) for _, cell in selected}
    composed = compositions(sorted({asked[cell] for cell in asked if cell.available}), progress)
    rows: dict[str, dict[str, tuple[list[str], list[str]]]] = {}  # recipe -> row -> its columns and their metrics
    for name, cell in selected:
        if cell.available:
            result = composed[asked[cell]]
            if isinstance(result, ConfigError) and request.overrides:
                raise result
        else:
            result = ConfigError(cell.unavailable)
        failed = isinstance(result, ConfigError)
        text = f"  no recipe: {result}" if failed else "\n".join(describe(result.config(cell.seeds[0])))
        columns, metrics = rows.setdefault(text, {}).setdefault(f"{name} {cell.label}", ([], []))
        columns.append(cell.column)
        metric = Metric.read(cell.metric) if cell.metric else Metric("no metric", "", None)
        metrics.append(f"{metric.name}@{metric.choice}".removesuffix("@"))
    return {
        text: [
            f"{row} | {', '.join(columns)} ({', '.join(dict.fromkeys(metrics))})" for row, (columns, metrics) in each
        ]
        for text, each in ((text, row.items()) for text, row in rows.items())
    }


def describe(config: Mapping[str, Any]) -> list[str]:
    """Say what a resolved configuration of ``train``, ``mi`` or ``weight`` does: its settings, then a line for a part.

    Raises:
        ConfigError: it names a class that cannot be used.
    """
    normal = {key: config.get("dataset", {}).get(key) for key in ("mean", "std")}
    folder = f"{config['paths']['data']}/" if "data" in config["paths"] else ""
    lines = [f"  {'training' if 'epochs' in config else 'settings':<12}{', '.join(_top(config))}"]
    for group, name, node in _parts(config):
        as_dataset = {k for k, v in normal.items() if group != "dataset" and node.get(k) == v}
        left_out = {"_target_", *LEFT_OUT.get(group, ()), *as_dataset}
        target = find_target(node, group)
        sentence = " ".join((inspect.getdoc(target) or "").split("\n\n")[0].replace("``", "").split()).rstrip(".")
        words = f"{name}{target.__name__}{f' ({sentence})' * bool(sentence)}"
        told = _told({k: v for k, v in node.items() if k not in left_out})
        if group == "optimizer":
            rate = build(node, group).scaled_lr(config["batch_size"]["size"])
            told.append(f"which makes a rate of {rate:.4g} here")
        lines.append(f"  {group:<12}{': '.join([words, ', '.join(told)][: 1 + bool(told)]).replace(folder, '')}")
    return lines


def _top(config: Mapping[str, Any]) -> list[str]:
    """The settings of no part, and those of all evaluators."""
    rest = {k: v for k, v in config.items() if k not in {*VOLATILE, *KINDS, "seed", "scale"}}
    batch, evaluate = dict(rest.pop("batch_size", {})), config.get("evaluate", {})
    rest["diagnostics"] = {
        k: v for k, v in rest.get("diagnostics", {}).items() if k != "npc_histogram" and v is not None
    }
    head = [f"{text(rest.pop('epochs'))} epochs, {text(batch.pop('size'))} images per step"] if batch else []
    return [*head, *_told(rest | batch), *_told({"evaluate every": evaluate.get("every")})]


def _parts(config: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Each part's group, its name and a colon if the group has several, and its node."""
    for group in (group for group in KINDS if config.get(group)):
        if "_target_" in config[group]:
            yield group, "", config[group]
        else:
            several = {name: node for name, node in config[group].items() if isinstance(node, Mapping)}
            yield from ((group, f"{name}: ", node) for name, node in several.items())


def _told(settings: Mapping[str, Any]) -> list[str]:
    """Settings with their names in words, without those that are null or empty."""
    return [f"{key.replace('_', ' ')} {text(value)}" for key, value in settings.items() if value not in (None, [], {})]


def text(value: Any) -> str:
    """A value as a paper prints it: 65,536, 5e-4, 0.1, a list with spaces, yes, no or none."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, Mapping):
        return " ".join(_told(value)) or "none"
    if isinstance(value, list | tuple):
        return " ".join(map(text, value)) or "none"
    if not isinstance(value, int | float):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if not abs(value) < 1e-3:
        return f"{value:.6g}"
    mantissa, exponent = f"{value:.5e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
