"""The runs of results folders as one table, a row for each run: every command reads and selects runs and numbers here.

A column is a setting under the name that the command line has for it (``loss``, ``negatives.k``, ``optimizer.lr``;
``batch_size`` is the size), or a number (its name has a slash: ``knn/top1``), or one of :data:`COLUMNS`.

A metric keeps its plain name if one evaluation has made it in all runs of a table. If several evaluations have, such as
kNN with two values of k, the name says which one: ``knn[k=20]/top1``. A k that each data set chooses by itself does not
make several evaluations.

Words select runs, in the same way on every command. A word is a name or a condition. A name is that of an experiment, a
run_id or its beginning, or a folder: a results folder, or the folder of an experiment or a run, also outside of the
results folder. Each name adds its runs; without a name all runs are selected. All conditions must hold:
``loss=dcl,eqco`` (one of these values), ``loss!=dcl``, ``negatives.k>4``, and likewise ``<``, ``<=`` and ``>=``. The
key of a condition is a setting, a metric such as ``knn/top1``, ``state`` or ``seed``.
"""

from __future__ import annotations

import functools
import math
import operator
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ssl_bench import files
from ssl_bench.config.identity import is_hashed
from ssl_bench.config.ranges import near
from ssl_bench.errors import ConfigError, InvalidValue, require
from ssl_bench.evaluate.metric import NOT_HELPED, Metric
from ssl_bench.record import evaluations, runs
from ssl_bench.record.runs import Key, Run

if TYPE_CHECKING:
    import numpy as np
    from pandas import DataFrame, Series

Wanted = Callable[[Path, set[str]], bool]

MAIN_GROUPS = ("loss", "negatives", "temperature", "batch_size", "framework", "dataset")  # groups that are named first
RANKS = {name: number for number, name in enumerate(MAIN_GROUPS)}
# A :class:`ssl_bench.record.runs.Run`, its names, its directory, one of STATES, the reason for the state, and the seed.
COLUMNS = ("run", "experiment", "run_id", "path", "state", "reason", "seed")
STATES = ("busy", "failed", "diverged", "damaged", "interrupted", "evaluation missing", "not begun", "finished")
FINISHED, NOT_FINITE = "finished", "not finite"
ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
CONDITION = re.compile(r"((?:[^\[\]=<>!]|\[[^\]]*\])+)(!=|<=|>=|=|<|>)(.*)", re.DOTALL)  # a key may be knn[k=20]/top1
SHORTEST = 4  # characters of the beginning of a run_id
LOST = ("failed", "diverged")  # states of runs that will have no number
MOST_NAMED = 4  # runs that a sentence names


def read(*folders: Path, wanted: Wanted = lambda *of: True) -> DataFrame:
    """All runs below some results folders, and those that the newest grid of each experiment has still to begin.

    The states, the most urgent first: ``busy`` (a process carries it out), ``failed``, ``diverged``, ``damaged`` (a
    file of the run cannot be read), ``interrupted``, ``evaluation missing`` (the training is finished, an evaluation
    that its configuration requests is not), ``not begun``, ``finished``.

    Args:
        wanted: whether a run is read, by its directory and the experiments whose grids list it.
    """
    return of([run for folder in folders for run in _runs(folder, wanted)])


def of(members: Sequence[Run]) -> DataFrame:
    """The table of some runs."""
    from pandas import DataFrame  # takes a third of a second

    places = [(run, run.experiment, run.folder and run.folder.name, run.folder and str(run.folder)) for run in members]
    rows = [(*place, *state(place[0]), place[0].seed) for place in places]
    data: dict[str, list[Any]] = {name: [row[n] for row in rows] for n, name in enumerate(COLUMNS)}
    settings = [run.settings for run in members]
    names = dict.fromkeys(name for of_run in settings for name in of_run if name not in data and name != "name")
    names = dict.fromkeys(sorted(names, key=lambda name: RANKS.get(name, len(RANKS))))
    return with_numbers(DataFrame(data | {n: [of.get(n) for of in settings] for n in names}, dtype=object))


def with_numbers(table: DataFrame) -> DataFrame:
    """The table with columns for the numbers of its runs, under the names that distinguish them among these runs."""
    from pandas import DataFrame

    names = name_numbers(table["run"])
    values = [{names[key]: value for key, value in run.numbers.items()} for run in table["run"]]
    columns = {name: [of_run.get(name, math.nan) for of_run in values] for name in dict.fromkeys(names.values())}
    numbers = DataFrame(columns, index=table.index, dtype=float)
    return table[[name for name in table if "/" not in name and name not in numbers]].join(numbers)


