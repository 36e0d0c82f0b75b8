"""Explain every key of a configuration: by the comments of the YAML files and the docstrings of the classes."""

import ast
import functools
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from ssl_bench.config import identity, with_hydra
from ssl_bench.config.build import directory

OF_PAPERS = "# @paper"  # in the files of options for a figure or a table of one paper


def help_text(root: DictConfig, folder: Path | None, complete: bool) -> str:
    """The keys of a composed configuration with their values and meanings, in lines of at most 80 columns.

    Args:
        complete: all keys and the options of all groups; otherwise only the keys that a newcomer sets.
    """
    if not complete:
        return str(root.hydra.help.template)
    options = {group: with_hydra.options(group, folder) for group in sorted(with_hydra.groups())}
    text = f"{listed(options, False)}\n\n{explained(root)}\n\nof the papers\n{listed(options, True)}"
    wrap = functools.partial(textwrap.fill, width=80, subsequent_indent=" " * 8, break_on_hyphens=False)
    return "\n".join(map(wrap, text.splitlines()))


def listed(options: Mapping[str, Sequence[str]], of_papers: bool) -> str:
    """A line for each group with its options: those of a figure or a table of one paper, or all others."""
    chosen = {g: [n for n in names if (OF_PAPERS in _text(g, n)) is of_papers] for g, names in options.items()}
    return "\n".join(f"{group}: {', '.join(names)}" for group, names in chosen.items() if names)


def _text(group: str, option: str) -> str:
    """The file of an option; empty if this package has none."""
    path = directory() / group / f"{option}.yaml"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def explained(root: DictConfig) -> str:
    """Every key of a composed configuration, which has Hydra's own part, with its value and its meaning, by groups.

    Raises:
        OmegaConfBaseException: an interpolation has no value.
    """
    choices = dict(root.hydra.runtime.choices)
    of_run = OmegaConf.masked_copy(root, [str(key) for key in root if key != "hydra"])
    config: Any = OmegaConf.to_container(of_run, resolve=True)
    chosen = {g: [name] for g, name in choices.items() if "/" not in g and name and (directory() / g).is_dir()}
    chosen = {group: chosen[group] for group in sorted(chosen) if group not in ("evaluate", "local", "experiment")}
    chosen["evaluate"] = list(identity.evaluators(config["evaluate"]))
    meanings, blocks = dict(_comments(directory() / "train.yaml")), {"": [""]}
    for group, names in chosen.items():
        meanings = _of_group(group, names) | meanings
        blocks[group] = ["", *(f"{group}={name}{_summary(group, name)}" for name in names)]
    for key, value, argument in _leaves(config):
        group = key.partition(".")[0]
        text = yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n...\n").strip()
        line = f"{key}={text}  {meanings.get(key, argument)}"
        blocks[group if group in blocks else ""].append(line.rstrip())
    return "\n".join(line for block in blocks.values() for line in block).strip()


def _leaves(node: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any, str]]:
    """Every key with its value, and what the docstring of its node's class says of it."""
    arguments = _arguments(str(node.get("_target_", "")))
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{path}{key}.")
        elif key != "_target_":
            yield f"{path}{key}", value, arguments.get(key, "")


@functools.cache
def _arguments(target: str) -> Mapping[str, str]:
    """The arguments in the docstring of a class or function of this package, which is read without importing it."""
    module, _, name = target.rpartition(".")
    path = Path(__file__).parents[2].joinpath(*module.split(".")).with_suffix(".py")
    if not module.startswith("ssl_bench.") or not path.is_file():
        return {}
    body = ast.parse(path.read_text(encoding="utf-8")).body
    homes = {alias.name: node.module for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}
    definition = next(n for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name)
    inherited = dict[str, str]()
    for base in getattr(definition, "bases", []):
        if isinstance(base, ast.Name):
            inherited |= _arguments(f"{homes.get(base.id, module)}.{base.id}")
    section = re.search(r"^Args:\n((?: .*\n?|\n)+)", ast.get_docstring(definition) or "", re.MULTILINE)
    entries = re.findall(r"^    ([\w, ]+): ((?:.*\n?)(?: {8}.*\n?)*)", section[1] if section else "", re.MULTILINE)
    texts = {key: " ".join(text.split()) for keys, text in entries for key in keys.split(", ")}
    return inherited | {key: _first_sentence(text) for key, text in texts.items()}


def _summary(group: str, option: str) -> str:
    """The first sentence of an option's file, after a colon; empty if it has none."""
    words = " ".join(re.findall(r"^#(?! @) *(.*\S)", _text(group, option), re.MULTILINE))
    return words and f": {_first_sentence(words)}"


def _first_sentence(text: str) -> str:
    return re.split(r"(?<!et al)\. (?=[A-Z])", text)[0].rstrip(".")


def _of_group(group: str, options: Sequence[str]) -> dict[str, str]:
    """Meanings of a group's keys: those in the files of these options come before the others."""
    paths = sorted((directory() / group).glob("*.yaml"), key=lambda path: (path.stem in options, path.stem))
    pairs = [pair for path in paths for pair in _comments(path)]
    return {key: meaning for key, meaning in pairs if key.startswith(f"{group}.")}


def _comments(path: Path) -> Iterator[tuple[str, str]]:
    """Keys of a YAML file, with their package, and the comment that stands behind each."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    top = path.parent == directory() or "@package _global_" in lines[0]

    def of(node: yaml.Node | None, prefix: str) -> Iterator[tuple[str, str]]:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                name = f"{prefix}{key.value}"
                _, mark, comment = lines[key.start_mark.line].partition(" # ")
                if mark and not (isinstance(value, yaml.MappingNode) and value.value):
                    yield name, comment.strip()
                yield from of(value, f"{name}.")

    yield from of(yaml.compose(text), "" if top else f"{path.parent.name}.")
