"""In which settings runs differ, what they share, and a short label for each.

A setting has the name that the command line has for it: ``loss`` is the option of a group, ``temperature.tau`` a key.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ssl_bench.config.identity import is_hashed
from ssl_bench.errors import require
from ssl_bench.results.runs import SharedConfig, settings_of
from ssl_bench.results.scan import Entry

MAIN_GROUPS = ("loss", "negatives", "temperature", "batch_size", "framework", "dataset")  # groups that are named first
# Of results.json, that a plot may need.
FACTS = ("negatives_per_anchor", "negatives_per_anchor_at_end", "steps", "lr", "parameters", "train_images")
SIZE = "batch_size.size"  # which batch_size names, too

Value = str | float | bool | None
Settings = Mapping[str, str]  # by name, as overrides write them


@dataclass(frozen=True)
class Differing:
    """The settings in which some rows differ.

    Attributes:
        names: of the settings that vary, the requested ones first.
        shown: those of the names that a table shows: the ones that the commands set, without those that change no
            result, such as a place of images; or else the options of groups.
        values: of each row, in the order of the names; None: it has no such setting.
        common: the settings that all rows share.
    """

    names: list[str]
    shown: list[str]
    values: list[list[Value]]
    common: dict[str, Value]


def differing(entries: Sequence[Entry], facts: Sequence[Mapping[str, Any]] = ()) -> Differing:
    """In what some entries differ.

    Args:
        facts: of each entry, what ``results.json`` says about its run, empty for an unfinished one; those of FACTS that
            vary count as settings.
    """
    configs, rows = _rows(entries)
    for name in FACTS:
        values = [json.dumps(of[name]) if isinstance(of.get(name), int | float) else None for of in facts]
        if len({*values} - {None}) > 1:  # unfinished runs have none
            rows = [row if value is None else {name: value, **row} for row, value in zip(rows, values, strict=True)]
    partly = of_rows(rows, requested(entries), {name for config in configs for name in config.groups})
    whole = {name: value_of(text) for name, text in (settings_of(configs)[0] if configs else {}).items()}
    names, common = partly.names, whole | partly.common
    table = list[list[Value]]()
    for entry, row in zip(entries, rows, strict=True):  # a row lacks what only runs that are still to be made differ in
        texts = (row.get(name) if name in row or entry.run is None else entry.run.setting(name) for name in names)
        table.append([value_of(text) for text in texts])
    return Differing(names, partly.shown, table, {n: value for n, value in common.items() if n not in names})


def _rows(entries: Sequence[Entry]) -> tuple[list[SharedConfig], list[dict[str, str]]]:
    """The configurations of entries, and of each entry the settings that not all configurations have, with the seed."""
    configs = {entry.run.shared.key: entry.run.shared for entry in entries if entry.run}
    by_config = dict(zip(configs, varying(_with_one_name(list(configs.values()))), strict=True))

    def row(entry: Entry) -> dict[str, str]:
        if entry.run is None:
            return overrides_of(entry.overrides or ())
        return {**by_config[entry.run.shared.key], **({} if entry.run.seed is None else {"seed": str(entry.run.seed)})}

    return list(configs.values()), [row(entry) for entry in entries]


def _with_one_name(configs: Sequence[SharedConfig]) -> list[Settings]:
    """The settings of configurations; equal images of the user's own have one name, in whatever folders they are."""
    names: dict[str, str] = {}
    for config in sorted(configs, key=lambda config: config.groups.get("dataset", "")):
        if content := config.own_images:
            names.setdefault(content, config.groups["dataset"])
    own = ({"dataset": names[config.own_images]} if config.own_images else {} for config in configs)
    return [{**settings, **name} for settings, name in zip(settings_of(configs), own, strict=True)]