def _runs(outputs: Path, wanted: Wanted) -> list[Run]:
    """The runs in a results folder by experiment and start, then those that its grids have not begun."""
    listed, folders = runs.read_grids(outputs), [*runs.folders(outputs)]
    by_name = {"/".join(str(folder).rsplit("/", 2)[-2:]): folder for folder in folders}
    places = [by_name.get(directory) for _, directory in listed]
    if None in places:
        by_command = {runs.read_command(folder): folder for folder in folders} | {"": None}
        places = [place or by_command.get(one.command) for place, (one, _) in zip(places, listed, strict=True)]
    experiments = dict[Path | None, set[str]]()  # by a run's directory, those whose grids list the run
    for (one, _), place in zip(listed, places, strict=True):
        experiments.setdefault(place, set()).update(one.listed_in)
    begun = {folder: runs.read(folder) for folder in folders if wanted(folder, experiments.get(folder, set()))}
    for folder, run in begun.items():
        run.owner, run.listed_in = runs.owner(folder), experiments.get(folder, set())
    others, newest = dict[str, Run](), {name: one.grid for one, _ in listed for name in one.listed_in}
    for (one, _), place in zip(listed, places, strict=True):
        if place in begun:
            begun[place].overrides, begun[place].grid = one.overrides, one.grid
        others.pop(one.command, None)
        if place is None and all(one.grid == newest[name] for name in one.listed_in):
            others[one.command] = one
    order = {folder: (str(folder.parent).split("/"), run.began, folder.name) for folder, run in begun.items()}
    return [*(begun[folder] for folder in sorted(begun, key=order.__getitem__)), *others.values()]


def state(run: Run) -> tuple[str, str]:
    """The state of a run, and the reason for it in one line; an empty reason where the state needs none."""
    if run.owner is not None:
        return "busy", ""
    if run.finished:
        return ("evaluation missing" if run.lacks else FINISHED), ""
    if run.failure:
        return "diverged" if runs.DIVERGED in run.failure else "failed", run.failure
    if run.folder is None:
        return "not begun", ""
    if run.damaged:
        return "damaged", run.damaged
    return ("evaluation missing" if run.share >= 1 else "interrupted"), ""


def name_numbers(members: Iterable[Run]) -> dict[Key, str]:
    """The name of each number among some runs."""
    first = dict[tuple[str, tuple[Key, ...]], Run]()  # of the runs that have the same numbers of one data set
    for run in members:
        first.setdefault((str(run.config.get("choices", {}).get("dataset")), tuple(run.numbers)), run)
    made_by = dict[str, dict[tuple[str, tuple[str, str | None]], Mapping[str, Any]]]()  # by metric
    for (dataset, _), run in first.items():
        for entry in run.evaluations:
            for metric in entry["metrics"]:
                made_by.setdefault(metric, {}).setdefault((dataset, (entry["id"], entry.get("images"))), entry)
    several = {m: of for m, of in made_by.items() if len(of) > len({dataset for dataset, _ in of})}
    described = {m: {key: evaluations.made_by(entry) for (_, key), entry in of.items()} for m, of in several.items()}
    named = evaluations.names(described)
    return {(m, *key): named.get((m, key), m) for m, of in made_by.items() for _, key in of}


def numbers(table: DataFrame) -> list[str]:
    """The names of all numbers."""
    return [*dict.fromkeys(name_numbers(table["run"]).values())]


def meaning(table: DataFrame, name: str) -> Metric:
    """The meaning of a number or of a curve, by its name: its unit, and whether high or low is better."""
    names = name_numbers(table["run"])
    having = ((key[0], run) for run in table["run"] for key in run.numbers if names[key] == name)
    metric, run = next(having, (name, next(iter(table["run"]), None)))
    return evaluations.metric_of(metric, run and run.results.get("units"))


def main(run: Run, names: Mapping[Key, str]) -> dict[str, float]:
    """The main numbers of a run that are finite, by the ``names`` of numbers among some runs."""
    return {names[key]: run.numbers[key] for key in run.main if math.isfinite(run.numbers[key])}


