"""``ssl-bench train``: compose, validate, skip finished runs, train.

Everything after ``train`` belongs to Hydra: ``ssl-bench train dataset=cifar10 batch_size=b128``. With ``-m`` it is a
grid: ``ssl-bench train -m batch_size=b64,b128 seed=0,1,2``. The same configuration always has the same directory: there
a finished run is skipped and a partial one resumed.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from ssl_bench.commands import experiments
from ssl_bench.commands.arguments import refuse
from ssl_bench.config import compose, schema
from ssl_bench.errors import ConfigError, unwritable
from ssl_bench.launch import grid, processes
from ssl_bench.launch.job import Check, Job, Work
from ssl_bench.launch.outcome import Outcome, State


class GridCallback(Callback):
    """Hydra callback that writes ``grid.json`` when a grid starts."""

    folder: ClassVar[Path | None] = None  # of the grid that this process has started

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        given = [f"{key}={value}" for key, value in (config.hydra.sweeper.params or {}).items()]
        parsed = OverridesParser.create().parse_overrides([*given, *config.hydra.overrides.task])
        runs = [list(run) for batch in BasicSweeper.split_arguments(parsed, None) for run in batch]
        GridCallback.folder = Path(config.hydra.sweep.dir)
        grid.begin(GridCallback.folder, runs)


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
    overrides = [a for a in arguments if not a.startswith("-") and ("=" in a or a.startswith("~"))]
    flags = [a for a in arguments if a not in overrides]
    os.environ["SSL_BENCH_SWEEP"] = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{os.getpid()}"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its errors, which are put into sentences below
    # Hydra reads sys.argv, flags first.
    shell_arguments, sys.argv = sys.argv, [f"ssl-bench {primary}", *flags, *overrides]
    outcomes: list[Outcome] = []
    held: list[Job] = []

    def run_one(cfg: DictConfig) -> None:
        job = Job(cfg, HydraConfig.get(), check, work)
        if not job.in_grid:
            outcomes.append(job.run(wait=True))
            return
        print(f"[{job.number + 1}] {' '.join(job.overrides)}", flush=True)
        processes.prepare(job.launcher)
        outcome = job.run(wait=False)
        if job.launcher == "basic":
            if outcome.state is State.HELD:
                held.append(job)  # after the other runs
            if outcome.state is State.INTERRUPTED:
                raise SystemExit(outcome.code)
        elif outcome.state is State.INTERRUPTED:
            processes.pass_on(outcome.signal)

    GridCallback.folder = None
    experiments.register()
    try:
        for override in overrides:
            if override.lstrip("+").startswith("experiment=") and "," in override:
                raise ConfigError(f"{override}: each experiment has a grid of its own: start one at a time")
        hydra.main(version_base="1.3", config_path=str(compose.directory()), config_name=primary)(run_one)()
        for job in held:
            job.run(wait=True)
    except (HydraException, OmegaConfBaseException) as error:
        return refuse(compose.explain(error, overrides))
    except ConfigError as error:
        return refuse(error)
    except KeyboardInterrupt:  # outside a training, which handles signals itself
        print("interrupted; the same command does what is missing", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of the output has closed it
        return 1
    except OSError as error:  # Hydra could not make the grid's folder
        return refuse(unwritable(error))
    finally:
        sys.argv = shell_arguments
    if GridCallback.folder is not None:
        return grid.summarise(GridCallback.folder)
    return outcomes[0].code if outcomes else 0
