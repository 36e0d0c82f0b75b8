"""Stopping on SIGTERM, SIGINT or SIGUSR2 (Slurm's warning before the time is up) at a step that all ranks agree on."""

import signal
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ssl_bench.distributed import world


class Interrupted(Exception):
    """The run was asked to stop; its state is on disk."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Interrupt:
    """Watches the three signals while it is active, as a context manager.

    A step is never cut short: the ranks vote after each step, and the vote of one step is counted during the next, so
    that nobody waits for it. Outside the steps, where ``at_once`` is set, a signal raises :class:`Interrupted`.
    """

    def __init__(self) -> None:
        self.number, self.at_once = 0, False
        # The votes have a group of their own on the CPU: they must not queue behind the work of the GPUs.
        self._group: Any = dist.new_group(backend="gloo") if world() > 1 else None
        self._vote: tuple[Tensor, Any] | None = None
        self._former: dict[int, Any] = {}

    def __enter__(self) -> "Interrupt":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
            self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.at_once:
            raise Interrupted(number)
        if self.number and world() == 1:
            signal.signal(number, signal.SIG_DFL)  # asked twice: the third time takes effect at once
        self.number = self.number or number

    def agreed(self) -> int:
        """The signal that all ranks stop for after this step, or 0. Called by every rank after every step."""
        if self._group is None:
            return self.number
        counted = 0
        if self._vote is not None:
            flag, work = self._vote
            work.wait()
            counted = int(flag)
        flag = torch.tensor(self.number)
        self._vote = flag, dist.all_reduce(flag, dist.ReduceOp.MAX, self._group, async_op=True)
        return counted