def usual(table: DataFrame) -> list[str]:
    """The names of the main numbers of runs; the number that most runs have comes first."""
    names = name_numbers(table["run"])
    return [name for name, _ in Counter(name for run in table["run"] for name in main(run, names)).most_common()]


def choose(table: DataFrame, flag: str, wanted: str | None) -> str:
    """The full name of a number that a command names; None: the main number of most runs.

    Raises:
        InvalidValue: no run has the number, or several numbers have this name.
    """
    if wanted is None and (main_numbers := usual(table)):
        return main_numbers[0]
    if wanted in (names := numbers(table)):
        return str(wanted)
    if several := [name for (metric, *_), name in name_numbers(table["run"]).items() if metric == wanted]:
        raise InvalidValue(flag, wanted, f"one of {', '.join(several)}: several evaluations have made it")
    raise InvalidValue(flag, wanted or "", f"one of {', '.join(sorted(names))}{near(wanted or '', names)}")


def settings(table: DataFrame) -> list[str]:
    """The names of the columns that are settings, without the seed."""
    return [name for name, kind in table.dtypes.items() if kind.kind == "O" and "/" not in name and name not in COLUMNS]


def setting(table: DataFrame, flag: str, wanted: str, groups: bool = False) -> str:
    """The full name of a setting on which results depend; its end is enough if one setting that varies has this end.

    Args:
        groups: also accept a group that has keys and no options.

    Raises:
        InvalidValue: there is no such setting, or results do not depend on it.
    """
    every = settings(table)
    ends = [name for name in every if name.endswith(f".{wanted}") and len({*map(repr_of, table[name])}) > 1]
    whole = wanted in every or (groups and any(name.startswith(f"{wanted}.") for name in every))
    if not whole and len(ends) != 1:
        candidates = ends or varying(table)
        names = ", ".join(candidates) or "loss"
        raise InvalidValue(flag, wanted, f"a setting of these runs, such as {names}{near(wanted, candidates or every)}")
    name = wanted if whole else ends[0]
    remedy = "a setting on which results depend, such as loss: runs that differ in this one only are one training"
    require(is_hashed(name), flag, wanted, remedy)
    return name


def label(name: str, metric: Metric) -> str:
    """The name of a number with its unit."""
    return f"{name} (%)" if metric.unit == "share" else name


def varying(table: DataFrame, within: Sequence[Any] = ()) -> list[str]:
    """The settings on which results depend and in which the runs of a table differ, but for the seed.

    Settings in the commands of the runs come first, then options of groups, then keys. A setting that follows from the
    settings before it, such as the number of epochs from the data set, is left out unless a command sets it.

    Args:
        within: the part to which each run belongs: only settings that vary within a part are returned.
    """
    typed = set[str]().union(*(run.requested for run in table["run"]))
    groups = set[str]().union(*(run.config.get("choices", ()) for run in table["run"]))
    columns = {name: table[name].tolist() for name in settings(table) if name != runs.SIZE and is_hashed(name)}
    texts = {name: [repr_of(value) for value in values] for name, values in columns.items() if not _equal(values)}
    if "dataset" in texts:  # equal images of a user's own are one data set, whatever the names of their folders
        first = dict[str, str]()
        of_images = zip(table["run"], texts["dataset"], strict=True)
        texts["dataset"] = [first.setdefault(run.images, text) for run, text in of_images]
    known = [bool(run.config) for run in table["run"]]  # of other runs only the settings in their commands are known
    names = [n for n in texts if len({text for text, of in zip(texts[n], known, strict=True) if of or text}) > 1]
    last = len(RANKS)
    names.sort(key=lambda n: (n not in typed, n not in groups, n.count("."), RANKS.get(n.partition(".")[0], last)))
    result, start = list[str](), _numbered(within or [0] * len(table))
    parts = start
    for name in names:
        present = [text != "" or of for text, of in zip(texts[name], known, strict=True)]

        def counted(*keys: Sequence[Any], present: Sequence[bool] = present) -> int:
            return len({*compress(zip(*keys, strict=True), present)})

        alone = name in typed and counted(start, texts[name]) > counted(start)
        if alone or counted(parts, texts[name]) > counted(parts):
            result.append(name)
            parts = _numbered([*zip(parts, texts[name], strict=True)])
    return result


