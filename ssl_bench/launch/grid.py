"""A grid: the runs of a command, all composed and checked before the first one starts, and how they ended.

The directory of a run says how it ended; a file lists the runs of a grid (:class:`ssl_bench.record.runs.Grid`).
The word ``skip=impossible`` of the command line, which is no key of a configuration, leaves out runs that are refused.
"""

import os
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ssl_bench.config import compose, compositions, schema, with_hydra
from ssl_bench.config.command import Command
from ssl_bench.config.from_disk import find_prepared
from ssl_bench.config.identity import run_dir
from ssl_bench.errors import ConfigError, printable, require
from ssl_bench.files import given_path
from ssl_bench.launch import lease
from ssl_bench.launch.processes import OnEnd, Outcome, Run, State, ranks_here, under_torchrun
from ssl_bench.record import runs
from ssl_bench.record.dashboard import under_agent
from ssl_bench.record.terminal import CLEAR, clock, short
from ssl_bench.signals import Interrupted, raised

SKIP = "skip=impossible"


@dataclass
class Grid:
    """The runs of one command, in their order.

    Attributes:
        command: the parsed command.
        typed: the command as it was typed.
        runs: the runs whose configuration is not refused.
        left_out: the number of refused runs.
        ends: the outcome of each run that has ended, by its number.
    """

    command: Command
    typed: str = ""
    runs: list[Run] = field(default_factory=list)
    left_out: int = 0
    ends: dict[int, Outcome] = field(default_factory=dict)

    @property
    def single(self) -> list[str]:
        """The words of the command that trains one run of the grid, without its overrides."""
        return ["ssl-bench", "train", *(["--config-dir", str(self.command.folder)] if self.command.folder else [])]

    @cached_property
    def outputs(self) -> Path:
        """The results folder."""
        return given_path(str(self.command.cfg.paths.outputs))

    def alone(self) -> Run:
        """Add the only run of a command that is no grid.

        Raises:
            ConfigError: its configuration cannot be used.
        """
        with with_hydra.in_sentences(self.command.given):
            config = compose.resolved(self.command.cfg, self.command.folder)
        if under_torchrun():
            config["devices"] = int(os.environ["WORLD_SIZE"])
        self.runs = [self.run(self.command.overrides, config)]
        if refused := self.refused(self.runs):
            raise refused[0]
        return self.runs[0]

    def every(self, skip: bool) -> list[Run]:
        """Add a run for every combination of the values of the keys.

        Args:
            skip: leave out the runs that are refused.

        Raises:
            ConfigError: the configuration of a run cannot be used.
        """
        combinations, swept = self.command.combinations(), self.command.swept
        composed = compositions.with_seeds(combinations, self.command.folder)
        labels = [" ".join(word for word in words if word.partition("=")[0] in swept) for words in combinations]
        every = [self.run(words, composed.get(words), label) for words, label in zip(combinations, labels, strict=True)]
        refused = self.refused(every)
        self.runs = [every[place] for place in possible(labels, refused, skip)]
        self.left_out = len(refused)
        return self.runs

    def run(self, overrides: tuple[str, ...], config: dict[str, Any] | None = None, label: str = "") -> Run:
        """The run of some overrides; its attribute ``refusal`` says why its configuration cannot be used.

        Args:
            config: the resolved configuration, if it is composed already.
            label: names the run in sentences.
        """
        try:
            config = config or compose.load(overrides, self.command.folder)
            schema.check(config)
        except ConfigError as error:
            return Run(overrides, config or {}, Path(), "", label, refusal=error)
        config = find_prepared(config)
        folder, command = runs.find(config), shlex.join([*self.single, *overrides])
        return Run(overrides, config, folder, command, label, done=runs.is_complete(folder, config))

    def refused(self, runs: Sequence[Run]) -> dict[int, ConfigError]:
        """The reasons against runs, by their place in ``runs``; finished runs are not checked.

        With Slurm other machines carry out the runs, which may have GPUs or images that this one lacks.
        """
        refused = {place: run.refusal for place, run in enumerate(runs) if run.refusal}
        remaining = {place: run.config for place, run in enumerate(runs) if not (run.done or run.refusal)}
        if remaining:
            from ssl_bench.training.validate import refusals  # imports torch: only if there is something to train

            errors = refusals([*remaining.values()], self.command.launcher != "slurm", ranks_here)
            refused |= {place: error for place, error in zip(remaining, errors, strict=True) if error}
        return dict(sorted(refused.items()))

    def train(self) -> int:
        """Carry out the runs as the launcher says; return the number of the signal that has stopped them, or 0."""
        since, stop, over = time.time(), 0, threading.Event()
        self.runs = [replace(run, number=number) for number, run in enumerate(self.runs)]
        for run in [run for run in self.runs if run.done]:
            lease.remove_stale(run.folder)
            self.ends[run.number] = Outcome(State.DONE_BEFORE, folder=str(run.folder))
        remaining = [run for run in self.runs if not run.done]
        carry_out = self._how(remaining) if remaining else None
        try:
            with raised():
                pairs = [([*run.overrides], os.path.relpath(run.folder, self.outputs)) for run in self.runs]
                content = runs.Grid(command=self.typed, single=shlex.join(self.single), started=since, runs=pairs)
                runs.write_grid(content, [run_dir(run.config).parent for run in self.runs])
                threading.Thread(target=self._show, args=(over, since), daemon=True).start()
                if carry_out:
                    carry_out(remaining, since, self._print_end)
        except Interrupted as interrupted:
            stop = interrupted.number
        finally:
            over.set()
        stop = stop or next((end.code - 128 for end in self.ends.values() if end.state is State.INTERRUPTED), 0)
        if stop:
            Outcome.interrupted(stop).report()
        return stop

    def _how(self, remaining: Sequence[Run]) -> Callable[[Sequence[Run], float, OnEnd], object]:
        """The function that carries out runs as the launcher says."""
        settings = self.command.settings
        if self.command.launcher == "slurm":
            from ssl_bench.launch.slurm import in_jobs  # submitit takes a quarter of a second

            return partial(in_jobs, settings, self.outputs / ".slurm")
        from ssl_bench.launch import run  # imports torch

        return partial(run.at_once, run.places(remaining, settings)) if self.command.launcher == "local" else run.here

    def _print_end(self, run: Run, outcome: Outcome) -> None:
        """Print how a run has ended."""
        self.ends[run.number] = outcome
        how = short(Path(outcome.folder), run.config) if outcome.finished and outcome.folder else outcome.state.value
        how = f"done before  {how}" if outcome.state is State.DONE_BEFORE else how
        words = (f"{len(self.ends)} of {len(self.runs)}", run.label, ": ".join(filter(None, (how, outcome.reason))))
        print(CLEAR * sys.stdout.isatty() + "  ".join(filter(None, words)), flush=True)

    def _show(self, over: threading.Event, began: float) -> None:
        """Print a line with the run that trains and the time left: every second on a terminal, else every minute."""
        terminal, before = sys.stdout.isatty(), len(self.ends)
        while not over.wait(1.0 if terminal else 60.0):
            remaining = [run for run in self.runs if run.number not in self.ends]
            at = [(run, runs.Run(run.folder, run.config)) for run in remaining]
            at = [(run, its) for run, its in at if its.progress.changed > began and its.progress.loss is not None]
            todo = len(remaining) - sum(its.share for _, its in at)
            done = len(self.runs) - before - todo
            time_left = f", about {clock(todo * (time.time() - began) / done)} left" if done > 0.02 else ""
            for run, its in at[:1]:
                loss = f"loss {its.progress.loss:.4f}" + f" and {len(at) - 1} more" * (len(at) > 1)
                text = f"{run.label}  {its.share:.0%}  {loss}  ({len(remaining)} to go{time_left})"
                line = f"{CLEAR}{text[: shutil.get_terminal_size().columns - 1]}" if terminal else f"{text}\n"
                print(line, end="", flush=True)


