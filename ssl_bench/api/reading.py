"""Read what runs have left: a table of all runs, the rows of one, its trained backbone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssl_bench import files
from ssl_bench.errors import ConfigError
from ssl_bench.record.metrics import Row
from ssl_bench.results import keys
from ssl_bench.results.labels import labels
from ssl_bench.results.runs import METRICS, as_text
from ssl_bench.results.scan import Entry, Scan
from ssl_bench.results.select import select

if TYPE_CHECKING:
    from torch import nn


def runs(outputs: str | os.PathLike[str] = "outputs", where: Mapping[str, Any] | None = None) -> Any:
    """Make a table of the runs of a results folder, in the order of ``ssl-bench status``.

        table = ssl_bench.runs("outputs", where={"loss": ["dcl", "infonce"], "state": "done"})
        table.groupby(["loss", "batch_size"])["knn/top1"].agg(["mean", "std", "count"])

    A column for each group (``loss``, ``dataset``, ...) and each other setting that varies, ``seed``, one for each
    metric (of an unfinished run the best accuracies so far, in [0, 1]), ``state``, ``seconds``, ``path`` and
    ``run_id``. What a run does not have is None, or NaN among numbers.

    Args:
        outputs: the results folder.
        where: conditions that all hold, as those of ``ssl-bench status --where``: a group, a key, a metric or ``state``
            with its value, or a list of values.

    Returns:
        A ``pandas.DataFrame``; a list of dictionaries if pandas is not installed.

    Raises:
        ConfigError: there is no such folder, or no run has a key of ``where``.
    """
    outputs = files.given_path(outputs)
    if not outputs.is_dir():
        raise ConfigError(f"there is no folder {outputs}: name the folder that paths.outputs was set to")
    entries, _ = Scan(outputs).update(time.time())
    conditions = [f"{key}={','.join(map(as_text, _listed(value)))}" for key, value in (where or {}).items()]
    shown = select(list(zip(entries, labels(entries), strict=True)), conditions, None)
    return _rows([entry for entry, _ in shown])


def table_of(folders: Sequence[Path], outputs: Iterable[Path]) -> Any:
    """The rows of :func:`runs` for the runs with some directories below some results folders, in their order."""
    entries = [entry for each in outputs for entry in Scan(each).update(time.time())[0]]
    found = {entry.run.folder: entry for entry in entries if entry.run}
    return _rows([found[folder] for folder in dict.fromkeys(folders) if folder in found])


def _rows(chosen: Sequence[Entry]) -> Any:
    groups = {group for entry in chosen if entry.run for group in entry.run.shared.groups}
    common = {name: value for name, value in keys.compare(chosen, []).common.items() if name in groups}
    ids = [{"run_id": entry.run.folder.name if entry.run else None} for entry in chosen]
    return _table([common | row | own for row, own in zip(keys.rows(chosen), ids, strict=True)])


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def curves(run: str | os.PathLike[str] | Mapping[str, Any]) -> Any:
    """The rows of ``metrics.jsonl`` of a run as a table: ``step``, ``epoch``, ``loss``, the metrics of evaluations.

        curves = ssl_bench.curves(ssl_bench.runs().iloc[0])
        curves.plot(x="epoch", y="loss")

    Args:
        run: the directory of a run, or a row of :func:`runs`.

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
        run: the directory of a run, or a row of :func:`runs`.

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
    return files.given_path(run if isinstance(run, str | os.PathLike) else run["path"])


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