def of_rows(rows: Sequence[Settings], given: Collection[str] = (), groups: Collection[str] = ()) -> Differing:
    """In what some rows of settings differ.

    Args:
        given: names of settings that a command has set; they come first.
        groups: names of settings that are options of groups; they come next.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    vary = [name for name in names if len({row.get(name) for row in rows}) > 1]
    vary.sort(key=lambda name: (name not in given, name not in groups, name == "seed", name.count("."), rank(name)))
    shown = [name for name in vary if name in given and is_hashed(name)]
    shown = shown or [name for name in vary if name in groups or name == "seed"]
    common = {name: value_of(text) for name, text in (rows[0] if rows else {}).items() if name not in vary}
    return Differing(vary, shown, [[value_of(row.get(name)) for name in vary] for row in rows], common)


def check_hashed(flag: str, name: str) -> None:
    """Refuse a setting that changes no training: runs that differ in it only are one, and its numbers count once."""
    remedy = "a setting on which results depend, such as loss: runs that differ in this one only are one training"
    require(is_hashed(name), flag, name, remedy)


def overrides_of(words: Sequence[str]) -> dict[str, str]:
    """The settings that overrides set; ``batch_size`` is its size."""
    pairs = (word.lstrip("+").partition("=") for word in words)
    settings = {name: text for name, _, text in pairs}
    return settings | ({"batch_size": settings[SIZE]} if SIZE in settings else {})


def varying(rows: Sequence[Settings]) -> list[dict[str, str]]:
    """The settings of each row that are not common to all."""
    every = [row.items() for row in rows]
    common = set[Any]().union(*every[:1]).intersection(*every)
    return [{name: value for name, value in one if (name, value) not in common} for one in every]


def labels(entries: Sequence[Entry]) -> list[str]:
    """The label of each entry: the settings that distinguish it from the other runs of its parent directory.

    A run that a grid has still to make is named by the overrides that are not common to all such grids.
    """
    parents: dict[str, list[int]] = {}
    for number, entry in enumerate(entries):
        if entry.run:
            parents.setdefault(entry.run.parent, []).append(number)
    to_make = [overrides for entry in entries if not entry.run and entry.grid for overrides in entry.grid.runs]
    common = frozenset(to_make[0]).intersection(*to_make) if to_make else frozenset()
    texts = ["" if entry.run else distinct(entry.overrides or [], common) for entry in entries]
    for numbers in parents.values():
        members = [entries[number] for number in numbers]
        configs, rows = _rows(members)
        groups = {group for config in configs for group in config.groups}
        for number, words in zip(numbers, described(rows, requested(members), groups), strict=True):
            run = entries[number].run
            assert run is not None
            main = {group: run.shared.settings[group] for group in MAIN_GROUPS if group in run.shared.groups}
            pairs = ((group, text, run.shared.groups[group] == text) for group, text in main.items())
            texts[number] = words or " ".join(text if option else f"{group}={text}" for group, text, option in pairs)
    return texts


def described(rows: Sequence[Settings], given: Collection[str] = (), groups: Collection[str] = ()) -> list[str]:
    """Each row by the fewest settings that distinguish it, such as ``loss=dcl seed=1``: options of groups, then keys.

    A value that follows from another one, as the number of epochs from the dataset, is hidden unless a command has
    ``given`` it, or two rows would have the same description without it.
    """
    distinct_settings = varying(rows)
    named = {name for row in distinct_settings for name in row} - {SIZE}
    names = [name for name in named if name in groups or is_hashed(name)]
    names.sort(key=lambda name: (name not in given, name not in groups, name.count("."), rank(name), name))
    shown, classes, count = list[str](), [0] * len(rows), 1  # those of one class have the same description so far
    for name in names:
        if count == len(rows) and name not in given:
            break
        numbers: dict[Any, int] = {}
        values = [row.get(name) for row in distinct_settings]
        finer = [numbers.setdefault(pair, len(numbers)) for pair in zip(classes, values, strict=True)]
        if len(numbers) > count or (name in given and len({*values}) > 1):
            shown.append(name)
            classes, count = finer, len(numbers)
    shown.sort(key=lambda name: (name not in groups, rank(name), name))
    return [" ".join(f"{name}={row[name]}" for name in shown if name in row) for row in rows]


def distinct(overrides: Sequence[str], common: Collection[str]) -> str:
    """The overrides that are not common to all runs, those of the main groups first; all if there is none."""
    others = [override for override in overrides if override not in common] or overrides
    return " ".join(sorted(others, key=lambda override: rank(override.partition("=")[0].lstrip("+"))))


def requested(entries: Sequence[Entry]) -> set[str]:
    """The keys that the commands of entries set, ``batch_size`` for its size."""
    words = {word for entry in entries for word in (entry.command or "").replace("'", "").split()}
    return {word.partition("=")[0].lstrip("+").replace(SIZE, "batch_size") for word in words if "=" in word}


def rank(name: str) -> int:
    """The number of a setting's group among the main groups."""
    group = name.partition(".")[0]
    return [*MAIN_GROUPS, group].index(group)


def value_of(text: str | None) -> Value:
    """The value in an override: a number (64 for ``b64``), a truth value, None, or else the text itself."""
    if text is None:
        return None
    try:
        value = json.loads(text[1:] if re.fullmatch(r"b\d+", text) else text)
    except ValueError:
        return text
    plain = math.isfinite(value) if isinstance(value, float) else isinstance(value, int | None)
    return value if plain else text
