"""Stop on SIGTERM, SIGINT, SIGHUP or SIGUSR2 at a step that all ranks agree on."""

import datetime
import signal
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ssl_bench.distributed import world
from ssl_bench.training.signals import Interrupted, none_ignored, stops


class Interrupt:
    """Context manager that catches the signals that stop a run.

    During training a signal takes effect after a step. The ranks vote after each step. The votes of one step are
    counted after the next one, so that no rank waits for them. Where ``at_once`` is set, a
    signal raises :class:`Interrupted` immediately.

    Args:
        timeout: seconds that a rank waits for the votes of the others.
    """

    def __init__(self, timeout: float = 600) -> None:
        self.number, self.at_once = 0, False
        self._group: Any = None
        if world() > 1:
            # The votes have a process group of their own on the CPU: they must not queue behind the work of the GPUs.
            self._group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=timeout))
        self._vote: tuple[Tensor, Any] | None = None
        self._former: dict[int, Any] = {}
        self._none_ignored = none_ignored()

    def __enter__(self) -> "Interrupt":
        self._none_ignored.__enter__()
        for number in stops():
            self._former[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._none_ignored.__exit__(None, None, None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.at_once:
            raise Interrupted(number)
        if self.number and world() == 1:
            signal.signal(number, signal.SIG_DFL)  # after the second signal, a third one ends the process at once
        self.number = self.number or number

    def agreed(self) -> int:
        """The signal for which all ranks stop after this step, or 0. Every rank calls it after every step."""
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
