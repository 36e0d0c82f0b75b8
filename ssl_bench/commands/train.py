"""``ssl-bench train``: compose, validate, skip finished runs, train.

Everything after ``train`` belongs to Hydra: ``ssl-bench train dataset=cifar10 batch_size=b128``. With ``-m`` it is a
grid: ``ssl-bench train -m batch_size=b64,b128 seed=0,1,2``. The same configuration always has the same directory: there
a finished run is skipped and a partial one resumed.
"""

import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from ssl_bench import __version__
from ssl_bench.commands import experiments, sweeper
from ssl_bench.commands.arguments import Parser, in_sentences, refuse
from ssl_bench.commands.sweeper import GridSweeper
from ssl_bench.config import compose, schema
from ssl_bench.errors import ConfigError, require
from ssl_bench.launch import grid, impossible, processes
from ssl_bench.launch.job import Check, Job, Work
from ssl_bench.launch.nodes import under_torchrun
from ssl_bench.launch.outcome import Outcome, State

INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


@in_sentences
def main(
    arguments: Sequence[str],
    primary: str = "train",
    check: Check = schema.check,
    work: Work | None = None,
) -> int:
    """Carry out one run or a grid.

    Args:
        arguments: Hydra's, without the command.
        primary: the configuration to compose.
        check: raises ConfigError for invalid values.
        work: computes the metrics of a configuration in this process; None: pre-train and evaluate on ``devices``.

    Returns:
        0: done, or nothing was left to do. 1: a run failed. 2: the configuration or its data cannot be used. 128 + n:
        stopped by signal n, to be resumed by the same command.
    """
    flags, overrides = _read(primary, arguments)
    GridSweeper.dry_run, GridSweeper.skip = "--dry-run" in arguments, impossible.taken_skip(overrides)
    if GridSweeper.skip and not {"-m", "--multirun"} & {*flags}:
        raise ConfigError(f"{impossible.SKIP} leaves out runs of a grid: add -m, or leave it out")
    under_torchrun()  # or refused, before Hydra starts
    overrides = compose.as_hydra_takes(overrides)
    os.environ["SSL_BENCH_SWEEP"] = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{os.getpid()}"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its errors, which are put into sentences below
    # Hydra reads sys.argv, flags first.
    shell_arguments, sys.argv = sys.argv, [f"ssl-bench {primary}", *flags, *overrides]
    outcomes: list[Outcome] = []

    def run_one(cfg: DictConfig) -> None:
        settings = HydraConfig.get()
        chosen = settings.runtime.choices["hydra/sweeper"]
        in_grid = settings.mode is RunMode.MULTIRUN
        known = chosen in ("basic", "halving", "optuna") or not in_grid
        require(known, "hydra/sweeper", chosen, "basic, halving or optuna, or search with a W&B sweep")
        job = Job(cfg, settings, check, work)
        if not job.in_grid:
            outcomes.append(job.run())
            return
        processes.prepare(job.launcher)
        print(f"[{job.number + 1}] {' '.join(job.overrides)}", flush=True)
        outcome = job.run()
        if outcome.state is State.INTERRUPTED:
            if job.launcher == "basic":
                raise SystemExit(outcome.code)
            processes.pass_on(outcome.signal)

    GridSweeper.folder, GridSweeper.refusals = None, _refusals if work is None else partial(_refusals_of, check)
    GridSweeper.closing = ""
    experiments.register()
    sweeper.register()
    try:
        compose.check_overrides(overrides)
        hydra.main(config_path=str(compose.directory()), config_name=primary, **compose.VERSION_BASE)(run_one)()
    except (HydraException, OmegaConfBaseException) as error:
        return refuse(compose.explain(error, overrides, primary))
    finally:
        sys.argv = shell_arguments
    if GridSweeper.folder is not None:
        code = grid.summarise(GridSweeper.folder)
        print(GridSweeper.closing, end="")
        return code
    return outcomes[0].code if outcomes else 0


def _refusals(configs: Sequence[dict[str, Any]], launcher: str) -> list[ConfigError | None]:
    """Why each run of a grid cannot be, on this machine or, under Slurm, on another one; None for one that can."""
    if not configs:
        return []
    from ssl_bench.training.refusals import refusals  # imports torch: only if there is something to train

    return refusals(configs, here=launcher != "slurm")


def _refusals_of(check: Check, configs: Sequence[dict[str, Any]], launcher: str) -> list[ConfigError | None]:
    """As :func:`_refusals`, by a check of the values."""
    found: list[ConfigError | None] = []
    for config in configs:
        try:
            check(config)
            found.append(None)
        except ConfigError as error:
            found.append(error)
    return found


def _read(primary: str, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Check the command line; return Hydra's flags and the overrides.

    Raises:
        ConfigError: a word that is no override, or a flag without the one that it belongs to.
    """
    parser = Parser(primary, "", add_help=False)
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--hydra-help", action="store_true")
    parser.add_argument("--version", action="version", version=f"ssl-bench {__version__}")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--run", "-r", action="store_true")
    modes.add_argument("--multirun", "-m", action="store_true")
    modes.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
    modes.add_argument("--info", "-i", nargs="?", const="all", choices=INFO)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("--package", "-p")
    parser.add_argument("--config-dir", "-cd", type=Path)
    parser.add_argument("words", nargs="*")
    options = parser.read(arguments)
    if options.words:
        word = options.words[0]
        groups = sorted(path.parent.name for path in compose.directory().glob("*/*.yaml") if path.stem == word)
        hint = f" (did you mean {groups[0]}={word}?)" if groups else ""
        raise ConfigError(f"{word} is no key=value{hint}: write it as group=option or key=value, such as seed=3")
    if options.cfg is None and (options.resolve or options.package):
        raise ConfigError("--resolve and --package are part of --cfg: add --cfg job")
    if options.help:
        from ssl_bench.config import reference  # noqa: F401  # registers what --help prints
    if options.dry_run and not options.multirun:
        raise ConfigError("--dry-run lists the runs of a grid: add -m")
    flags, overrides = parser.split(arguments)
    return [flag for flag in flags if flag != "--dry-run"], overrides
