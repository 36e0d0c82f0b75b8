"""The runs of results folders as one table, a row for each run: every command reads runs and their numbers here.

A column is a setting under the name that the command line has for it (``loss``, ``negatives.k``, ``optimizer.lr``;
``batch_size`` is the size), or a number (its name has a slash: ``knn/top1``), or one of :data:`COLUMNS`.

A metric that one evaluation has made in all runs of a table has its own name. Where several have, as two k of kNN, the
name says which: ``knn[k=20]/top1``. What a data set sets by itself, such as its k, is not another evaluation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssl_bench.config.build import near
from ssl_bench.config.identity import is_hashed
from ssl_bench.errors import ConfigError, InvalidValue, require
from ssl_bench.evaluate.metric import Metric
from ssl_bench.launch.outcome import DIVERGED
from ssl_bench.record import evaluations, grids, lease, runs, units
from ssl_bench.record.runs import Key, Run

if TYPE_CHECKING:
    from pandas import DataFrame, Series

MAIN_GROUPS = ("loss", "negatives", "temperature", "batch_size", "framework", "dataset")  # groups that are named first
RANKS = {name: number for number, name in enumerate(MAIN_GROUPS)}
# Of a run: the :class:`ssl_bench.record.runs.Run`, its name, its directory, one of STATES and why it is so in one line.
COLUMNS = ("run", "experiment", "run_id", "path", "state", "reason", "seed")
STATES = ("busy", "failed", "diverged", "damaged", "interrupted", "evaluation missing", "not begun", "finished")
FINISHED, NOT_FINITE = "finished", "not finite"
MOST_NAMED = 4  # runs that a sentence names


def read(*folders: Path) -> DataFrame:
    """All runs below some results folders, and those that the newest grid of each experiment has still to begin.

    The states, the most urgent first: ``busy`` (a process has it), ``failed``, ``diverged``, ``damaged`` (a file of it
    cannot be read), ``interrupted``, ``evaluation missing`` (trained to its end, and one that it was asked for is not
    done), ``not begun``, ``finished``.
    """
    return of([run for folder in folders for run in _runs(folder)])


def of(found: Sequence[Run]) -> DataFrame:
    """The table of some runs."""
    from pandas import DataFrame  # takes a third of a second

    places = [(run, run.experiment, run.folder and run.folder.name, run.folder and str(run.folder)) for run in found]
    rows = [dict(zip(COLUMNS, (*place, *state(place[0]), place[0].seed), strict=True)) for place in places]
    settings = [{n: v for n, v in run.settings.items() if n not in (*COLUMNS, "name")} for run in found]
    names = dict.fromkeys(COLUMNS) | dict.fromkeys(name for of_run in settings for name in of_run)
    data = {n: [of.get(n) for of in settings] if n not in COLUMNS else [row[n] for row in rows] for n in names}
    return with_numbers(DataFrame(data, dtype=object))


def with_numbers(table: DataFrame) -> DataFrame:
    """The table with its numbers under the names that they have among its own runs."""
    from pandas import DataFrame

    names = name_numbers(table["run"])
    values = [{names[key]: value for key, value in run.numbers.items()} for run in table["run"]]
    columns = {name: [of_run.get(name, math.nan) for of_run in values] for name in dict.fromkeys(names.values())}
    numbers = DataFrame(columns, index=table.index, dtype=float)
    return table[[name for name in table if "/" not in name]].join(numbers)


def _runs(outputs: Path) -> list[Run]:
    """The runs in a results folder by experiment and start, then those that its grids have not begun."""
    found = {folder: runs.read(folder) for folder in runs.folders(outputs)}
    by_place = {"/".join(folder.parts[-2:]): run for folder, run in found.items()}
    by_command = {run.command: run for run in found.values() if run.command}
    for run in found.values():
        run.owner = lease.owner(run.place)
    others, asked = dict[str, Run](), grids.read(outputs, runs.DEEPEST)
    newest = {one.experiment: one.grid for one in asked}
    for one in asked:
        there = by_place.get(one.place) or by_command.get(one.command)
        if there is not None:
            there.asked_by.add(one.experiment)
            there.overrides, there.grid = one.overrides, one.grid
        others.pop(one.command, None)
        if there is None and one.grid == newest[one.experiment]:
            others[one.command] = Run(None, {}, command=one.command, overrides=one.overrides, grid=one.grid)
    first = sorted(found.values(), key=lambda run: (run.place.parent.parts, run.began, run.place))
    return [*first, *others.values()]


def state(run: Run) -> tuple[str, str]:
    """The state of a run, and why in one line; empty where the state says all."""
    if run.owner is not None:
        return "busy", ""
    if run.finished:
        return ("evaluation missing" if run.lacks else FINISHED), ""
    if run.failure:
        return "diverged" if DIVERGED in run.failure else "failed", run.failure
    if run.folder is None:
        return "not begun", ""
    if run.damaged:
        return "damaged", run.damaged
    return ("evaluation missing" if run.share >= 1 else "interrupted"), ""


def name_numbers(found: Iterable[Run]) -> dict[Key, str]:
    """The name of each number among some runs."""
    made_by = dict[str, dict[tuple[str, str | None], Mapping[str, Any]]]()  # by metric
    of_images = dict[tuple[str, str], set[tuple[str, str | None]]]()  # by metric and images of the training
    for run in found:
        for entry in run.evaluations:
            key = entry["id"], entry.get("images")
            for metric in entry["metrics"]:
                made_by.setdefault(metric, {}).setdefault(key, entry)
                of_images.setdefault((metric, str(run.config.get("choices", {}).get("dataset"))), set()).add(key)
    several = {metric for (metric, _), keys in of_images.items() if len(keys) > 1}
    described: dict[str, Mapping[Any, Mapping[str, Any]]]
    described = {m: {key: evaluations.made_by(e) for key, e in of.items()} for m, of in made_by.items() if m in several}
    named = evaluations.names(described)
    return {(m, *key): named.get((m, key), m) for m, of in made_by.items() for key in of}


def numbers(table: DataFrame) -> list[str]:
    """The names of all numbers."""
    return [name for name in table if "/" in name]


def meanings(table: DataFrame) -> dict[str, Metric]:
    """The unit of each number, and what is better."""
    found, names = dict[str, Metric](), name_numbers(table["run"])
    for run in table["run"]:
        found |= {names[key]: units.metric(key[0], run.units) for key in run.numbers if names[key] not in found}
    return found


def meaning(table: DataFrame, name: str) -> Metric:
    """The unit of a number or of a curve, whose name says what it means in any run, and what is better."""
    of_curve = units.metric(name, next((run.units for run in table["run"]), {}))
    return meanings(table).get(name, of_curve)


def main(run: Run, names: Mapping[Key, str]) -> dict[str, float]:
    """The main numbers of a run that are finite, by their names among some runs."""
    of_run = units.main([metric for metric, *_ in run.numbers], run.units)
    return {names[key]: value for key, value in run.numbers.items() if key[0] in of_run and math.isfinite(value)}


def usual(table: DataFrame) -> list[str]:
    """The main numbers of runs, the one that most of them have first."""
    names = name_numbers(table["run"])
    return [name for name, _ in Counter(name for run in table["run"] for name in main(run, names)).most_common()]


def choose(table: DataFrame, flag: str, wanted: str | None) -> tuple[str, str]:
    """The name of the number that a command asks for, and a sentence if it had to be chosen among several.

    Args:
        wanted: its name; a metric that several evaluations made if only one of them is in all of the runs; None: the
            main number of most runs.

    Raises:
        InvalidValue: no run has it, or it may be several.
    """
    if wanted is None and (main_ones := usual(table)):
        return main_ones[0], ""
    if wanted in (there := numbers(table)):
        return str(wanted), ""
    several = [name for (metric, *_), name in name_numbers(table["run"]).items() if metric == wanted]
    common = [name for name in several if table[name].notna().all()]
    if len(common) == 1:
        return common[0], f"{wanted} is {common[0]}, which all of these runs have."
    if several:
        raise InvalidValue(flag, wanted, f"one of {', '.join(several)}: several evaluations have made it")
    raise InvalidValue(flag, wanted or "", f"one of {', '.join(sorted(there))}{near(wanted or '', there)}")


def settings(table: DataFrame) -> list[str]:
    """The names of the columns that are settings, without the seed."""
    return [name for name in table if "/" not in name and name not in COLUMNS]


def setting(table: DataFrame, flag: str, wanted: str, groups: bool = False) -> str:
    """The full name of a setting on which results depend, of which the end is enough if one that varies has it.

    Args:
        groups: a group is one as well that has no option of its own.

    Raises:
        InvalidValue: there is no such setting, or results do not depend on it.
    """
    every = settings(table)
    ends = [name for name in every if name.endswith(f".{wanted}") and len({*map(repr_of, table[name])}) > 1]
    whole = wanted in every or (groups and any(name.startswith(f"{wanted}.") for name in every))
    if not whole and len(ends) != 1:
        there = ends or varying(table)
        names = ", ".join(there) or "loss"
        raise InvalidValue(flag, wanted, f"a setting of these runs, such as {names}{near(wanted, there or every)}")
    name = wanted if whole else ends[0]
    remedy = "a setting on which results depend, such as loss: runs that differ in this one only are one training"
    require(is_hashed(name), flag, wanted, remedy)
    return name


def label(name: str, metric: Metric) -> str:
    """A number with its unit."""
    return f"{name} (%)" if metric.unit == "share" else name


def varying(table: DataFrame, within: Sequence[Any] = ()) -> list[str]:
    """The settings on which results depend and in which the runs of a table differ, but for the seed.

    Those that their commands set come first, then options of groups, then keys. A setting that follows from those
    before it, as the number of epochs may from the data set, is left out unless a command set it.

    Args:
        within: the part of each run: only those settings that vary within a part.
    """
    given = set[str]().union(*(run.requested for run in table["run"]))
    groups = set[str]().union(*(run.groups for run in table["run"]))
    names = [name for name in settings(table) if is_hashed(name) and name != runs.SIZE]
    texts = {name: [repr_of(value) for value in table[name]] for name in names}
    if "dataset" in texts:  # equal images of a user's own are one data set, whatever the names of their folders
        first = dict[str, str]()
        of_images = zip(table["run"], texts["dataset"], strict=True)
        texts["dataset"] = [first.setdefault(run.images, text) for run, text in of_images]
    known = [bool(run.config) for run in table["run"]]  # of others only what their commands set, which may be nothing
    names = [n for n in names if len({text for text, of in zip(texts[n], known, strict=True) if of or text}) > 1]
    last = len(RANKS)
    names.sort(key=lambda n: (n not in given, n not in groups, n.count("."), RANKS.get(n.partition(".")[0], last)))
    kept, start = list[str](), _numbered(within or [0] * len(table))
    parts = start
    for name in names:
        there = [text != "" or of for text, of in zip(texts[name], known, strict=True)]

        def counted(*keys: Sequence[Any], there: Sequence[bool] = there) -> int:
            return len({*compress(zip(*keys, strict=True), there)})

        alone = name in given and counted(start, texts[name]) > counted(start)
        if alone or counted(parts, texts[name]) > counted(parts):
            kept.append(name)
            parts = _numbered([*zip(parts, texts[name], strict=True)])
    return kept


def _numbered(keys: Sequence[Any]) -> list[int]:
    """A number for each key, equal for equal ones."""
    known = dict[Any, int]()
    return [known.setdefault(key, len(known)) for key in keys]


def repr_of(value: Any) -> str:
    """A text that is equal for equal values: 1 is 1.0, and True is not 1."""
    whole = isinstance(value, float) and value.is_integer()
    return "" if value is None or value != value else repr(int(value) if whole else value)


def same_recipe(table: DataFrame) -> Series:
    """A text for each run that is equal for runs which differ in the seed only: one training of one set of images."""
    return table["run"].map(lambda run: run.recipe)


def finished(table: DataFrame) -> DataFrame:
    """The runs that have results, also while a process evaluates them again, with the names of their numbers."""
    return with_numbers(table.loc[[run.finished for run in table["run"]]])


def having(table: DataFrame, name: str) -> list[bool]:
    """Whether each run is finished and has a number, be it not finite."""
    done = (run for run in table["run"] if run.finished)
    keys = {key for key, its_name in name_numbers(done).items() if its_name == name}
    return [run.finished and not keys.isdisjoint(run.numbers) for run in table["run"]]


def missing(table: DataFrame, name: str, there: Sequence[bool] = ()) -> dict[str, list[str]]:
    """The labels of the runs that have no part in means and comparisons of a number, by their state.

    That of a finished run is ``without`` the number, or it is ``not finite``.

    Args:
        there: whether each run has a part; empty: the finished ones whose number is finite.
    """
    what, has = dict[str, list[str]](), having(table, name)
    values = table[name] if name in table else [math.nan] * len(table)
    lacking = [
        not has_part for has_part in there or [of and math.isfinite(v) for of, v in zip(has, values, strict=True)]
    ]
    several = table["experiment"].nunique() > 1
    for place, label in enumerate(labels(table)) if any(lacking) else ():
        if lacking[place]:
            state, run = table["state"].iloc[place], table["run"].iloc[place]
            label = f"{run.experiment} {label}".strip() if several else label
            why = state if not run.finished else NOT_FINITE if has[place] and not there else f"without {name}"
            what.setdefault(why, []).append(label)
    return dict(sorted(what.items(), key=lambda pair: pair[0] not in STATES))


def left_out(table: DataFrame, name: str, there: Sequence[bool] = ()) -> list[str]:
    """Sentences on the runs that have no part in means and comparisons of a number, by their state; none of none."""
    return in_sentences(missing(table, name, there), len(table))


def in_sentences(missing: Mapping[str, Sequence[str]], count: int) -> list[str]:
    """Sentences on runs that are left out, of ``count`` runs, by why they are."""
    return [
        f"left out, {why}: {len(them)} of {count} runs ({'; '.join(them[:MOST_NAMED])}"
        f"{f'; and {len(them) - MOST_NAMED} more' if len(them) > MOST_NAMED else ''})"
        for why, them in missing.items()
    ]


def with_one_name(table: DataFrame) -> DataFrame:
    """The table with the settings of the first run of each recipe: an option or images may have two names."""
    recipes, names = same_recipe(table), settings(table)
    values = table[names].set_axis(recipes, axis=0)
    values = values[~values.index.duplicated()].loc[recipes].set_axis(table.index, axis=0)
    return values.join(table.drop(columns=names))


def once(table: DataFrame, name: str, apart: Sequence[str] = ()) -> DataFrame:
    """The finished runs that have a number, each training with its seed once although it may stand in several folders.

    Args:
        apart: columns by which its copies are kept apart.

    Raises:
        ConfigError: two folders have the same training and seed, and other numbers.
    """
    there = table.loc[having(table, name)]
    first, kept = dict[tuple[Any, ...], int](), list[int]()
    keys = zip(same_recipe(there), there["seed"], *(there[column] for column in apart), strict=True)
    for place, key in zip(there.index, keys, strict=True):
        if (other := first.setdefault(key, place)) == place:
            kept.append(place)
            continue
        values = there.loc[other, name], there.loc[place, name]
        if values[0] != values[1] and not all(map(math.isnan, values)):
            where = " and ".join(f"{there.loc[n, name]:.6g} in {there.loc[n, 'path']}" for n in (other, place))
            raise ConfigError(f"{name} of one training and seed is {where}: leave one of the folders out")
    return with_one_name(there.loc[kept])


def by_experiment(table: DataFrame) -> dict[str, DataFrame]:
    """The runs of each experiment; a name may be no UTF-8, which an index of pandas refuses."""
    places = dict[str, list[Any]]()
    for place, name in zip(table.index, table["experiment"], strict=True):
        places.setdefault(name, []).append(place)
    return {name: table.loc[of] for name, of in places.items()}


def labels(table: DataFrame) -> list[str]:
    """What distinguishes each run from the others of its experiment, such as ``loss=dcl seed=1``."""
    texts = dict[Any, str]()
    for members in by_experiment(table).values():
        names = varying(members)
        names += ["seed"] if len({*map(repr_of, members["seed"])}) > 1 else []
        names = names or [name for name in MAIN_GROUPS if name in members]
        for place, row in zip(members.index, members[names].to_dict("records"), strict=True):
            texts[place] = words_of(row, names) or str(table["run_id"][place] or "")
    return [texts[place] for place in table.index]


def words_of(row: Mapping[Any, Any], names: Iterable[str]) -> str:
    """Settings with their values as a command line writes them; none of those that a run has not."""
    return " ".join(f"{name}={text_of(row[name])}" for name in names if repr_of(row.get(name)))


def refuse_two_recipes(first: Run, other: Run) -> None:
    """Refuse two runs that are to be averaged over their seeds and differ in more."""
    if first.recipe != other.recipe:
        where = f"{first.folder} and {other.folder}"
        raise ConfigError(f"{where} are two trainings that differ in no setting: leave one of them out")


def text_of(value: Any) -> str:
    """A value as a command line writes it, several with commas between; empty for none."""
    if isinstance(value, tuple):
        return ", ".join(map(text_of, value))
    if value is None or value != value:
        return ""
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def in_order(values: Sequence[Any]) -> list[Any]:
    """Different values in order: numbers, then texts, none last."""
    return sorted({repr(value): value for value in values}.values(), key=order)


def order(value: Any) -> tuple[Any, ...]:
    """By what values are put in order."""
    if isinstance(value, tuple):
        return tuple(map(order, value))
    number = isinstance(value, int | float) and value == value
    return (0, value, "") if number else (1, 0, text_of(value) or "\uffff")
