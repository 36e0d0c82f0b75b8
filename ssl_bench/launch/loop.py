"""The loop of all that is carried out beside other things: the runs of a grid, and evaluations of several networks.

A place starts tasks as it has room: this process (``local.Here``), processes of this machine (``workers.Processes``) or
Slurm's queue (``slurm.SlurmQueue``).
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from ssl_bench.launch.outcome import Outcome

Task = TypeVar("Task", contravariant=True)
Given = TypeVar("Given")


class Carrier(Protocol):
    """Carries out a task that was started."""

    def over(self) -> bool:
        """Whether the task has ended."""

    def end(self) -> Outcome:
        """How the task, which has ended, did so; what it held is free for another one. It is asked once."""

    def send(self, number: int) -> None:
        """Send it a signal."""


class Place(Protocol[Task]):
    """Where tasks are carried out.

    Attributes:
        room: tasks at once.
    """

    room: float

    def signals(self, carriers: Collection[Carrier]) -> AbstractContextManager[list[int]]:
        """Pass signals on to the carriers in the block; the list has those that came."""

    def start(self, task: Task, patient: Callable[[], bool]) -> Carrier | None:
        """Start a task; None if there is no place for it while nobody is ``patient`` enough to wait for one."""

    def wait(self, carriers: Collection[Carrier]) -> None:
        """Wait until one of the carriers may have ended, or there may be a place again."""


def in_place(tasks: Sequence[Given], place: Place[Given]) -> Iterator[tuple[Given, Outcome]]:
    """Carry out tasks, and yield each with its outcome as it ends. After a signal no other one starts."""
    left, running = deque(tasks), dict[Carrier, Given]()
    with place.signals(running.keys()) as received:
        while running or (left and not received):
            while left and len(running) < place.room and not received:
                carrier = place.start(left[0], lambda: not running and not received)
                if carrier is None:
                    break
                running[carrier] = left.popleft()
                for number in received:  # it came during the start
                    carrier.send(number)
            place.wait(running.keys())
            for carrier in [carrier for carrier in running if carrier.over()]:
                yield running.pop(carrier), carrier.end()
    yield from ((task, Outcome.interrupted(received[0])) for task in left if received)
