"""``ssl-bench train``: compose and validate a configuration, skip finished runs, train the others.

``ssl-bench train dataset=cifar10 batch_size=b128`` is one run. With ``-m`` it is a grid:
``ssl-bench train -m batch_size=b64,b128 seed=0,1,2``. The same configuration always has the same directory: there a
finished run is skipped and a partial one resumed.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ssl_bench.commands.arguments import Parser, in_sentences
from ssl_bench.config import build, with_hydra
from ssl_bench.config.command import Command
from ssl_bench.errors import ConfigError
from ssl_bench.launch import lease
from ssl_bench.launch.grid import SKIP, Grid, check_place, take_skip
from ssl_bench.launch.processes import Outcome, State, under_torchrun
from ssl_bench.record.dashboard import show_agent


def train(arguments: Sequence[str]) -> int:
    """Carry out one run or a grid.

    Returns:
        0: done, or nothing was left to do. 1: a run failed. 2: the configuration or its data cannot be used. 128 + n:
        stopped by signal n, to be resumed by the same command.

    Raises:
        ConfigError: the configuration of a run cannot be used.
    """
    grid = composed(read(arguments))
    if grid is None:
        return 0
    if grid.command.many:
        from ssl_bench.commands import grid_end  # only where it is used

        return grid_end.train(grid)
    (run,) = grid.runs
    if run.done and not under_torchrun():
        lease.remove_stale(run.folder)
        show_agent(run.config, run.folder.name, run.folder)
        outcome = Outcome(State.DONE_BEFORE, folder=str(run.folder))
    else:
        from ssl_bench.launch.run import carry_out  # imports torch

        outcome = carry_out(run, wait=True)
    if outcome.finished and outcome.folder:
        from ssl_bench.results.status import print_run

        print("" if outcome.state is State.DONE else f"already done: {outcome.folder}\n", end="")
        print_run(Path(outcome.folder), run.config)
    outcome.report()
    return outcome.code


main = in_sentences(train)


def composed(words: Any) -> Grid | None:
    """The runs of a command, composed and checked; None for a command that only prints, such as ``--help``.

    Raises:
        ConfigError: the configuration of a run cannot be used.
    """
    command = Command.of(words.overrides, words.config_dir, words.multirun)
    if words.help or words.cfg:
        from ssl_bench.config import reference  # only where it is used

        with with_hydra.in_sentences(words.overrides):
            words.parser.usage = command.cfg.hydra.help.header
            text = words.help and reference.help_text(command.cfg, words.config_dir, words.all)
            print(f"{words.parser.format_help()}\n{text}" if words.help else with_hydra.as_yaml(command.cfg))
        return None
    skip = [SKIP] * words.skip
    if only := [] if command.many else skip + [f"launcher={command.launcher}"] * (command.launcher != "here"):
        raise ConfigError(f"{only[0]} is for the runs of a grid: add -m, or leave it out")
    if command.many:
        check_place(command, words.dry_run)
    grid = Grid(command, shlex.join(["ssl-bench", "train", *words.flags, *command.given, *skip]))
    if words.dry_run:
        from ssl_bench.commands import dry_run  # only where it is used

        dry_run.show(grid, words.skip, words.json)
        return None
    if command.many:
        grid.every(words.skip)
    else:
        grid.alone()
    return grid


def read(arguments: Sequence[str]) -> Any:
    """Parse the arguments of a command into flags, ``overrides`` and ``skip``.

    Raises:
        ConfigError: a word is no override, or a flag lacks the flag that it belongs to.
    """
    parser = Parser("train", "", add_help=False)
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="the value of a key, or an option of a group")
    parser.add_argument("--help", "-h", action="store_true", help="print this text and train nothing")
    parser.add_argument("--all", action="store_true", help="with --help: all keys, and the options of all groups")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--multirun", "-m", action="store_true", help="train a grid")
    modes.add_argument("--cfg", "-c", choices=["job"], help="print every key and its value as YAML")
    parser.add_argument("--dry-run", action="store_true", help="list the runs that remain, with steps and minutes")
    parser.add_argument("--json", action="store_true", help="with --dry-run: the list as JSON")
    parser.add_config_dir()
    options = parser.read(arguments)
    options.parser = parser
    if options.words:
        word = options.words[0]
        groups = sorted(path.parent.name for path in build.directory().glob("*/*.yaml") if path.stem == word)
        hint = f" (did you mean {groups[0]}={word}?)" if groups else ""
        raise ConfigError(f"{word} is no key=value{hint}: write it as group=option or key=value, such as seed=3")
    if options.json and not options.dry_run:
        raise ConfigError("--json is the form of --dry-run: add --dry-run")
    options.help |= options.all
    options.skip = take_skip(options.overrides)
    options.flags = [word for word in parser.split(arguments)[0] if word != "--dry-run"]
    return options
