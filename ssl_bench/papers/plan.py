"""Plan ``ssl-bench reproduce``: the runs that cells of papers need, and those of them that are missing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssl_bench.config.compositions import Composition, Progress, compositions
from ssl_bench.config.identity import NOT_IN_RUN_ID
from ssl_bench.errors import ConfigError, InvalidValue
from ssl_bench.papers import cost, smoke
from ssl_bench.papers.cell_runs import by_recipe, trained
from ssl_bench.papers.cells import Cell, merge
from ssl_bench.papers.selection import Selection
from ssl_bench.record.results import is_complete
from ssl_bench.results.runs import finished


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
            ConfigError: the seeds are no integers.
        """
        overrides = [s for s in selection.settings if s.split("=", 1)[0] not in ("seed", "scale")]
        changed = [o for o in overrides if _group(o) not in NOT_IN_RUN_ID | {"hydra"}]
        numbers = selection.setting("seed")
        try:
            seeds = () if numbers is None else tuple(int(number) for number in numbers.split(","))
        except ValueError as error:
            raise InvalidValue("seed", numbers, "integers such as 0,1,2") from error
        scale = selection.setting("scale") or ("reduced" if changed else "full")
        return cls(selection, seeds, scale, tuple(overrides))

    @property
    def of_machine(self) -> list[str]:
        """The overrides that say where and how the runs are carried out."""
        return [o for o in self.overrides if _group(o) in NOT_IN_RUN_ID - {"name", "evaluate"} | {"hydra"}]

    @property
    def smoke_data(self) -> Path:
        """Folder of generated images."""
        return self.selection.outputs / ".smoke"


@dataclass
class PlannedRuns:
    """The runs of one configuration, one per seed. They may fill several numbers.

    Attributes:
        overrides: arguments of `ssl-bench train`, without the seed.
        cells: names of the cells that the runs fill.
        composition: the composed configuration; None if there can be no run.
        unavailable: why there can be no run; empty if there can.
        done: directories of the finished runs, by their seeds.
        flags: of the command, with the settings of Hydra's launcher.
        recorded: a cell is filled by what is recorded during the training.
    """

    overrides: list[str]
    seeds: list[int]
    cells: list[str] = field(default_factory=list)
    composition: Composition | None = None
    unavailable: str = ""
    done: dict[int, list[Path]] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    recorded: bool = False

    @property
    def config(self) -> dict[str, Any]:
        """The composed configuration with the first seed."""
        return self.composition.config(self.seeds[0]) if self.composition else {}

    @property
    def missing(self) -> list[int]:
        """Seeds of the runs that are left to train."""
        return [] if self.unavailable else [seed for seed in self.seeds if seed not in self.done]

    def hours(self, on: cost.Rates) -> float:
        """Hours of the missing runs at the rates of a machine."""
        return (cost.hours(self.config, on) or 0.0) * len(self.missing) if self.missing else 0.0

    def runs(self) -> Iterator[tuple[tuple[str, ...], dict[str, Any], str]]:
        """Overrides, configuration and the name of the first cell of each missing run."""
        more = f" and {len(self.cells) - 1} more" if len(self.cells) > 1 else ""
        if self.composition:
            for seed in self.missing:
                yield (*self.overrides, f"seed={seed}"), self.composition.config(seed), f"{self.cells[0]}{more}"

    def line(self) -> str:
        """Command line that trains the missing runs."""
        seeds = ",".join(map(str, self.missing))
        return shlex.join(["ssl-bench", "train", "-m", *self.flags, *self.overrides, f"seed={seeds}"])


def plan(request: Request, progress: Progress = lambda requests, count: requests) -> list[PlannedRuns]:
    """The runs of the selected cells; cells with the same runs stand together.

    First come those of cells that what is recorded during a training fills: another cell may need the same network, and
    its training is not repeated.

    Raises:
        ConfigError: the selection or an override does not fit.
    """
    planned: dict[frozenset[str], PlannedRuns] = {}
    for table in request.selection.tables():
        for cell in request.selection.cells(table):
            name = f"{table.name} {cell.row} | {cell.column}"
            its_runs = _of_cell(request, cell)
            key = frozenset(its_runs.overrides if cell.available else [name])
            of_key = planned.setdefault(key, its_runs)
            of_key.recorded |= "@" in cell.metric
            if name not in of_key.cells:
                of_key.cells.append(name)
    _compose(planned.values(), request, progress)
    if request.scale == "smoke":
        for its_runs in planned.values():
            if its_runs.composition:
                its_runs.overrides = merge(its_runs.overrides, smoke.overrides(its_runs.config, request.smoke_data))
        _compose(planned.values(), request, progress)
    runs = by_recipe(finished(request.selection.outputs))
    for its_runs in planned.values():
        configs = {seed: its_runs.composition.config(seed) for seed in its_runs.seeds} if its_runs.composition else {}
        for seed, config in configs.items():
            if folders := [run.folder for run in trained(runs, config) if is_complete(run.folder, config)]:
                its_runs.done[seed] = folders
    return sorted(planned.values(), key=lambda its_runs: not its_runs.recorded)


def _of_cell(request: Request, cell: Cell) -> PlannedRuns:
    """The runs of a cell, not yet composed."""
    scale = [f"scale={request.scale}"] if request.scale != "full" else []
    seeds = list(request.seeds or cell.seeds)[: 1 if request.scale == "smoke" else None]
    of_hydra = [o for o in request.overrides if _group(o) == "hydra"]
    overrides = merge(cell.overrides, [o for o in request.overrides if o not in of_hydra], scale)
    flags = [*request.selection.flags, *of_hydra]
    return PlannedRuns(overrides, seeds, unavailable=cell.unavailable, flags=flags)


def _group(override: str) -> str:
    return re.split("[=./]", override.lstrip("+~"), maxsplit=1)[0]


def _compose(planned: Iterable[PlannedRuns], request: Request, progress: Progress) -> None:
    """Compose the runs. Those that cannot be composed are unavailable; with overrides of the request it is an error."""
    possible = [its_runs for its_runs in planned if not its_runs.unavailable]
    for several in (possible[:1], possible):  # an error in all of them is found in the first
        requests = [tuple(its_runs.overrides) for its_runs in several]
        composed = compositions(requests, progress, request.selection.folder)
        for its_runs in several:
            result = composed[tuple(its_runs.overrides)]
            if not isinstance(result, ConfigError):
                its_runs.composition = result
            elif request.overrides:
                raise result
            else:
                its_runs.unavailable = str(result)