def _equal(values: Sequence[Any]) -> bool:
    """Whether all values are equal and of one type; a fast test."""
    return values.count(values[0]) == len(values) and len({*map(type, values)}) == 1 if values else True


def _numbered(keys: Sequence[Any]) -> list[int]:
    """A number for each key, equal for equal ones."""
    number = dict[Any, int]()
    return [number.setdefault(key, len(number)) for key in keys]


def repr_of(value: Any) -> str:
    """A text that is equal for equal values: 1 is 1.0, and True is not 1."""
    whole = isinstance(value, float) and value.is_integer()
    return "" if value is None or value != value else repr(int(value) if whole else value)


def same_recipe(table: DataFrame) -> Series:
    """A text for each run, equal for runs that differ in the seed only: the same training on the same images."""
    return table["run"].map(lambda run: run.recipe)


def finished(table: DataFrame) -> DataFrame:
    """The runs that have results, also while a process evaluates them again, with the names of their numbers."""
    return with_numbers(table.loc[[run.finished for run in table["run"]]])


def having(table: DataFrame, name: str) -> list[bool]:
    """Whether each run is finished and has a number, which may be NaN or infinite."""
    done = (run for run in table["run"] if run.finished)
    keys = {key for key, its_name in name_numbers(done).items() if its_name == name}
    return [run.finished and not keys.isdisjoint(run.numbers) for run in table["run"]]


def missing(table: DataFrame, name: str, included: Sequence[bool] = ()) -> dict[str, list[str]]:
    """The labels of the runs that are left out of means and comparisons of a number, by the reason.

    The reason is the state of the run; that of a finished run is ``without`` the number, or ``not finite``.

    Args:
        included: whether each run is included; empty: finished runs with a finite number are.
    """
    left_out, has_number = dict[str, list[str]](), having(table, name)
    values = table[name] if name in table else [math.nan] * len(table)
    parts = included or [of and math.isfinite(v) for of, v in zip(has_number, values, strict=True)]
    several = table["experiment"].nunique() > 1
    rows = zip(table["run"], table["state"], has_number, parts, labels(table) if not all(parts) else parts, strict=True)
    for run, state, has, _, label in (row for row in rows if not row[3]):
        why = state if not run.finished else NOT_FINITE if has and not included else f"without {name}"
        left_out.setdefault(why, []).append(f"{run.experiment} {label}".strip() if several else str(label))
    return dict(sorted(left_out.items(), key=lambda pair: pair[0] not in STATES))


def left_out(table: DataFrame, name: str, included: Sequence[bool] = ()) -> list[str]:
    """A paragraph on the runs that are left out of means and comparisons of a number; empty if there are none."""
    return in_lines(missing(table, name, included), len(table))


def in_lines(missing: Mapping[str, Sequence[str]], count: int) -> list[str]:
    """A paragraph on runs that are left out of ``count`` runs, a line for each reason; empty if there are none."""
    lines = list[str]()
    for why, names in missing.items():
        more = [f"and {len(names) - MOST_NAMED} more"] * (len(names) > MOST_NAMED)
        lines.append(f"left out, {why}: {len(names)} of {count} runs ({'; '.join([*names[:MOST_NAMED], *more])})")
    return ["\n".join(lines)] * bool(lines)


def with_one_name(table: DataFrame) -> DataFrame:
    """The table with the settings of the first run of each recipe: one option or data set may have two names."""
    recipes, names = same_recipe(table), settings(table)
    values = table[names].set_axis(recipes, axis=0)
    values = values[~values.index.duplicated()].loc[recipes].set_axis(table.index, axis=0)
    return values.join(table.drop(columns=names))


def once(table: DataFrame, name: str, apart: Sequence[str] = ()) -> DataFrame:
    """The finished runs that have a number; of copies of a run in several folders the first one.

    Args:
        apart: columns in which copies may differ, so that they count as different runs.

    Raises:
        ConfigError: two folders have the same training and seed, and different numbers.
    """
    rows = table.loc[having(table, name)]
    first, places = dict[tuple[Any, ...], int](), list[int]()
    keys = zip(same_recipe(rows), rows["seed"], *(rows[one] for one in apart), strict=True)
    for place, key in zip(rows.index, keys, strict=True):
        if (other := first.setdefault(key, place)) == place:
            places.append(place)
            continue
        values = rows.loc[other, name], rows.loc[place, name]
        if values[0] != values[1] and not all(map(math.isnan, values)):
            where = " and ".join(f"{rows.loc[n, name]:.6g} in {rows.loc[n, 'path']}" for n in (other, place))
            raise ConfigError(f"{name} of one training and seed is {where}: leave one of the folders out")
    return with_one_name(rows.loc[places])


