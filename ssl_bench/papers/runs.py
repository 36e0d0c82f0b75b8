"""From a cell to its runs on disk, by what they are: a run belongs to a cell if it has the run_id of its overrides.

Hydra composes a cell's overrides only where that is asked for.
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
from ssl_bench.papers.tables import Cell, Table, percent

SEED = 907_340_511  # stands for a seed while a configuration is composed once for all of them
FREE = ("name", "evaluate")  # not compared before a run_id is computed


@dataclass(frozen=True)
class Run:
    """A finished run."""

    identity: str
    folder: Path
    config: Mapping[str, Any]
    metrics: Mapping[str, float]

    @property
    def scale(self) -> str:
        return str(self.config.get("scale", "full"))

    def value(self, metric: str) -> float | None:
        """A metric as papers print it: accuracies per cent; ``name@50`` is that of epoch 50, from the run's journal.

        What is only recorded during the training has its last value.
        """
        name, _, epoch = metric.partition("@")
        found = None if epoch else self.metrics.get(name)
        if found is None:
            rows = [row for row in _journal(self.folder) if isinstance(row.get(name), int | float)]
            rows = [row for row in rows if abs(row.get("epoch", -1) - float(epoch)) < 1e-6] if epoch else rows
            found = rows[-1][name] if rows else None
        return None if found is None else float(found) * (100 if percent(name) else 1)


def finished(outputs: Path) -> list[Run]:
    """Every run with a ``results.json`` under a folder, each identity once."""
    runs: dict[str, Run] = {}
    for path in sorted(outputs.glob("**/results.json")):
        data = files.read_json(path)
        if isinstance(data, dict) and isinstance(data.get("metrics"), dict) and isinstance(data.get("config"), dict):
            runs.setdefault(data["run_id"], Run(data["run_id"], path.parent, data["config"], data["metrics"]))
    return list(runs.values())


def compose(overrides: Sequence[str], command: str = "train", seed: int = 0) -> dict[str, Any]:
    """The configuration that overrides make.

    Raises:
        ConfigError: they name an option or a key that there is not.
    """
    config: dict[str, Any] = _seeded(copy.deepcopy(_composed(tuple(overrides), command)), seed)
    return config


@cache
def _composed(overrides: tuple[str, ...], command: str) -> dict[str, Any]:
    from ssl_bench.config import compose as configuration  # Hydra

    return configuration.load([*overrides, f"seed={SEED}"], primary=command)


def _seeded(node: Any, seed: int) -> Any:
    """The same with ``seed`` wherever the configuration follows its seed."""
    if isinstance(node, dict):
        return {key: _seeded(value, seed) for key, value in node.items()}
    if isinstance(node, list):
        return [_seeded(value, seed) for value in node]
    return seed if node == SEED else node


def identity(cell: Cell, seed: int) -> str:
    """The run_id of a cell's run with a seed."""
    return run_id(compose(cell.overrides, cell.command, seed))


def of_cell(cell: Cell, runs: Sequence[Run]) -> list[Run]:
    """The full-scale runs that fill a cell, by their seeds."""
    settings = {k: v for k, v in _settings(cell).items() if k == "dataset" or "." in k}
    likely = [run for run in runs if run.scale == "full" and _agrees(settings, run.config)]
    found = [run for run in likely if cell.runs and identity(cell, run.config["seed"]) == run.identity]
    return sorted(found, key=lambda run: run.config["seed"])


def reduced(table: Table, cell: Cell, runs: Sequence[Run]) -> list[Run]:
    """Runs of ``scale=reduced`` that are like a cell in all that tells it from the others of its table.

    Where they were made with several settings, those of the most epochs.
    """
    families: dict[str, list[Run]] = {}
    for run in runs:
        if cell.runs and run.scale == "reduced" and _agrees(table.axes(cell), run.config):
            content = _seeded(
                {k: v for k, v in run.config.items() if k not in ("seed", "paths", "tracking", "name")}, 0
            )
            families.setdefault(json.dumps(_unseeded(content), sort_keys=True), []).append(run)
    return max(families.values(), key=lambda family: (family[0].config["epochs"], len(family)), default=[])


def _unseeded(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _unseeded(value) for key, value in node.items() if key != "seed"}
    return node


def _settings(cell: Cell) -> dict[str, str]:
    return {k: v for k, v in (o.split("=", 1) for o in cell.overrides) if k.split(".")[0] not in FREE}


def _agrees(settings: Mapping[str, str], config: Mapping[str, Any]) -> bool:
    """Whether a run was made with these settings: options of groups, or values of keys."""
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
    try:
        return float(text)
    except ValueError:
        return yaml.safe_load(text)


def _journal(folder: Path) -> list[dict[str, Any]]:
    """The rows of ``metrics.jsonl`` that are whole."""
    path, rows = folder / "metrics.jsonl", []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows
