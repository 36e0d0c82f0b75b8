"""``ssl-bench completion bash|zsh``: print the script that completes commands, flags, options and keys.

``eval "$(ssl-bench completion bash)"`` in ``~/.bashrc``. At every Tab the script, which is argcomplete's, starts
``ssl-bench`` with the line in ``COMP_LINE``; groups and keys are Hydra's candidates.
"""

import argparse
import importlib
import os
from collections.abc import Iterator, Sequence

import argcomplete

from ssl_bench.commands import COMMANDS
from ssl_bench.commands.arguments import Parser

ZSH = "autoload -Uz compinit; (( ${+functions[compdef]} )) || compinit -i\n"
COMPOSED = {"train": "train", "evaluate": "train", "prepare": "train", "mi": "mi", "weight": "weight"}
COMPOSED["reproduce"] = "train"


def main(arguments: Sequence[str]) -> int:
    """Print a script."""
    parser = Parser("completion", __doc__.partition("\n")[0].replace("``", ""))
    parser.add_argument("shell", choices=("bash", "zsh"), help="the shell to complete for")
    shell: str = parser.parse_args(arguments).shell
    print((ZSH if shell == "zsh" else "") + argcomplete.shellcode(["ssl-bench"], shell=shell))
    return 0


def complete() -> None:
    """Print the candidates for the line in ``COMP_LINE``, and exit."""
    *before, _ = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])].split(" ")
    words = [word for word in before if word]
    if len(words) > 1 and words[1] in COMMANDS:
        os.environ["_ARGCOMPLETE"] = "2"  # the command's arguments begin at the second word
        importlib.import_module(f"ssl_bench.commands.{words[1]}").main([])
    parser = argparse.ArgumentParser()
    parser.add_argument("command", nargs="*", choices=[*COMMANDS, "help"])
    argcomplete.autocomplete(parser, always_complete_options=False)


def answer(parser: Parser) -> None:
    """Print the candidates for the arguments of a command, and exit."""
    words = [action for action in parser._actions if not action.option_strings and action.choices is None]
    for action in words or [parser.add_argument("overrides", nargs="*")]:
        action.completer = _candidates  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, always_complete_options=False)


def _candidates(prefix: str, parser: Parser, **_: object) -> Iterator[str]:
    """Tables, groups, options and keys that begin with ``prefix``."""
    command = parser.prog.split()[-1]
    if command in ("table", "figure", "reproduce", "replicate"):
        from ssl_bench.papers import tables

        yield from (table.name for table in tables.every() if command != "figure" or table.x)
        for paper in tables.papers():
            if claims := tables.claims(paper):
                yield from (f"{paper}/claims", *(claim.name for claim in claims))
        yield from ("row=", "col=", "paths.outputs=")
    if command in COMPOSED:
        yield from _of_hydra(prefix, COMPOSED[command])


def _of_hydra(prefix: str, primary: str) -> Iterator[str]:
    """Groups and keys, or the options of a group, also of a list of them: ``loss=dcl,infonce`` ``evaluate=[knn,``."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.plugins.completion_plugin import DefaultCompletionPlugin

    from ssl_bench.commands import experiments
    from ssl_bench.config.compose import directory

    key, equals, value = prefix.partition("=")
    listed = value[: max(value.rfind(","), value.rfind("[")) + 1]
    experiments.register()
    with initialize_config_dir(str(directory()), version_base="1.3"):
        query = DefaultCompletionPlugin(GlobalHydra.instance().config_loader())._query
        others = [word for word in os.environ["COMP_LINE"].split()[2:] if "=" in word and word != prefix]
        for found in query(primary, " ".join([*others, key + equals + value.removeprefix(listed)])):
            yield found.replace("=", f"={listed}", 1)
