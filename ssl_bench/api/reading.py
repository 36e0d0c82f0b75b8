"""Read what runs have left: tables of runs, figures, the rows of a run, its trained backbone."""

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

Folder = str | os.PathLike[str] | None  # of results; None: the usual one
Where = Mapping[str, Any] | None  # conditions on runs
Named = str | os.PathLike[str] | Mapping[str, Any]  # a run: its directory, its run_id, or its row of a table
Name = str | None  # of a setting, a value or a metric; None: the one that suggests itself


@contextlib.contextmanager
def _in_python() -> Iterator[None]:
    """Let a refusal name the argument of a function, as ``to=x``, where that of a command has ``--to x``."""
    try:
        yield
    except ConfigError as refusal:
        raise ConfigError(re.sub(r"^--(\w+)[ =]", r"\1=", str(refusal)).replace("set --", "set ")) from None


@_in_python()
def runs(outputs: Folder = None, where: Where = None, *, all: bool = False) -> DataFrame:
    """Make a table of the runs of a results folder, in the order of ``ssl-bench status``.

        table = ssl_bench.runs("outputs", where={"loss": ["dcl", "infonce"], "state": "finished"})
        table.groupby(["loss", "batch_size"])["knn/top1"].agg(["mean", "std", "count"])

    The columns are ``run_id``, ``experiment``, the main groups (``loss``, ``negatives``, ``temperature``,
    ``batch_size``, ``framework``, ``dataset``), what else varies, ``seed``, the main metrics (accuracies in [0, 1]) of
    finished runs, the keys of ``where``, ``state``, ``seconds``, ``warnings`` and ``path``. What a
    run does not have is None, or NaN among numbers.

    Args:
        outputs: the results folder, or that of an experiment in it; None: SSL_BENCH_OUTPUTS, or ``outputs``.
        where: conditions that all hold, as those of ``ssl-bench status``: a group, a key, a metric or ``state``
            with its value, a list of values, or a text such as ``">4"`` or ``"!=dcl"``; ``experiment`` with a name.
        all: after these columns, also those of all other settings and metrics, and ``environment.<name>``.

    Raises:
        ConfigError: there is no such folder or experiment, or no run has a key of ``where``.
    """
    return _shown(_chosen(outputs, where), where or (), all)


def table_of(folders: Iterable[Path]) -> DataFrame:
    """The rows of :func:`runs` for the runs in some directories, in their order."""
    return _shown(runs_table.of([run for folder in dict.fromkeys(folders) if (run := read(folder)).config]))


def _shown(table: DataFrame, asked: Iterable[str] = (), every: bool = False) -> DataFrame:
    """The columns of a table of runs that a person looks for, ``every`` other one behind them."""
    found = list[Run](table["run"])
    columns = dict[str, list[Any]]({name: list(table[name]) for name in table if name not in ("run", "reason")})
    columns |= {"seconds": [run.seconds for run in found], "warnings": ["; ".join(run.warnings) for run in found]}
    environment = dict.fromkeys(name for run in found for name in run.environment)
    columns |= {f"environment.{n}": [as_value(run.environment.get(n)) for run in found] for n in environment}
    names = ["run_id", "experiment", *runs_table.MAIN_GROUPS, *runs_table.varying(table), "seed"]
    names += [*runs_table.usual(table), *asked, "state", "seconds", "warnings", "path", *(columns if every else ())]
    return _frame({name: columns[name] for name in dict.fromkeys(names) if name in columns})


@_in_python()
def compare(
    outputs: Folder | DataFrame = None,
    *,
    by: str | Sequence[str] | None = None,
    to: Name = None,
    where: Where = None,
    metric: Name = None,
    margin: float | None = None,
    seed: str = "seed",
) -> DataFrame | WhatMatters:
    """Say what matters in a grid, or compare runs that differ in one setting and the seed, as ``ssl-bench compare``.

        ssl_bench.compare("outputs/grid").settings
        ssl_bench.compare("outputs/grid", by="loss", to="infonce")
        ssl_bench.compare(frame, by="loss", to="infonce", metric="acc")  # any table with a row for each run

    Args:
        outputs, where: as of :func:`runs`; or a table of which the other columns are settings, without ``where``.
        by: the setting, or several; None: say what matters.
        to: the value that the others are compared with; None: the one that most runs have.
        metric: such as ``linear/top1``; None: the main metric of most runs.
        margin: a difference that does not matter, of accuracies in percent as all numbers of the table.
        seed: the column of the seed in a table.

    Returns:
        With ``by`` a row for each comparison, as :func:`runs`, with the columns ``where``, ``of``, ``to``, ``n``,
        ``mean``, ``to_mean``, ``difference``, ``low`` and ``high`` (which hold together with those of the other rows),
        ``single_low`` and ``single_high`` (95%, of this row alone), ``varies``,
        ``verdict``. Without it a :class:`WhatMatters`.

    Raises:
        ConfigError: there is nothing to compare, or the margin is not positive.
    """
    from ssl_bench.results import any_table, comparison, matters  # with numpy

    given: Any = outputs
    of_folder = given is None or isinstance(given, str | os.PathLike)
    require(of_folder or not where, "where", where, "None: choose rows of the table before")
    table = _chosen(given, where) if of_folder else any_table.runs_of(given, metric, seed)
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
    outputs: Folder = None, *, rows: Name = None, columns: Name = None, where: Where = None, metric: Name = None
) -> DataFrame:
    """Mean and deviation over the seeds by two settings, as ``ssl-bench table``: a row for each place of the table.

        means = ssl_bench.table("outputs/grid", rows="loss", columns="batch_size")
        means.pivot(index="loss", columns="batch_size", values="mean")

    Args:
        outputs, where: as of :func:`runs`.
        rows, columns: settings, such as ``loss``, or the end of one that varies, such as ``k``; None: of the settings
            that the commands vary, the first and the second. Columns may be ``labels``: the shares of
            ``evaluate.labels``.
        metric: such as ``linear/top1``; None: the one that most runs have.

    Returns:
        As :func:`runs`, with the columns of the settings that vary, ``metric``, ``mean`` and ``std`` (accuracies in
        percent; None, or NaN, for one run), ``n`` (runs), ``best`` (of its column) and ``notes``.

    Raises:
        ConfigError: there is no such setting or metric, no run is finished, or too much else varies.
    """
    from ssl_bench.results.pivot import pivot  # with numpy

    pivots = pivot(_chosen(outputs, where), rows, columns, metric)
    return _frame([record for pivot in pivots for record in pivot.sheet().records or ()])


