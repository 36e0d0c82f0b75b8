"""Carry out a grid: start the runs that are not finished, then wait for those that other processes were training."""

import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from ssl_bench.config.compose import Composer
from ssl_bench.errors import ConfigError, require, unwritable
from ssl_bench.launch import grid
from ssl_bench.launch.outcome import State
from ssl_bench.record import folders, results

HALVING = "hydra_plugins.ssl_bench.HalvingSweeper"
BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


class GridSweeper(Sweeper):
    """Takes the place of Hydra's basic sweeper, which composes every run twice, finished ones too.

    Args:
        params: values of the grid by key, such as ``{"seed": "0,1,2"}``; the command line has more.
        max_batch_size: not used.
    """

    folder: ClassVar[Path | None] = None  # of the grid that this process has started
    check: ClassVar[Callable[[dict[str, Any]], None]]  # raises ConfigError for a run that cannot be carried out

    def __init__(self, params: Mapping[str, str] | None, max_batch_size: int | None) -> None:
        self.params = dict(params or {})

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Read the grid's folder and make the launcher that the configuration names."""
        launcher = config.hydra.runtime.choices["hydra/launcher"]
        remedy = "local, or start the command on a machine that has Slurm: there is no srun"
        require(launcher != "slurm" or shutil.which("srun") is not None, "hydra/launcher", launcher, remedy)
        plugins: Any = Plugins.instance()
        self.loader = hydra_context.config_loader
        self.grid, self.primary = Path(config.hydra.sweep.dir), config.hydra.job.config_name
        self.launcher: Any = plugins.instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Write ``grid.json`` and launch the runs.

        Raises:
            ConfigError: the configuration of a run cannot be used; none has started then.
        """
        overrides = [*(f"{key}={values}" for key, values in self.params.items()), *arguments]
        parsed = OverridesParser.create(self.loader).parse_overrides(overrides)
        values = {override.get_key_element(): _single(override) for override in parsed}  # of a key, the last ones count
        runs = [list(run) for run in dict.fromkeys(itertools.product(*values.values()))]
        finished, epochs = self._checked(runs)
        GridSweeper.folder = self.grid
        try:
            grid.begin(self.grid, runs, finished, epochs)
        except OSError as error:
            raise unwritable(error) from error
        if finished:
            print(f"{len(finished)} of {len(runs)} runs are done already", flush=True)
        self.carry_out(runs, finished)

    def carry_out(self, runs: Sequence[Sequence[str]], finished: Mapping[int, Path]) -> None:
        """Launch the runs of the grid that are not finished."""
        left = [number for number in range(len(runs)) if number not in finished]
        self.launch([runs[number] for number in left], 0)
        states = {number: grid.outcome(self.grid, number).state for number in left}
        if State.INTERRUPTED not in states.values():
            self.launch([runs[number] for number, state in states.items() if state is State.HELD], len(left))

    def _checked(self, runs: list[list[str]]) -> tuple[dict[int, Path], list[int | None]]:
        """Check every run that has no results; the directories of the others, by number, and the epochs of all."""
        composer, finished, epochs = Composer(), dict[int, Path](), list[int | None]()
        for number, run in enumerate(runs):
            config = composer.load(run, self.primary)
            self.check_run(config)
            folder = folders.find(config)
            epochs.append(config.get("epochs"))
            if results.answers(folder, config):
                finished[number] = folder
            else:
                GridSweeper.check(config)
        return finished, epochs

    def check_run(self, config: Mapping[str, Any]) -> None:
        """Refuse a run that this sweeper cannot carry out."""

    def launch(self, runs: Sequence[Sequence[str]], launched: int) -> None:
        """Carry out runs after ``launched`` others."""
        if hasattr(self.launcher, "joblib"):  # which would start processes that have no run
            self.launcher.joblib["n_jobs"] = min(self.launcher.joblib["n_jobs"], max(1, len(runs)))
        try:
            for end in self.launcher.launch([list(run) for run in runs], initial_job_idx=launched) if runs else ():
                _ = end.return_value  # raises what a run has raised
        except RuntimeError as error:
            reason = str(error).strip().rpartition("\n")[2]
            if not reason.startswith("sbatch: "):
                raise
            remedy = "set hydra.launcher.<key> to what this cluster has, or hydra/launcher to local"
            raise ConfigError(f"hydra/launcher=slurm: {reason}: {remedy}") from error


def _single(override: Override) -> list[str]:
    """An override of a grid as overrides with one value each."""
    key, swept = override.get_key_element(), override.is_sweep_override()
    return [
        f"{key}={v}" for v in (override.sweep_string_iterator() if swept else [override.get_value_element_as_str()])
    ]


def register() -> None:
    """Make the sweepers known to Hydra, this one in place of the basic one."""
    from ssl_bench.commands.halving import HalvingSweeper

    Plugins.instance().class_name_to_class |= {BASIC: GridSweeper, HALVING: HalvingSweeper}
