"""Find the finished runs of a cell: those with the training of its overrides, and its evaluations of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.config.compositions import Composition, Progress, compositions
from ssl_bench.config.identity import recipe_id
from ssl_bench.papers.cells import Cell, CellMetric
from ssl_bench.record import evaluations, runs
from ssl_bench.record.runs import Run

ROUNDING = 1e-6  # of the epochs in metrics.jsonl

Trained = Mapping[str, list[Run]]  # finished runs by the recipe of their training


def value(run: Run, metric: str) -> float | None:
    """Value of a metric as papers print it, accuracies in percent; None if the run has none.

    The forms of a metric are those of :class:`ssl_bench.papers.cells.CellMetric`. A metric that is only recorded during
    training has its last value.
    """
    wanted = CellMetric.read(metric)
    entry = next((entry for entry in run.evaluations if wanted.name in entry["metrics"]), None)
    number = entry["metrics"][wanted.name] if entry and (wanted.choice, wanted.epoch) == ("", None) else None
    if number is None:
        number = _chosen(wanted, _recorded(run, wanted.name))
    meaning = evaluations.metric_of(wanted.name, run.results.get("units"))
    return None if number is None else float(number) * meaning.scale


def _recorded(run: Run, name: str) -> list[tuple[float, float]]:
    """The epoch, NaN if there is none, and value of each row that a run's evaluations recorded during the training."""
    evaluator, path = evaluations.evaluator_of(name), run.folder / runs.METRICS
    trained = {entry["id"] for entry in evaluations.asked(run.config) if entry["evaluator"] == evaluator}
    if trained and trained.isdisjoint(entry["id"] for entry in run.evaluations):
        return []
    end = math.inf if (epochs := run.config.get("epochs")) is None else epochs + ROUNDING
    try:
        return [pair for pair in _read(path, files.mark(path.stat()), name) if not pair[0] > end]
    except OSError:
        return []


@lru_cache(maxsize=32)  # a curve asks for its run once per point
def _read(path: Path, mark: files.Mark, name: str) -> list[tuple[float, float]]:
    """Values of a metric in a file; ``mark`` is that of the file."""
    numbers = [(row.get("epoch", math.nan), row.get(name)) for row in runs.read_rows(path)]
    return [(float(epoch), float(number)) for epoch, number in numbers if isinstance(number, int | float)]


def _chosen(wanted: CellMetric, recorded: list[tuple[float, float]]) -> float | None:
    """The value that a metric's form asks for; None if nothing was recorded there."""
    if wanted.choice == "best":
        return max((number for _, number in recorded if not math.isnan(number)), default=None)
    if wanted.choice == "mean":
        last = max((math.ceil(epoch - ROUNDING) for epoch, _ in recorded if not math.isnan(epoch)), default=0)
        end = last if wanted.epoch is None else wanted.epoch
        numbers = [number for epoch, number in recorded if end - 1 + ROUNDING < epoch < end + ROUNDING]
        return math.fsum(numbers) / len(numbers) if numbers else None
    chosen = [n for epoch, n in recorded if wanted.epoch is None or abs(epoch - wanted.epoch) < ROUNDING]
    return chosen[-1] if chosen else None


def finished(outputs: Path) -> dict[str, list[Run]]:
    """The runs below a folder that have results, by the recipe of their training; each run_id once."""
    first, recipes = dict[str, Run](), dict[str, list[Run]]()
    for folder in sorted(runs.folders(outputs), key=lambda folder: folder.parts):
        run = runs.read(folder)
        if run.results and first.setdefault(folder.name, run) is run:
            recipes.setdefault(recipe_id(run.config), []).append(run)
    return recipes


def trained(by_recipe: Trained, config: Mapping[str, Any]) -> list[Run]:
    """The runs with the recipe of a configuration that were trained on as many images as it names.

    The configuration of a run has the number of images that it was trained on; the number in a composed configuration
    still includes the images that ``held_out`` sets apart.
    """
    images, apart = config["dataset"].get("train_images"), sum(config["dataset"].get("held_out") or ())
    images = None if images is None else images - apart
    return [run for run in by_recipe.get(recipe_id(config), []) if run.config["dataset"].get("train_images") == images]


class Results:
    """The finished runs of a results folder, looked up by the cells that they fill.

    Args:
        cells: the cells that will be asked for. Those of whose dataset there is no run are not composed.
    """

    def __init__(
        self,
        outputs: Path,
        cells: Iterable[Cell],
        progress: Progress = lambda configs, count: configs,
        folder: Path | None = None,
    ) -> None:
        self._trained = finished(outputs)
        every = [run for of_recipe in self._trained.values() for run in of_recipe]
        # Own images have a folder after their name.
        datasets = {str(run.config.get("choices", {}).get("dataset")).partition(":")[0] for run in every}
        possible = [cell for cell in cells if cell.available and cell.settings.get("dataset", "") in {*datasets, ""}]
        self._compositions = compositions([cell.overrides for cell in possible] if every else [], progress, folder)
        self._seeds = sorted({run.seed for run in every if run.seed is not None})

    def of_cell(self, cell: Cell) -> list[Run]:
        """The runs that fill a cell, by seed: those with its training, of which the scale is a part.

        Their numbers are those of the evaluators with the cell's settings.
        """
        composed, chosen = self._compositions.get(cell.overrides), list[Run]()
        if not isinstance(composed, Composition):
            return chosen
        for seed in self._seeds:
            config = composed.config(seed)
            copies = [_as_asked(run, config) for run in trained(self._trained, config)]
            chosen += [run for run in copies if value(run, cell.metric) is not None][:1] or copies[:1]
        return chosen

    def values(self, cell: Cell) -> dict[int, float]:
        """The value of each of the cell's runs, by seed."""
        numbers = {run.seed: value(run, cell.metric) for run in self.of_cell(cell)}
        return {seed: number for seed, number in numbers.items() if seed is not None and number is not None}


def _as_asked(run: Run, config: Mapping[str, Any]) -> Run:
    """A run after as many epochs as a configuration says, with those of its evaluations that it asks for."""
    trained = {**run.config, "epochs": config.get("epochs")}
    entries = evaluations.requested(run.results["evaluations"], config)
    return replace(run, config=trained, results={**run.results, "config": trained, "evaluations": entries})
