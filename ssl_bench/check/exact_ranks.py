"""Ranks: what every collective returns on each of them, and a training on all of them against one on one device.

In the collectives every rank sends numbers of its own, so that a wrong result names the rank that sent or received it.
"""

import contextlib
import io
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ssl_bench.check.bounds import UNITS, WRONG_RESULT, Difference, judged
from ssl_bench.check.finding import Finding, Verdict
from ssl_bench.config.compose import load
from ssl_bench.distributed import all_sum, average_gradients, gather, join_local, leave, parallel
from ssl_bench.errors import RunError
from ssl_bench.hardware import local_device
from ssl_bench.launch import ranks
from ssl_bench.launch.outcome import Outcome
from ssl_bench.record import checkpoint
from ssl_bench.signals import Interrupt
from ssl_bench.training.engine import Training

LENGTHS = (1, 1000, 70001)  # numbers that a rank sends
SECONDS = 120  # that the ranks may take to start and answer
STEPS = 2
RUN_ID = "0123456789"
TINY = ["backbone.width=4", "head.out=16", "batch_size.size=64", "epochs=4", "optimizer=sgd", "optimizer.lr=0.05"]
TINY += ["tracking=off", "log_every=1", "evaluate=[]", "evaluate.baselines=[]", "graph=false", "compile_views=false"]
LINKS = "set NCCL_P2P_DISABLE=1 to see whether the links between the GPUs are the cause, and report this with check.md"
Answers = dict[str, list[float]]  # of a collective: the error of what this rank received from each rank


# ---- the collectives


def exchange(rank: int, world: int, device: torch.device) -> Answers:
    """Carry out every collective of the package; the largest error of what each rank sent, as received here."""
    found: Answers = {}
    for length in LENGTHS:
        pattern = torch.arange(length, device=device) % 7 + 1.0
        numbers = torch.stack([(sender + 1) * pattern for sender in range(world)])  # [W, length]: what each one sends
        here = torch.zeros_like(numbers)
        here[rank] = numbers[rank]  # the others' parts are zero

        part = numbers[rank].clone().requires_grad_()
        x = torch.zeros(world * world * length, device=device).requires_grad_()  # gathered, it gets a gradient
        y = gather(x[: world * length] + 0)  # [W * W length]: of every rank, W parts
        (y.view(world, world, length) * here).sum().backward()
        assert x.grad is not None
        module = _Weights(torch.zeros_like(numbers))
        module.weight.grad = here.clone()
        average_gradients(module)
        wrapped = _Weights(torch.zeros_like(numbers))
        network = parallel(wrapped, device)
        network(here).backward()
        assert module.weight.grad is not None and wrapped.weight.grad is not None
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


