"""Find the finished runs of a cell: those with the run_id of its overrides.

Hydra is imported only when a cell's configuration is composed.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ssl_bench import files
from ssl_bench.config.identity import run_id
from ssl_bench.papers.tables import Cell, Table, is_accuracy
from ssl_bench.record.metrics import read_rows

SEED = 907_340_511  # placeholder: a configuration is composed once with it, and any other seed is put in afterwards
NOT_COMPARED = ("name", "evaluate")  # groups that are not compared before a run_id is computed


@dataclass(frozen=True)
class FinishedRun:
    """A run with results."""

    run_id: str
    folder: Path
    config: Mapping[str, Any]
    metrics: Mapping[str, float]

    @property
    def scale(self) -> str:
        """``full``, ``reduced`` or ``smoke``."""
        return str(self.config.get("scale", "full"))

    def value(self, metric: str) -> float | None:
        """Value of a metric as papers print it, accuracies in percent; None if the run lacks it.

        ``name@50`` is the value at epoch 50. A metric that is only recorded during training has its last value.
        """
        name, _, epoch = metric.partition("@")
        value = None if epoch else self.metrics.get(name)
        if value is None:
            rows = [row for row in read_rows(self.folder / "metrics.jsonl") if isinstance(row.get(name), int | float)]
            rows = [row for row in rows if abs(row.get("epoch", -1) - float(epoch)) < 1e-6] if epoch else rows
            value = rows[-1][name] if rows else None
        return None if value is None else float(value) * (100 if is_accuracy(name) else 1)


def finished(outputs: Path) -> list[FinishedRun]:
    """Every run with a ``results.json`` in a folder or below it, each run_id once."""
    runs: dict[str, FinishedRun] = {}
    for path in sorted(outputs.glob("**/results.json")):
        data = files.read_json(path)
        if isinstance(data, dict) and isinstance(data.get("metrics"), dict) and isinstance(data.get("config"), dict):
            runs.setdefault(data["run_id"], FinishedRun(data["run_id"], path.parent, data["config"], data["metrics"]))
    return list(runs.values())


def compose(overrides: Sequence[str], command: str = "train", seed: int = 0) -> dict[str, Any]:
    """Compose the configuration of a command with overrides and a seed.

    Raises:
        ConfigError: an override names an option or a key that does not exist.
    """
    config: dict[str, Any] = _with_seed(copy.deepcopy(_composed(tuple(overrides), command)), seed)
    return config


@cache
def _composed(overrides: tuple[str, ...], command: str) -> dict[str, Any]:
    from ssl_bench.config.compose import load  # imports Hydra

    return load([*overrides, f"seed={SEED}"], primary=command)


def _with_seed(node: Any, seed: int) -> Any:
    """``node`` with ``seed`` instead of the placeholder."""
    if isinstance(node, dict):
        return {key: _with_seed(value, seed) for key, value in node.items()}
    if isinstance(node, list):
        return [_with_seed(value, seed) for value in node]
    return seed if node == SEED else node


def cell_run_id(cell: Cell, seed: int) -> str:
    """The run_id of a cell's run with a seed."""
    return run_id(compose(cell.overrides, cell.command, seed))


def of_cell(cell: Cell, runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """The full-scale runs that fill a cell, by seed."""
    if not cell.available:
        return []
    settings = {k: v for k, v in cell.settings.items() if k.split(".")[0] not in NOT_COMPARED}
    settings = {k: v for k, v in settings.items() if k == "dataset" or "." in k}
    candidates = [run for run in runs if run.scale == "full" and _agrees(settings, run.config)]
    exact = [run for run in candidates if cell_run_id(cell, run.config["seed"]) == run.run_id]
    return sorted(exact, key=lambda run: run.config["seed"])


def reduced(table: Table, cell: Cell, runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """Runs of ``scale=reduced`` that agree with a cell in the settings that distinguish it within its table.

    If they were made with several other settings, those with the most epochs.
    """
    if not cell.available:
        return []
    families: dict[str, list[FinishedRun]] = {}
    for run in runs:
        if run.scale == "reduced" and _agrees(table.axes(cell), run.config):
            content = {k: v for k, v in run.config.items() if k not in ("paths", "tracking", "name")}
            families.setdefault(json.dumps(_without_seeds(content), sort_keys=True), []).append(run)
    return max(families.values(), key=lambda family: (family[0].config["epochs"], len(family)), default=[])


def _without_seeds(node: Any) -> Any:
    """``node`` without its key ``seed``, in every mapping of it."""
    if isinstance(node, dict):
        return {key: _without_seeds(value) for key, value in node.items() if key != "seed"}
    return node


def _agrees(settings: Mapping[str, str], config: Mapping[str, Any]) -> bool:
    """Whether a run has these settings: options of groups, or values of keys."""
    choices = config.get("choices", {})
    for key, wanted in settings.items():
        if key in choices:
            if str(choices[key]) != wanted:
                return False
            continue
        node: Any = config
        for part in key.split("."):
            node = node.get(part) if isinstance(node, Mapping) else None
        if node != _parsed(wanted):
            return False
    return True


def _parsed(text: str) -> Any:
    """The value of an override's text: a number, or what YAML reads."""
    try:
        return float(text)
    except ValueError:
        return yaml.safe_load(text)
