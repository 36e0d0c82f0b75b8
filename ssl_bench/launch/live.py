"""The progress of a grid: one line for the runs that train, with the time left of the whole.

On a terminal the line is renewed each second, anywhere else it is printed each minute.
"""

import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.run import Run
from ssl_bench.record import runs
from ssl_bench.record.runs import METRICS
from ssl_bench.record.terminal import clock, short

MINUTE = 60.0  # seconds between two lines in a file
CLEAR = "\r\x1b[K"  # what removes the line of a terminal


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
        self._began, self._terminal = time.time(), sys.stdout.isatty()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def __enter__(self) -> "Live":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        print(CLEAR * self._terminal, end="", flush=True)

    def said(self, run: Run, outcome: Outcome) -> None:
        """Say how a run has ended."""
        self._left.pop(run.number, None)
        count = f"{self._count - len(self._left)} of {self._count}"
        before = "done before" * (outcome.state is State.DONE_BEFORE)
        how = short(Path(outcome.folder), run.config) if outcome.finished and outcome.folder else outcome.state.value
        words = (count, self._names[run.number], before, ": ".join(filter(None, (how, outcome.reason))))
        print(CLEAR * self._terminal + "  ".join(filter(None, words)), flush=True)

    def _renew(self) -> None:
        while not self._over.wait(1.0 if self._terminal else MINUTE):
            if text := self._text():
                shown = f"{CLEAR}{text[: shutil.get_terminal_size().columns - 1]}" if self._terminal else f"{text}\n"
                print(shown, end="", flush=True)

    def _text(self) -> str:
        """The line; empty if no run has trained a step yet."""
        found = {run: runs.progress(run.folder / METRICS) for run in [*self._left.values()]}
        shares = {run: _share(run, at) for run, at in found.items() if at.loss is not None and at.changed > self._began}
        if not shares:
            return ""
        left = len(self._left) - sum(shares.values())
        done = self._count - self._before - left
        time_left = f", about {clock(left * (time.time() - self._began) / done)} left" if done > 0.02 else ""
        run, more = next(iter(shares)), f" and {len(shares) - 1} more" * (len(shares) > 1)
        line = f"{self._names[run.number]}  {shares[run]:.0%}  loss {found[run].loss:.4f}{more}"
        return f"{line}  ({len(self._left)} to go{time_left})"


def _share(run: Run, at: runs.Progress) -> float:
    """The share of its training that a run has done."""
    steps, epochs = run.config["max_steps"], run.config["epochs"]
    return min(1.0, max((at.epoch or 0.0) / epochs, (at.step or 0.0) / steps if steps else 0.0))
