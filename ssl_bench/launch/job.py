"""Carry out one run: from Hydra's composed configuration to an outcome."""

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.config import compose
from ssl_bench.config.found import find_prepared
from ssl_bench.errors import ConfigError
from ssl_bench.hardware import available_cores, visible_gpus
from ssl_bench.launch import grid
from ssl_bench.launch.lock import locked, remove_locks
from ssl_bench.launch.nodes import forget_result, nodes, restarted, under_torchrun
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.slots import slot
from ssl_bench.record import folders
from ssl_bench.record.metrics import show_agent
from ssl_bench.record.results import Config, answers
from ssl_bench.record.summary import one_line, print_run
from ssl_bench.record.wandb import under_agent

Check = Callable[[dict[str, Any]], None]
Work = Callable[[dict[str, Any]], dict[str, float]]  # metrics of a configuration


class Job:
    """Carries out one run, alone or as one of a grid.

    Args:
        cfg: the configuration that Hydra composed.
        settings: Hydra's own configuration.
        check: raises ConfigError for invalid values.
        work: computes the metrics of a configuration in this process; None: pre-train and evaluate on ``devices``.
    """

    def __init__(self, cfg: Any, settings: Any, check: Check, work: Work | None) -> None:
        self.cfg, self.check, self.work = cfg, check, work
        self.in_grid = settings.mode.name == "MULTIRUN"
        self.overrides, self.choices = compose.as_written(settings.overrides.task), dict(settings.runtime.choices)
        folders = [source.path for source in settings.runtime.config_sources if source.provider == "command-line"]
        flags = [word for folder in folders for word in ("--config-dir", folder)]
        self.command = shlex.join(["ssl-bench", settings.job.config_name, *flags, *self.overrides])
        self.launcher = self.choices["hydra/launcher"] if self.in_grid else "basic"
        self.concurrent = settings.launcher.n_jobs if self.launcher == "local" else 1
        self.grid = Path(settings.sweep.dir)
        self.number = grid.number_of(self.grid, self.overrides) if self.in_grid else 0
        self.quiet = self.launcher == "local"  # several jobs share the terminal
        self.separate = self.quiet and work is None  # the training needs a process of its own, beside other runs
        self.torchrun = work is None and under_torchrun()

    def run(self) -> Outcome:
        """Carry out the run and report how it ended. Failures become the outcome, so that a grid goes on.

        If another process is training the run, a run of a grid is ``HELD`` at first, so that the others can start. A
        single run, and one that was held before, waits.
        """
        wait = not self.in_grid or grid.outcome(self.grid, self.number).state is State.HELD
        folder: Path | None = None
        forget_result()
        try:
            config = self._configuration()
            folder = folders.find(config)
            self._record(Outcome(State.RUNNING, folder=str(folder)))
            outcome = self._carried_out(config, folder, wait)
        except ConfigError as error:
            outcome = Outcome.failed(str(error), error.exit_code)
        except OSError as error:  # of a file system, or of what the ranks share
            where = error.filename or "what the processes share in /dev/shm or TMPDIR"
            outcome = Outcome.failed(f"{where}: {error.strerror or error}; after fixing that, the same command resumes")
        outcome = replace(outcome, folder=str(folder) if folder else None)
        self._report(outcome)
        self._record(outcome)
        return outcome

    def _configuration(self) -> dict[str, Any]:
        """The resolved and checked configuration."""
        config = compose.resolve(self.cfg, self.choices)
        if self.torchrun:
            if self.in_grid:
                raise ConfigError(
                    "a grid cannot run under torchrun, where every rank would start it: use devices=N instead"
                )
            config["devices"] = int(os.environ["WORLD_SIZE"])
        if self.in_grid and under_agent():
            raise ConfigError("a grid cannot run under a W&B agent, which starts one run at a time: leave -m out")
        self.check(config)
        return find_prepared(config)

    def _carried_out(self, config: dict[str, Any], folder: Path, wait: bool) -> Outcome:
        """Skip a finished run; otherwise validate it, wait for a slot and for the lock, and train."""
        # Where the ranks have several parents, all start, and rank 0 tells them whether there is anything to do.
        several_parents = self.torchrun or nodes().count > 1
        first = os.environ["RANK"] == "0" if self.torchrun else nodes().index == 0
        if not several_parents and answers(folder, config):
            return self._concluded(Outcome(State.DONE_BEFORE), config, folder)
        if self.work is None:
            from ssl_bench.training.parts import Parts  # imports torch: only if there is something to train

            local = int(os.environ["LOCAL_WORLD_SIZE"]) if self.torchrun else nodes().share(config["devices"])
            Parts(config).validate(local)
            config = config | {"threads": self._threads(config, folder, local)}
        from ssl_bench.launch import ranks

        run = config, folder.name, folder, self.command
        start = partial(ranks.launch, *run, self.work, self.torchrun, self.separate)
        if not first:
            return start()
        if answers(folder, config):
            return self._concluded(start(), config, folder)
        with locked(folder, wait or restarted()) as owner:
            if owner is not None:
                return Outcome(State.HELD, 1, f"{folder} is being trained by {owner}")
            if answers(folder, config):  # while this process waited
                return self._concluded(Outcome(State.DONE_BEFORE), config, folder)
            with self._slot(config):
                if folders.fresh(folder):  # else it does so once it is known to go on
                    folders.begin(folder, config, self.command)
                if not self.quiet:
                    print(f"run {folder.name} in {folder}", flush=True)
                return self._concluded(start(), config, folder)

    def _slot(self, config: dict[str, Any]) -> contextlib.AbstractContextManager[None]:
        """GPUs or cores for this run, if others run at the same time."""
        if not self.separate:
            return contextlib.nullcontext()
        return slot(config["devices"], config["runs_per_gpu"], config["devices"] * (config["threads"] or 1))

    def _threads(self, config: dict[str, Any], folder: Path, local: int) -> int | None:
        """CPU threads of each of the ``local`` processes, on which bits depend; None where GPUs compute.

        They are those that were set, or that the run began with, so that it goes on with its bits from any launcher.
        Else the runs of a grid have equal shares of the cores, whatever else runs.
        """
        from ssl_bench.launch.ranks import THREADS

        threads: int | None = config["threads"]
        if threads or visible_gpus():
            return threads
        begun = (files.read_yaml(folder / "config.yaml", Config) or {}).get("threads")
        if begun and begun > 0:
            return min(begun, available_cores())
        shared = self.separate or local > 1
        return max(1, available_cores() // self.concurrent // local) if shared else THREADS

    def _concluded(self, outcome: Outcome, config: dict[str, Any], folder: Path) -> Outcome:
        """Show the results of a finished run; keep the reason of a failed one, unless it stands as it did before."""
        if outcome.state is State.DONE_BEFORE:  # perhaps in a process that was killed after it wrote the results
            remove_locks(folder)
            files.remove_temporary(folder)
        if outcome.state is State.DONE_BEFORE and self.work is None:
            show_agent(config, folder.name, folder)
        if outcome.finished and self.quiet:
            print(f"[{self.number + 1}] {outcome.state.value}: {one_line(folder, config)}", flush=True)
        elif outcome.finished:
            print("" if outcome.state is State.DONE else f"already done: {folder}\n", end="")
            print_run(folder, config)
        if outcome.state is State.FAILED and outcome.detail:
            print(outcome.detail, file=sys.stderr, flush=True)
        if outcome.state is State.FAILED and folders.begun(folder, config):
            with contextlib.suppress(OSError):  # a full disk may be the reason, which is reported anyway
                failure = {"reason": outcome.reason, "detail": outcome.detail}
                files.write_json(folder / "failed.json", failure)
        return outcome

    def _report(self, outcome: Outcome) -> None:
        """Print why the run did not finish, on rank 0."""
        if outcome.state is State.INTERRUPTED:
            name = signal.Signals(outcome.signal).name
            print(f"interrupted by {name}; resume with the same command", file=sys.stderr, flush=True)
        first = not self.torchrun or os.environ.get("RANK", "0") == "0"
        if outcome.state is State.HALTED and first:
            print(f"{outcome.reason}: without halt_at the same command goes on", flush=True)
        if outcome.state in (State.FAILED, State.HELD) and first:
            print(f"ssl-bench: {outcome.reason}", file=sys.stderr, flush=True)

    def _record(self, outcome: Outcome) -> None:
        if self.in_grid and nodes().index == 0:
            grid.record(self.grid, self.number, self.overrides, outcome)