def by_experiment(table: DataFrame) -> dict[str, DataFrame]:
    """The runs of each experiment; a name may be no UTF-8, which an index of pandas refuses."""
    places = dict[str, list[Any]]()
    for place, name in zip(table.index, table["experiment"], strict=True):
        places.setdefault(name, []).append(place)
    return {name: table.loc[of] for name, of in places.items()}


def labels(table: DataFrame) -> list[str]:
    """The settings that distinguish each run from the other runs of its experiment, such as ``loss=dcl seed=1``."""
    texts = dict[Any, str]()
    for members in by_experiment(table).values():
        names = varying(members)
        names += ["seed"] if len({*map(repr_of, members["seed"])}) > 1 else []
        names = names or [name for name in MAIN_GROUPS if name in members]
        for place, row in zip(members.index, members[names].to_dict("records"), strict=True):
            texts[place] = words_of(row, names) or str(table["run_id"][place] or "")
    return [texts[place] for place in table.index]


def words_of(row: Mapping[Any, Any], names: Iterable[str]) -> str:
    """Settings with their values as a command line writes them, without the settings that a run does not have."""
    return " ".join(f"{name}={text_of(row[name])}" for name in names if repr_of(row.get(name)))


def refuse_two_recipes(first: Run, other: Run) -> None:
    """Refuse two runs that belong to one mean over seeds and differ in more than the seed."""
    if first.recipe != other.recipe:
        where = f"{first.folder} and {other.folder}"
        raise ConfigError(f"{where} are two trainings that differ in no setting: leave one of them out")


def text_of(value: Any) -> str:
    """A value as a command line writes it; empty for None and NaN."""
    if value is None or value != value:
        return ""
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def in_order(values: Sequence[Any]) -> list[Any]:
    """The different values in order: numbers, then texts, None last."""
    return sorted({repr(value): value for value in values}.values(), key=order)


def order(value: Any) -> tuple[Any, ...]:
    """The sort key of a value in :func:`in_order`."""
    number = isinstance(value, int | float) and value == value
    return (0, value, "") if number else (1, 0, text_of(value) or "\uffff")


class Condition(NamedTuple):
    """A condition on runs, such as ``negatives.k>4``."""

    key: str
    sign: str
    value: str

    def holds(self, values: Series, scale: float) -> Series:
        """Whether the condition holds for the value of each run.

        Args:
            scale: 100 for a share, so that the condition may give it in percent: 1 is the whole, 60 is 0.6.
        """
        wanted = {_plain(text) for text in (self.value, *self.value.split(","))}  # a list is one value
        options = {one / scale if isinstance(one, float) and one > 1 else one for one in wanted}
        if self.sign in ORDERS:
            (bound,) = options
            return values.map(lambda one: isinstance(one := _plain(one), float) and ORDERS[self.sign](one, bound))
        return values.map(lambda one: (_plain(one) in options) == (self.sign == "="))


def read_condition(word: str) -> Condition | None:
    """The condition in a word; None if it is a name, or the path of a folder such as ``./lr=0.1``."""
    parts = None if word.startswith(("./", "../", "/")) and Path(word).is_dir() else CONDITION.fullmatch(word)
    return Condition(*parts.groups()) if parts else None


def chosen(words: Sequence[str], given: Path | None = None, sort: str | None = None) -> DataFrame:
    """The runs that words select, by experiment and start or in another order.

    Args:
        given: ``paths.outputs``; None: the usual results folder.
        sort: a key; ``-KEY`` reverses the order. The best value of a metric comes first, the highest one if the metric
            does not say what is better; states come by urgency, numbers before texts, runs without a value last.

    Raises:
        ConfigError: there is no such folder, a name selects nothing, no run has a key, or none the value of a
            condition.
    """
    outputs, conditions = given or files.usual_outputs(), [*filter(None, map(read_condition, words))]
    names = [word for word in words if read_condition(word) is None]
    named = [_Name(word, outputs) for word in names]
    roots = [one.root for one in named if one.root]
    if len(roots) < len(named) or not named:
        others = f", or leave out {' '.join(names)}, which is no folder" if names else ""
        require(outputs.is_dir(), "paths.outputs", outputs, f"the folder of the results{others}")
        roots.insert(0, _results_folder(outputs))
        if roots[0] != outputs and not named:
            named = [_Name(str(outputs.absolute()), outputs)]
    folders = [*{root.resolve(): root for root in roots}.values()]
    table = read(*folders, wanted=lambda *of: not named or any(one.may_be(*of) for one in named))
    if named:
        places = dict.fromkeys(place for one in named for place in one.places(table, folders))
        table = with_numbers(table.loc[sorted(places)])
    return select(table, conditions, sort)


