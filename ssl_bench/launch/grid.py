"""A grid: the runs of a command, all composed and checked before the first one starts, and how they ended.

How they ended stands in their directories, and which there were in a file (``record/grids.py``).
"""

import os
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ssl_bench.config import compose, hydra_errors, schema
from ssl_bench.config.command import Command
from ssl_bench.config.from_disk import find_prepared
from ssl_bench.config.identity import run_dir
from ssl_bench.disk.patience import unwritable
from ssl_bench.errors import ConfigError, printable
from ssl_bench.files import given_path
from ssl_bench.launch import impossible, slurm, workers
from ssl_bench.launch.live import Live
from ssl_bench.launch.nodes import under_torchrun
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.run import Run, ranks_here, tidy
from ssl_bench.record import folders, grids, results
from ssl_bench.record.wandb import under_agent
from ssl_bench.signals import Interrupted, raised

MANY = 300  # runs that take some seconds to check
ALWAYS = (State.DONE, State.DONE_BEFORE, State.FAILED)  # counted in the summary even if there are none
# Directory and epochs of runs, by what distinguishes them beside the seed: numbers are those after so many epochs.
# None: it trains nothing.
Groups = Mapping[str, Sequence[tuple[Path, int | None]]]


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
        with hydra_errors.in_sentences(self.command.given):
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
        if all(isinstance(run.refusal, hydra_errors.NoSuchKey) for run in runs) and runs[0].refusal:  # a key of no run
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
            return self.run(overrides, compose.load_of_many(overrides, self.command.folder))
        except hydra_errors.NoSuchKey as error:  # the options of this run lack a key that those of others may have
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
        folder, command = folders.find(config), shlex.join([*self.single, *overrides])
        return Run(overrides, config, folder, command, done=results.is_complete(folder, config), label=label)

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
            from ssl_bench.training.refusals import refusals  # imports torch: only if there is something to train

            configs = [runs[place].config for place in left]
            errors = refusals(configs, self.command.launcher != "slurm", ranks_here)
            refused |= {place: error for place, error in zip(left, errors, strict=True) if error}
        return dict(sorted(refused.items()))

    def train(self, show: Callable[[Groups], None]) -> int:
        """Carry out the runs where they were asked for, say how they ended, and return the exit code.

        Args:
            show: prints a table of the finished ones.
        """
        since, settings, stop = time.time(), self.command.settings, 0
        left = [run for run in self.runs if not run.done]
        for run in self.runs:
            if run.done:
                tidy(run.folder)
                self.ends[run.number] = Outcome(State.DONE_BEFORE, folder=str(run.folder))
        among = workers.places(left, settings) if left and self.command.launcher == "local" else []
        self._write(since)
        try:
            with raised(), Live(left, len(self.runs) - len(left), self._names()) as live:

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
        code = self.summarise(show)
        return 128 + stop if stop else code

    @property
    def outputs(self) -> Path:
        """The results folder."""
        return given_path(str(self.command.cfg.paths.outputs))

    def _names(self) -> dict[int, str]:
        """The names of the runs in sentences."""
        keys = self.command.swept
        named = {run.number: [one for one in run.overrides if one.partition("=")[0] in keys] for run in self.runs}
        labels = {run.number: f"{run.label} seed={run.config['seed']}" for run in self.runs if run.label}
        return {number: " ".join(words) for number, words in named.items()} | labels

    def _write(self, since: float) -> None:
        """Write the lists of the experiments that the runs belong to."""
        of = dict[Path, list[tuple[Sequence[str], str]]]()
        for run in self.runs:
            place = os.path.relpath(run.folder, self.outputs)
            of.setdefault(run_dir(run.config).parent, []).append((run.overrides, place))
        try:
            for experiment, runs in of.items():
                grids.write(experiment, self.typed, shlex.join(self.single), since, runs)
        except OSError as error:
            raise unwritable(error) from error

    def summarise(self, show: Callable[[Groups], None]) -> int:
        """Print how each run ended, ``show`` the finished ones, and return the exit code of the grid."""
        states = Counter(end.state for end in self.ends.values())
        counts = [f"{states[state]} {state}" for state in State if state in ALWAYS or states[state]]
        not_begun = len(self.runs) - len(self.ends)
        counts += [f"{not_begun} not begun"] if not_begun else []
        counts += [f"{self.left_out} left out: impossible"] if self.left_out else []
        count = len(self.runs) + self.left_out
        print(f"{count} run{'s' * (count != 1)}: {', '.join(counts)}")
        overrides = [run.overrides for run in self.runs]
        shared = set[str]().union(*overrides).intersection(*overrides)
        finished: dict[str, list[tuple[Path, int | None]]] = {}  # runs that differ in their seed only have one name
        for run in self.runs:
            distinct = [override for override in run.overrides if override not in shared]
            seed = [override for override in distinct if override.startswith("seed=")]
            name = run.label or " ".join(override for override in distinct if override not in seed)
            end = self.ends.get(run.number)
            if end and end.finished and end.folder:
                finished.setdefault(name or _seeds(overrides), []).append((Path(end.folder), run.config.get("epochs")))
            elif end and end.state in (State.FAILED, State.BUSY):
                named = " ".join([name, *seed] if run.label else distinct)
                reason = end.reason
                for override in distinct:  # named already
                    reason = reason.removeprefix(f"{override}: ")
                print("  " + ": ".join(filter(None, (end.state.value, named, reason))))
        if len(self.runs) > 1:
            show(_once(finished))
            if not any(run.label for run in self.runs) and (line := self._to_compare(shared)):
                print(line)
        ends = [*self.ends.values()]
        if ends and all(end.state is State.FAILED and end.code == ConfigError.exit_code for end in ends):
            return ConfigError.exit_code
        return 1 if states[State.FAILED] or states[State.BUSY] or not_begun else 0

    def _to_compare(self, shared: Collection[str]) -> str:
        """The command that compares the runs of a grid with two seeds or more, by the first setting that it varies."""
        varied = [key for key in self.command.swept if key != "seed"]
        first = "loss" if "loss" in varied else next(iter(varied), "")
        names = [override.removeprefix("name=").strip("'\"") for override in shared if override.startswith("name=")]
        command = printable(shlex.join(["ssl-bench", "compare", *names, "--by", first]))
        return f"is one better? {command}" if first and "seed" in self.command.swept else ""


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


def _once(groups: Groups) -> Groups:
    """The groups, those of the same runs as one: a grid over settings of an evaluator trains no run twice."""
    names: dict[tuple[tuple[Path, int | None], ...], list[str]] = {}
    for name, runs in groups.items():
        names.setdefault(tuple(dict.fromkeys(runs)), []).append(name)
    return {_common(given): list(runs) for runs, given in names.items()}


def _common(names: Sequence[str]) -> str:
    """The overrides that all names have; all names if they have none, or are labels."""
    words = [name.split(" ") for name in names]
    common = [word for word in words[0] if all(word in others for others in words)]
    return " ".join(common) if common and all("=" in word for word in common) else " and ".join(names)


def _seeds(runs: Sequence[Sequence[str]]) -> str:
    """The seeds of a grid, as on its command line."""
    seeds = (override.removeprefix("seed=") for run in runs for override in run if override.startswith("seed="))
    return f"seed={','.join(dict.fromkeys(seeds))}"
