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

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from ssl_bench.commands import experiments, sweeper
from ssl_bench.commands.arguments import refuse
from ssl_bench.commands.sweeper import GridSweeper
from ssl_bench.config import compose, schema
from ssl_bench.errors import ConfigError, require, unwritable
from ssl_bench.launch import grid, processes
from ssl_bench.launch.job import Check, Job, Work
from ssl_bench.launch.outcome import Outcome, State


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

    def run_one(cfg: DictConfig) -> None:
        settings = HydraConfig.get()
        chosen = settings.runtime.choices["hydra/sweeper"]
        in_grid = settings.mode is RunMode.MULTIRUN
        require(chosen == "basic" or not in_grid, "hydra/sweeper", chosen, "basic, or search with a W&B sweep")
        job = Job(cfg, settings, check, work)
        if not job.in_grid:
            outcomes.append(job.run())
            return
        print(f"[{job.number + 1}] {' '.join(job.overrides)}", flush=True)
        processes.prepare(job.launcher)
        outcome = job.run()
        if outcome.state is State.INTERRUPTED:
            if job.launcher == "basic":
                raise SystemExit(outcome.code)
            processes.pass_on(outcome.signal)

    GridSweeper.folder = None
    experiments.register()
    sweeper.register()
    try:
        for override in overrides:
            if override.lstrip("+").startswith("experiment=") and "," in override:
                raise ConfigError(f"{override}: each experiment has a grid of its own: start one at a time")
        hydra.main(version_base="1.3", config_path=str(compose.directory()), config_name=primary)(run_one)()
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
    if GridSweeper.folder is not None:
        return grid.summarise(GridSweeper.folder)
    return outcomes[0].code if outcomes else 0
