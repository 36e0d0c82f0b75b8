"""The model card of a run: what its weights are, how to load them, the recipe in words, numbers and versions.

It is the ``README.md`` of a folder on the Hugging Face hub, which reads the YAML at its head.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import yaml

from ssl_bench.config.build import KINDS
from ssl_bench.config.identity import is_own, is_plugins
from ssl_bench.config.typed import TEXT_KEY
from ssl_bench.errors import printable
from ssl_bench.papers.recipe import describe
from ssl_bench.record import evaluations, units
from ssl_bench.record.printing import Sheet, SheetEntry, markdown
from ssl_bench.record.summary import targets

# What the command on a card may have: these keys, options of these groups, and keys of their classes in this package,
# but for those that are text, of which two are words of a list. Everything else is left out.
KEYS = {"seed", "epochs", "max_steps", "scale", "precision", "tf32", "compile", "reduction", "similarity", "devices"}
GROUPS = (*(kind for kind in KINDS if "." not in kind), "batch_size", "experiment")
WORDS = {"backbone.name", "augment.interpolation"}
PLAIN = re.compile(r"[\w.,:+{}\[\]-]*", re.ASCII)  # numbers, words and lists of them


def card(
    config: Mapping[str, Any],
    results: Mapping[str, Any] | None,
    command: str,
    facts: Mapping[str, Any],
    load: Sequence[tuple[str, Sequence[str]]],
) -> str:
    """The card as Markdown.

    Args:
        config: resolved configuration of the run.
        results: content of its ``results.json``; None if it has not finished.
        command: its command, or nothing; the card has what of it is public.
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
        _block("text", describe(_without_folders(config))),
    ]
    if results and results["metrics"]:
        parts += ["## Results", _table(results, targets(config)), *_classes(results)]
    if results:
        facts = {**facts, "seconds": results["seconds"], **results["environment"]}
    parts += ["## How it was made", *(_public(command, config) if command else [])]
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


def _classes(results: Mapping[str, Any]) -> list[str]:
    """The names of the classes by their numbers, of each dataset that they are known of."""
    lines = []
    for key, names in results.items():
        group, _, dataset = key.partition("/")
        if group == "classes":
            numbered = ", ".join(f"{i} {printable(name)}" for i, name in enumerate(names))
            lines.append(f"Classes{f' of {dataset}' if dataset else ''}, by their numbers: {numbered}.")
    return lines


def _public(command: str, config: Mapping[str, Any]) -> list[str]:
    """A command with its public words alone, as paragraphs: a place, a name or an account must not get on a card."""
    try:
        words = shlex.split(command)
    except ValueError:  # the file was damaged
        return []
    kept, left_out, flag = list[str](), set[str](), ""
    for word in words[2:]:  # of `ssl-bench train ...`
        key = re.split("[=.]", word.lstrip("+~"))[0]
        if flag or word.startswith("-"):
            left_out.add("options of the command line")
        elif _is_public(word, config):
            kept.append(word)
        else:
            left_out.add(key if key in config or key in ("hydra", *GROUPS) else "others")
        flag = word if word.startswith("-") and "=" not in word and word not in ("-m", "--multirun") else ""
    block = _block("bash", [shlex.join(["ssl-bench", "train", *kept])])
    private = "Left out, since it may name places or accounts: settings of"
    return [block, *([f"{private} {', '.join(sorted(left_out))}."] if left_out else [])]


def _is_public(word: str, config: Mapping[str, Any]) -> bool:
    """Whether an override sets a key of this package that names no place, to words without a folder in them."""
    key, equals, value = word.lstrip("+").partition("=")
    group, dot, _ = key.removeprefix("~").partition(".")
    if not PLAIN.fullmatch(value):
        return False
    if not dot:
        return group in GROUPS or (bool(equals) and group in KEYS)
    place = TEXT_KEY.fullmatch(key) is not None or key.startswith("evaluate.on")
    return group in GROUPS and (key in WORDS or not place) and _of_package(key, config)


def _of_package(key: str, config: Mapping[str, Any]) -> bool:
    """Whether a configuration has a key, and it belongs to a class of this package."""
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, Mapping) or is_plugins(node) or part not in node:
            return False
        node = node[part]
    return True


def _without_folders(node: Any) -> Any:
    """A configuration in which paths are names: what follows the last slash."""
    if isinstance(node, Mapping):
        return {key: _without_folders(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_without_folders(entry) for entry in node]
    return printable(re.split(r"[/\\]", node.rstrip("/\\"))[-1]) if isinstance(node, str) else node
