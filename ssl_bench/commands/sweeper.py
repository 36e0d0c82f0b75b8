"""Carry out a grid: start the runs that are not finished, then wait for those that other processes were training."""

import itertools
import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from ssl_bench.config.compose import Composer, NoSuchKey
from ssl_bench.config.found import find_prepared
from ssl_bench.errors import ConfigError, require, unwritable
from ssl_bench.launch import grid, impossible
from ssl_bench.launch.outcome import State
from ssl_bench.papers import cost
from ssl_bench.record import folders, results

MANY = 300  # runs that take some seconds to check
SEARCHES = "hydra_plugins.ssl_bench."  # a name that Hydra accepts for the sweepers of this package
BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


class Run(NamedTuple):
    """A run of a grid.

    Attributes:
        config: resolved; empty if it cannot be composed.
        folder: its directory, which need not exist.
        done: it has its results.
        refusal: why it cannot be composed.
    """

    overrides: tuple[str, ...]
    config: dict[str, Any]
    folder: Path
    done: bool
    refusal: ConfigError | None


class GridSweeper(Sweeper):
    """Takes the place of Hydra's basic sweeper, which composes every run twice, finished ones too.

    Args:
        params: values of the grid by key, such as ``{"seed": "0,1,2"}``; the command line has more.
        max_batch_size: not used.
    """

    folder: ClassVar[Path | None] = None  # of the grid that this process has started
    dry_run: ClassVar[bool] = False  # only print what would be trained
    closing: ClassVar[str] = ""  # what is printed after the summary of that grid
    skip: ClassVar[bool] = False  # leave out runs that cannot be
    refusals: ClassVar[Callable[[Sequence[dict[str, Any]], str], list[ConfigError | None]]]  # why each run cannot be

    def __init__(self, params: Mapping[str, str] | None, max_batch_size: int | None) -> None:
        self.params, self.launched = dict(params or {}), 0

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Read the grid's folder and make the launcher that the configuration names."""
        launcher = config.hydra.runtime.choices["hydra/launcher"]
        remedy = "local, or start the command on a machine that has Slurm: there is no srun"
        require(launcher != "slurm" or shutil.which("srun") is not None, "hydra/launcher", launcher, remedy)
        plugins: Any = Plugins.instance()
        self.loader, self.composer = hydra_context.config_loader, Composer()
        self.grid, self.primary = Path(config.hydra.sweep.dir), config.hydra.job.config_name
        self.launcher: Any = plugins.instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        self.jobs = _checked(self.launcher.joblib) if hasattr(self.launcher, "joblib") else 1
        self.launched_by = launcher
        self.numbers, self.configs = dict[tuple[str, ...], int](), list[dict[str, Any]]()
        self.folders, self.finished = list[Path](), dict[int, Path]()
        self.left_out = dict[tuple[str, ...], None]()  # overrides of runs that cannot be, by skip=impossible

    def sweep(self, arguments: list[str]) -> None:
        """Read the values of the keys and carry out the runs.

        Raises:
            ConfigError: the configuration of a run cannot be used; none has started then.
        """
        overrides = [*(f"{key}={values}" for key, values in self.params.items()), *arguments]
        parsed = OverridesParser.create(self.loader).parse_overrides(overrides)
        self.space = {override.get_key_element(): override for override in parsed}  # of a key, the last one counts
        if GridSweeper.dry_run:
            if any(override.is_interval_sweep() for override in parsed):
                raise ConfigError("--dry-run lists the runs of a grid: values of an interval are proposed one by one")
            self.add_all()
            self._list_runs()
            return
        GridSweeper.folder = self.grid
        self.carry_out()

    def carry_out(self) -> None:
        """Train the runs of the grid that are not finished."""
        self.add_all()
        self.train(range(len(self.numbers)))

    def add_all(self) -> None:
        """Add every combination of the values to the grid, those that can be."""
        count = math.prod(map(length, self.space.values()))
        impossible.check_size(count)
        if count > MANY:
            print(f"checking {count} runs", flush=True)
        runs = [self.compose(run) for run in dict.fromkeys(itertools.product(*map(values, self.space.values())))]
        if all(run.refusal for run in runs):  # a key that no run has
            raise next(run.refusal for run in runs if run.refusal)
        refused = self.check(runs)
        possible = impossible.left([run.overrides for run in runs], refused, GridSweeper.skip)
        self.left_out |= {runs[number].overrides: None for number in refused}
        self.add([runs[number] for number in possible])
        if self.finished:
            print(f"{len(self.finished)} of {len(self.numbers)} runs are done already", flush=True)

    def compose(self, overrides: tuple[str, ...]) -> "Run":
        """Compose a run and look for its results.

        Raises:
            ConfigError: an override cannot be used, or the sweeper cannot carry out the run.
        """
        try:
            config = find_prepared(self.composer.load(overrides, self.primary))
        except NoSuchKey as error:  # the options of this run lack a key that those of others may have
            return Run(overrides, {}, self.grid, False, error)
        self.check_run(config)
        folder = folders.find(config)
        return Run(overrides, config, folder, results.answers(folder, config), None)

    def check(self, runs: Sequence["Run"]) -> dict[int, ConfigError]:
        """Why runs cannot be, by their place in ``runs``; those that have their results are not checked."""
        refused = {place: run.refusal for place, run in enumerate(runs) if run.refusal}
        left = [place for place, run in enumerate(runs) if not (run.done or run.refusal)]
        found = GridSweeper.refusals([runs[place].config for place in left], self.launched_by)
        refused |= {place: error for place, error in zip(left, found, strict=True) if error}
        return dict(sorted(refused.items()))

    def add(self, runs: Sequence["Run"]) -> None:
        """Add runs to the grid, unless they are in it, and write ``grid.json``."""
        for run in runs:
            if run.overrides in self.numbers:
                continue
            number = self.numbers[run.overrides] = len(self.numbers)
            self.configs.append(run.config)
            self.folders.append(run.folder)
            if run.done:
                self.finished[number] = run.folder
        if GridSweeper.dry_run:
            return
        epochs = [each.get("epochs") for each in self.configs]
        try:
            grid.begin(self.grid, list(self.numbers), self.finished, epochs, list(self.left_out))
        except OSError as error:
            raise unwritable(error) from error

    def _list_runs(self) -> None:
        """Print the runs that are not finished, with their directories and the hours of pre-training."""
        runs = [(" ".join(run), n) for run, n in self.numbers.items() if n not in self.finished]
        on = cost.rates(Path(self.configs[0]["paths"]["outputs"]))
        hours = {n: cost.hours(self.configs[n], on) if "epochs" in self.configs[n] else None for _, n in runs}
        for name, n in runs:
            took = "" if hours[n] is None else f"{hours[n]:8.2f} h"
            print(f"{took:10}  {name}  {self.folders[n]}")
        price = f", {cost.price(sum(filter(None, hours.values())), on)}" if any(hours.values()) else ""
        print(f"{len(runs)} runs to go{price}")

    def check_run(self, config: Mapping[str, Any]) -> None:
        """Refuse a run that this sweeper cannot carry out."""

    def train(self, numbers: Iterable[int], more: Sequence[str] = ()) -> bool:
        """Train those of the runs that are not finished, last the ones that other processes were training.

        Args:
            more: overrides beside those of the runs.

        Returns:
            Whether none was interrupted.
        """
        runs = list(self.numbers)
        left = [number for number in numbers if number not in self.finished]
        self.launch([[*runs[number], *more] for number in left])
        held = [number for number in left if grid.outcome(self.grid, number).state is State.HELD]
        if not self._interrupted(left):
            self.launch([[*runs[number], *more] for number in held])
        return not self._interrupted(left)

    def _interrupted(self, numbers: Iterable[int]) -> bool:
        return any(grid.outcome(self.grid, number).state is State.INTERRUPTED for number in numbers)

    def launch(self, runs: Sequence[Sequence[str]]) -> None:
        """Carry out runs by the launcher."""
        if hasattr(self.launcher, "joblib"):  # which would start processes that have no run
            self.launcher.joblib["n_jobs"] = min(self.jobs, max(1, len(runs)))
        first, self.launched = self.launched, self.launched + len(runs)
        try:
            for end in self.launcher.launch([list(run) for run in runs], initial_job_idx=first) if runs else ():
                _ = end.return_value  # raises what a run has raised
        except RuntimeError as error:
            reason = str(error).strip().rpartition("\n")[2]
            if not reason.startswith("sbatch: "):
                raise
            remedy = "set hydra.launcher.<key> to what this cluster has, or hydra/launcher to local"
            raise ConfigError(f"hydra/launcher=slurm: {reason}: {remedy}") from error