class _Weights(nn.Module):
    """One weight, whose gradient is the input."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x).sum()


def enter(rank: int, world: int, folder: Path, work: Callable[[int, int, torch.device], Answers]) -> None:
    """Entry point of a rank: join the others, carry out ``work`` and write its answers."""
    device = local_device(rank)
    torch.set_num_threads(1)
    join_local(folder / "meeting", rank, world, device, SECONDS)
    torch.save(work(rank, world, device), folder / f"{rank}.pt")
    leave()


def collectives(
    world: int, folder: Path, work: Callable[[int, int, torch.device], Answers] = exchange, method: str = "spawn"
) -> Finding:
    """Carry out the collectives on ``world`` ranks and compare what each rank received with what the others sent.

    Sums are of small integers, which are exact in any order; an average is rounded once or twice.

    Args:
        folder: an empty one.
        work, method: what each rank does, and how its process is started.
    """
    from torch.multiprocessing.spawn import start_processes

    folder.mkdir(parents=True, exist_ok=True)
    context = start_processes(enter, (world, folder, work), world, join=False, start_method=method)
    until = time.monotonic() + SECONDS
    try:
        while not context.join(timeout=1):
            if time.monotonic() > until:
                silent = [rank for rank in range(world) if not (folder / f"{rank}.pt").exists()]
                reason = f"{_ranks(silent)} did not answer within {SECONDS} s"
                return Finding("no answer", Verdict.WRONG, reason, LINKS)
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
    return verdict([torch.load(folder / f"{rank}.pt") for rank in range(world)])


def verdict(answers: list[Answers]) -> Finding:
    """The finding about the answers of all ranks: which collective is wrong, and on which rank."""
    values = {"ranks": len(answers), "collectives": len(answers[0])}
    everyone = range(len(answers))
    for name in answers[0]:
        bound = 2 * UNITS["fp32"] if "average" in name else 0.0
        wrong = [(to, sender) for to in everyone for sender in everyone if answers[to][name][sender] > bound]
        if not wrong:
            continue
        error = max(answers[to][name][sender] for to, sender in wrong)
        senders = [r for r in everyone if all((to, r) in wrong for to in everyone)]
        receivers = [r for r in everyone if any(to == r and sender not in senders for to, sender in wrong)]
        parts = [f"what {_ranks(senders)} sent is wrong on every rank"] if senders else []
        parts += [f"{_ranks(receivers)} received wrong numbers"] if receivers else []
        reason = f"{name}: {' and '.join(parts)}, relative error {error:.2g}, bound {bound:.1e}"
        return Finding(f"{name} is wrong", Verdict.WRONG, reason, LINKS, values | {"worst": name, "error": error})
    return Finding(f"{len(answers[0])} collectives right on {len(answers)} ranks", Verdict.GOOD, values=values)


def _ranks(numbers: list[int]) -> str:
    return f"rank{'s' * (len(numbers) != 1)} {', '.join(map(str, numbers))}"


# ---- a training


def run_of(config: dict[str, Any], folder: Path, device: torch.device, interrupt: Interrupt | None = None) -> Training:
    """Train in this process, from the checkpoint in ``folder`` if there is one; without a bar on the terminal."""
    folder.mkdir(parents=True, exist_ok=True)
    run = Training(config, RUN_ID, folder, device)
    run.state.resume(folder, RUN_ID)
    with contextlib.redirect_stdout(io.StringIO()):
        run.loop(interrupt or Interrupt(), None)
    return run


def named_state(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a method's state by name, float64 on the CPU."""
    return {name: value.cpu().double() for name, value in state.items() if isinstance(value, Tensor)}


def as_one(
    devices: int,
    folder: Path,
    device: torch.device,
    start: Callable[[dict[str, Any], str, Path], Outcome] | None = None,
) -> Finding:
    """Train a few steps in float64 on one device and on ``devices`` ranks, and compare all weights and buffers.

    A step rounds the weights to u and the gradients to about sqrt(n) u for the n = 25,600 pixels of a batch. The
    network and its batch statistics enlarge a deviation, by less than ten in a step at this learning rate. So

        bound = 8 sqrt(n) u 10^(steps - 1) = 1.4e-12

    of the norm of each tensor; another mean of the ranks' gradients differs by more than 1e-3.

    Args:
        start: starts the ranks; None: as ``ssl-bench train`` does.
    """
    config = load([*TINY, f"max_steps={STEPS}", "precision=fp64", f"paths.outputs={folder}", "framework=simclr"])
    alone = run_of(config, folder / "one", device)
    many = folder / "many"
    many.mkdir(parents=True)
    outcome = (start or partial(ranks.launch, separate=True))(
        config | {"devices": devices, "timeout": SECONDS}, RUN_ID, many
    )
    if not outcome.finished:
        return Finding("no result", Verdict.WRONG, f"{devices} ranks failed: {outcome.reason}", LINKS)
    state = checkpoint.load(many / "checkpoints", RUN_ID)
    if state is None:
        raise RunError(f"{devices} ranks wrote no checkpoint")
    expected, found = named_state(alone.state.method.state_dict()), named_state(state["method"])
    bound = 8 * 25600**0.5 * UNITS["fp64"] * 10.0 ** (STEPS - 1)
    differences = []
    for name, value in expected.items():
        size = max(float(value.norm()), 1e-12)
        differences.append(Difference(name, float((found[name] - value).norm()) / size, bound, f"on {devices} ranks"))
    advice = f"{WRONG_RESULT}; until then train with devices=1"
    return judged(differences, "weights and buffers", advice)
