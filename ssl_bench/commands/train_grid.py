"""Carry out the runs of a grid, where they were asked for, and say how they ended."""

import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ssl_bench.commands import grid_end
from ssl_bench.config.command import Command
from ssl_bench.errors import ConfigError
from ssl_bench.launch import grid, local, slurm
from ssl_bench.launch.live import Live
from ssl_bench.launch.nodes import under_torchrun
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.plan import Plan
from ssl_bench.launch.run import Run
from ssl_bench.record.wandb import under_agent


def check_place(asked: Command, dry_run: bool) -> None:
    """Refuse a grid where it cannot be carried out; a dry run needs no Slurm.

    Raises:
        ConfigError: this process is one of torchrun or of a W&B agent, or there is no Slurm.
    """
    if under_torchrun():
        raise ConfigError("a grid cannot run under torchrun, where every rank would start it: use devices=N instead")
    if under_agent():
        raise ConfigError("a grid cannot run under a W&B agent, which starts one run at a time: leave -m out")
    if asked.launcher == "slurm" and not dry_run:
        slurm.check()


def train_grid(plan: Plan, rounds: Iterable[Sequence[Run]]) -> int:
    """Train the runs of a plan that has begun, print a summary and return the exit code.

    Args:
        rounds: the runs that are not finished start in rounds, each when the runs of the one before it have ended.
    """
    assert plan.folder is not None
    with Live(plan) as live:
        for runs in rounds:
            _in_place(plan, [run for run in runs if not run.done], live)
            if _stopped(plan.ends):
                break
    for number in {outcome.signal for outcome in plan.ends.values() if outcome.state is State.INTERRUPTED}:
        name = signal.Signals(number).name
        print(f"interrupted by {name}; resume with the same command", file=sys.stderr, flush=True)
    return grid.summarise(plan.folder, grid_end.show)


def _in_place(plan: Plan, runs: Sequence[Run], live: Live) -> None:
    """Carry out runs, last those that other processes are training."""
    for wait in (False, True):
        live.expect(runs)
        for run, outcome in _carried_out(plan, runs, wait) if runs else ():
            plan.ends[run.number] = outcome
            live.seen(run, outcome)
        runs = [run for run in runs if plan.ends[run.number].state is State.HELD]
        if _stopped(plan.ends) or not runs:
            break


def _carried_out(plan: Plan, runs: Sequence[Run], wait: bool) -> Iterator[tuple[Run, Outcome]]:
    """Carry out runs where they were asked for; with ``wait`` they wait for other processes that train them."""
    asked = plan.asked
    if asked.launcher == "slurm":
        assert plan.folder is not None
        return slurm.in_queue(runs, asked.settings, plan.folder, wait)
    if asked.launcher == "local":
        return local.in_processes(runs, asked.settings["jobs"], asked.settings["runs_per_gpu"], wait)
    return local.one_by_one(runs, wait)


def _stopped(ends: Mapping[int, Outcome]) -> bool:
    return any(outcome.state is State.INTERRUPTED for outcome in ends.values())