class _Name:
    """A word that names runs: an experiment, a run_id or its beginning, or a folder; ``root`` is its results folder."""

    def __init__(self, word: str, outputs: Path) -> None:
        self.word, self.outputs, self.name = word, outputs, word.removeprefix(f"{outputs}/").strip("/")
        folder = outputs / word if (outputs / word).is_dir() and not Path(word).is_absolute() else Path(word)
        meant = folder != Path(word) or re.match(r"\.{0,2}/", word)
        is_folder = folder.is_dir() and (meant or _holds_runs(folder))
        self.root = _results_folder(folder) if is_folder else None
        self._below = f"{folder.resolve()}/" if is_folder else ""

    def _has(self, folder: Path) -> bool:
        """Whether the word names a folder, and a run's directory is in it or is it."""
        above = _real(os.path.dirname(os.path.abspath(folder)))
        return bool(self._below) and f"{above}/{folder.name}/".startswith(self._below)

    def may_be(self, folder: Path, listed_in: set[str]) -> bool:
        """Whether a directory may be that of a run with this name."""
        return self.name in listed_in or f"/{self.name}" in os.path.abspath(folder) or self._has(folder)

    def places(self, table: DataFrame, folders: Sequence[Path]) -> list[int]:
        """The places of its runs in a table; of two copies of a run that of the one in the named experiment."""
        inside, listed = list[int](), list[int]()  # runs in its folder, and others that its grids list
        for place, run in table["run"].items():
            names = (run.experiment, run.folder and run.folder.name) if not (self._below and run.folder) else ()
            if self.name in names or (run.folder and self._has(run.folder)):
                inside.append(place)
            elif self.name in run.listed_in:
                listed.append(place)
        ids_inside = {table["run_id"][place] for place in inside} - {None}
        places = inside + [place for place in listed if table["run_id"][place] not in ids_inside]
        if not places and len(self.name) >= SHORTEST:
            ids = {place: one for place, one in table["run_id"].items() if one and one.startswith(self.name)}
            places = [*ids]
            if len(several := sorted({*ids.values()})) > 1:
                raise ConfigError(f"{self.word}: the run_ids of {len(several)} runs begin so: {', '.join(several[:4])}")
        if not places:
            every = read(*folders)
            hint = near(self.word, sorted({*every["experiment"]}.union(*(run.listed_in for run in every["run"]))))
            raise ConfigError(f"{self.word}: no run below {self.outputs} has this name or folder{hint}")
        return places


_real = functools.cache(os.path.realpath)  # of the folders above runs


def finished_folders(words: Sequence[str], given: Path | None = None) -> list[Path]:
    """The directories of the finished runs that words select; the number of other runs is printed.

    A single run is returned even if it is not finished.

    Raises:
        ConfigError: nothing is named, or none of several runs is finished.
    """
    if not words:
        raise ConfigError("no run is named: give an experiment, a run_id, a folder or a condition such as loss=dcl")
    if len(words) == 1 and (Path(words[0]) / runs.CONFIG).exists():
        return [Path(words[0])]
    begun = [run for run in chosen(words, given)["run"] if run.folder]
    folders = [run.folder for run in begun if len(begun) == 1 or (run.finished and not run.owner)]
    if not folders:
        raise ConfigError(f"{' '.join(words)}: none of the {len(begun)} runs is finished")
    if unfinished := len(begun) - len(folders):
        print(f"{unfinished} of {len(begun)} runs are not finished, and left out", file=sys.stderr)
    return folders


def _holds_runs(folder: Path) -> bool:
    """Whether a folder is a run, or has runs or experiments inside."""
    return (folder / runs.CONFIG).exists() or (folder / runs.RESULTS).exists() or any(runs.folders(folder))


