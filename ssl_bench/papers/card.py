"""The model card of a run: what its weights are, how to load them, the recipe, numbers and versions.

It is the ``README.md`` of a folder on the Hugging Face hub, which reads the YAML at its head.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import yaml

from ssl_bench.config.identity import evaluators, hashed, is_own, settings_of_evaluation
from ssl_bench.errors import printable
from ssl_bench.record import evaluations, units
from ssl_bench.record.printing import Sheet, SheetEntry, markdown
from ssl_bench.record.summary import targets


def card(
    config: Mapping[str, Any],
    results: Mapping[str, Any] | None,
    facts: Mapping[str, Any],
    load: Sequence[tuple[str, Sequence[str]]],
) -> str:
    """The card as Markdown.

    Args:
        config: resolved configuration of the run.
        results: content of its ``results.json``; None if it has not finished.
        facts: what else the card says about the weights, by name.
        load: sentences about how to load the weights in the card's folder, each with its lines of Python.
    """
    choices, timm = config["choices"], "name" in config["backbone"]
    network, data = config["backbone"].get("name", choices["backbone"]), _data(config)
    method = [choices[group] for group in ("framework", "loss") if choices.get(group)]
    head = {
        "library_name": "timm" if timm else "ssl_bench",
        "pipeline_tag": "image-feature-extraction",
        "license": "unknown",
        "tags": ["image-feature-extraction", *["timm"] * timm, "representation-learning", "ssl_bench", *method],
    }
    finished = "" if results else " Its training has not finished, so that there are no results yet."
    reduced = "" if config["scale"] == "full" else f" It is a reduced training (`scale={config['scale']}`)."
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# {network}: {', '.join(method)} on {data.partition(' (')[0]}",
        f"A {network} without a classifier, pre-trained on {data} with ssl_bench.{finished}{reduced}{_start(config)}",
        "The licence of these weights is not known to the program that wrote this card: replace `license: unknown` "
        "at the head of this file before you share them.",
        "## Load it",
        *(f"{sentence}\n\n{_block('python', lines)}" for sentence, lines in load),
        _input(config["dataset"]),
        "## Recipe",
        "All settings that the weights and the results below depend on; of a path the last name.",
        _block("yaml", yaml.safe_dump(_without_folders(_settings(config)), sort_keys=False).splitlines()),
    ]
    if results and results["metrics"]:
        parts += ["## Results", _table(results, targets(config))]
    if results:
        facts = {**facts, "seconds": results["seconds"], **results["environment"]}
    parts += ["## How it was made"]
    parts += ["\n".join(f"- {name}: {value}" for name, value in facts.items() if value is not None)]
    return "\n\n".join(parts) + "\n"


def _data(config: Mapping[str, Any]) -> str:
    """The images that the network was trained on: a data set by its name, own images by their folder and hash."""
    name, dataset = config["choices"]["dataset"], config["dataset"]
    if not is_own(dataset):
        return str(name)
    return f"{name.partition(':')[2]} ({dataset['train_images']} images, content {dataset['content']})"


def _start(config: Mapping[str, Any]) -> str:
    """The weights that the training started from, and what of them it kept."""
    init = config.get("init")
    frozen = " The backbone was frozen." if config["backbone"].get("freeze") else ""
    return f" It started from {PurePath(init['path']).name} ({init['weights']}).{frozen}" if init else frozen


def _block(language: str, lines: Sequence[str]) -> str:
    return "\n".join([f"```{language}", *lines, "```"])


def _input(dataset: Mapping[str, Any]) -> str:
    normal = dataset["mean"], dataset["std"]
    normalised = f", minus {normal[0]}, over {normal[1]}" if all(normal) else ""
    shape = f"[N, {dataset['channels']}, {dataset['size']}, {dataset['size']}]"
    values = "in [0, 1]" if (dtype := dataset.get("dtype", "uint8")) == "uint8" else f"of {dtype} as they are"
    return f"It takes images {shape} {values}{normalised}, and returns features [N, D]."


def _table(results: Mapping[str, Any], targets: Mapping[str, str]) -> str:
    """All metrics beside those of the baselines: shares in percent."""
    (metrics,) = evaluations.told_apart([evaluations.after(results["evaluations"], results["config"].get("epochs"))])
    names = [name for name in metrics if not name.partition("/")[0].endswith(("_init", "_raw"))]
    suffixes = ("", "_init", "_raw")
    sheet = Sheet(["metric", *(targets[suffix] for suffix in suffixes)])
    for name in names:
        values = [metrics.get(name.replace("/", f"{suffix}/", 1)) for suffix in suffixes]
        metric = units.metric(name, results.get("units"), results["config"].get("evaluate"))
        texts = [f"`{name}`", *("" if value is None else metric.text(value) for value in values)]
        sheet.rows.append([SheetEntry(text) for text in texts])
    return markdown(sheet).rstrip("\n")


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the training, and of each evaluator."""
    evaluated = evaluators(config["evaluate"]).items()
    settings = {name: settings_of_evaluation(name, node) for name, node in evaluated}
    return {**hashed(config), "epochs": config["epochs"], "evaluate": settings}


def _without_folders(node: Any) -> Any:
    """A configuration in which paths are names: what follows the last slash."""
    if isinstance(node, Mapping):
        return {key: _without_folders(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_without_folders(entry) for entry in node]
    return printable(re.split(r"[/\\]", node.rstrip("/\\"))[-1]) if isinstance(node, str) else node
