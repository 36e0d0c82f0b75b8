"""How a run ended, as plain data that crosses processes."""

import traceback
from dataclasses import dataclass
from enum import StrEnum
from signal import Signals

from ssl_bench.errors import ConfigError, RunError, one_line

DIVERGED = "not finite"  # stands in the reason of a failed run that diverged
RESUMES = "; the same command resumes"  # the end of the reason of one that has died


class State(StrEnum):
    """How a command has left a run.

    ``DONE_BEFORE``: there was nothing left to do. ``BUSY``: another process is training it.
    """

    DONE = "trained"
    DONE_BEFORE = "done before"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    BUSY = "busy"


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        code: exit code: 0 done, 1 failed, 2 configuration error, 128 + n stopped by signal n.
        reason: why it failed, in one sentence.
        detail: a traceback, if the reason is not enough.
        folder: the run's directory, once it is known.
    """

    state: State
    code: int = 0
    reason: str = ""
    detail: str = ""
    folder: str | None = None

    @classmethod
    def failed(cls, reason: str, code: int = 1, detail: str = "") -> "Outcome":
        return cls(State.FAILED, code, one_line(reason), detail)

    @classmethod
    def interrupted(cls, signal_number: int) -> "Outcome":
        return cls(State.INTERRUPTED, 128 + signal_number)

    @classmethod
    def of(cls, error: Exception) -> "Outcome":
        """The outcome of a run that raised this error."""
        if isinstance(error, ConfigError | RunError):
            return cls.failed(str(error), error.exit_code)
        if isinstance(error, OSError):  # of a file system, or of what the ranks share
            where = error.filename or "what the processes share in /dev/shm or TMPDIR"
            return cls.failed(f"{where}: {error.strerror or error}; after fixing that, the same command resumes")
        return cls.failed(f"{type(error).__name__}: {error}", detail="".join(traceback.format_exception(error)))

    @classmethod
    def died(cls, name: str, code: int) -> "Outcome":
        """The outcome of a process that has ended without one, by its exit code as ``multiprocessing`` has it."""
        how = f"exited with code {code}" if code >= 0 else f"was killed by {Signals(-code).name}"
        return cls.failed(f"{name} {how}{' (is the memory full?)' * (code == -9)}{RESUMES}")

    @property
    def signal(self) -> int:
        """Signal that stopped the run."""
        return self.code - 128

    @property
    def finished(self) -> bool:
        """Whether the run has its results."""
        return self.state in (State.DONE, State.DONE_BEFORE)
