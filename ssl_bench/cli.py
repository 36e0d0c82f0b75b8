"""``ssl-bench <command>``: a command is imported when it is called."""

import atexit
import contextlib
import gc
import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence

from ssl_bench import __version__
from ssl_bench.commands import COMMANDS
from ssl_bench.commands.arguments import refuse
from ssl_bench.config.ranges import near
from ssl_bench.record import streams

USAGE = "usage: ssl-bench <command> ...\n\n" + "".join(f"  {name:<11} {text}\n" for name, text in COMMANDS.items())
USAGE += "\nssl-bench help COMMAND explains the arguments of a command; ssl-bench --version\n"
READERS = ("status", "compare", "table", "figure", "report")  # end with their reader, and need no torch


def main() -> None:
    """Run the command that ``sys.argv`` names and exit with its code."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # a process without outputs, such as after >&-
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if sys.platform == "win32":
        sys.exit(refuse("it runs on Linux and macOS, and on Windows in WSL2: install it there"))
    try:
        try:
            command, arguments = _chosen(*(sys.argv[1:] or ["--help"]))
            code = command(arguments)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else refuse(end.code, 1) if end.code else 0
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has closed it
        streams.drop()
        code = 0
    except KeyboardInterrupt:  # outside a training, which handles signals itself
        print("interrupted; the same command does what is missing", file=sys.stderr)
        code = 128 + signal.SIGINT
    except OSError as error:
        code = refuse(f"{error.filename or 'standard output'}: {error.strerror or error}", 1)
        with contextlib.suppress(OSError):
            streams.drop()
    sys.exit(code)


def _chosen(command: str, *arguments: str) -> tuple[Callable[[Sequence[str]], int], Sequence[str]]:
    if command in ("--version", "-V", "version"):
        print(f"ssl-bench {__version__}")
        sys.exit(0)
    if command in ("help", "--help", "-h"):
        if not arguments or arguments[0].startswith("-"):
            print(USAGE, end="")
            sys.exit(0)
        command, arguments = arguments[0], (*arguments[1:], "--help")
    if command not in COMMANDS:
        sys.exit(refuse(_no_command(command)))
    os.environ["MPLBACKEND"] = "agg"  # a notebook has set its own one, which need not be installed here
    if sys.path[0] not in ("", os.getcwd()):  # as python -m ssl_bench has it
        os.environ["PYTHONSAFEPATH"] = "1"  # no process that this one starts imports from the working directory
    if isinstance(sys.stdout, io.TextIOWrapper):  # the names of files may be any bytes, and ASCII the encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    if command not in READERS:
        streams.outlive_reader()
    atexit.register(_skip_last_collection)
    return importlib.import_module(f"ssl_bench.commands.{command}").main, arguments


def _skip_last_collection() -> None:
    """Keep Python from looking for garbage in all of torch's modules at its end, which takes a second."""
    if "triton" not in sys.modules:  # it would print what is not collected as leaks
        gc.freeze()


def _no_command(word: str) -> str:
    hint = near(word, COMMANDS) or (" (did you mean ssl-bench train?)" if "=" in word else "")
    return f"there is no command {word!a}{hint}: the commands are {', '.join(COMMANDS)}"
