"""Carry out a grid: start the runs that are not finished, then wait for those that other processes were training."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from hydra._internal.core_plugins import basic_sweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from ssl_bench.config.compose import Composer
from ssl_bench.config.identity import run_dir
from ssl_bench.launch import grid
from ssl_bench.launch.outcome import State
from ssl_bench.record import results

BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


class GridSweeper(Sweeper):
    """Takes the place of Hydra's basic sweeper, which composes every run twice, finished ones too.

    Args:
        params: values of the grid by key, such as ``{"seed": "0,1,2"}``; the command line has more.
        max_batch_size: not used.
    """

    folder: ClassVar[Path | None] = None  # of the grid that this process has started

    def __init__(self, params: Mapping[str, str] | None, max_batch_size: int | None) -> None:
        self.params = dict(params or {})

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Read the grid's folder and make the launcher that the configuration names."""
        plugins: Any = Plugins.instance()
        self.loader = hydra_context.config_loader
        self.grid, self.primary = Path(config.hydra.sweep.dir), config.hydra.job.config_name
        self.launcher: Launcher = plugins.instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Write ``grid.json`` and launch the runs.

        Raises:
            ConfigError: a run cannot be composed; none has started then.
        """
        overrides = [*(f"{key}={values}" for key, values in self.params.items()), *arguments]
        parsed = OverridesParser.create(self.loader).parse_overrides(overrides)
        (batch,) = basic_sweeper.BasicSweeper.split_arguments(parsed, None)
        runs = [list(run) for run in dict.fromkeys(map(tuple, batch))]
        GridSweeper.folder = self.grid
        finished = self._finished(runs)
        grid.begin(self.grid, runs, finished)
        if finished:
            print(f"{len(finished)} of {len(runs)} runs are done already", flush=True)
        left = [number for number in range(len(runs)) if number not in finished]
        self._launch([runs[number] for number in left], 0)
        states = {number: grid.outcome(self.grid, number).state for number in left}
        if State.INTERRUPTED not in states.values():
            self._launch([runs[number] for number, state in states.items() if state is State.HELD], len(left))

    def _finished(self, runs: list[list[str]]) -> dict[int, Path]:
        """The directories of the runs that have results, by number."""
        composer, finished = Composer(), dict[int, Path]()
        for number, run in enumerate(runs):
            folder = run_dir(composer.load(run, self.primary))
            if results.finished(folder):
                finished[number] = folder
        return finished

    def _launch(self, runs: list[list[str]], launched: int) -> None:
        """Carry out runs after ``launched`` others."""
        for end in self.launcher.launch(runs, initial_job_idx=launched) if runs else ():
            _ = end.return_value  # raises what a run has raised


def register() -> None:
    """Make this sweeper known to Hydra in place of the basic one."""
    Plugins.instance().class_name_to_class[BASIC] = GridSweeper
