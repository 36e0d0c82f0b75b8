"""The model card of a run: what its weights are, how to load them, the recipe, numbers and versions.

It is the ``README.md`` of a folder on the Hugging Face hub, which reads the YAML at its head.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import yaml

from ssl_bench.config.identity import hashed, is_own, settings_of_evaluation
from ssl_bench.errors import printable
from ssl_bench.record import evaluations
from ssl_bench.record.printing import Sheet, SheetEntry, markdown
from ssl_bench.record.runs import Key, Run
from ssl_bench.results import table
from ssl_bench.results.status import targets

# Of the environment of a run, what its numbers depend on.
ENVIRONMENT = ("ssl_bench", "git", "torch", "cuda", "device", "instructions", "precision", "ranks", "threads")


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
        facts: further facts about the weights, by name.
        load: sentences about how to load the weights in the card's folder, each with its lines of Python.
    """
    run = Run(None, results["config"] if results else config, results or {})
    names = table.name_numbers([run])
    recipe = {**hashed(config), "epochs": config["epochs"], "evaluate": _evaluations(run, names)}
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
        _block("yaml", yaml.safe_dump(_without_folders(recipe), sort_keys=False).splitlines()),
    ]
    if run.numbers:
        parts += ["## Results", _table(run, names, targets(config))]
    if results:
        facts = {**facts, "seconds": results["seconds"], **{name: run.environment.get(name) for name in ENVIRONMENT}}
    made = (f"- {name}: {printable(str(value))}" for name, value in facts.items() if value is not None)
    return "\n\n".join([*parts, "## How it was made", "\n".join(made)]) + "\n"


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


def _table(run: Run, names: Mapping[Key, str], targets: Mapping[str, str]) -> str:
    """All numbers beside those of the baselines: shares in percent."""
    suffixes = ("", "_init", "_raw")
    sheet = Sheet(["metric", *(targets[suffix] for suffix in suffixes)])
    for metric, evaluation, images in run.numbers:
        if evaluations.is_baseline(metric):
            continue
        values = [run.numbers.get((metric.replace("/", f"{suffix}/", 1), evaluation, images)) for suffix in suffixes]
        meaning = evaluations.metric_of(metric, run.results.get("units"))
        texts = ["" if value is None else meaning.text(value) for value in values]
        sheet.rows.append([SheetEntry(text) for text in (f"`{names[metric, evaluation, images]}`", *texts)])
    return markdown(sheet).rstrip("\n")


def _evaluations(run: Run, names: Mapping[Key, str]) -> dict[str, Any]:
    """The settings of what has evaluated the network, each by the beginning of the names of its numbers."""
    settings = dict[str, Any]()
    for entry in (entry for entry in run.evaluations if entry["metrics"] and not entry["network"]):
        its = (names[metric, entry["id"], entry.get("images")].rpartition("/")[0] for metric in entry["metrics"])
        settings[min(its, key=len)] = settings_of_evaluation(entry["evaluator"], entry["settings"])
    return settings


def _without_folders(node: Any) -> Any:
    """A configuration in which paths are names: what follows the last slash."""
    if isinstance(node, Mapping):
        return {key: _without_folders(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_without_folders(entry) for entry in node]
    return printable(re.split(r"[/\\]", node.rstrip("/\\"))[-1]) if isinstance(node, str) else node
