"""Plan ``ssl-bench reproduce``: the runs that cells of papers need, and those of them that are missing."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssl_bench.config.compositions import Composition, Progress, compositions
from ssl_bench.config.identity import VOLATILE
from ssl_bench.errors import ConfigError, InvalidValue
from ssl_bench.papers import cost, runs, smoke
from ssl_bench.papers.cells import Cell, merge
from ssl_bench.papers.selection import Selection
from ssl_bench.status.runs import finished


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
        composition: the composed configuration; None if there can be no run.
        unavailable: why there can be no run; empty if there can.
        done: seeds of the finished runs.
    """

    overrides: list[str]
    command: str
    seeds: list[int]
    cells: list[str] = field(default_factory=list)
    composition: Composition | None = None
    unavailable: str = ""
    done: list[int] = field(default_factory=list)

    @property
    def config(self) -> dict[str, Any]:
        """The composed configuration with the first seed."""
        return self.composition.config(self.seeds[0]) if self.composition else {}

    @property
    def run_ids(self) -> dict[int, str]:
        """The run_id of the run with each seed."""
        return self.composition.run_ids(self.seeds) if self.composition else {}

    @property
    def missing(self) -> list[int]:
        """Seeds of the runs that are left to train."""
        return [] if self.unavailable else [seed for seed in self.seeds if seed not in self.done]

    def hours(self, on: cost.Rates) -> float:
        """Hours of the missing runs at the rates of a machine."""
        config = self.config if self.missing else {}
        return (cost.hours(config, on) or 0.0) * len(self.missing) if "epochs" in config else 0.0

    def arguments(self) -> list[str]:
        """Arguments that train the missing runs."""
        return ["-m", *self.overrides, f"seed={','.join(map(str, self.missing))}"]

    def line(self) -> str:
        """Command line that trains the missing runs."""
        return shlex.join(["ssl-bench", self.command, *self.arguments()])


def plan(request: Request, progress: Progress = lambda each, count: each) -> list[PlannedRuns]:
    """The runs of the selected cells; cells with the same runs stand together.

    Args:
        progress: iterates over the configurations that are composed.

    Raises:
        ConfigError: the selection or an override does not fit.
    """
    tables = request.selection.tables()
    cells = [(f"{table.name} {c.row} | {c.column}", c) for table in tables for c in request.selection.cells(table)]
    alone = compositions([runs.request(cell) for _, cell in cells if cell.available], progress)
    planned: dict[tuple[str, ...], PlannedRuns] = {}
    for name, cell in cells:
        if not cell.available:
            planned[name,] = PlannedRuns([], cell.command, [], [name], unavailable=cell.unavailable)
            continue
        key = (cell.command, *cell.overrides)
        if key not in planned:
            planned[key] = _planned(request, cell, alone[runs.request(cell)])
        if name not in planned[key].cells:
            planned[key].cells.append(name)
    _compose([each for each in planned.values() if not each.unavailable], request, progress)
    return list(planned.values())


def _planned(request: Request, cell: Cell, alone: Composition | ConfigError) -> PlannedRuns:
    """The runs of a cell, not yet composed; ``alone`` is the cell's configuration without the request's overrides."""
    scale, extra = request.scale, list(request.overrides)
    if scale != "full" and cell.command == "train":
        extra.append(f"scale={scale}")
    seeds = list(request.seeds or cell.seeds)
    result = PlannedRuns(merge(cell.overrides, extra), cell.command, seeds[:1] if scale == "smoke" else seeds)
    if isinstance(alone, ConfigError):  # an error in the cell itself: the other cells go on
        result.unavailable = str(alone)
    elif scale == "smoke":
        small = smoke.overrides(alone.config(result.seeds[0]), request.smoke_data)
        result.overrides = merge(result.overrides, small)
    return result


def _compose(planned: Sequence[PlannedRuns], request: Request, progress: Progress) -> None:
    """Compose the runs, and find those that are finished."""
    on_disk = {run.run_id for run in finished(request.outputs)}
    requests = [(each.command, tuple(each.overrides)) for each in planned]
    for several in (requests[:1], requests):  # most errors are in all of them, and shown by the first
        composed = compositions(several, progress)
        for error in (result for result in composed.values() if isinstance(result, ConfigError)):
            raise error
    for each, key in zip(planned, requests, strict=True):
        each.composition = composed[key]
        each.done = [seed for seed, identity in each.run_ids.items() if identity in on_disk]
