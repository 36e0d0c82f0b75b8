"""Candidates of the Tab key for the arguments of a command: flags, tables, groups, options and keys."""

import argparse
import os
from collections.abc import Iterator
from typing import Any

import argcomplete

from ssl_bench.errors import ConfigError
from ssl_bench.files import usual_outputs

OF_RUNS = ("status", "compare", "report", "table", "figure", "evaluate", "export")
COMPOSED = ("train", "evaluate", "embed", "prepare", "reproduce")


def answer(parser: argparse.ArgumentParser) -> None:
    """Print the candidates for the arguments of a command, and exit."""
    words = [action for action in parser._actions if not action.option_strings and action.choices is None]
    for action in words or [parser.add_argument("overrides", nargs="*")]:
        action.completer = _candidates  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, always_complete_options=False)


def _candidates(prefix: str, parser: argparse.ArgumentParser, parsed_args: Any = None, **_: object) -> Iterator[str]:
    """Tables, groups, options and keys that begin with ``prefix``."""
    command = parser.prog.split()[-1]
    if command in OF_RUNS and (outputs := usual_outputs()).is_dir():
        yield from (folder.name for folder in outputs.iterdir() if folder.is_dir() and folder.name[0] != ".")
    if command in ("table", "figure", "reproduce"):
        from ssl_bench.papers import tables

        folder = getattr(parsed_args, "config_dir", None)
        for paper, path in tables.paths(folder and folder / "papers").items():
            of_paper, claims = tables.read(path)
            yield from (table.name for table in of_paper if command != "figure" or table.x)
            yield from ([f"{paper}/claims"] if claims else [])
            yield from (claim.name for claim in claims)
        yield from ("row=", "col=", "paths.outputs=")
    if command in COMPOSED:
        yield from _overrides(prefix)


def _overrides(prefix: str) -> Iterator[str]:
    """Groups and keys, or the options of a group, also of a list of them: ``loss=dcl,infonce`` ``evaluate=[knn,``."""
    from ssl_bench.config import guard, hydra_errors, values, with_hydra

    key, equals, value = prefix.partition("=")
    if equals and key in with_hydra.groups():
        listed = value[: max(value.rfind(","), value.rfind("[")) + 1]
        yield from (f"{key}={listed}{option}" for option in values.options(key))
        return
    others = [word for word in os.environ["COMP_LINE"].split()[2:] if "=" in word and word != prefix]
    try:
        cfg = with_hydra.composed([word for word in others if "," not in word])
    except (ConfigError, hydra_errors.HydraException):  # a word that is not finished
        return
    yield from (f"{group}=" for group in with_hydra.groups())
    for path, given in guard.leaves(with_hydra.OmegaConf.to_container(cfg, resolve=False)):
        if equals:
            yield from [f"{path}={given}"] if path == key else []
        elif path.startswith(prefix) and not path.endswith("_target_"):
            part, dot, _ = path.removeprefix(prefix).partition(".")
            yield f"{prefix}{part}{dot or '='}"
