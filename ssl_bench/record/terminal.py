"""A run on the terminal: its log, which ``train.log`` has as well, its progress, and its numbers."""

import contextlib
import logging
import math
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.evaluate.metric import heading
from ssl_bench.record import evaluations
from ssl_bench.record.runs import read_results

log = logging.getLogger("ssl_bench")

PAUSE = 10.0  # seconds between two lines of progress, without a terminal
CLEAR = "\r\x1b[K"  # removes the line of a terminal


class _LogFile(logging.FileHandler):
    """A log file whose write errors fail the run, so that a full disk is reported once and not for every line."""

    def handleError(self, record: logging.LogRecord) -> None:
        raise  # the error that is being handled


@contextlib.contextmanager
def logging_to(folder: Path | None, quiet: bool = False) -> Iterator[None]:
    """Send the package's messages to ``train.log`` in ``folder`` and, unless ``quiet``, to the terminal.

    With ``folder`` None, for all ranks but rank 0, only errors are shown.
    """
    if folder is None:
        log.setLevel(logging.ERROR)
        yield
        return
    files.make_folder(folder)
    console, path = logging.StreamHandler(sys.stdout), files.of_run(folder / "train.log")
    file = files.retry(lambda: _LogFile(path, encoding="utf-8", errors="backslashreplace"), path)
    console.setFormatter(logging.Formatter(f"{CLEAR * sys.stdout.isatty()}%(message)s"))
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.setLevel(logging.INFO)
    log.propagate = False
    log.handlers[:] = [file] if quiet else [console, file]
    try:
        yield
    finally:
        log.handlers.clear()
        with contextlib.suppress(OSError):
            file.close()


class Progress(contextlib.AbstractContextManager["Progress"]):
    """Context manager that shows epoch, loss, learning rate, tau, images/s and the time left.

    On a terminal that is one line, which changes, and anywhere else a line every 10 seconds.

    Args:
        steps: step at which the training ends.
        done: steps done by earlier processes of the run.
        per_epoch: steps per epoch.
        epochs: of the whole training.
        shown: False on all ranks but rank 0.
    """

    def __init__(self, steps: int, done: int, per_epoch: int, epochs: int, shown: bool) -> None:
        self.steps, self.per_epoch, self.epochs, self.shown = steps, per_epoch, epochs, shown
        self._printed = self._timed = time.monotonic()
        self._first = done
        self._rows, self._pace = 0, 0.0  # rows shown; seconds per step, mostly of the last five rows
        self._watched = ""  # what was measured last on a sample of the training images
        to_file = [*map(type, log.handlers)] == [_LogFile]  # alone: other runs share the terminal
        self._on_terminal = shown and sys.stdout.isatty() and not to_file
        self.restart(done)

    def __exit__(self, *_: object) -> None:
        print(CLEAR * self._on_terminal, end="", flush=True)

    def after_step(self, step: int) -> None:
        """After the third step of this process, log the minutes of a longer training; the first step is a slow one."""
        if step == self._first + 1:
            self._timed = time.monotonic()
        elif step == self._first + 3 and (left := (time.monotonic() - self._timed) / 2 * (self.steps - step)) > 60:
            log.info("the training takes about %s, and the evaluation comes after it", clock(left))

    def restart(self, step: int) -> None:
        """Time the steps after ``step`` from now on: what has happened since the last one is none of theirs."""
        self._since, self._before = time.monotonic(), step

    def rate(self, step: int) -> float:
        """Steps per second since the last call, or :meth:`restart`, until ``step``."""
        steps, seconds = step - self._before, time.monotonic() - self._since
        self._rows += 1
        if self._rows > 1:  # the first one does not count: kernels are chosen in its steps, and memory grows
            self._pace = seconds / steps if self._rows == 2 else 0.8 * self._pace + 0.2 * seconds / steps
        self.restart(step)
        return steps / seconds

    def show(self, step: int, row: Mapping[str, float]) -> None:
        """Show the row of metrics of ``step``; the last one stays."""
        if "watch/effective_rank" in row:
            accuracy = f"  kNN of training images {100 * row['watch/knn_top1']:.1f}%" if "watch/knn_top1" in row else ""
            self._watched = f"{accuracy}  effective rank {row['watch/effective_rank']:.1f}"
        tau = f"  tau {row['tau']:.4g}" if "tau" in row else ""
        left = f"  {clock(self._pace * (self.steps - step))} left" if self._rows > 1 and step < self.steps else ""
        numbers = f"loss {row['loss']:.4f}  lr {row['lr']:.4g}{tau}  {row['images_per_second']:.0f} images/s"
        epoch = f"epoch {math.ceil(step / self.per_epoch)}/{self.epochs}"
        text = f"{epoch}  step {step}/{self.steps}  {numbers}{self._watched}{left}"
        if self._on_terminal and step < self.steps:
            print(f"{CLEAR}{text[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)
        elif self.shown and (step == self.steps or time.monotonic() - self._printed >= PAUSE):
            self._printed = time.monotonic()
            log.info("%s", text)


def clock(seconds: float) -> str:
    """Seconds as 3m07s, from an hour on as 52h05m."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}h{minutes % 60:02d}m" if minutes >= 60 else f"{minutes}m{rest:02d}s"


def short(folder: Path, config: Mapping[str, Any]) -> str:
    """The numbers of a finished run, such as ``knn 64.2%  linear 81.0%  12 s``, by what ``config`` asks for."""
    results: Any = read_results(folder)
    main, texts = texts_of(results, config)
    return "  ".join([*(f"{heading(name)} {texts[name]}" for name in main), f"{results['seconds']:.0f} s"])


def texts_of(results: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """The names of the main metrics, and the text of each metric, of the evaluations that ``config`` asks for."""
    metrics, of = evaluations.of(results["evaluations"], config), results.get("units")
    texts = {name: evaluations.metric_of(name, of).text(value) for name, value in metrics.items()}
    return evaluations.main(metrics, of), texts
