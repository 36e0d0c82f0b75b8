"""The signals that stop a run: it saves its state and ends with the code 128 + n."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)  # Slurm sends SIGUSR2 before the time limit
# Exit codes of stopped processes: after saving their state, or by the signal itself, before they listened to it.
STOPPED = {code: number for number in STOPS for code in (128 + number, -number)}


class Interrupted(BaseException):  # like KeyboardInterrupt: code that goes on after an error must not go on after it
    """The run was asked to stop, and its state is on disk."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number, self.exit_code = number, 128 + number


def stops() -> list[signal.Signals]:
    """The signals that stop this process: not SIGHUP if it is ignored, as ``nohup`` has it."""
    hangup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in STOPS if number != signal.SIGHUP or not hangup_ignored]


@contextlib.contextmanager
def held_in_children() -> Iterator[None]:
    """Processes started in the block hold these signals back until they call :func:`release`.

    A new process imports for seconds before it can answer a signal: Ctrl-C would print a traceback of an import. This
    process goes on receiving them, in a thread that does nothing else.
    """
    over = threading.Event()
    receiver = threading.Thread(target=over.wait, daemon=True)
    receiver.start()
    former = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
        over.set()
        receiver.join()


def release() -> None:
    """Answer held signals: until a run listens to them, they end this process at once."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # which would print a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


@contextlib.contextmanager
def none_ignored() -> Iterator[None]:
    """No signal is lost in the block because Python ignores the exception that its handler raises.

    Python prints and ignores every exception raised in a destructor or in the callback of a weak reference. The signal
    is sent again a moment later instead.
    """
    former = sys.unraisablehook

    def hook(ignored: Any) -> None:
        number = _signal_of(ignored.exc_value)
        if number is None:
            return former(ignored)
        timer = threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, number))
        timer.daemon = True
        return timer.start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = former


def _signal_of(error: BaseException | None) -> int | None:
    """The signal whose handler raised the error, None for other errors."""
    if isinstance(error, KeyboardInterrupt):
        return signal.SIGINT
    return error.number if isinstance(error, Interrupted) else None
