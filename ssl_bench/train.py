"""Train runs from Python, by ``ssl_bench.train(...)``, which is :func:`train`.

``python -m ssl_bench.train`` is ``ssl-bench train``.
"""

import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ssl_bench import cli, files
from ssl_bench.commands.train import composed, read
from ssl_bench.commands.train import main as main
from ssl_bench.errors import ConfigError, RunError, require
from ssl_bench.launch.processes import State

if TYPE_CHECKING:
    from pandas import DataFrame

_ONE = threading.RLock()  # Hydra, the log and torch's generator are those of the whole process


def train(overrides: Sequence[str] = (), *, name: str | None = None, jobs: int = 1) -> "DataFrame":
    """Train a run, or a grid, and return a table of its runs; in a notebook, too.

        table = ssl_bench.train(["loss=infonce,dcl", "seed=0,1"], name="mine", jobs=2)

    It does what ``ssl-bench train -m`` does: what is finished is not trained again, and what was interrupted goes on.
    In a thread, such as that of W&B's agent or of Streamlit, signals stop nothing; calls of two threads train in turn.

    Args:
        overrides: as on the command line: ``group=option``, ``key=value``, several values between commas, and
            ``--config-dir=FOLDER``.
        name: the results go to ``<paths.outputs>/<name>``.
        jobs: runs at a time, each with GPUs or cores of its own.

    Returns:
        As :func:`ssl_bench.runs`, with a row for each run in the order of the grid. Runs that failed beside others that
        did not have the state ``failed`` or ``diverged``.

    Raises:
        ConfigError: the configuration of a run cannot be used; none has started then.
        RunError: all runs failed.
        KeyboardInterrupt: Ctrl-C, or a notebook's stop button; the state of what trained is on disk.
    """
    files.parted(overrides)
    require(isinstance(jobs, int) and jobs >= 1, "jobs", jobs, "1 or more")
    words = [f"name={name}"] if name is not None else []
    words += ["launcher=local", f"launcher.jobs={jobs}"] if jobs != 1 else []
    from ssl_bench.commands import grid_end  # only where it is used

    with _ONE:
        grid = composed(read(["-m", *overrides, *words]))
        assert grid is not None  # no flag asks for something printed
        code, ends = grid_end.train(grid), grid.ends
    if code > 128:
        raise KeyboardInterrupt if code == 128 + signal.SIGINT else SystemExit(code)
    failed = [end.reason for end in ends.values() if end.state is State.FAILED]
    if code and failed and not any(end.finished for end in ends.values()):
        raise (ConfigError if code == ConfigError.exit_code else RunError)(failed[0])
    from ssl_bench.api.reading import table_of

    return table_of(Path((run.number in ends and ends[run.number].folder) or run.folder) for run in grid.runs)


class _Callable(ModuleType):
    """This module as a function: importing ``ssl_bench.train`` puts it in the place of the function of that name."""

    def __call__(self, *arguments: Any, **keywords: Any) -> "DataFrame":
        return train(*arguments, **keywords)


sys.modules[__name__].__class__ = _Callable

if __name__ == "__main__":
    sys.argv.insert(1, "train")
    cli.main()
