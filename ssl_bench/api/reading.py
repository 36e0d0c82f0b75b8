"""Read what runs have left: a table of all runs, the rows of one, its trained backbone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssl_bench import files
from ssl_bench.errors import ConfigError
from ssl_bench.record.folders import named
from ssl_bench.record.index import METRICS, as_text
from ssl_bench.record.metrics import Row
from ssl_bench.results.differing import labels
from ssl_bench.results.rows import rows as rows_of
from ssl_bench.results.scan import Scan
from ssl_bench.results.select import finished, scanned, select

if TYPE_CHECKING:
    from torch import nn


def runs(outputs: str | os.PathLike[str] = "outputs", where: Mapping[str, Any] | None = None) -> Any:
    """Make a table of the runs of a results folder, in the order of ``ssl-bench status``.

        table = ssl_bench.runs("outputs", where={"loss": ["dcl", "infonce"], "state": "done"})
        table.groupby(["loss", "batch_size"])["knn/top1"].agg(["mean", "std", "count"])

    A column for each group (``loss``, ``dataset``, ...), ``seed``, each other setting, each metric (of an unfinished
    run the best accuracies so far, in [0, 1]), ``state``, ``seconds``, ``warnings``, ``environment.<name>``,
    ``path`` and ``run_id``. What a run does not have is None, or NaN among numbers.

    Args:
        outputs: the results folder.
        where: conditions that all hold, as those of ``ssl-bench status --where``: a group, a key, a metric or ``state``
            with its value, or a list of values.

    Returns:
        A ``pandas.DataFrame``; a list of dictionaries if pandas is not installed.

    Raises:
        ConfigError: there is no such folder, or no run has a key of ``where``.
    """
    scan, conditions = scanned(files.given_path(outputs), _conditions(where))
    entries, _ = scan.update(time.time())
    shown = select(list(zip(entries, labels(entries), strict=True)), conditions, None)
    return _table(rows_of([entry for entry, _ in shown]))


def table_of(folders: Sequence[Path], outputs: Iterable[Path]) -> Any:
    """The rows of :func:`runs` for the runs with some directories below some results folders, in their order."""
    entries = [entry for each in outputs for entry in Scan(each).update(time.time())[0]]
    found = {entry.run.folder: entry for entry in entries if entry.run}
    return _table(rows_of([found[folder] for folder in dict.fromkeys(folders) if folder in found]))


def compare(
    outputs: str | os.PathLike[str] = "outputs",
    *,
    by: str | Sequence[str],
    to: str | None = None,
    where: Mapping[str, Any] | None = None,
    metric: str | None = None,
    margin: float | None = None,
) -> Any:
    """Compare runs that differ in one setting and the seed, as ``ssl-bench compare``: a row for each comparison.

        ssl_bench.compare("outputs", by="loss", to="infonce", where={"name": "grid"})

    Args:
        outputs, where: as of :func:`runs`.
        by: the setting, or several.
        to: the value that the others are compared with; None: the one that most runs have.
        metric: such as ``linear/top1``; None: the one that most runs are told by.
        margin: a difference that does not matter, of accuracies in percent as all numbers of the table.

    Returns:
        As :func:`runs`, with the columns ``where``, ``of``, ``to``, ``n``, ``mean``, ``to_mean``, ``difference``,
        ``low`` and ``high`` (95% interval), ``varies``, ``verdict``, ``more`` (seeds that would decide).

    Raises:
        ConfigError: there is nothing to compare.
    """
    runs = finished(files.given_path(outputs), _conditions(where))
    from ssl_bench.results import comparison  # with numpy

    return _table([cell.record() for cell in comparison.compare(runs, by, to, metric, margin).cells])


def _conditions(where: Mapping[str, Any] | None) -> list[str]:
    return [f"{key}={','.join(map(as_text, _listed(value)))}" for key, value in (where or {}).items()]


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def curves(run: str | os.PathLike[str] | Mapping[str, Any]) -> Any:
    """The rows of ``metrics.jsonl`` of a run as a table: ``step``, ``epoch``, ``loss``, the metrics of evaluations.

        curves = ssl_bench.curves(ssl_bench.runs().iloc[0])
        curves.plot(x="epoch", y="loss")

    Args:
        run: the directory of a run, its run_id below ``outputs``, or a row of :func:`runs`.

    Returns:
        As :func:`runs`.

    Raises:
        ConfigError: there are no rows.
    """
    path = _folder(run) / METRICS
    if not (rows := files.read_json_lines(path, Row)):
        raise ConfigError(f"{path} has no rows: name the directory of a run that was started")
    return _table(rows)


def load(run: str | os.PathLike[str] | Mapping[str, Any]) -> nn.Module:
    """The backbone of a run with the weights of its last checkpoint, in float32 on the CPU, in evaluation mode.

        features = ssl_bench.load("outputs/default/0123456789")(images)  # [N, C, H, W] -> [N, D]

    The images are those in [0, 1], normalised by ``dataset.mean`` and ``dataset.std`` of the run's ``config.yaml``.

    Args:
        run: the directory of a run, its run_id below ``outputs``, or a row of :func:`runs`.

    Raises:
        ConfigError: there is no run, or its configuration cannot be built.
        RunError: there is no checkpoint that can be read.
    """
    import torch

    from ssl_bench.training.parts import load_run, read_config

    folder = _folder(run)
    loaded = load_run(folder, read_config(folder) | {"precision": "fp32"}, torch.device("cpu"))
    return loaded.parts.method.encoder.get_submodule("backbone").eval()


def _folder(run: str | os.PathLike[str] | Mapping[str, Any]) -> Path:
    """The directory of a run; that of a run_id is below ``outputs``."""
    if isinstance(run, str):
        return named(str(files.given_path(run)), Path("outputs"))
    return files.given_path(run if isinstance(run, os.PathLike) else run["path"])


def _table(rows: list[dict[str, Any]]) -> Any:
    try:
        import pandas
    except ModuleNotFoundError:
        return rows
    try:
        return pandas.DataFrame(rows)
    except UnicodeEncodeError:  # of paths that are no UTF-8, which pandas 3 keeps as objects only
        for row in rows:
            row["path"] = Path(row["path"])
        return pandas.DataFrame(rows)