def check_place(command: Command, dry_run: bool) -> None:
    """Refuse a grid in a process that cannot start it, or without Slurm; a dry run needs no Slurm.

    Raises:
        ConfigError: this process is one of torchrun or of a W&B agent, or there is no Slurm.
    """
    if under_torchrun():
        raise ConfigError("a grid cannot run under torchrun, where every rank would start it: use devices=N instead")
    if under_agent():
        raise ConfigError("a grid cannot run under a W&B agent, which starts one run at a time: leave -m out")
    remedy = "local, or start the command on a machine that has Slurm: there is no srun"
    require(command.launcher != "slurm" or dry_run or bool(shutil.which("srun")), "launcher", "slurm", remedy)


def take_skip(overrides: list[str]) -> bool:
    """Remove ``skip=impossible`` from ``overrides``; return whether it was given.

    Raises:
        ConfigError: ``skip`` has another value.
    """
    given = [override for override in overrides if override.partition("=")[0] == "skip"]
    overrides[:] = [override for override in overrides if override not in given]
    require({*given} <= {SKIP}, "skip", "".join(given)[5:], "impossible, which leaves out runs that cannot be")
    return bool(given)


def possible(labels: Sequence[str], refused: Mapping[int, ConfigError], skip: bool, what: str = "runs") -> list[int]:
    """The numbers of the runs that are not refused; refused runs are printed, one of each kind with its reason.

    Args:
        labels: names of the runs.
        refused: the reasons against runs, by their numbers.
        skip: leave out the refused runs.
        what: the word for the runs.

    Raises:
        ConfigError: runs are refused and ``skip`` is False, or all are refused.
    """
    kinds = dict[object, list[int]]()
    for number, error in refused.items():  # what to set is the same for several values
        kinds.setdefault((getattr(error, "key", ""), getattr(error, "remedy", str(error))), []).append(number)
    texts, head = list[str](), f"{len(refused)} of {len(labels)} {what} are impossible"
    for first, *more in kinds.values():
        reason = str(refused[first]).removeprefix(f"{labels[first]}: ")
        texts.append(f"{printable(labels[first])}: {reason}{f' (and {len(more)} more)' * bool(more)}")
    if refused and (not skip or len(refused) == len(labels)):
        remedy = [f"{SKIP} leaves them out"] * (len(refused) < len(labels))
        raise ConfigError(f"{head}: {'; '.join(texts + remedy)}")
    if refused:
        print(f"{head} and are left out:", *(f"  {text}" for text in texts), sep="\n", flush=True)
    return [number for number in range(len(labels)) if number not in refused]
