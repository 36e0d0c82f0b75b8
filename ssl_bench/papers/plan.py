"""Plan ``ssl-bench reproduce``: the runs that cells of papers need, and those of them that are missing."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssl_bench.config.identity import VOLATILE, run_id
from ssl_bench.errors import ConfigError, InvalidValue
from ssl_bench.papers import cost, runs, smoke
from ssl_bench.papers.overrides import merge
from ssl_bench.papers.selection import Selection
from ssl_bench.papers.tables import Cell

Progress = Callable[[Sequence[Cell], str], Iterable[Cell]]


@dataclass(frozen=True)
class Request:
    """The arguments of ``reproduce``.

    Attributes:
        seeds: seeds to train instead of those of each cell; empty for the latter.
        scale: ``full``, ``reduced`` or ``smoke``.
        overrides: settings for every cell.
    """

    selection: Selection
    seeds: tuple[int, ...]
    scale: str
    overrides: tuple[str, ...]

    @classmethod
    def read(cls, selection: Selection) -> Request:
        """The request of a command line.

        Unless a scale is named, it is ``full``, or ``reduced`` if an override changes what is computed.

        Raises:
            ConfigError: the seeds are no integers, or smoke runs are asked for with a launcher.
        """
        overrides = [s for s in selection.settings if s.split("=", 1)[0] not in ("seed", "scale")]
        groups = [o.split("=")[0].split(".")[0].lstrip("+~") for o in overrides]
        changed = [group for group in groups if group not in VOLATILE and group.split("/")[0] != "hydra"]
        numbers = selection.setting("seed")
        try:
            seeds = () if numbers is None else tuple(int(number) for number in numbers.split(","))
        except ValueError as error:
            raise InvalidValue("seed", numbers, "integers such as 0,1,2") from error
        scale = selection.setting("scale") or ("reduced" if changed else "full")
        request = cls(selection, seeds, scale, tuple(overrides))
        if scale == "smoke" and request.launcher != "basic":
            raise ConfigError("scale=smoke generates the images of one cell at a time: leave hydra/launcher out")
        return request

    @property
    def outputs(self) -> Path:
        """Folder of the results."""
        return self.selection.outputs

    @property
    def launcher(self) -> str:
        """``basic``, ``local`` or ``slurm``."""
        return self.selection.setting("hydra/launcher") or "basic"

    @property
    def smoke_data(self) -> Path:
        """Folder of generated images, the same for every process because ``paths.data`` is in a run's command."""
        return self.outputs / ".smoke"


@dataclass
class PlannedRuns:
    """The runs of one configuration, one per seed. They may fill several numbers.

    Attributes:
        overrides: arguments of the command, without the seed.
        cells: names of the cells that the runs fill.
        config: the composed configuration.
        unavailable: why there can be no run; empty if there can.
        run_ids: of the run with each seed.
        done: seeds of the finished runs.
    """

    overrides: list[str]
    command: str
    seeds: list[int]
    cells: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    unavailable: str = ""
    run_ids: dict[int, str] = field(default_factory=dict)
    done: list[int] = field(default_factory=list)

    @property
    def missing(self) -> list[int]:
        """Seeds of the runs that are left to train."""
        return [] if self.unavailable else [seed for seed in self.seeds if seed not in self.done]

    @property
    def hours(self) -> float:
        """Hours of the missing runs on 8 V100."""
        pretrained = self.missing and "epochs" in self.config
        return (cost.hours(self.config) or 0.0) * len(self.missing) if pretrained else 0.0

    def arguments(self) -> list[str]:
        """Arguments that train the missing runs."""
        return ["-m", *self.overrides, f"seed={','.join(map(str, self.missing))}"]

    def line(self) -> str:
        """Command line that trains the missing runs."""
        return shlex.join(["ssl-bench", self.command, *self.arguments()])


def plan(request: Request, progress: Progress = lambda cells, name: cells) -> list[PlannedRuns]:
    """The runs of the selected cells; cells with the same runs stand together.

    Args:
        progress: shows the progress over the cells of a table: Hydra takes a tenth of a second to compose one.

    Raises:
        ConfigError: the selection or an override does not fit.
    """
    planned: dict[tuple[str, ...], PlannedRuns] = {}
    finished = {run.run_id for run in runs.finished(request.outputs)}
    selected = [(table, request.selection.cells(table)) for table in request.selection.tables()]
    for table, cells in selected:
        for cell in progress(cells, table.name):
            name = f"{table.name} {cell.row} | {cell.column}"
            if not cell.available:
                reason = f"needs {cell.missing}" if cell.missing else "nothing to run"
                planned[name,] = PlannedRuns([], cell.command, [], [name], unavailable=reason)
                continue
            key = (cell.command, *cell.overrides)
            if key not in planned:
                planned[key] = _planned(request, cell, finished)
            if name not in planned[key].cells:
                planned[key].cells.append(name)
    return list(planned.values())


def _planned(request: Request, cell: Cell, finished: set[str]) -> PlannedRuns:
    """The runs of a cell, composed; ``finished`` are the run_ids on disk."""
    scale, extra = request.scale, list(request.overrides)
    if scale != "full" and cell.command == "train":
        extra.append(f"scale={scale}")
    seeds = list(request.seeds or cell.seeds)
    overrides = merge(cell.overrides, extra)
    result = PlannedRuns(overrides, cell.command, seeds[:1] if scale == "smoke" else seeds)
    try:
        config = runs.compose(cell.overrides, cell.command)
    except ConfigError as error:  # in the cell itself; the other cells go on
        result.unavailable = str(error)
        return result
    if scale == "smoke":
        result.overrides = merge(overrides, smoke.overrides(config, request.smoke_data))
    result.config = runs.compose(result.overrides, cell.command)
    result.run_ids = {seed: run_id(runs.compose(result.overrides, cell.command, seed)) for seed in result.seeds}
    result.done = [seed for seed, identity in result.run_ids.items() if identity in finished]
    return result
