"""How a run ended, as plain data that crosses processes and is written to disk."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, TypedDict

from ssl_bench.errors import one_line


class State(StrEnum):
    """State of a run in a grid.

    ``HELD``: another process is training the run. ``DONE_BEFORE``: there was nothing left to do.
    """

    RUNNING = "running"
    DONE = "done"
    DONE_BEFORE = "done before"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    HELD = "held"


FINISHED = (State.DONE, State.DONE_BEFORE)
DIVERGED = "not finite"  # stands in the reason of a failed run that diverged


class Job(TypedDict):
    """Content of ``jobs/<n>.json`` of a grid, as :meth:`Outcome.record` gives it."""

    state: State
    code: int
    reason: str
    folder: str | None


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

    @property
    def signal(self) -> int:
        """Signal that stopped the run."""
        return self.code - 128

    @property
    def finished(self) -> bool:
        """Whether the run has its results."""
        return self.state in FINISHED

    def record(self) -> dict[str, Any]:
        """As JSON, without the detail."""
        return {name: value for name, value in asdict(self).items() if name != "detail"}

    @classmethod
    def read(cls, record: Job | None) -> "Outcome | None":
        """The outcome that :meth:`record` gave; None for None."""
        if record is None:
            return None
        return cls(State(record["state"]), record["code"], one_line(record["reason"]), folder=record["folder"])
