"""Read runs: tables and comparisons of runs, figures, the rows of their metrics, and trained backbones."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssl_bench import files
from ssl_bench.errors import ConfigError, require
from ssl_bench.record.printing import text_of
from ssl_bench.record.runs import METRICS, Run, as_value, read, read_rows
from ssl_bench.results import table as runs_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame
    from torch import nn

    from ssl_bench.results.matters import Matters

Named = str | os.PathLike[str] | Mapping[str, Any]  # a word as on a command line, a path, or a row of a table of runs
Words = Named | Sequence[Named] | None  # None: all runs of the results folder
Where = Mapping[str, Any] | None  # conditions on runs
Name = str | None  # of a setting, a value or a metric; None: the one that suggests itself


@contextlib.contextmanager
def _in_python() -> Iterator[None]:
    """Name the argument of the function, ``to=x``, in a refusal that names the flag of the command, ``--to x``."""
    try:
        yield
    except ConfigError as refusal:
        raise ConfigError(re.sub(r"^--(\w+)[ =]", r"\1=", str(refusal)).replace(" --", " ")) from None


@_in_python()
def runs(words: Words = None, where: Where = None, *, all: bool = False) -> DataFrame:
    """Make a table of runs, in the order of ``ssl-bench status``.

        table = ssl_bench.runs("grid", where={"loss": ["dcl", "infonce"], "state": "finished"})
        table.groupby(["loss", "batch_size"])["knn/top1"].agg(["mean", "std", "count"])

    The columns are ``run_id``, ``experiment``, the main groups (``loss``, ``negatives``, ``temperature``,
    ``batch_size``, ``framework``, ``dataset``), the other settings in which the runs differ, ``seed``, the main metrics
    of finished runs (accuracies in [0, 1]), the keys of the conditions, ``state``, ``seconds``, ``warnings`` and
    ``path``. A value that a run does not have is None, or NaN in a column of numbers.

    Args:
        words: the runs, by what ``ssl-bench status`` takes: the name of an experiment, the run_id of a run or its first
            characters, a folder of results, of an experiment or of a run, a condition such as ``"loss=dcl"``; or a list
            of these. None: all runs of the results folder, which is SSL_BENCH_OUTPUTS, or ``outputs``.
        where: further conditions that all hold: a setting, a metric or ``state`` with its value, a list of values, or a
            text such as ``">4"`` or ``"!=dcl"``.
        all: after these columns, also those of all other settings and metrics, and ``environment.<name>``.

    Raises:
        ConfigError: there is no such run, experiment or folder, or no run has a key of a condition.
    """
    conditions = filter(None, map(runs_table.read_condition, texts := _words(words, where)))
    return _shown(runs_table.chosen(texts), [one.key for one in conditions], all)


def table_of(folders: Iterable[Path]) -> DataFrame:
    """The rows of :func:`runs` for the runs in some directories, in their order."""
    return _shown(runs_table.of([run for folder in dict.fromkeys(folders) if (run := read(folder)).config]))


def _shown(table: DataFrame, keys: Iterable[str] = (), every: bool = False) -> DataFrame:
    """The columns that :func:`runs` returns, of which some keys are wanted in any case.

    Args:
        every: also the columns of all other settings and metrics.
    """
    members = list[Run](table["run"])
    columns = dict[str, list[Any]]({name: list(table[name]) for name in table if name not in ("run", "reason")})
    columns |= {"seconds": [run.seconds for run in members], "warnings": ["; ".join(run.warnings) for run in members]}
    environment = dict.fromkeys(name for run in members for name in run.environment)
    columns |= {f"environment.{n}": [as_value(run.environment.get(n)) for run in members] for n in environment}
    names = ["run_id", "experiment", *runs_table.MAIN_GROUPS, *runs_table.varying(table), "seed"]
    names += [*runs_table.usual(table), *keys, "state", "seconds", "warnings", "path", *(columns if every else ())]
    return _frame({name: columns[name] for name in dict.fromkeys(names) if name in columns})


@_in_python()
def compare(
    words: Words | DataFrame = None,
    *,
    by: str | Sequence[str] | None = None,
    to: Name = None,
    where: Where = None,
    metric: Name = None,
    margin: float | None = None,
    seed: str = "seed",
) -> DataFrame | WhatMatters:
    """Say what matters in a grid, or compare runs that differ in one setting and the seed, as ``ssl-bench compare``.

        ssl_bench.compare("grid").settings
        ssl_bench.compare("grid", by="loss", to="infonce")
        ssl_bench.compare(frame, by="loss", to="infonce", metric="acc")  # any table with a row for each run

    Args:
        words, where: as of :func:`runs`; or, without ``where``, a table of pandas or the name of a CSV file, whose
            columns other than ``metric`` and ``seed`` are settings.
        by: the setting, or several; None: say what matters.
        to: the value that the others are compared with; None: the one that most runs have.
        metric: such as ``linear/top1``; None: the main metric of most runs.
        margin: a difference that does not matter, of accuracies in percent as all numbers of the table.
        seed: the column of the seed in a table.

    Returns:
        With ``by`` a row for each comparison: ``where`` (the settings of its runs, or all cells), ``of`` and ``to``
        (the two values), ``n`` (runs of the value that has fewer), ``seeds`` (that both values have), ``mean`` and
        ``to_mean``, ``difference``, ``low`` and ``high`` (of its interval, which holds together with those of the other
        rows), ``single_low`` and ``single_high`` (of a 95% interval of this row alone), ``varies`` (``seeds`` or
        ``images``, whichever adds more to the interval), ``verdict``, ``cells`` (over which it is a mean), ``vary``
        (whether these cells differ by more than chance), ``by_seed`` (whether a seed moves the difference alike in all
        of them), ``differ`` (other settings in which the runs differ) and ``commands`` (which train missing runs).
        Without ``by`` a :class:`WhatMatters`.

    Raises:
        ConfigError: there is nothing to compare, or the margin is not positive.
    """
    from ssl_bench.results import any_table, comparison, matters  # with numpy

    given: Any = words
    of_table = hasattr(given, "columns") or str(given).endswith(".csv")
    require(not of_table or not where, "where", where, "None: choose rows of the table before")
    table = any_table.runs_of(given, metric, seed) if of_table else runs_table.chosen(_words(given, where))
    if by is None:
        require(to is None, "by", None, "the setting whose values to is about")
        return WhatMatters(matters.what_matters(table, metric, margin))
    return _frame(comparison.compare(table, by, to, metric, margin).rows)


class WhatMatters:
    """The settings of a grid and how much each matters; as a text it is that of ``ssl-bench compare``.

    Attributes:
        settings: a table with a row for each setting: ``setting``, ``difference`` (the largest between the means of two
            of its levels), ``low``, ``high`` (of its interval, which holds together with the others), ``from``, ``to``
            (the levels with the lower and the higher mean), ``verdict``, ``per_doubling``.
        record: all of it as plain data, as ``--format json`` has it.
    """

    def __init__(self, matters: Matters) -> None:
        self._matters, self.record, self.settings = matters, matters.data, _frame(matters.data["settings"])

    def figure(self) -> Figure:
        """A figure of the differences with their intervals, as :func:`figure`."""
        return self._matters.figure()

    def __str__(self) -> str:
        return text_of([self._matters.sheet()], "rich")

    __repr__ = __str__


@_in_python()
def table(
    words: Words = None, *, rows: Name = None, columns: Name = None, where: Where = None, metric: Name = None
) -> DataFrame:
    """Mean and deviation over the seeds by two settings, or a table of a paper, as ``ssl-bench table``: a row a cell.

        means = ssl_bench.table("grid", rows="loss", columns="batch_size")
        means.pivot(index="loss", columns="batch_size", values="mean")
        ssl_bench.table("dcl/table1")  # the paper's numbers and yours

    Args:
        words, where: as of :func:`runs`; or the name of a paper's table, and conditions ``row`` and ``col``.
        rows, columns: settings, such as ``loss``, or the end of one that varies, such as ``k``; None: of the settings
            that the commands vary, the first and the second. Columns may be ``labels``: the shares of
            ``evaluate.labels``.
        metric: such as ``linear/top1``; None: the one that most runs have.

    Returns:
        Of runs the columns of the settings that vary, ``metric``, ``mean`` and ``std`` (accuracies in percent; None, or
        NaN, for one run), ``n`` (runs), ``best`` (of its column) and ``notes``. Of a paper ``table``, ``row``,
        ``column``, ``metric``, ``paper`` (its number), ``mean``, ``std`` and ``n`` (of your runs), ``note``,
        ``project``, ``project_std`` and ``project_n`` (of the runs that are committed with this package),
        ``difference`` (your mean minus the paper's number) and ``best`` (which of these numbers are the best).

    Raises:
        ConfigError: there is no such setting or metric, no run is finished, or too much else varies.
    """
    from ssl_bench.papers.sheets import printed
    from ssl_bench.results.pivot import pivot  # with numpy

    if selection := _of_paper(words, where):
        made = printed(selection)
    else:
        made = [one.sheet() for one in pivot(runs_table.chosen(_words(words, where)), rows, columns, metric)]
    return _frame([record for sheet in made for record in sheet.records or ()])


@_in_python()
def figure(
    words: Words = None, *, x: Name = None, lines: Name = None, y: Name = None, where: Where = None, metric: Name = None
) -> Figure:
    """Draw means over the seeds as lines or as a heat map, or a paper's figure, as ``ssl-bench figure``.

    Lines have the seeds as small points, and the standard deviation over the seeds, pooled over a line, as error bars.

        ssl_bench.figure("grid", x="batch_size", lines="loss").savefig("f.pdf")

    Args:
        words, where: as of :func:`table`.
        x: the setting on the x axis; None: as the columns of :func:`table`. ``epoch``: curves over the training, a line
            for each of what varies, with the deviation as a band; ``metric`` is then any value of ``metrics.jsonl``,
            None: ``watch/knn_top1``, kNN on a sample of the training images, or what else there is to compare by.
        lines: the setting of which each value is a line; None: as the rows of :func:`table`.
        y: the setting on the y axis of a heat map, in place of ``lines``.
        metric: as of :func:`table`.

    Returns:
        A figure with a panel for each value of what else varies, or each table of a paper; a notebook shows it.

    Raises:
        ConfigError: as :func:`table`; or both ``lines`` and ``y`` are given.
    """
    if selection := _of_paper(words, where):
        from ssl_bench.papers.sheets import drawn

        return drawn(selection)
    from ssl_bench.results.pivot import draw  # with numpy

    return draw(runs_table.chosen(_words(words, where)), x, lines, y, metric)


def _of_paper(words: Words, where: Where) -> Any:
    """The tables of papers that words select; None: they select runs."""
    from ssl_bench.papers.selection import selected

    texts = _words(words, where)
    settings = [*filter(runs_table.read_condition, texts)]
    return selected([text for text in texts if text not in settings], settings) if texts else None


def _words(words: Words, where: Where = None) -> list[str]:
    """The words of a command line that select what the arguments of a function do."""
    several: Any = [] if words is None else words if isinstance(words, list | tuple) else [words]
    paths = [one if isinstance(one, str | os.PathLike) else one["path"] for one in several]
    texts = [str(files.given_path(path) if isinstance(path, str) else Path(path).absolute()) for path in paths]
    for key, value in (where or {}).items():
        values = value if isinstance(value, list | tuple) else [value]
        text = ",".join("null" if one is None else runs_table.text_of(as_value(one)) for one in values)
        texts.append(f"{key}{text}" if text.startswith(("!=", "<", ">")) else f"{key}={text}")
    return texts


@_in_python()
def curves(words: Words = None, where: Where = None) -> DataFrame:
    """The rows of ``metrics.jsonl`` of runs, one run after the other.

        curves = ssl_bench.curves("grid")
        seaborn.lineplot(curves, x="epoch", y="loss", hue="label")  # mean and interval over the seeds

    Args:
        words, where: as of :func:`runs`.

    Returns:
        The columns ``run_id``, ``label`` (the settings in which these runs differ, without the seed, such as
        ``loss=dcl``), ``seed``, and those of the rows: ``step``, ``epoch``, ``seconds``, ``loss``, ``lr``, and whatever
        the training and its evaluations recorded. What a row does not have is NaN.

    Raises:
        ConfigError: there is no such run, or none has a row.
    """
    chosen, recorded = runs_table.chosen(_words(words, where)), list[dict[str, Any]]()
    names = runs_table.varying(chosen)
    for run in chosen.to_dict("records"):
        of_run = {"run_id": run["run_id"], "label": runs_table.words_of(run, names), "seed": run["seed"]}
        recorded += [of_run | row for row in read_rows(run["run"].folder / METRICS)]
    if not recorded:
        raise ConfigError(f"none of {len(chosen)} runs has rows in {METRICS}: name runs that have begun")
    return _frame(recorded).drop(columns="evaluations", errors="ignore")


def load(run: Named) -> nn.Module:
    """The backbone of a run with the weights of its last checkpoint, in float32 on the CPU, in evaluation mode.

        features = ssl_bench.load("6da5")(images)  # [N, C, H, W] -> [N, D]

    The images are those in [0, 1], or as they are if they are not uint8, normalised by ``dataset.mean`` and
    ``dataset.std`` of the run's ``config.yaml``.

    Args:
        run: its run_id or the first characters of that, its folder, or a row of :func:`runs`.

    Raises:
        ConfigError: there is no run, or its configuration cannot be built.
        RunError: there is no checkpoint that can be read.
    """
    import torch

    from ssl_bench.training.finished import load_run, read_config

    folder = folder_of(run)
    loaded = load_run(folder, read_config(folder) | {"precision": "fp32"}, torch.device("cpu"))
    return loaded.method.encoder.get_submodule("backbone").eval()


def folder_of(run: Named) -> Path:
    """The directory of one run."""
    folder, *others = runs_table.finished_folders(_words(run))
    require(not others, "run", run, f"the name of one run: {1 + len(others)} have this one")
    return folder


def _frame(content: Any) -> DataFrame:
    """A table of rows or of columns, in which a column of numbers that are not all there has NaN."""
    import pandas  # heavy: only where it is used

    try:
        return pandas.DataFrame(content)
    except UnicodeEncodeError:  # of paths that are no UTF-8, which pandas 3 keeps as objects only
        return pandas.DataFrame({**content, "path": list(map(Path, content["path"]))})
