"""The words that select runs, the same on every command, and the order of runs: ``--sort KEY``.

A word is a name or a condition. A name is that of an experiment, the run_id of a run or its beginning, or a folder: of
results, of an experiment or of a run, also elsewhere. Each name adds its runs; no name is all runs. Conditions must all
hold: ``loss=dcl,eqco`` (one of these), ``loss!=dcl``, ``negatives.k>4``, and likewise ``<``, ``<=`` and ``>=``. The key
of a condition is a setting, a metric such as ``knn/top1``, or ``state``, ``label``, ``epoch`` or ``speed``.
"""

import math
import operator
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ssl_bench import files
from ssl_bench.config.build import near
from ssl_bench.errors import ConfigError, require
from ssl_bench.record import grids, runs
from ssl_bench.results import table as runs_table
from ssl_bench.results.table import STATES

if TYPE_CHECKING:
    from pandas import DataFrame, Series

ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
CONDITION = re.compile(r"((?:[^\[\]=<>!]|\[[^\]]*\])+)(!=|<=|>=|=|<|>)(.*)", re.DOTALL)  # a key may be knn[k=20]/top1
FIELDS = ("state", "label", "epoch", "speed", "seed")
SHORTEST = 4  # characters of the beginning of a run_id


class Condition(NamedTuple):
    """A condition on runs, such as ``negatives.k>4``."""

    key: str
    sign: str
    value: str

    def holds(self, values: "Series", scale: float) -> "Series":
        """Whether the value of each run fits; with ``!=``, whether it does not.

        Args:
            scale: 100 of shares, which may also be given in percent: 1 is the whole, 60 is 0.6.
        """
        wanted = {_plain(text) for text in (self.value, *self.value.split(","))}  # a list is one value
        options = {one / scale if isinstance(one, float) and one > 1 else one for one in wanted}
        if self.sign in ORDERS:
            (bound,) = options
            return values.map(lambda one: isinstance(one := _plain(one), float) and ORDERS[self.sign](one, bound))
        return values.map(lambda one: (_plain(one) in options) == (self.sign == "="))


def read_condition(word: str) -> Condition | None:
    """The condition that a word is; None of a name, and of a path of a folder such as ``./lr=0.1``."""
    parts = None if word.startswith(("./", "../", "/")) and Path(word).is_dir() else CONDITION.fullmatch(word)
    return Condition(*parts.groups()) if parts else None


def chosen(words: Sequence[str], given: Path | None = None, sort: str | None = None) -> "DataFrame":
    """The runs that words select, by experiment and start or in another order.

    Args:
        given: ``paths.outputs``; None: the usual results folder.
        sort: a key; ``-KEY`` reverses the order. The best value of a metric comes first, the highest if it does not say
            what is better; states come by urgency, numbers before texts, and what has no value last.

    Raises:
        ConfigError: there is no such folder, a name selects nothing, no run has a key, or none the value of a
            condition.
    """
    names = [word for word in words if read_condition(word) is None]
    places = dict[str, tuple[Path, Path]]()  # of words that are folders: the results folder, and the folder
    outputs = given or files.usual_outputs()
    for name in names:
        folder = outputs / name if (outputs / name).is_dir() and not Path(name).is_absolute() else Path(name)
        if folder.is_dir() and (folder != Path(name) or _holds_runs(folder) or re.match(r"\.{0,2}/", name)):
            places[name] = _results_folder(folder), folder
    roots = [root for root, _ in places.values()]
    if len(places) < len(names) or not names:
        others = f", or leave out {' '.join(names)}, which is no folder" if names else ""
        require(outputs.is_dir(), "paths.outputs", outputs, f"the folder of the results{others}")
        usual = _results_folder(outputs)
        roots = [usual, *roots]
        if usual != outputs and not names:
            names, places = [str(outputs)], {str(outputs): (usual, outputs)}
    table = runs_table.read(*{root.resolve(): root for root in roots}.values())
    table = _of_names(table, names, {word: folder for word, (_, folder) in places.items()}, outputs) if names else table
    return select(table, [one for word in words if (one := read_condition(word))], sort)


def finished_folders(words: Sequence[str], given: Path | None = None) -> list[Path]:
    """The directories of the finished runs that words select; how many others there are is printed.

    A run that is the only one is returned even if it is not finished.

    Raises:
        ConfigError: nothing is named, or none of several runs is finished.
    """
    if not words:
        raise ConfigError("no run is named: give an experiment, a run_id, a folder or a condition such as loss=dcl")
    if len(words) == 1 and (Path(words[0]) / runs.CONFIG).exists():
        return [Path(words[0])]
    found = [run for run in chosen(words, given)["run"] if run.folder]
    folders = [run.folder for run in found if len(found) == 1 or (run.finished and not run.owner)]
    if not folders:
        raise ConfigError(f"{' '.join(words)}: none of the {len(found)} runs is finished")
    if left := len(found) - len(folders):
        print(f"{left} of {len(found)} runs are not finished, and left out", file=sys.stderr)
    return folders


def _holds_runs(folder: Path) -> bool:
    """Whether a folder is a run, or has runs or experiments inside."""
    return (folder / runs.CONFIG).exists() or (folder / runs.RESULTS).exists() or any(runs.folders(folder))


