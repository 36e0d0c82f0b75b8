"""Ranks: what every collective returns on each of them, and the weights of a training beside those of one device.

In the collectives every rank sends numbers of its own, so that a wrong result names the rank that sent or received it.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessException, start_processes

from ssl_bench.check.bounds import WRONG_RESULT, Difference, distance, judged
from ssl_bench.check.finding import Finding, Setting, Verdict
from ssl_bench.check.runs import tiny, train, weights
from ssl_bench.distributed import all_sum, average_gradients, gather, join_local, leave, parallel
from ssl_bench.errors import RunError
from ssl_bench.hardware import available_cores, local_device
from ssl_bench.launch.processes import die_with

LENGTHS = (1, 1000, 70001)  # numbers that a rank sends
SECONDS = 60  # that a rank waits for the others
STEPS = 2
LINKS = "set NCCL_P2P_DISABLE=1 to see whether the links between the GPUs are the cause, and report this with check.md"
METHOD = "fork" if sys.platform == "linux" else "spawn"  # elsewhere a process with torch cannot be forked safely
Errors = dict[str, list[float]]  # of a collective: the error of what this rank received from each rank


def section(setting: Setting) -> Iterator[Finding]:
    """Collectives of all ranks, and a training on them. This process leaves CUDA alone, so that it can be forked."""
    if setting.devices < 2:
        reason = "one device: set devices to the number of GPUs, or of processes on a CPU"
        yield from (Finding(name, "", Verdict.SKIPPED, reason) for name in ("collectives", "training"))
        return
    answers = on_ranks(setting)
    yield collectives([errors for errors, _ in answers])
    yield judged("training", answers[0][1], "weights and buffers", f"{WRONG_RESULT}; until then train with devices=1")


def on_ranks(setting: Setting) -> list[tuple[Errors, list[Difference]]]:
    """The results of :func:`work` on all ranks.

    Raises:
        RunError: a rank failed; the others are ended.
    """
    try:
        start_processes(_enter, (setting, os.getpid()), setting.devices, start_method=METHOD)
    except ProcessException as error:
        last = str(error).strip().splitlines()[-1]  # of the traceback
        raise RunError(f"rank {error.error_index} of {setting.devices}: {last}") from error
    return [torch.load(setting.folder / f"{rank}.pt", weights_only=False) for rank in range(setting.devices)]


def _enter(rank: int, setting: Setting, parent: int) -> None:
    die_with(parent)
    torch.set_num_threads(max(1, available_cores() // setting.devices))
    device = local_device(rank) if setting.device.type == "cuda" else setting.device
    torch.save(work(rank, setting.devices, device, setting.folder), setting.folder / f"{rank}.pt")
    leave()


def work(rank: int, world: int, device: torch.device, folder: Path) -> tuple[Errors, list[Difference]]:
    """Carry out both checks on a rank; rank 0 trains alone first, before there are others.

    The second one trains in float64. A step rounds the weights to u and the gradients to about sqrt(n) u for the
    n = 25,600 pixels of a batch. The network and its batch statistics enlarge a deviation, by less than ten in a step
    at this learning rate. So

        bound = 8 sqrt(n) u 10^(steps - 1) = 1.4e-12

    of the norm of each tensor; another mean of the ranks' gradients differs by more than 1e-3.
    """
    expected = weights(train(tiny(folder, device, "precision=fp64"), STEPS)) if rank == 0 else {}
    join_local(folder / "meeting", rank, world, device, SECONDS)
    errors = exchange(rank, world, device)
    found = weights(train(tiny(folder, device, "precision=fp64", f"devices={world}"), STEPS))
    bound = 8 * 25600**0.5 * 2.0**-53 * 10.0 ** (STEPS - 1)
    names = {name: f"{name} on {world} ranks" for name in expected}
    return errors, [distance(names[name], found[name], value, bound) for name, value in expected.items()]


# ---- the collectives


def exchange(rank: int, world: int, device: torch.device) -> Errors:
    """Carry out every collective of the package; the largest error of what each rank sent, as received here."""
    found: Errors = {}
    for length in LENGTHS:
        pattern = torch.arange(length, device=device) % 7 + 1.0
        numbers = torch.stack([(sender + 1) * pattern for sender in range(world)])  # [W, length]: what each one sends
        here = torch.zeros_like(numbers)
        here[rank] = numbers[rank]  # the others' parts are zero

        part = numbers[rank].clone().requires_grad_()
        x = torch.zeros(world * world * length, device=device).requires_grad_()  # gathered, it gets a gradient
        y = gather(x[: world * length] + 0)  # [W * W length]: of every rank, W parts
        (y.view(world, world, length) * here).sum().backward()
        module, wrapped = Weights(numbers), Weights(numbers)
        network = parallel(wrapped, device)
        module.weight.grad = here.clone()
        average_gradients(module)
        network(here).backward()
        assert x.grad is not None and module.weight.grad is not None and wrapped.weight.grad is not None
        sent, arrived = numbers.flatten() + 1000 * rank, torch.empty(world * length, device=device)
        dist.all_to_all_single(arrived, sent)
        senders = torch.arange(world, device=device)[:, None]
        results = {
            "all_gather": (gather(part).detach().view(world, length), numbers),
            "reduce_scatter": (x.grad[: world * length].view(world, length), numbers),
            "all_reduce": (all_sum(here.clone()), numbers),
            "all_to_all": (arrived.view(world, length), numbers[rank] + 1000 * senders),
            "average of the gradients": (module.weight.grad, numbers / world),
            "average of the gradients in training": (wrapped.weight.grad, numbers / world),
        }
        for name, (result, expected) in results.items():
            errors = ((result - expected).abs() / expected).amax(1).nan_to_num(float("inf")).tolist()
            found[name] = [max(pair) for pair in zip(errors, found.get(name, [0.0] * world), strict=True)]
    return found


class Weights(nn.Module):
    """A weight like a tensor, whose gradient is the input."""

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros_like(like))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x).sum()


def collectives(answers: list[Errors]) -> Finding:
    """The finding about the answers of all ranks: which collective is wrong, and on which rank.

    Sums are of small integers, which are exact in any order; an average is rounded once or twice.
    """
    everyone = range(len(answers))
    for name in answers[0]:
        bound = 2.0**-23 if "average" in name else 0.0
        wrong = [(to, sender) for to in everyone for sender in everyone if answers[to][name][sender] > bound]
        if not wrong:
            continue
        error = max(answers[to][name][sender] for to, sender in wrong)
        senders = [r for r in everyone if all((to, r) in wrong for to in everyone)]
        receivers = [r for r in everyone if any(to == r and sender not in senders for to, sender in wrong)]
        parts = [f"what {_ranks(senders)} sent is wrong on every rank"] if senders else []
        parts += [f"{_ranks(receivers)} received wrong numbers"] if receivers else []
        reason = f"{name}: {' and '.join(parts)}, relative error {error:.2g}, bound {bound:.1e}"
        return Finding("collectives", f"{name} is wrong", Verdict.WRONG, reason, LINKS, {"error": error})
    return Finding("collectives", f"{len(answers[0])} kinds right on {len(answers)} ranks", Verdict.GOOD)


def _ranks(numbers: list[int]) -> str:
    return f"rank{'s' * (len(numbers) != 1)} {', '.join(map(str, numbers))}"