def _results_folder(folder: Path) -> Path:
    """The results folder of a folder, which is a run, an experiment or a results folder."""
    is_run = runs.RUN_ID.fullmatch(folder.resolve().name) and _holds_runs(folder)
    experiment = _above(folder) if is_run else folder
    has_runs = any(runs.RUN_ID.fullmatch(one.name) or one.match(runs.GRIDS) for one in experiment.iterdir())
    return _above(experiment) if has_runs else experiment


def _above(folder: Path) -> Path:
    return folder.parent if folder.name not in ("", "..") else folder.absolute().parent


def select(table: DataFrame, conditions: Sequence[Condition], sort: str | None = None) -> DataFrame:
    """The runs for which all conditions hold, in the order of a key, with the names of metrics among these runs."""
    metrics = {name for (name, *_) in name_numbers(table["run"])} if conditions else set[str]()
    for one in sorted(conditions, key=lambda one: one.key in metrics):
        bound = _plain(one.value)
        if one.sign in ORDERS and (not isinstance(bound, float) or math.isnan(bound)):
            raise ConfigError(f"{''.join(one)}: compare with a number, such as {one.key}{one.sign}4")
        if one.key in ("name", "folder"):
            raise ConfigError(f"{''.join(one)}: an experiment, a run or a folder is named by a word alone: {one.value}")
        name, values, scale = _values(table, "", one.key)
        holds = one.holds(values, scale)
        if one.sign == "=" and not holds.any() and scale == 1 and len(table):
            options = STATES if name == "state" else [text_of(v) for v in in_order(list(values))]
            if name != "state" or one.value not in options:
                remedy = f"set {name} to one of {', '.join(filter(None, options))}{near(one.value, options)}"
                raise ConfigError(f"{name}={one.value}: no run has this value; {remedy}")
        table = with_numbers(table[holds.astype(bool)])
    if not sort:
        return table
    key, values, _ = _values(table, "--sort", sort.removeprefix("-"))
    high_first = "/" in key and meaning(table, key).sign >= 0
    values = values[values.map(lambda one: one is not None and one == one)]
    ranks = values.map(lambda one: STATES.index(one) if key == "state" else order(_plain(one)))
    places = sorted(values.index, key=ranks.__getitem__, reverse=sort.startswith("-") != high_first)
    return table.loc[[*places, *(place for place in table.index if place not in values.index)]]


def _values(table: DataFrame, flag: str, key: str) -> tuple[str, Series, float]:
    """The full name of a key, its value for each run, and the factor by which its numbers are multiplied in print.

    Raises:
        ConfigError: no run has the key, or several numbers have this name.
    """
    from pandas import Series

    if key not in table and key in {name for (name, *_) in name_numbers(table["run"])}:
        key = choose(table, flag or "the metric", key)
    if key in table and key not in ("run", "reason", "path"):
        return key, table[key], meaning(table, key).scale if "/" in key else 1.0
    if not len(table):
        return key, Series([], dtype=object), 1.0
    keys = ["state", "seed", *numbers(table), *settings(table)]
    what = f"{flag} {key}".strip()
    raise ConfigError(f"{what}: no run has this key{near(key, keys)}; set it to a field, a metric, a group or a key")


