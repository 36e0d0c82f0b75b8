"""``ssl-bench train``: compose, validate, skip finished runs, train.

``ssl-bench train dataset=cifar10 batch_size=b128`` is one run. With ``-m`` it is a grid:
``ssl-bench train -m batch_size=b64,b128 seed=0,1,2``. The same configuration always has the same directory: there a
finished run is skipped and a partial one resumed.
"""

import contextlib
import itertools
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ssl_bench import __version__
from ssl_bench.commands import dry_run, experiments, search
from ssl_bench.commands.arguments import Parser, in_sentences
from ssl_bench.commands.halving import halving
from ssl_bench.commands.optuna import optuna
from ssl_bench.config import compose, hydra_errors, reference, schema, with_hydra
from ssl_bench.config.asked import Asked
from ssl_bench.errors import ConfigError
from ssl_bench.launch import grid, impossible, local, slurm
from ssl_bench.launch.live import Live
from ssl_bench.launch.nodes import under_torchrun
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.plan import Plan, Refusals
from ssl_bench.launch.run import Run, ranks_here
from ssl_bench.record.metrics import show_found
from ssl_bench.record.wandb import under_agent
from ssl_bench.results import conclusion

SEARCHES = {"basic": search.every, "halving": halving, "optuna": optuna}


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Carry out one run or a grid.

    Args:
        arguments: flags and overrides.

    Returns:
        0: done, or nothing was left to do. 1: a run failed. 2: the configuration or its data cannot be used. 128 + n:
        stopped by signal n, to be resumed by the same command.
    """
    return run_command(read(arguments))[0]


def run_command(words: Any) -> tuple[int, list[Run], dict[int, Outcome]]:
    """Carry out what the words of a command ask for: a grid, or a run, which is a grid of one.

    Returns:
        The exit code, the runs, and how those ended that were started, by their numbers.
    """
    experiments.register(words.config_dir)
    with with_hydra.opened():
        asked = Asked.of(words.overrides, words.config_dir, words.multirun)
        if words.help or words.cfg:
            print(reference.help_text(asked.cfg, words.config_dir) if words.help else _configuration(asked.cfg, words))
            return 0, [], {}
        _check_together(words, asked)
        plan = Plan(asked, ["train", *words.folders], _refusals(asked), words.skip)
        if words.dry_run:
            dry_run.show(plan)
            return 0, [], {}
        if asked.many:
            plan.begin(shlex.join(["ssl-bench", "train", *words.flags, *asked.given]))
        steps = SEARCHES[asked.by](plan) if asked.many else _alone(plan)
        every, ends = dict[int, Outcome](), None
        with contextlib.closing(steps), Live(plan) if asked.many else contextlib.nullcontext() as live:
            while (runs := _next(steps, ends)) is not None:
                ends = dict[int, Outcome]()
                for run, outcome in _launched(plan, runs, ends, live):
                    ends[run.number] = outcome
                every |= ends
    runs = list(plan.runs.values())
    if plan.folder is None:
        return every[0].code, runs, every
    for number in {outcome.signal for outcome in every.values() if outcome.state is State.INTERRUPTED}:
        name = signal.Signals(number).name
        print(f"interrupted by {name}; resume with the same command", file=sys.stderr, flush=True)
    stopped = any(outcome.state is State.INTERRUPTED for outcome in every.values())
    shown = sum(show_found(run.config, run.folder) for run in runs if run.done and not stopped)
    print(f"{shown} of the runs that were done are in W&B's group of this grid, too\n" * bool(shown), end="")
    code = grid.summarise(plan.folder, conclusion.show)
    print(plan.closing, end="", flush=True)
    return code, runs, every


def _next(steps: search.Strategy, ends: Mapping[int, Outcome] | None) -> Sequence[Run] | None:
    """The next runs of a search that is told how the last ones ended; None at its end, or after a signal."""
    if ends and any(outcome.state is State.INTERRUPTED for outcome in ends.values()):
        return None
    with contextlib.suppress(StopIteration):
        return steps.send(ends)  # type: ignore[arg-type]  # the first one is None
    return None


def _alone(plan: Plan) -> search.Strategy:
    """Train the only run of a command."""
    asked = plan.asked
    with hydra_errors.in_sentences(asked.given):
        config = compose.resolved(asked.cfg, asked.folder)
    if under_torchrun():
        config["devices"] = int(os.environ["WORLD_SIZE"])
    run = plan.run(asked.overrides, config)
    if refused := plan.refused([run]):
        raise refused[0]
    yield plan.add([run])


def _launched(
    plan: Plan, runs: Sequence[Run], ends: Mapping[int, Outcome], live: Live | None
) -> Iterator[tuple[Run, Outcome]]:
    """Carry out runs and yield each as it ends, last those that other processes were training."""
    asked, folder = plan.asked, plan.folder

    def passes() -> Iterator[Iterator[tuple[Run, Outcome]]]:
        left = runs
        for wait in (False, True) if asked.many else (True,):
            if live:
                live.expect(left)
            if folder is not None and asked.where == "slurm":
                yield slurm.submit(left, asked.launcher, folder, wait)
            elif asked.where == "local":
                yield local.at_once(left, asked.launcher["n_jobs"], wait)
            else:
                yield local.here(left, wait, quiet=asked.many)
            stopped = any(outcome.state is State.INTERRUPTED for outcome in ends.values())
            left = [] if stopped else [run for run in runs if ends[run.number].state is State.HELD]

    each = itertools.chain.from_iterable(passes())
    return map(live.seen, each) if live else each


def _check_together(words: Any, asked: Asked) -> None:
    """Refuse flags that do not go together, and a grid where it cannot be carried out.

    Raises:
        ConfigError: naming them.
    """
    if words.dry_run and not asked.many:
        raise ConfigError("--dry-run lists the runs of a grid: add -m")
    if words.skip and not asked.many:
        raise ConfigError(f"{impossible.SKIP} leaves out runs of a grid: add -m, or leave it out")
    if asked.many and under_torchrun():
        raise ConfigError("a grid cannot run under torchrun, where every rank would start it: use devices=N instead")
    if asked.many and under_agent():
        raise ConfigError("a grid cannot run under a W&B agent, which starts one run at a time: leave -m out")
    if asked.where == "slurm" and not words.dry_run:
        slurm.check()


def _refusals(asked: Asked) -> Refusals:
    """The function that says why configurations cannot be carried out, here or, under Slurm, on another machine."""

    def refusals(configs: Sequence[dict[str, Any]]) -> list[ConfigError | None]:
        from ssl_bench.training.refusals import refusals  # imports torch: only if there is something to train

        return refusals(configs, asked.where != "slurm", ranks_here)

    return refusals


def _configuration(cfg: Any, words: Any) -> str:
    """The text that ``--cfg`` prints."""
    with hydra_errors.in_sentences(words.overrides):
        return with_hydra.as_yaml(cfg, words.cfg, words.package, words.resolve)


def read(arguments: Sequence[str]) -> Any:
    """Read the words of a command: its flags, ``overrides``, ``skip``, and ``folders``, the flag of a configuration's
    folder as it was written.

    Raises:
        ConfigError: a word that is no override, or a flag without the one that it belongs to.
    """
    parser = Parser("train", "", add_help=False)
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--version", action="version", version=f"ssl-bench {__version__}")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--multirun", "-m", action="store_true")
    modes.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("--package", "-p")
    parser.add_config_dir()
    parser.add_argument("words", nargs="*")
    options = parser.read(arguments)
    if options.words:
        word = options.words[0]
        groups = sorted(path.parent.name for path in schema.directory().glob("*/*.yaml") if path.stem == word)
        hint = f" (did you mean {groups[0]}={word}?)" if groups else ""
        raise ConfigError(f"{word} is no key=value{hint}: write it as group=option or key=value, such as seed=3")
    if options.cfg is None and (options.resolve or options.package):
        raise ConfigError("--resolve and --package are part of --cfg: add --cfg job")
    under_torchrun()  # or refused, before anything is composed
    options.skip = impossible.taken_skip(options.overrides)
    options.folders = ["--config-dir", str(options.config_dir)] if options.config_dir else []
    options.flags = [word for word in parser.split(arguments)[0] if word != "--dry-run"]
    return options
