"""Plan ``ssl-bench reproduce``: the runs that cells of papers need, and those of them that are missing."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssl_bench.config.compositions import Composition, Progress, compositions
from ssl_bench.errors import ConfigError
from ssl_bench.papers.cell_runs import finished, trained
from ssl_bench.papers.cells import merge
from ssl_bench.papers.selection import Selection
from ssl_bench.record.runs import is_complete


@dataclass
class PlannedRuns:
    """The runs of one configuration, one per seed. They may fill several numbers.

    Attributes:
        overrides: arguments of `ssl-bench train`, without the seed.
        cells: names of the cells that the runs fill.
        composition: the composed configuration; None if there can be no run.
        unavailable: why there can be no run; empty if there can.
        done: directories of the finished runs, by their seeds.
        recorded: whether a cell needs values that are recorded during the training.
    """

    overrides: list[str]
    seeds: list[int]
    cells: list[str] = field(default_factory=list)
    composition: Composition | None = None
    unavailable: str = ""
    done: dict[int, list[Path]] = field(default_factory=dict)
    recorded: bool = False

    @property
    def config(self) -> dict[str, Any]:
        """The composed configuration with the first seed."""
        return self.composition.config(self.seeds[0]) if self.composition else {}

    @property
    def missing(self) -> list[int]:
        """Seeds of the runs that are left to train."""
        return [] if self.unavailable else [seed for seed in self.seeds if seed not in self.done]

    def runs(self) -> Iterator[tuple[tuple[str, ...], dict[str, Any], str]]:
        """Overrides, configuration and the name of the first cell of each missing run."""
        more = f" and {len(self.cells) - 1} more" if len(self.cells) > 1 else ""
        if self.composition:
            for seed in self.missing:
                yield (*self.overrides, f"seed={seed}"), self.composition.config(seed), f"{self.cells[0]}{more}"

    def line(self, flags: Iterable[str]) -> str:
        """Command line that trains the missing runs."""
        seeds = ",".join(map(str, self.missing))
        return shlex.join(["ssl-bench", "train", "-m", *flags, *self.overrides, f"seed={seeds}"])


def plan(selection: Selection, progress: Progress = lambda requests, count: requests) -> list[PlannedRuns]:
    """The runs of the selected cells; cells with the same runs stand together.

    The runs that record values during the training come first (``knn/top1@best``): another cell may need the same
    network without these values, and the training is then not repeated.

    Raises:
        ConfigError: the selection or an override does not fit.
    """
    planned: dict[frozenset[str], PlannedRuns] = {}
    for table in selection.tables():
        for cell in selection.cells(table):
            name = f"{table.name} {cell.row} | {cell.column}"
            overrides = merge(cell.overrides, selection.of_machine)
            its_runs = PlannedRuns(overrides, list(selection.seeds or cell.seeds), unavailable=cell.needs)
            of_key = planned.setdefault(frozenset(overrides if cell.available else [name]), its_runs)
            of_key.recorded |= "@" in cell.metric
            if name not in of_key.cells:
                of_key.cells.append(name)
    _compose(planned.values(), selection, progress)
    runs_by_recipe = finished(selection.outputs)
    for its_runs in planned.values():
        configs = {seed: its_runs.composition.config(seed) for seed in its_runs.seeds} if its_runs.composition else {}
        for seed, config in configs.items():
            if folders := [run.folder for run in trained(runs_by_recipe, config) if is_complete(run.folder, config)]:
                its_runs.done[seed] = folders
    return sorted(planned.values(), key=lambda its_runs: not its_runs.recorded)


def _compose(planned: Iterable[PlannedRuns], selection: Selection, progress: Progress) -> None:
    """Compose the runs. Those that cannot be composed are unavailable; with further settings it is an error."""
    possible = [its_runs for its_runs in planned if not its_runs.unavailable]
    for several in (possible[:1], possible):  # an error in all of them is runs_by_recipe in the first
        requests = [tuple(its_runs.overrides) for its_runs in several]
        composed = compositions(requests, progress, selection.folder)
        for its_runs in several:
            result = composed[tuple(its_runs.overrides)]
            if not isinstance(result, ConfigError):
                its_runs.composition = result
            elif selection.changes or selection.of_machine:
                raise result
            else:
                its_runs.unavailable = str(result)