def _plain(value: Any) -> Any:
    """A value to compare with: a number (64 for b64), or a text without the blanks and quotes that lists may have."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    try:
        return float(value.removeprefix("b") if isinstance(value, str) else value)
    except ValueError:
        return re.sub(r"[\s'\"]", "", str(value))


class Measured:
    """One number of the runs of a table.

    Args:
        metric: the name of the number; None: the main number of most runs.
        apart: columns in which copies of a run may differ (:func:`once`).

    Attributes:
        name, metric: the name and the meaning of the number.
        title, label: the name with the unit, above a table and at an axis.
        names: the names of all numbers of the runs.
        said: sentences on values all of whose runs have failed, and on networks that the training has not helped.
        runs: the runs with a finite number, without copies.
        values: the number of each of these runs, accuracies in percent.
        lost: the failed and diverged runs whose configuration is known, also runs whose number is not finite.
        missing: the labels of all runs without a finite number, by the reason; of ``total`` runs.

    Raises:
        ConfigError: no run is finished, none has the number, or it is finite in none.
    """

    def __init__(self, table: DataFrame, metric: str | None, apart: Sequence[str] = ()) -> None:
        done = finished(table)
        if not len(done):
            states = ", ".join(f"{count} {state}" for state, count in Counter(table["state"]).items())
            raise ConfigError(f"no run is finished ({states or 'there is none'}): name others, or wait for these")
        self.name, self.names = choose(done, "--metric", metric), name_numbers(done["run"])
        self.metric, self.said, self.total = meaning(done, self.name), list[str](), len(table)
        self.title, self.label = self.name + ", percent" * (self.metric.scale == 100), label(self.name, self.metric)
        without_copies = once(done, self.name, apart)
        finite = list(map(math.isfinite, without_copies[self.name]))
        if not any(finite):
            raise ConfigError(f"no run has a finite {self.name}: name others, or look at what has diverged")
        self.runs, endless = without_copies.loc[finite], without_copies.index[[not one for one in finite]]
        values = zip(self.runs["run"], self.metric.scale * self.runs[self.name], strict=True)
        self.values = {run: float(value) for run, value in values}
        self.missing = missing(table, self.name)
        configured = table["run"].map(lambda run: bool(run.config))
        self.lost = table[configured & (table["state"].isin(LOST) | table.index.isin(endless))]

    def not_helped(self) -> list[str]:
        """A sentence on networks that were better before their training, by more than test images vary."""
        name = self.name.replace("/", "_init/", 1)
        if name not in self.runs or not self.metric.sign:
            return []
        rows, worse = self.runs[self.runs[name].notna()], 0
        for run, value, before in zip(rows["run"], rows[self.name], rows[name], strict=True):
            half = self.metric.half_width(value, before, self.image_counts.get(run.images, 0))
            worse += self.metric.sign * (value - before) < -half
        what = f"{worse} of {len(rows)} networks are not better than before the training"
        mean = f"({self.metric.text(rows[name].mean())} on average)"
        return [f"{what} {mean}: train longer before you compare."] * bool(worse)

    @property
    def below(self) -> list[str]:
        """The sentences below a table of the number, also on the runs that are left out."""
        return self.said + in_lines(self.missing, self.total)

    def record(self) -> dict[str, Any]:
        """The metric, its unit and the runs that are left out, as plain data."""
        left_out = [{"why": why, "runs": labels} for why, labels in self.missing.items()]
        unit = "percent" if self.metric.scale == 100 else "number"
        return {"metric": self.name, "unit": unit, "better": self.metric.better, "left_out": left_out}

    @functools.cached_property
    def image_counts(self) -> dict[str, int]:
        """The number of test images of each data set; empty if it was not recorded which images are correct."""
        bits = {run.images: self.bits(run) for run in reversed(self.values)}
        counts = {images: len(of_run) for images, of_run in bits.items() if of_run is not None}
        return counts if len(counts) == len(bits) else {}

    def bits(self, run: Run) -> np.ndarray | None:
        """Which test images a run classifies correctly [M]; None: that was not recorded."""
        entries = {(m, e["id"], e.get("images")): e for e in run.evaluations for m in e["metrics"]}
        key = next((key for key in entries if self.names[key] == self.name), None)
        return evaluations.read_hits(run.folder, entries[key], key[0]) if key else None


def notes(members: Sequence[Run]) -> list[str]:
    """Footnotes of a mean over runs: conditions in which these differ, and the warnings of the runs."""
    of_runs = [(run.seed, one) for run in members for one in run.warnings]
    warnings = [NOT_HELPED if one.endswith(NOT_HELPED) else f"seed {seed}: {one}" for seed, one in of_runs]
    differing = ", ".join(different([run.conditions for run in members]))
    return [f"mean over runs with different {differing}"] * bool(differing) + warnings


def different(
    results: Sequence[Mapping[str, Any]], names: Sequence[str] = (*runs.ENVIRONMENT, *runs.COMPUTED)
) -> list[str]:
    """The conditions in which results differ, each with its values.

    Args:
        results: the conditions of each.
        names: of those that count.
    """
    values = {name: {of[name]: None for of in results if of.get(name) is not None} for name in names}
    words = {"torch": "versions of torch", "cuda": "versions of CUDA", "git": "versions of the code"}
    differing = ((words.get(name, name), sorted(map(str, those))) for name, those in values.items() if len(those) > 1)
    return [f"{name} ({', '.join(those)})" for name, those in differing]