def _results_folder(folder: Path) -> Path:
    """The results folder of a folder, which is a run, an experiment or a results folder."""
    is_run = runs.RUN_ID.fullmatch(folder.resolve().name) and _holds_runs(folder)
    experiment = _above(folder) if is_run else folder
    has_runs = any(runs.RUN_ID.fullmatch(one.name) or one.match(grids.FILES) for one in experiment.iterdir())
    return _above(experiment) if has_runs else experiment


def _above(folder: Path) -> Path:
    return folder.parent if folder.name not in ("", "..") else folder.absolute().parent


def _of_names(table: "DataFrame", names: Sequence[str], folders: dict[str, Path], outputs: Path) -> "DataFrame":
    """The runs of all names; of two copies of a run the one in the named experiment."""
    kept = dict[int, None]()
    for word in names:
        below = str(folders[word].resolve()) + "/" if word in folders else None
        name = word.removeprefix(f"{outputs}/").strip("/")
        own, others = list[int](), list[int]()
        for place, run in zip(table.index, table["run"], strict=True):
            own_names = (run.experiment, run.folder and run.folder.name) if below is None or run.folder is None else ()
            if name in own_names or (below and run.folder and f"{run.folder.resolve()}/".startswith(below)):
                own.append(place)
            elif name in run.asked_by:
                others.append(place)
        there = {table["run_id"][place] for place in own} - {None}
        found = own + [place for place in others if table["run_id"][place] not in there]
        if not found and len(name) >= SHORTEST:
            ids = table["run_id"].map(lambda one: one is not None and one.startswith(name))  # noqa: B023
            found = list(table.index[ids])
            if len(several := sorted({table["run_id"][place] for place in found})) > 1:
                raise ConfigError(f"{word}: the run_ids of {len(several)} runs begin so: {', '.join(several[:4])}")
        if not found:
            there = {*table["experiment"]}.union(*(run.asked_by for run in table["run"]))
            raise ConfigError(f"{word}: no run below {outputs} has this name or folder{near(word, sorted(there))}")
        kept |= dict.fromkeys(found)
    return runs_table.with_numbers(table.loc[sorted(kept)])


def select(table: "DataFrame", conditions: Sequence[Condition], sort: str | None = None) -> "DataFrame":
    """The runs for which all conditions hold, in the order of a key; a metric has its name among those that remain."""
    metrics = {name for (name, *_) in runs_table.name_numbers(table["run"])}
    for one in sorted(conditions, key=lambda one: one.key in metrics):
        if one.sign in ORDERS:
            bound, remedy = _plain(one.value), f"a number, such as {one.key}{one.sign}4"
            require(isinstance(bound, float) and not math.isnan(bound), "".join(one), one.value, remedy)
        if one.key in ("name", "folder"):
            raise ConfigError(f"{''.join(one)}: an experiment, a run or a folder is named by a word alone: {one.value}")
        name, values, scale = _values(table, "", one.key)
        kept = one.holds(values, scale)
        if one.sign == "=" and not kept.any() and name not in ("epoch", "speed") and scale == 1 and len(table):
            there = STATES if name == "state" else [runs_table.text_of(v) for v in runs_table.in_order(list(values))]
            remedy = f"one of {', '.join(filter(None, there))}{near(one.value, there)}"
            require(name == "state" and one.value in there, name, one.value, remedy)
        table = runs_table.with_numbers(table[kept.astype(bool)])
    if not sort:
        return table
    key, values, _ = _values(table, "--sort", sort.removeprefix("-"))
    high_first = "/" in key and runs_table.meaning(table, key).sign >= 0
    known = values[values.map(lambda one: one is not None and one == one)]
    order = known.map(lambda one: STATES.index(one) if key == "state" else runs_table.order(_plain(one)))
    places = sorted(known.index, key=order.__getitem__, reverse=sort.startswith("-") != high_first)
    return table.loc[[*places, *(place for place in table.index if place not in known.index)]]


def _values(table: "DataFrame", flag: str, key: str) -> tuple[str, "Series", float]:
    """The name of a key, its value for each run, and by which numbers of it are multiplied where they are printed.

    Raises:
        ConfigError: no run has the key, or it may mean several numbers.
    """
    from pandas import Series

    if key in ("label", "epoch", "speed"):
        of_progress = [getattr(run.progress, key, None) for run in table["run"]]
        values = runs_table.labels(table) if key == "label" else of_progress
        return key, Series(values, index=table.index, dtype=object), 1.0
    if key not in table and key in {name for (name, *_) in runs_table.name_numbers(table["run"])}:
        key, _ = runs_table.choose(table, flag or "the metric", key)
    if key in table and key not in ("run", "reason", "path"):
        return key, table[key], runs_table.meaning(table, key).scale if "/" in key else 1.0
    if not len(table):
        return key, Series([], dtype=object), 1.0
    keys = [*FIELDS, *runs_table.numbers(table), *runs_table.settings(table)]
    what = f"{flag} {key}".strip()
    raise ConfigError(f"{what}: no run has this key{near(key, keys)}; set it to a field, a metric, a group or a key")


def _plain(value: Any) -> Any:
    """A number, of b64 64, or text without the blanks and quotes in which a list may be written in several ways."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    try:
        return float(value.removeprefix("b") if isinstance(value, str) else value)
    except ValueError:
        return re.sub(r"[\s'\"]", "", str(value))
