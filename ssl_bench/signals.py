"""The signals that stop a run. A handler stores the signal's number, and the run reads it after each step."""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, ClassVar

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)  # Slurm sends SIGUSR2 before the time limit
# Exit codes of stopped processes: after saving their state, or by the signal itself, before they listened to it.
STOPPED = {code: number for number in STOPS for code in (128 + number, -number)}
IN_A_THREAD = "trained from a thread, to which no signal comes: after a stop, the run goes on from its last checkpoint"


class Interrupted(BaseException):  # like KeyboardInterrupt: code that goes on after an error must not go on after it
    """The run was asked to stop, and its state is on disk."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number, self.exit_code = number, 128 + number


def stops() -> list[signal.Signals]:
    """The signals that can be caught here: none in a thread; not SIGHUP if it is ignored, as ``nohup`` has it."""
    if threading.current_thread() is not threading.main_thread():
        return []
    hangup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in STOPS if number != signal.SIGHUP or not hangup_ignored]


def unblock() -> None:
    """Unblock the signals that stop a run; until a run catches them (:class:`Interrupt`), they end the process at once.

    A process is started with these signals blocked: it imports for seconds, and Ctrl-C would print a traceback of that.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # which would print a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


class Interrupt:
    """Context manager that catches the signals that stop a run.

    During training a signal takes effect after a step. One that nothing in the block has reacted to raises Interrupted
    at its end.

    Args:
        agree: the signal for which all ranks stop, of each rank's signal or 0.

    Attributes:
        saved: everything is on disk: :func:`stop_if_asked` stops the evaluation between two batches.
    """

    listening: ClassVar["Interrupt | None"] = None

    def __init__(self, agree: Callable[[int], int]) -> None:
        self.number, self.saved, self._agree = 0, False, agree
        self._count = 0  # signals that came, of which the first one counts
        self._former: dict[int, Any] = {}

    def __enter__(self) -> "Interrupt":
        Interrupt.listening = self
        for number in stops():
            self._former[number] = signal.signal(number, self._handle)
        if not self._former:
            logging.getLogger("ssl_bench").info(IN_A_THREAD)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        Interrupt.listening = None
        for number, handler in self._former.items():
            signal.signal(number, handler)
        if self._count and (error is None or isinstance(error, Exception)):
            # The block has ended without it; or another rank stopped first, and this one waited for it in vain.
            raise Interrupted(self.number) from error

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        self.ask(number)

    def ask(self, number: int) -> None:
        """Stop the run as the signal ``number`` does."""
        self.number = self.number or number

    def agreed(self) -> int:
        """The signal for which all ranks stop after this step, or 0. Every rank calls it after every step."""
        return self._agree(self.number)


_came = list[int]()  # the signals for which a block of :func:`raised` has raised Interrupted


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Raise Interrupted where a signal comes, in a block in which nothing has to be saved: between runs."""

    def stop(number: int, frame: object) -> None:
        _came.append(number)
        raise Interrupted(number)

    def dropped(error: "sys.UnraisableHookArgs") -> None:
        if error.exc_type is not Interrupted:  # which raise_again raises
            former(error)

    _came.clear()
    former, sys.unraisablehook = sys.unraisablehook, dropped
    try:
        with _handled(stop):
            yield
            raise_again()
    finally:
        sys.unraisablehook = former


def raise_again() -> None:
    """Raise Interrupted if it was raised in the block of :func:`raised` and Python dropped it, as in a destructor."""
    if _came:
        raise Interrupted(_came[0])


@contextlib.contextmanager
def passed_on(processes: Callable[[], Iterable[int]]) -> Iterator[list[int]]:
    """Pass the signals that stop runs on to processes, by their ids; yield the list of received signals."""
    received: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        received.append(number)
        for process in processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    with _handled(pass_on):
        yield received


@contextlib.contextmanager
def _handled(handler: Callable[[int, Any], None]) -> Iterator[None]:
    former = {number: signal.signal(number, handler) for number in stops()}
    try:
        yield
    finally:
        for number, other in former.items():
            signal.signal(number, other)


def stop_if_asked() -> None:
    """Raise Interrupted if a signal has come for a run whose training is saved.

    The ranks do not agree on the batch: the first one leaves the others, and these lose it.
    """
    interrupt = Interrupt.listening
    if interrupt is not None and interrupt.saved and interrupt.number:
        raise Interrupted(interrupt.number)
