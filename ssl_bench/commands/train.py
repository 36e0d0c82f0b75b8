"""``ssl-bench train``: compose, validate, skip what is done, launch.

Everything after ``train`` is Hydra's: ``ssl-bench train dataset=cifar10 batch_size=b128``, and with ``-m`` a grid:
``ssl-bench train -m batch_size=b64,b128 seed=0,1,2``. A run is its content: the same configuration has the same
directory, where a finished run is skipped and a partial one goes on.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from ssl_bench.config import compose as configuration
from ssl_bench.errors import ConfigError
from ssl_bench.launch import grid, processes
from ssl_bench.launch.job import Cell, Check, Outcome, Work, unwritable


def main(
    arguments: Sequence[str],
    primary: str = "train",
    check: Check = configuration.check,
    run: Work | None = None,
) -> int:
    """Runs one cell or a grid.

    Args:
        arguments: Hydra's, without the command.
        primary: the configuration to compose.
        check: raises ConfigError for values that cannot be meant.
        run: gives a cell's metrics from its configuration, in this process; None: it pre-trains and evaluates on
            ``devices``.

    Returns:
        0: done, or nothing was left to do. 1: a run failed. 2: the configuration or its data cannot be used. 128 + n:
        stopped by signal n, to be resumed by the same command.
    """
    overrides = [a for a in arguments if not a.startswith("-") and ("=" in a or a.startswith("~"))]
    flags = [a for a in arguments if a not in overrides]  # first, for -m may stand anywhere
    os.environ["SSL_BENCH_SWEEP"] = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{os.getpid()}"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # its errors come here as exceptions and go to the user as sentences
    shell_arguments, sys.argv = sys.argv, [f"ssl-bench {primary}", *flags, *overrides]  # where Hydra looks
    outcomes: list[Outcome] = []
    later: list[Cell] = []

    def cell(cfg: DictConfig) -> None:
        job = Cell(cfg, HydraConfig.get(), check, run)
        if not job.grid:
            outcomes.append(job(wait=True))
            return
        print(f"[{job.number + 1}] {' '.join(job.overrides)}", flush=True)
        processes.enter(job.launcher)
        outcome = job(wait=False)
        if job.launcher == "basic":
            if outcome["state"] == "held":
                later.append(job)  # the others first
            if outcome["state"] == "interrupted":
                raise SystemExit(outcome["code"])
        elif outcome["state"] == "interrupted":
            processes.interrupted(outcome["signal"])

    grid.started = None
    try:
        for override in overrides:
            if override.lstrip("+").startswith("experiment=") and "," in override:
                raise ConfigError(
                    f"{override}: each experiment has its own grid, which would be lost; start one at a time"
                )
        hydra.main(version_base="1.3", config_path=str(configuration.directory()), config_name=primary)(cell)()
        for job in later:
            job(wait=True)
    except (HydraException, OmegaConfBaseException) as error:
        return _refuse(configuration.explain(error, overrides))
    except ConfigError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:  # where there is no run that saves itself
        print("interrupted; the same command does what is missing", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # whoever read what is printed has had enough
        return 1
    except OSError as error:  # the folder that Hydra makes for a sweep
        return _refuse(unwritable(error))
    finally:
        sys.argv = shell_arguments
    if grid.started is not None:
        return grid.summary(grid.started)
    return int(outcomes[0].get("code", 0)) if outcomes else 0


def _refuse(reason: str) -> int:
    print(f"ssl-bench: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
