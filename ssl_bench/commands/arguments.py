"""How the commands read a command line: argparse for words and flags, ``key=value`` for everything else."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """Parser of one command, whose ``overrides`` are the arguments of the form ``key=value``.

    Args:
        command: its name, such as ``table``.
        description: shown by ``--help``.
    """

    def __init__(self, command: str, description: str) -> None:
        super().__init__(f"ssl-bench {command}", description=description, allow_abbrev=False)

    def read(self, arguments: Sequence[str]) -> Any:
        """Parse ``arguments``; exit with code 2 for wrong ones and with 0 after ``--help``."""
        with_value = {flag for action in self._actions for flag in action.option_strings if action.nargs != 0}
        words, overrides = list[str](), list[str]()
        for previous, word in zip(["", *arguments], arguments, strict=False):
            override = "=" in word and not word.startswith("-") and previous not in with_value
            (overrides if override else words).append(word)
        options = self.parse_args(words)
        options.overrides = overrides
        return options

    def error(self, message: str) -> NoReturn:
        """Exit with code 2 after one sentence that names the known flags."""
        flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        sys.exit(refuse(f"{message}; flags of {self.prog} are {', '.join(flags)}"))


def refuse(error: object, code: int = 2) -> int:
    """Print why a command cannot go on; return its exit code."""
    print(f"ssl-bench: {error}", file=sys.stderr)
    return code


def show_progress(configurations: Iterable[Any], count: int) -> Iterable[Any]:
    """Show how many of ``count`` configurations have been composed: a bar on a terminal, else one line at the start."""
    if count < 20:  # a second or two
        return configurations
    from rich.console import Console
    from rich.progress import track

    console, text = Console(stderr=True), f"composing {count} configurations"
    if not console.is_terminal:
        print(text, file=sys.stderr, flush=True)
        return configurations
    return track(configurations, text, count, console=console, transient=True)