def _checked(joblib: Mapping[str, Any]) -> int:
    """How many runs joblib starts at a time; refuse settings that it would refuse after the grid has begun."""
    from joblib import Parallel

    require(joblib["n_jobs"] != 0, "hydra.launcher.n_jobs", 0, "1 or more")
    settings = {key: int(value) if str(value).isdecimal() else value for key, value in joblib.items()}
    try:
        Parallel(**{**settings, "backend": "loky"})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"hydra.launcher: {str(error).splitlines()[0]}") from error
    return int(joblib["n_jobs"])


def bounds(override: Override) -> tuple[int, float, float]:
    """How many numbers a range has, its first and its last one.

    Raises:
        ConfigError: it has none, or does not end.
    """
    value: Any = override.value()
    start, stop, step = (Decimal(number) for number in (value.start, value.stop, value.step))
    try:
        count = math.ceil((stop - start) / step)
    except (ArithmeticError, ValueError) as error:
        raise ConfigError(
            f"{override.input_line}: write a range as range(start,stop,step), with finite numbers"
        ) from error
    if count < 1:
        raise ConfigError(f"{override.input_line}: there is no number from {start} to {stop} in steps of {step}")
    kind = float if float in map(type, (value.start, value.stop, value.step)) else int
    return count, kind(start), kind(start + (count - 1) * step)


def length(override: Override) -> int:
    """How many values an override of a grid gives its key.

    Raises:
        ConfigError: none, or those of an interval.
    """
    if not override.is_sweep_override():
        return 1
    if override.is_interval_sweep():
        raise ConfigError(f"{override.input_line}: write several values, or set hydra/sweeper to optuna")
    if override.is_range_sweep():
        return bounds(override)[0]
    count = sum(1 for _ in override.sweep_string_iterator())
    if not count:
        raise ConfigError(f"{override.input_line}: there is no such option: write the values, such as seed=0,1,2")
    return count


def values(override: Override) -> list[str]:
    """An override of a grid as overrides with one value each."""
    key, swept = override.get_key_element(), override.is_sweep_override()
    impossible.check_size(length(override))
    return [
        f"{key}={v}" for v in (override.sweep_string_iterator() if swept else [override.get_value_element_as_str()])
    ]


def register() -> None:
    """Make the sweepers known to Hydra, this one in place of the basic one."""
    from ssl_bench.commands.halving import HalvingSweeper
    from ssl_bench.commands.optuna import OptunaSweeper

    searches = {f"{SEARCHES}{each.__name__}": each for each in (HalvingSweeper, OptunaSweeper)}
    Plugins.instance().class_name_to_class |= {BASIC: GridSweeper, **searches}
