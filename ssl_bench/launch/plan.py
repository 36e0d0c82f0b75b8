"""The runs of a command: composed, looked for on the disk and checked, all before the first one starts."""

import os
import shlex
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ssl_bench.config import schema
from ssl_bench.config.command import Command
from ssl_bench.config.compose import load_of_many
from ssl_bench.config.from_disk import find_prepared
from ssl_bench.config.hydra_errors import NoSuchKey
from ssl_bench.disk.patience import unwritable
from ssl_bench.errors import ConfigError
from ssl_bench.files import given_path
from ssl_bench.launch import grid, impossible
from ssl_bench.launch.outcome import Outcome
from ssl_bench.launch.run import Run, ranks_here, tidy
from ssl_bench.record import folders, results

MANY = 300  # runs that take some seconds to check


class Plan:
    """The runs of one command, in their order.

    Args:
        asked: what the command asks for.
        skip: leave out runs that cannot be.

    Attributes:
        command: the one of a single run, without its overrides.
        runs: by their overrides.
        left_out: overrides of runs that cannot be.
        folder: of the grid; None: it has not begun, and nothing is written.
        ends: how those ended that were started, by their numbers.
    """

    def __init__(self, asked: Command, skip: bool = False) -> None:
        self.asked, self.skip, self._typed = asked, skip, ""
        self.command = ["ssl-bench", "train", *(["--config-dir", str(asked.folder)] if asked.folder else [])]
        self.runs, self.left_out = dict[tuple[str, ...], Run](), dict[tuple[str, ...], None]()
        self.folder: Path | None = None
        self.ends = dict[int, Outcome]()

    def begin(self, typed: str) -> None:
        """Let the grid have a folder, with the command that was typed in ``grid.json``."""
        outputs = given_path(str(self.asked.cfg.paths.outputs))
        started = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{socket.gethostname()}-{os.getpid()}"  # pods have one number
        self.folder = outputs / ".sweeps" / started
        self._typed = typed

    def compose(self, overrides: tuple[str, ...]) -> Run:
        """Compose a run and look for its results.

        Raises:
            ConfigError: an override cannot be used.
        """
        try:
            return self.run(overrides, load_of_many(overrides, self.asked.folder))
        except NoSuchKey as error:  # the options of this run lack a key that those of others may have
            return Run(overrides, {}, Path(), "", refusal=error)

    def run(self, overrides: tuple[str, ...], config: dict[str, Any], label: str = "") -> Run:
        """The run of a resolved configuration.

        Args:
            label: names it in sentences; by default, by the overrides that distinguish it.
        """
        try:
            schema.check(config)
        except ConfigError as error:
            return Run(overrides, config, Path(), "", refusal=error)
        config = find_prepared(config)
        folder, command = folders.find(config), shlex.join([*self.command, *overrides])
        return Run(overrides, config, folder, command, results.is_complete(folder, config), label=label)

    def label(self, run: Run) -> str:
        """The name of a run in sentences."""
        if run.label:
            return f"{run.label} seed={run.config['seed']}"
        keys = self.asked.swept
        named = [override for override in run.overrides if override.partition("=")[0] in keys]
        return " ".join(named or run.overrides)

    def refused(self, runs: Sequence[Run]) -> dict[int, ConfigError]:
        """Why runs cannot be, by their place in ``runs``; those that have their results are not checked.

        Under Slurm they are carried out on other machines, which may have what this one lacks.
        """
        refused = {place: run.refusal for place, run in enumerate(runs) if run.refusal}
        left = [place for place, run in enumerate(runs) if not (run.done or run.refusal)]
        if left:
            from ssl_bench.training.refusals import refusals  # imports torch: only if there is something to train

            errors = refusals([runs[place].config for place in left], self.asked.launcher != "slurm", ranks_here)
            refused |= {place: error for place, error in zip(left, errors, strict=True) if error}
        return dict(sorted(refused.items()))

    def add(self, runs: Sequence[Run]) -> list[Run]:
        """Add runs, unless they are there already, and write ``grid.json``; return them as they are in the grid."""
        for run in runs:
            if run.done and self.folder is not None:
                tidy(run.folder)
            if run.overrides not in self.runs:
                self.runs[run.overrides] = replace(run, grid=self.folder, number=len(self.runs))
        if self.folder is not None:
            finished = {run.number: run.folder for run in self.runs.values() if run.done}
            epochs = [run.config.get("epochs") for run in self.runs.values()]
            typed = f"{self._typed} {impossible.SKIP}" if self.left_out else self._typed
            try:
                single, labels = shlex.join(self.command), [run.label for run in self.runs.values()]
                grid.begin(self.folder, typed, list(self.runs), finished, epochs, list(self.left_out), single, labels)
            except OSError as error:
                raise unwritable(error) from error
        return [self.runs[run.overrides] for run in runs]

    def every(self) -> list[Run]:
        """Add every combination of the values of the keys, those that can be.

        Raises:
            ConfigError: the configuration of a run cannot be used.
        """
        combinations = self.asked.combinations()
        if len(combinations) > MANY:
            print(f"checking {len(combinations)} runs", flush=True)
        runs = [self.compose(overrides) for overrides in combinations]
        if all(isinstance(run.refusal, NoSuchKey) for run in runs) and runs[0].refusal:  # a key of no run
            raise runs[0].refusal
        refused = self.refused(runs)
        possible = impossible.left([run.overrides for run in runs], refused, self.skip)
        self.left_out |= {runs[place].overrides: None for place in refused}
        added = self.add([runs[place] for place in possible])
        if done := sum(run.done for run in added):
            print(f"{done} of {len(added)} runs are done already", flush=True)
        return added
