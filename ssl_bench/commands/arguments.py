"""How the commands parse a command line: argparse for words and flags, ``key=value`` for everything else."""

import argparse
import contextlib
import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ssl_bench.errors import ConfigError, RunError, one_line, require
from ssl_bench.files import folder_of_options, given_path

Main = TypeVar("Main", bound=Callable[..., int])
WORDS = "an experiment, a run_id's beginning, a folder, or a condition: loss=dcl,eqco, 'loss!=dcl', 'negatives.k>4'"


class Parser(argparse.ArgumentParser):
    """Parser of one command, whose ``overrides`` are the arguments of the form ``key=value``."""

    def __init__(self, command: str, description: str, **more: Any) -> None:
        super().__init__(f"ssl-bench {command}", description=description, allow_abbrev=False, **more)
        self.formatter_class = functools.partial(argparse.HelpFormatter, width=80)  # type: ignore[assignment]

    def add_config_dir(self) -> None:
        """Add the flag ``--config-dir``, a folder with further options of the configuration."""
        text = "a folder with options of your own"
        self.add_argument("--config-dir", "-cd", type=folder_of_options, metavar="DIR", help=text)

    def add_words(self, more: str = "") -> None:
        """Add words that select runs, and ``--outputs``."""
        self.add_argument("words", nargs="*", metavar="WORD", help=WORDS + more)
        self.add_outputs()

    def add_outputs(self) -> None:
        """Add the flag ``--outputs``, another way to write the override ``paths.outputs``."""
        self.add_argument("--outputs", metavar="DIR", help="the results folder, like paths.outputs=DIR")

    def read(self, arguments: Sequence[str]) -> Any:
        """Parse ``arguments``; exit with code 2 for wrong ones and with 0 after ``--help``."""
        words, overrides = self.split(arguments)
        for action in self._actions:
            flags = action.option_strings
            count = sum(word.partition("=")[0] in flags for word in words)
            if count > 1 and isinstance(action, argparse._StoreAction):  # argparse would drop the first one
                self.error(f"{flags[0]} is given twice: leave one of them out")
        options = self.parse_intermixed_args(words)
        options.overrides = overrides
        if getattr(options, "outputs", None) is not None:
            overrides.append(f"paths.outputs={options.outputs}")
        return options

    def read_words(self, arguments: Sequence[str]) -> Any:
        """Parse arguments whose ``key=value`` are conditions on runs, but for the results folder, ``paths.outputs``."""
        options = self.read(arguments)
        options.outputs = take_outputs(options.overrides)
        options.words += options.overrides
        return options

    def split(self, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
        """Words and flags, and the overrides: ``key=value``, ``~key``."""
        arguments = expand_home(arguments)
        with_value = {flag for action in self._actions for flag in action.option_strings if action.nargs != 0}
        words, overrides = list[str](), list[str]()
        for previous, word in zip(["", *arguments], arguments, strict=False):
            override = ("=" in word or word.startswith("~")) and not word.startswith("-") and previous not in with_value
            (overrides if override else words).append(word)
        return words, overrides

    def error(self, message: str) -> NoReturn:
        """Exit with code 2 after one sentence that names the known flags."""
        flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        setting = re.search(r"unrecognized arguments: --(\w[\w.]*=.*)", message)
        hint = f"a setting has no dashes, such as {setting[1]}; " if setting else ""
        sys.exit(refuse(f"{message}; {hint}flags of {self.prog} are {', '.join(flags)}"))


def expand_home(arguments: Sequence[str]) -> list[str]:
    """Replace ``~`` by the home folder in words and values of flags, where the shell has not done so.

    ``~key`` is an override, and so is ``key=~/value``, which the reader of the key expands.
    """
    words = (re.fullmatch(r"(--[\w-]+=|)(~/.*|~)", word, re.DOTALL) for word in arguments)
    return [m[1] + str(given_path(m[2])) if m else word for m, word in zip(words, arguments, strict=True)]


def take_outputs(overrides: list[str]) -> Path | None:
    """Remove ``paths.outputs=DIR`` from ``overrides`` and return DIR; None if it is not given."""
    given = [override for override in overrides if override.startswith("paths.outputs=")]
    overrides[:] = [override for override in overrides if override not in given]
    return given_path(given[-1].partition("=")[2]) if given else None


def in_sentences(main: Main) -> Main:
    """Decorate a command: print its errors, and those of a file system, as one sentence; return the exit code."""

    @functools.wraps(main)
    def run(*arguments: Any) -> int:
        try:
            return main(*arguments)
        except (ConfigError, RunError) as error:
            return refuse(error, error.exit_code)
        except BrokenPipeError:  # the reader of the output has closed it
            raise
        except OSError as error:
            return refuse(error, RunError.exit_code)

    return run  # type: ignore[return-value]


def output(given: Path | None, usual: str, own: bytes) -> Path:
    """The file that a command writes: the given one, or one of a default name, which must not be a foreign file.

    Args:
        own: text in the first 4096 bytes of every file that this command writes.

    Raises:
        ConfigError: the folder of the file does not exist, or another program wrote the file of the default name.
    """
    path = given or Path(usual)
    require(path.parent.is_dir(), "--out", path, f"a file in a folder that exists: there is no {path.parent}")
    if given is None and os.path.lexists(path):
        start = path.read_bytes()[:4096] if path.is_file() else b""
        require(own in start, "--out", path, "a file: the one that has this name was not made by this command")
    return path


def refuse(error: object, code: int = 2) -> int:
    """Print why a command cannot go on; return its exit code."""
    if isinstance(error, OSError) and error.strerror:
        error = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    with contextlib.suppress(OSError):  # a closed terminal: the code is still that of the refusal
        print(f"ssl-bench: {one_line(str(error))}", file=sys.stderr)
    return code


def progress_bar(text: str, items: Iterable[Any], count: int | None = None) -> Iterable[Any]:
    """Iterate over items with a progress bar, on a terminal only."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(items, text, count, console=console, transient=count is not None, disable=not console.is_terminal)


show_progress = functools.partial(progress_bar, "composing configurations")
