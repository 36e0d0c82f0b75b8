"""Find the finished runs of a cell: those with the training of its overrides, and its evaluations of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.config.compositions import Composition, Progress, compositions
from ssl_bench.config.identity import recipe_id
from ssl_bench.disk.shapes import fits
from ssl_bench.papers.cells import Cell, CellMetric
from ssl_bench.record import evaluations, rows, units
from ssl_bench.record.follow import find_mark, finite
from ssl_bench.results.runs import RunFolder, SharedConfig, entries, finished

ROUNDING = 1e-6  # of the epochs in metrics.jsonl


def value(run: RunFolder, metric: str) -> float | None:
    """Value of a metric as papers print it, accuracies in percent; None if the run has none.

    The forms of a metric are those of :class:`ssl_bench.papers.cells.CellMetric`. A metric that is only recorded during
    training has its last value.
    """
    wanted = CellMetric.read(metric)
    key = next((key for key, numbers in run.numbers.items() if wanted.name in numbers), None)
    number = run.numbers[key][wanted.name] if key and wanted.last else None
    if number is None and _recorded_as_asked(run, wanted.name):
        path = str(run.folder / "metrics.jsonl")
        recorded = _recorded(path, find_mark(path), wanted.name, run.shared)
        end = math.inf if run.epoch is None else run.epoch + ROUNDING
        number = _chosen(wanted, [(epoch, value) for epoch, value in recorded if not epoch > end])
    meaning = units.metric(wanted.name, run.units, evaluations.node(run.evaluations[key]) if key else {})
    return None if number is None else float(number) * meaning.scale


def _recorded_as_asked(run: RunFolder, name: str) -> bool:
    """Whether the evaluator that recorded a metric during the training is one of those whose numbers the run has."""
    evaluator = units.evaluator_of(name)
    trained = {entry["id"] for entry in _evaluated_on_the_way(run.shared) if entry["evaluator"] == evaluator}
    return not trained or not trained.isdisjoint(run.evaluations[key]["id"] for key in run.numbers)


@cache
def _evaluated_on_the_way(config: SharedConfig) -> list[evaluations.Entry]:
    return evaluations.asked(config.content)


Recorded = list[tuple[float, float]]  # epoch, NaN if a row has none, and value; in the order of the training


@lru_cache(maxsize=32)  # a curve asks for its run once per point
def _recorded(path: str, mark: files.Mark | None, name: str, config: SharedConfig) -> Recorded:
    """Values of a metric that a run recorded; ``mark`` is that of the file."""
    recorded = [row for row in rows.read(Path(path), config.content) if fits(row.get(name), float)]
    return [(math.nan if (epoch := finite(row, "epoch")) is None else epoch, float(row[name])) for row in recorded]


def _chosen(wanted: CellMetric, recorded: Recorded) -> float | None:
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


def by_recipe(runs: Iterable[RunFolder]) -> dict[str, list[RunFolder]]:
    """Runs by the recipe of their training."""
    recipes: dict[str, list[RunFolder]] = {}
    for run in runs:
        recipes.setdefault(run.training, []).append(run)
    return recipes


def trained(runs: Mapping[str, list[RunFolder]], config: Mapping[str, Any]) -> list[RunFolder]:
    """Those of the runs, by recipe, that have the recipe of a configuration and as many images as it says.

    A run counts the images that it trains on, a composed configuration also those that it sets apart (``held_out``).
    """
    images, apart = config["dataset"].get("train_images"), sum(config["dataset"].get("held_out") or ())
    trains_on = None if images is None else images - apart
    return [run for run in runs.get(recipe_id(config), []) if run.config["dataset"].get("train_images") == trains_on]


class Results:
    """The finished runs of a results folder, found by the cells that they fill.

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
        runs = finished(outputs)
        datasets = {str(run.shared.groups.get("dataset")).partition(":")[0] for run in runs}  # own images have a folder
        possible = [cell for cell in cells if cell.available and cell.settings.get("dataset", "") in {*datasets, ""}]
        self._compositions = compositions([cell.overrides for cell in possible] if runs else [], progress, folder)
        self._seeds = sorted({run.seed for run in runs if run.seed is not None})
        self._trained = by_recipe(runs)

    def of_cell(self, cell: Cell) -> list[RunFolder]:
        """The runs that fill a cell, by seed: those with its training, of which the scale is a part.

        Their numbers are those of the evaluators with the cell's settings.
        """
        composed, chosen = self._compositions.get(cell.overrides), list[RunFolder]()
        if not isinstance(composed, Composition):
            return chosen
        for seed in self._seeds:
            config = composed.config(seed)
            runs = [_as_asked(run, config) for run in trained(self._trained, config)]
            chosen += [run for run in runs if value(run, cell.metric) is not None][:1] or runs[:1]
        return chosen

    def values(self, cell: Cell) -> dict[int, float]:
        """The value of each of the cell's runs, by seed."""
        numbers = {run.seed: value(run, cell.metric) for run in self.of_cell(cell)}
        return {seed: number for seed, number in numbers.items() if seed is not None and number is not None}


def _as_asked(run: RunFolder, config: Mapping[str, Any]) -> RunFolder:
    """A run with those of its numbers that the evaluations of a configuration have made, after as many epochs."""
    asked, epochs = evaluations.asked(config), config.get("epochs")
    if epochs != run.config.get("epochs"):  # it has gone on
        run = replace(run, epoch=epochs, numbers={}, evaluations={})
        for entry in evaluations.after(entries(run), epochs):
            made_by = evaluations.made_by(entry)
            key = evaluations.as_key(made_by)
            run = replace(run, evaluations={**run.evaluations, key: made_by})
            run.numbers.setdefault(key, {}).update(entry["metrics"])
    made = {key for key, made_by in run.evaluations.items() if any(evaluations.same(made_by, one) for one in asked)}
    return replace(run, numbers={key: metrics for key, metrics in run.numbers.items() if key in made})
