"""How a run ended, as plain data that crosses processes and is written to disk."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NotRequired, TypedDict

from ssl_bench.errors import one_line


class State(StrEnum):
    """State of a run in a grid.

    ``HELD``: another process is training the run. ``DONE_BEFORE``: there was nothing left to do. ``HALTED``: it has
    come to ``halt_at``.
    """

    RUNNING = "running"
    DONE = "done"
    DONE_BEFORE = "done before"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    HALTED = "halted"
    HELD = "held"


FINISHED = (State.DONE, State.DONE_BEFORE)
DIVERGED = "not finite"  # stands in the reason of a failed run that diverged


class Job(TypedDict):
    """Content of ``jobs/<n>.json`` of a grid, as :meth:`Outcome.record` gives it."""

    state: State
    code: int
    reason: str
    folder: str | None
    gone_on: NotRequired[bool]


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        code: exit code: 0 done or halted, 1 failed, 2 configuration error, 128 + n stopped by signal n.
        reason: why it failed, in one sentence.
        detail: a traceback, if the reason is not enough.
        folder: the run's directory, once it is known.
        gone_on: it was trained further before than it was asked to go.
    """

    state: State
    code: int = 0
    reason: str = ""
    detail: str = ""
    folder: str | None = None
    gone_on: bool = False

    @classmethod
    def failed(cls, reason: str, code: int = 1, detail: str = "", gone_on: bool = False) -> "Outcome":
        return cls(State.FAILED, code, one_line(reason), detail, gone_on=gone_on)

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
        left_out = {"detail", *([] if self.gone_on else ["gone_on"])}
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    @classmethod
    def read(cls, record: Job | None) -> "Outcome | None":
        """The outcome that :meth:`record` gave; None for None."""
        if record is None:
            return None
        reason, gone_on = one_line(record["reason"]), record.get("gone_on", False)
        return cls(State(record["state"]), record["code"], reason, folder=record["folder"], gone_on=gone_on)
