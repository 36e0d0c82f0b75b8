"""The progress of a grid: one line for the runs that train, with the time left of the whole.

On a terminal and in a notebook the line is renewed each second, anywhere else it is printed each minute.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.plan import Plan
from ssl_bench.launch.run import Run
from ssl_bench.record import rows
from ssl_bench.record.progress import clock
from ssl_bench.record.runs import METRICS
from ssl_bench.record.summary import short

MINUTE = 60.0  # seconds between two lines in a file


class Live:
    """Context manager that shows what trains."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.left, self.ended = plan, 0, sum(run.done for run in plan.runs.values())
        self._runs = dict[int, Run]()  # that may be training
        self._since, self._done, self._began = time.monotonic(), 0.0, time.time()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def __enter__(self) -> "Live":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def expect(self, runs: Sequence[Run]) -> None:
        """These runs start next."""
        self._runs, self.left = {run.number: run for run in runs}, len(runs)

    def seen(self, run: Run, outcome: Outcome) -> None:
        """Say how a run has ended, or that another process is training it; one that was not started is not named."""
        if outcome.state is State.HELD:
            print(f"{self.plan.label(run)}: {outcome.reason}: after the other runs", flush=True)
        elif outcome.state is not State.INTERRUPTED or outcome.folder:
            self._runs.pop(run.number, None)
            self.left, self._done, self.ended = self.left - 1, self._done + 1.0, self.ended + 1
            count = f"{self.ended} of {len(self.plan.runs)}"
            print("  ".join(filter(None, (count, self.plan.label(run), as_text(run, outcome)))), flush=True)

    def _renew(self) -> None:
        with _line() as (show, pause):
            while not self._over.wait(pause):
                if text := self._text():
                    show(text)

    def _text(self) -> str:
        """The line; empty if no run has trained a step yet."""
        runs = {run: at for run in list(self._runs.values()) if (at := progress_since(run.folder, self._began))}
        if not runs:
            return ""
        parts = {run: _share(run, at) for run, at in runs.items()}
        done = self._done + sum(parts.values())
        left = (self.left + self._done - done) * (time.monotonic() - self._since) / done if done > 0.02 else None
        run, at = next(iter(runs.items()))
        more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        time_left = f", about {clock(left)} left" if left is not None else ""
        return f"{self.plan.label(run)}  {parts[run]:.0%}  loss {at.loss:.4f}{more}  ({self.left} to go{time_left})"


@contextlib.contextmanager
def _line() -> Iterator[tuple[Callable[[str], object], float]]:
    """A function that shows a line in place of the one before it, and seconds between two calls."""
    if sys.stdout.isatty():
        from rich.live import Live as Terminal
        from rich.text import Text

        with Terminal(auto_refresh=False, transient=True) as terminal:
            yield lambda text: terminal.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True), 1.0
    elif hasattr(getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)(), "kernel"):  # of a notebook
        from IPython.display import Pretty, display

        handle: Any = display(Pretty(""), display_id=True)
        yield lambda text: handle.update(_Plain(text)), 1.0
        handle.update(_Plain(""))
    else:
        yield lambda text: print(text, flush=True), MINUTE


class _Plain(str):
    """A text that a notebook shows without quotes."""

    __repr__ = str.__str__


def _share(run: Run, at: rows.Progress) -> float:
    """The share of its training that a run has done."""
    steps, epochs = run.config["max_steps"], run.config["epochs"]
    return min(1.0, max((at.epoch or 0.0) / epochs, (at.step or 0.0) / steps if steps else 0.0))


def as_text(run: Run, outcome: Outcome) -> str:
    """How a run ended: its results, or why it has none."""
    before = "done before  " if outcome.state is State.DONE_BEFORE else ""
    if outcome.finished and outcome.folder:
        return before + short(Path(outcome.folder), run.config)
    return f"failed: {outcome.reason}" if outcome.state is State.FAILED else outcome.reason or outcome.state.value


def progress_since(folder: Path, since: float) -> rows.Progress | None:
    """How far a training is that has written a row since a time, in seconds of the epoch; else None."""
    at = rows.progress(folder / METRICS)
    return at if at.loss is not None and at.changed >= since else None
