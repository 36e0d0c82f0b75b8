"""``ssl-bench train``: compose, validate, skip what is done, launch.

Everything after ``train`` is Hydra's: ``ssl-bench train dataset=cifar10 batch_size=b128``, and with ``-m`` a grid:
``ssl-bench train -m batch_size=b64,b128 seed=0,1,2``. A run is its content: the same configuration has the same
directory, where a finished run is skipped and a partial one goes on.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from ssl_bench import config as configuration
from ssl_bench import files
from ssl_bench.errors import ConfigError
from ssl_bench.identity import run_dir, run_id
from ssl_bench.report import report

Outcome = dict[str, Any]
Check = Callable[[dict[str, Any]], None]
Work = Callable[[dict[str, Any], str, Path], Any]  # configuration, identity, directory
WORDS = {"done": "trained", "done before": "done before", "failed": "failed"}


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
        run: what a cell does, in this process, given its configuration, identity and directory; None: it pre-trains and
            evaluates on ``devices``.

    Returns:
        0: done, or nothing was left to do. 1: a run failed. 2: the configuration or its data cannot be used. 128 + n:
        stopped by signal n, to be resumed by the same command.
    """
    overrides = [a for a in arguments if not a.startswith("-") and ("=" in a or a.startswith("~"))]
    flags = [a for a in arguments if a not in overrides]  # first, for -m may stand anywhere
    os.environ["SSL_BENCH_SWEEP"] = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{os.getpid()}"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # its errors come here as exceptions and go to the user as sentences
    shell_arguments, sys.argv = sys.argv, [f"ssl-bench {primary}", *flags, *overrides]  # where Hydra looks
    cells: list[tuple[list[str], Outcome]] = []
    grid = False

    def cell(cfg: DictConfig) -> None:
        nonlocal grid
        settings = HydraConfig.get()
        grid = settings.mode == RunMode.MULTIRUN
        chosen = list(settings.overrides.task)
        if grid:
            print(f"[{len(cells) + 1}] {' '.join(chosen)}", flush=True)
        outcome = _cell(cfg, settings, grid, check, run)
        cells.append((chosen, outcome))
        if outcome["state"] == "interrupted":
            number = outcome["signal"]
            print(f"interrupted by {signal.Signals(number).name}; resume with the same command", file=sys.stderr)
            raise SystemExit(128 + number)
        if outcome["state"] == "failed" and os.environ.get("RANK", "0") == "0":
            print(f"ssl-bench: {outcome['reason']}", file=sys.stderr, flush=True)

    try:
        for override in overrides:
            if override.lstrip("+").startswith("experiment=") and "," in override:
                raise ConfigError(
                    f"{override}: each experiment has its own grid, which would be lost; start one at a time"
                )
        hydra.main(version_base="1.3", config_path=str(configuration.directory()), config_name=primary)(cell)()
    except (HydraException, OmegaConfBaseException) as error:
        return _refuse(configuration.explain(error, overrides))
    except ConfigError as error:
        return _refuse(str(error))
    except BrokenPipeError:  # whoever read what is printed has had enough
        return 1
    except OSError as error:  # the folder that Hydra makes for a sweep
        return _refuse(_unwritable(error))
    finally:
        sys.argv = shell_arguments
    if not grid:
        return int(cells[0][1].get("code", 0)) if cells else 0
    return _summary(cells)


def _summary(cells: Sequence[tuple[list[str], Outcome]]) -> int:
    """Says how a grid went, each failure by what sets its cell apart; gives the exit code."""
    states = [outcome["state"] for _, outcome in cells]
    counts = [f"{states.count(s)} {word}" for s, word in WORDS.items()]
    print(f"{len(cells)} cells: {', '.join(counts)}")
    shared = set.intersection(*(set(chosen) for chosen, _ in cells))
    for chosen, outcome in cells:
        if outcome["state"] == "failed":
            print(f"  failed: {' '.join(c for c in chosen if c not in shared)}: {outcome['reason']}")
    return 1 if "failed" in states else 0


def _cell(
    cfg: DictConfig,
    settings: Any,
    grid: bool,
    check: Check,
    run: Work | None,
) -> Outcome:
    """One cell of the grid, or the only one; nothing is raised, so that the others go on."""
    try:
        config = configuration.resolve(cfg, settings.runtime.choices)
        torchrun = "TORCHELASTIC_RUN_ID" in os.environ and run is None
        if torchrun:
            if grid:
                raise ConfigError(
                    "a grid cannot run under torchrun, where every rank would sweep: use devices=N instead"
                )
            config["devices"] = int(os.environ["WORLD_SIZE"])
        check(config)
        return _run(config, torchrun, run)
    except (ConfigError, OmegaConfBaseException) as error:
        return {"state": "failed", "reason": configuration.explain(error), "code": 2}


def _run(config: dict[str, Any], torchrun: bool, run: Work | None) -> Outcome:
    identity, folder = run_id(config), run_dir(config)
    first = not torchrun or os.environ["RANK"] == "0"
    done = (folder / "results.json").exists()
    if done and not torchrun:
        return _conclude({"state": "done before"}, folder)
    from ssl_bench import assemble, launch  # torch: only when there is something to train

    if run is None:
        assemble.validate(config, int(os.environ["LOCAL_WORLD_SIZE"]) if torchrun else config["devices"])
    if first and not done:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "failed.json").unlink(missing_ok=True)
            files.write_text(folder / "config.yaml", yaml.safe_dump(config, sort_keys=False))
        except OSError as error:
            raise ConfigError(_unwritable(error)) from error
        print(f"run {identity} in {folder}", flush=True)
    if run is not None:
        outcome = launch.alone(lambda: run(config, identity, folder), folder)
    else:
        outcome = launch.join(config, identity, folder) if torchrun else launch.launch(config, identity, folder)
    return _conclude(outcome, folder) if first else outcome


def _conclude(outcome: Outcome, folder: Path) -> Outcome:
    """Shows how a run ended, and keeps the reason if it failed."""
    if outcome["state"] == "done before":
        print(f"already done: {folder}")
    if outcome["state"] in ("done", "done before"):
        report(folder)
    if outcome["state"] == "failed":
        detail = outcome.pop("detail")
        if detail:
            print(detail, file=sys.stderr, flush=True)
        with contextlib.suppress(OSError):  # a full disk may be the reason, and is about to be told
            files.write_json(folder / "failed.json", {"reason": outcome["reason"], "detail": detail})
    return outcome


def _unwritable(error: OSError) -> str:
    return f"{error.filename or 'paths.outputs'}: {error.strerror}; set paths.outputs to a folder that can be written"


def _refuse(reason: str) -> int:
    print(f"ssl-bench: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
