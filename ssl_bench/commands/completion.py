"""``ssl-bench completion bash|zsh|fish``: print the script that completes commands, flags, options and keys.

``eval "$(ssl-bench completion bash)"`` in ``~/.bashrc``, or ``ssl-bench completion fish | source`` in ``config.fish``.
At every Tab the script, which is argcomplete's, starts ``ssl-bench`` with the line in ``COMP_LINE``; what can stand
there says ``candidates.py``.
"""

import argparse
import importlib
import os
from collections.abc import Sequence

import argcomplete

from ssl_bench import surroundings
from ssl_bench.commands import COMMANDS
from ssl_bench.commands.arguments import Parser

ZSH = "autoload -Uz compinit; (( ${+functions[compdef]} )) || compinit -i\n"


def main(arguments: Sequence[str]) -> int:
    """Print a script."""
    parser = Parser("completion", __doc__.partition("\n")[0].replace("``", ""))
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell to complete for")
    shell: str = parser.parse_args(arguments).shell
    print((ZSH if shell == "zsh" else "") + argcomplete.shellcode(["ssl-bench"], shell=shell))
    return 0


def complete() -> None:
    """Print the candidates for the line in ``COMP_LINE``, and exit."""
    *before, _ = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])].split(" ")
    words = [word for word in before if word]
    if len(words) > 1 and words[1] in COMMANDS:
        surroundings.of_completion()
        importlib.import_module(f"ssl_bench.commands.{words[1]}").main([])
    parser = argparse.ArgumentParser()
    parser.add_argument("command", nargs="*", choices=[*COMMANDS, "help"])
    argcomplete.autocomplete(parser, always_complete_options=False)
