"""How a run ended, as plain data that crosses processes and is written to disk."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


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
        return cls(State.FAILED, code, reason, detail)

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
        return {k: v for k, v in asdict(self).items() if k != "detail"} | {"state": self.state.value}

    @classmethod
    def read(cls, record: Any) -> "Outcome | None":
        """The outcome that :meth:`record` gave; None for anything else."""
        try:
            state, code, reason, folder = State(record["state"]), record["code"], record["reason"], record["folder"]
        except (KeyError, TypeError, ValueError):
            return None
        plain = type(code) is int and 0 <= code < 256 and isinstance(reason, str) and isinstance(folder, str | None)
        return cls(state, code, reason, folder=folder) if plain else None