@_in_python()
def figure(
    outputs: Folder = None,
    *,
    x: Name = None,
    lines: Name = None,
    y: Name = None,
    where: Where = None,
    metric: Name = None,
) -> Figure:
    """Draw the means over the seeds as lines or as a heat map, as ``ssl-bench figure``.

    Lines have the seeds as small points, and the standard deviation over the seeds, pooled over a line, as error bars.

        ssl_bench.figure("outputs/grid", x="batch_size", lines="loss").savefig("f.pdf")

    Args:
        outputs, where: as of :func:`runs`.
        x: the setting on the x axis; None: as the columns of :func:`table`. ``epoch``: curves over the training, a line
            for each of what varies, with the deviation as a band; ``metric`` is then any value of ``metrics.jsonl``,
            None: ``watch/knn_top1``, kNN on a sample of the training images, or what else there is to compare by.
        lines: the setting of which each value is a line; None: as the rows of :func:`table`.
        y: the setting on the y axis of a heat map, in place of ``lines``.
        metric: as of :func:`table`.

    Returns:
        A figure with a panel for each value of what else varies, which a notebook shows.

    Raises:
        ConfigError: as :func:`table`; or both ``lines`` and ``y`` are given.
    """
    if (lines and y) or (x == "epoch" and (lines or y)):
        raise ConfigError(f"lines={lines}, y={y}: set lines for a plot, y for a heat map, and neither with x=epoch")
    from ssl_bench.results import curves, pivot  # with numpy

    chosen = _chosen(outputs, where)
    if x == "epoch":
        return curves.figure(*curves.curves(chosen, metric))
    return pivot.figure(pivot.pivot(chosen, y or lines, x, metric, ("y" if y else "lines", "x")), bool(y))


def _chosen(outputs: Folder, where: Where) -> DataFrame:
    """The runs that ``where`` selects, as words do on a command line; ``experiment`` or ``name`` is a word alone."""
    words = list[str]()
    for key, value in (where or {}).items():
        values = value if isinstance(value, list | tuple) else [value]
        text = ",".join("null" if one is None else runs_table.text_of(as_value(one)) for one in values)
        sign = "" if text.startswith(("!=", "<", ">")) else "="
        words += text.split(",") if key in ("name", "experiment") and sign else [f"{key}{sign}{text}"]
    return runs_table.chosen(words, None if outputs is None else files.given_path(outputs))


def curves(run: Named) -> DataFrame:
    """The rows of ``metrics.jsonl`` of a run as a table: ``step``, ``epoch``, ``loss``, the metrics of evaluations.

        curves = ssl_bench.curves(ssl_bench.runs().iloc[0])
        curves.plot(x="epoch", y="loss")

    Args:
        run: the directory of a run, its run_id below ``outputs``, or a row of :func:`runs`.

    Raises:
        ConfigError: there are no rows.
    """
    path = folder_of(run) / METRICS
    if not (recorded := read_rows(path)):
        raise ConfigError(f"{path} has no rows: name the directory of a run that was started")
    return _frame([{name: value for name, value in row.items() if name != "evaluations"} for row in recorded])


def load(run: Named) -> nn.Module:
    """The backbone of a run with the weights of its last checkpoint, in float32 on the CPU, in evaluation mode.

        features = ssl_bench.load("outputs/default/0123456789")(images)  # [N, C, H, W] -> [N, D]

    The images are those in [0, 1], or as they are if they are not uint8, normalised by ``dataset.mean`` and
    ``dataset.std`` of the run's ``config.yaml``.

    Args:
        run: the directory of a run, its run_id below ``outputs``, or a row of :func:`runs`.

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
    """The directory of a run, which may be named by its run_id, or the beginning of that, below ``outputs``."""
    if not isinstance(run, str):
        return files.given_path(run if isinstance(run, os.PathLike) else run["path"])
    folder, *others = runs_table.finished_folders([str(files.given_path(run))])
    require(not others, "run", run, f"the name of one run: {1 + len(others)} have this one")
    return folder


def _frame(content: Any) -> DataFrame:
    """A table of rows or of columns, in which a column of numbers that are not all there has NaN."""
    import pandas  # heavy: only where it is used

    try:
        return pandas.DataFrame(content)
    except UnicodeEncodeError:  # of paths that are no UTF-8, which pandas 3 keeps as objects only
        return pandas.DataFrame({**content, "path": list(map(Path, content["path"]))})
