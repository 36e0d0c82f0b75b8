"""A grid: the runs of a command, all composed and checked before the first one starts, and how they ended.

How they ended stands in their directories, and which there were in a file (``record/grids.py``).
"""

import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ssl_bench.config import compose, schema, with_hydra
from ssl_bench.config.command import Command
from ssl_bench.config.from_disk import find_prepared
from ssl_bench.config.identity import run_dir
from ssl_bench.errors import ConfigError
from ssl_bench.files import given_path, unwritable
from ssl_bench.launch import impossible, slurm, workers
from ssl_bench.launch.live import Live
from ssl_bench.launch.nodes import under_torchrun
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.run import Run, ranks_here, tidy
from ssl_bench.record import grids, runs
from ssl_bench.record.dashboard import under_agent
from ssl_bench.signals import Interrupted, raised

MANY = 300  # runs that take some seconds to check


@dataclass
class Grid:
    """The runs of one command, in their order.

    Attributes:
        command: what was asked for.
        typed: the command as it was typed.
        runs: those that can be.
        left_out: how many cannot be.
        ends: how those ended that were started, by their numbers.
    """

    command: Command
    typed: str = ""
    runs: list[Run] = field(default_factory=list)
    left_out: int = 0
    ends: workers.Ends = field(default_factory=dict)

    @property
    def single(self) -> list[str]:
        """The command of a single run, without its overrides."""
        return ["ssl-bench", "train", *(["--config-dir", str(self.command.folder)] if self.command.folder else [])]

    def alone(self) -> Run:
        """Add the only run of a command that is no grid.

        Raises:
            ConfigError: its configuration cannot be used.
        """
        with with_hydra.in_sentences(self.command.given):
            config = compose.resolved(self.command.cfg, self.command.folder)
        if under_torchrun():
            config["devices"] = int(os.environ["WORLD_SIZE"])
        self.add([self.run(self.command.overrides, config)])
        if refused := self.refused(self.runs):
            raise refused[0]
        return self.runs[0]

    def every(self, skip: bool) -> list[Run]:
        """Add every combination of the values of the keys, those that can be.

        Args:
            skip: leave out those that cannot be.

        Raises:
            ConfigError: the configuration of a run cannot be used.
        """
        combinations = self.command.combinations()
        if len(combinations) > MANY:
            print(f"checking {len(combinations)} runs", flush=True)
        runs = [self._composed(overrides) for overrides in combinations]
        if all(isinstance(run.refusal, with_hydra.NoSuchKey) for run in runs) and runs[0].refusal:  # a key of no run
            raise runs[0].refusal
        refused = self.refused(runs)
        possible = impossible.left([run.overrides for run in runs], refused, skip)
        self.left_out = len(refused)
        self.add([runs[place] for place in possible])
        if done := sum(run.done for run in self.runs):
            print(f"{done} of {len(self.runs)} runs are done already", flush=True)
        return self.runs

    def _composed(self, overrides: tuple[str, ...]) -> Run:
        try:
            return self.run(overrides, compose.load(overrides, self.command.folder))
        except with_hydra.NoSuchKey as error:  # the options of this run lack a key that those of others may have
            return Run(overrides, {}, Path(), "", refusal=error)

    def run(self, overrides: tuple[str, ...], config: dict[str, Any], label: str = "") -> Run:
        """The run of a resolved configuration.

        Args:
            label: names it in sentences; by default, the overrides that distinguish it.
        """
        try:
            schema.check(config)
        except ConfigError as error:
            return Run(overrides, config, Path(), "", refusal=error)
        config = find_prepared(config)
        folder, command = runs.find(config), shlex.join([*self.single, *overrides])
        return Run(overrides, config, folder, command, done=runs.is_complete(folder, config), label=label)

    def add(self, runs: Sequence[Run]) -> None:
        """Add runs with their numbers, each once."""
        new = {run.overrides: run for run in reversed([*self.runs, *runs])}
        self.runs = [replace(run, number=number) for number, run in enumerate(reversed(new.values()))]

    def refused(self, runs: Sequence[Run]) -> dict[int, ConfigError]:
        """Why runs cannot be, by their place in ``runs``; those that have their results are not checked.

        Under Slurm they are carried out on other machines, which may have what this one lacks.
        """
        refused = {place: run.refusal for place, run in enumerate(runs) if run.refusal}
        left = [place for place, run in enumerate(runs) if not (run.done or run.refusal)]
        if left:
            from ssl_bench.training.validate import refusals  # imports torch: only if there is something to train

            configs = [runs[place].config for place in left]
            errors = refusals(configs, self.command.launcher != "slurm", ranks_here)
            refused |= {place: error for place, error in zip(left, errors, strict=True) if error}
        return dict(sorted(refused.items()))

    def train(self) -> int:
        """Carry out the runs where they were asked for; return the signal that has stopped them, or 0."""
        since, settings, stop = time.time(), self.command.settings, 0
        left = [run for run in self.runs if not run.done]
        for run in self.runs:
            if run.done:
                tidy(run.folder)
                self.ends[run.number] = Outcome(State.DONE_BEFORE, folder=str(run.folder))
        among = workers.places(left, settings) if left and self.command.launcher == "local" else []
        try:
            with raised(), Live(left, len(self.runs) - len(left), self.names) as live:
                self._write(since)

                def said(run: Run, outcome: Outcome) -> None:
                    self.ends[run.number] = outcome
                    live.said(run, outcome)

                if left and self.command.launcher == "slurm":
                    slurm.in_jobs(left, settings, self.outputs / ".slurm", since, said)
                elif among:
                    workers.local(left, among, since, said)
                else:
                    workers.work(left, since, said)
        except Interrupted as interrupted:
            stop = interrupted.number
        stop = stop or next((end.signal for end in self.ends.values() if end.state is State.INTERRUPTED), 0)
        if stop:
            name = signal.Signals(stop).name
            print(f"interrupted by {name}; the same command goes on", file=sys.stderr, flush=True)
        return stop

    @property
    def outputs(self) -> Path:
        """The results folder."""
        return given_path(str(self.command.cfg.paths.outputs))

    @property
    def names(self) -> dict[int, str]:
        """The names of the runs in sentences."""
        keys = self.command.swept
        named = {run.number: [one for one in run.overrides if one.partition("=")[0] in keys] for run in self.runs}
        labels = {run.number: f"{run.label} seed={run.config['seed']}" for run in self.runs if run.label}
        return {number: " ".join(words) for number, words in named.items()} | labels

    def _write(self, since: float) -> None:
        """Write the lists of the experiments that the runs belong to."""
        of = dict[Path, list[grids.AskedRun]]()
        for run in self.runs:
            folder = os.path.relpath(run.folder, self.outputs)
            of.setdefault(run_dir(run.config).parent, []).append({"overrides": [*run.overrides], "folder": folder})
        try:
            for experiment, asked in of.items():
                grids.write(experiment, self.typed, shlex.join(self.single), since, asked)
        except OSError as error:
            raise unwritable(error) from error


def check_place(command: Command, dry_run: bool) -> None:
    """Refuse a grid where it cannot be carried out; a dry run needs no Slurm.

    Raises:
        ConfigError: this process is one of torchrun or of a W&B agent, or there is no Slurm.
    """
    if under_torchrun():
        raise ConfigError("a grid cannot run under torchrun, where every rank would start it: use devices=N instead")
    if under_agent():
        raise ConfigError("a grid cannot run under a W&B agent, which starts one run at a time: leave -m out")
    if command.launcher == "slurm" and not dry_run:
        slurm.check()
