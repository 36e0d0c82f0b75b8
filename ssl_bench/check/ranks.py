"""Ranks: what every collective returns on each of them, the weights of a training beside those of one device, and those
of replayed steps beside those of eager ones."""

import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessException, start_processes

from ssl_bench.check.answer import REPORT, Answer, Setting, Verdict
from ssl_bench.check.bounds import WRONG_RESULT, Deviation, answer_of, distance
from ssl_bench.check.runs import replay, replay_answer, take_steps, tiny, weights
from ssl_bench.distributed import all_sum, gather, join_local, leave, without_room
from ssl_bench.errors import RunError
from ssl_bench.hardware import local_device
from ssl_bench.launch.processes import end_with_parent

COUNT = 70001  # that a rank sends to each other one
SECONDS = 60  # that a rank waits for the others
STEPS = 2
LINKS = f"set NCCL_P2P_DISABLE=1 to see whether the links between the GPUs are the cause, and {REPORT}"
METHOD = "fork" if sys.platform == "linux" else "spawn"  # elsewhere a process with torch cannot be forked safely
T = TypeVar("T")


def section(setting: Setting) -> Iterator[Answer]:
    """Collectives of all ranks, and a training on them. This process leaves CUDA alone, so that it can be forked."""
    if setting.devices < 2:
        yield from (Answer(name, "", Verdict.SKIPPED, "there is one device") for name in ("collectives", "training"))
        return
    ranks = on_ranks(partial(work, setting), setting.devices, setting.folder)
    yield answer_of("collectives", [deviation for first, _, _ in ranks for deviation in first], "results", LINKS)
    yield answer_of("training", ranks[0][1], "weights and buffers", f"{WRONG_RESULT}; until then train with devices=1")
    if setting.device.type == "cuda":
        yield replay_answer(ranks[0][2])


def on_ranks(function: Callable[[int], T], ranks: int, folder: Path) -> list[T]:
    """The results of ``function(rank)`` on some ranks, which are processes of this machine without a group yet.

    Args:
        folder: an empty one, of this user only.

    Raises:
        RunError: a rank failed; the others are ended.
    """
    try:
        start_processes(_enter, (function, folder), ranks, start_method=METHOD)
    except ProcessException as error:
        last = without_room(error) or str(error).strip().splitlines()[-1]  # of the traceback
        raise RunError(f"rank {error.error_index} of {ranks}: {last}") from error
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(ranks)]


def _enter(rank: int, function: Callable[[int], T], folder: Path) -> None:
    end_with_parent(signal.SIGKILL)
    torch.set_num_threads(1)  # with more, OpenMP waits for the threads that the parent computed with, which it lacks
    torch.save(function(rank), folder / f"{rank}.pt")
    leave()


def work(setting: Setting, rank: int) -> tuple[list[Deviation], list[Deviation], list[Deviation] | str]:
    """Carry out all checks on a rank: of collectives, of a training, and of replayed steps, or why there are none.

    Rank 0 trains alone first, before there are others.

    The second one trains in float64. A step rounds the weights to u and the gradients to about sqrt(n) u for the
    n = 25,600 pixels of a batch. The network and its batch statistics enlarge a deviation, by less than ten in a step
    at this learning rate. So

        bound = 8 sqrt(n) u 10^(steps - 1) = 1.4e-12

    of the norm of each tensor; another mean of the ranks' gradients differs by more than 1e-3.
    """
    world, folder = setting.devices, setting.folder
    device = local_device(rank) if setting.device.type == "cuda" else setting.device
    alone = weights(take_steps(tiny(folder, device, "precision=fp64"), STEPS)) if rank == 0 else {}
    join_local(folder / "meeting", rank, world, device, SECONDS)
    collectives = exchange(rank, world, device)
    together = weights(take_steps(tiny(folder, device, "precision=fp64", f"devices={world}"), STEPS))
    bound = 8 * 25600**0.5 * 2.0**-53 * 10.0 ** (STEPS - 1)
    training = [distance(f"{name} on {world} ranks", together[name], value, bound) for name, value in alone.items()]
    return collectives, training, replay(folder, device, f"devices={world}") if device.type == "cuda" else []


def exchange(rank: int, world: int, device: torch.device) -> list[Deviation]:
    """Carry out every collective of the package, and compare what this rank gets.

    Every rank sends small integers of its own, whose sums are exact in any order.
    """
    pattern = torch.arange(COUNT, device=device) % 7 + 1.0
    senders = torch.arange(world, device=device)[:, None]
    numbers = (senders + 1) * pattern  # [W, COUNT]: what each rank sends
    here = torch.where(senders == rank, numbers, 0.0)  # the others' parts are zero
    part = numbers[rank].clone().requires_grad_()
    gathered = gather(part).view(world, COUNT)
    (gathered * numbers * (rank + 1)).sum().backward()
    assert part.grad is not None
    arrived = torch.empty(world * COUNT, device=device)
    dist.all_to_all_single(arrived, numbers.flatten() + 1000 * rank)
    results = {
        "all_gather": (gathered, numbers),
        "reduce_scatter": (part.grad, numbers[rank] * world * (world + 1) / 2),
        "all_reduce": (all_sum(here.clone()), numbers),
        "all_to_all": (arrived.view(world, COUNT), numbers[rank] + 1000 * senders),
    }
    return [distance(f"{name} on rank {rank}", result, right, 0.0) for name, (result, right) in results.items()]
