"""The progress of a grid: one line for the runs that train, with the time left of the whole.

On a terminal the line is renewed each second, anywhere else it is printed each minute.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.run import Run
from ssl_bench.record import runs
from ssl_bench.record.runs import METRICS
from ssl_bench.record.terminal import clock, short

MINUTE = 60.0  # seconds between two lines in a file


class Live:
    """Context manager that shows what trains.

    Args:
        runs: those that are not finished.
        done: how many others are.
        names: of runs in sentences, by their numbers.
    """

    def __init__(self, runs: Sequence[Run], done: int, names: Mapping[int, str]) -> None:
        self._left, self._names = {run.number: run for run in runs}, names
        self._before, self._count = done, done + len(runs)
        self._began, self._since = time.time(), time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def __enter__(self) -> "Live":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def said(self, run: Run, outcome: Outcome) -> None:
        """Say how a run has ended, or that another process is training it."""
        if outcome.state is State.BUSY:
            print(f"{self._names[run.number]}: {outcome.reason}: after the other runs", flush=True)
        else:
            self._left.pop(run.number, None)
            count = f"{self._count - len(self._left)} of {self._count}"
            print("  ".join(filter(None, (count, self._names[run.number], as_text(run, outcome)))), flush=True)

    def _renew(self) -> None:
        with _line() as (show, pause):
            while not self._over.wait(pause):
                if text := self._text():
                    show(text)

    def _text(self) -> str:
        """The line; empty if no run has trained a step yet."""
        runs = {run: at for run in [*self._left.values()] if (at := progress_since(run.folder, self._began))}
        if not runs:
            return ""
        parts = {run: _share(run, at) for run, at in runs.items()}
        left = len(self._left) - sum(parts.values())
        done = self._count - self._before - left
        seconds = left * (time.monotonic() - self._since) / done if done > 0.02 else None
        run, at = next(iter(runs.items()))
        more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        time_left = f", about {clock(seconds)} left" if seconds is not None else ""
        name = self._names[run.number]
        return f"{name}  {parts[run]:.0%}  loss {at.loss:.4f}{more}  ({len(self._left)} to go{time_left})"


@contextlib.contextmanager
def _line() -> Iterator[tuple[Callable[[str], object], float]]:
    """A function that shows a line in place of the one before it, and seconds between two calls."""
    if sys.stdout.isatty():
        from rich.live import Live as Terminal
        from rich.text import Text

        with Terminal(auto_refresh=False, transient=True) as terminal:
            yield lambda text: terminal.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True), 1.0
    else:
        yield lambda text: print(text, flush=True), MINUTE


def _share(run: Run, at: runs.Progress) -> float:
    """The share of its training that a run has done."""
    steps, epochs = run.config["max_steps"], run.config["epochs"]
    return min(1.0, max((at.epoch or 0.0) / epochs, (at.step or 0.0) / steps if steps else 0.0))


def as_text(run: Run, outcome: Outcome) -> str:
    """How a run ended: its results, or why it has none."""
    before = "done before  " if outcome.state is State.DONE_BEFORE else ""
    if outcome.finished and outcome.folder:
        return before + short(Path(outcome.folder), run.config)
    return f"failed: {outcome.reason}" if outcome.state is State.FAILED else outcome.reason or outcome.state.value


def progress_since(folder: Path, since: float) -> runs.Progress | None:
    """How far a training is that has written a row since a time, in seconds of the epoch; else None."""
    at = runs.progress(folder / METRICS)
    return at if at.loss is not None and at.changed >= since else None
