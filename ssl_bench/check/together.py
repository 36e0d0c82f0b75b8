"""Several processes at once: ranks that train one run together, and runs that share a device."""

import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torch.multiprocessing.spawn import ProcessException, start_processes

from ssl_bench.check.finding import Finding, Verdict
from ssl_bench.check.steps import Workload, warm_up
from ssl_bench.check.timing import seconds_of_calls, seconds_per_call, synchronize
from ssl_bench.distributed import all_sum, broadcast, join_local, leave
from ssl_bench.errors import RunError
from ssl_bench.hardware import available_cores, local_device
from ssl_bench.launch.processes import die_with

# Least speed of the slowest rank, of the median of the others. Ranks of a CPU share it with every other program.
SLOW_RANK = {"cuda": 0.6, "cpu": 0.25}
# Least efficiency: images/s together, of the number of ranks times the slowest one alone. 8 GPUs reach 84% to 87% with
# ResNet-50 (NVIDIA's DeepLearningExamples). Ranks of a CPU wait for each other, and so for every other program.
EFFICIENCY = {"cuda": 0.75, "cpu": 0.4}
TIMEOUT = 60  # seconds that a rank waits for another one

Report = Mapping[str, float]
Work = Callable[..., Report]  # (number of this process, processes, barrier, folder, ...) -> what it has measured


def in_processes(work: Work, count: int, folder: Path, seconds: float, *arguments: Any) -> list[Report]:
    """Call ``work(number, count, barrier, folder, *arguments)`` in new processes; return their results.

    The cores are shared out evenly.

    Args:
        work: importable by its name.
        folder: empty, for what the processes leave.
        seconds: after which they are ended.

    Raises:
        RunError: one of them failed or did not end in time; all are ended.
    """
    folder.mkdir(parents=True)
    barrier = mp.get_context("spawn").Barrier(count)
    until = time.monotonic() + seconds
    started: Any = start_processes(
        _enter, (work, count, barrier, folder, os.getpid(), arguments), count, join=False, start_method="spawn"
    )
    try:
        while not started.join(timeout=1):
            if time.monotonic() > until:
                raise RunError(f"{count} processes did not end within {seconds:.0f} s")
    except ProcessException as error:
        last = str(error).strip().splitlines()[-1]  # of the traceback
        raise RunError(f"process {error.error_index} of {count} failed: {last}") from error
    finally:
        for process in started.processes:
            if process.is_alive():
                process.kill()
    return [json.loads((folder / f"{number}.json").read_text()) for number in range(count)]


def _enter(
    number: int, work: Work, count: int, barrier: Any, folder: Path, parent: int, arguments: Sequence[Any]
) -> None:
    die_with(parent)
    torch.set_num_threads(max(1, available_cores() // count))
    (folder / f"{number}.json").write_text(json.dumps(work(number, count, barrier, folder, *arguments)))


# ---- ranks


def train_as_rank(
    number: int, count: int, barrier: Any, folder: Path, kind: str, network: str, share: int, precision: str
) -> Report:
    """Measure this rank alone, then the exchange of gradients, then training together.

    Args:
        kind: of the devices, cuda or cpu.
        share: images of each rank.

    Returns:
        images_s_alone: of this rank, while the others train for themselves too; images_s: of all ranks together;
        gradient_bytes; exchange_bytes_s: gradients of that size averaged, in bytes per second; step_seconds.
    """
    device = local_device(number) if kind == "cuda" else torch.device(kind)
    step = Workload(network, share, precision).step(folder, device)
    for _ in range(warm_up("eager")):
        step()
    barrier.wait(TIMEOUT)
    alone = seconds_per_call(step, device, 0)
    join_local(folder / "store", number, count, device, TIMEOUT)
    calls = int(broadcast(max(2, int(1 / alone))))
    training = Workload(network, share * count, precision, devices=count).training(folder, device)
    gradients = torch.zeros(
        sum(p.numel() for p in training.state.method.parameters() if p.requires_grad), device=device
    )
    all_sum(gradients)
    exchange = seconds_of_calls(lambda: all_sum(gradients), device, 5)
    together = training.stepper()
    for _ in range(warm_up("eager")):
        together(False)
    seconds = seconds_of_calls(lambda: together(False), device, calls)
    leave()
    return {
        "images_s_alone": share / alone,
        "images_s": share * count / seconds,
        "gradient_bytes": gradients.nbytes,
        "exchange_bytes_s": gradients.nbytes / exchange,
        "step_seconds": seconds,
    }


def judge_ranks(reports: Sequence[Report], kind: str) -> Finding:
    """Compare ranks that train together with the same ranks alone."""
    count, first = len(reports), reports[0]
    alone, rate = [report["images_s_alone"] for report in reports], min(report["images_s"] for report in reports)
    slowest = min(range(count), key=alone.__getitem__)
    efficiency = rate / (count * alone[slowest])
    exchange = min(report["exchange_bytes_s"] for report in reports)
    waiting = first["gradient_bytes"] / exchange / first["step_seconds"]
    bus = exchange * 2 * (count - 1) / count
    figure = f"{rate:,.0f} images/s on {count}, efficiency {efficiency:.0%}, all-reduce {bus / 1e9:.3g} GB/s"
    values = {
        "images_s": rate,
        "efficiency": efficiency,
        "all_reduce_bytes_s": bus,
        "exchange_share_of_step": waiting,
        "images_s_alone": alone,
    }
    reasons, advice = list[str](), list[str]()
    typical = statistics.median(rest for number, rest in enumerate(alone) if number != slowest)
    if alone[slowest] < SLOW_RANK[kind] * typical:
        share = f"{alone[slowest] / typical:.0%} of the others' {typical:,.0f} (bound {SLOW_RANK[kind]:.0%})"
        reasons.append(f"rank {slowest} alone trains {alone[slowest]:,.0f} images/s, {share}")
        advice.append("see what else runs on that rank's device (nvidia-smi, top): all ranks wait for the slowest")
    if efficiency < EFFICIENCY[kind]:
        reach = f"{efficiency:.0%} of {count} times the slowest alone, less than {EFFICIENCY[kind]:.0%}"
        megabytes = first["gradient_bytes"] / 1e6
        takes = f"averaging {megabytes:,.3g} MB of gradients takes {waiting:.0%} of a step at {bus / 1e9:.3g} GB/s"
        reasons.append(f"{count} ranks together reach {reach}; {takes}")
        links = "see the links between the GPUs (nvidia-smi topo -m, NCCL_DEBUG=INFO)"
        advice.append(f"{links if kind == 'cuda' else 'set devices=1'}; for a grid, use one run per device")
    if reasons:
        return Finding(figure, Verdict.SLOW, "; ".join(reasons), "; ".join(advice), values)
    return Finding(figure, Verdict.GOOD, values=values)


# ---- runs that share a device


def train_beside_others(
    number: int, count: int, barrier: Any, folder: Path, kind: str, workload: Workload, seconds: float
) -> Report:
    """Train for some seconds, at the same time as the other processes, on the first device: images/s."""
    device = local_device(0) if kind == "cuda" else torch.device(kind)
    step = workload.step(folder, device)
    for _ in range(warm_up(workload.mode)):
        step()
    synchronize(device)
    barrier.wait(TIMEOUT)
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        for _ in range(10 if kind == "cuda" else 1):
            step()
            steps += 1
        synchronize(device)
    return {"images_s": steps * workload.batch / (time.perf_counter() - start)}


def judge_sharing(totals: Mapping[int, float], workload: Workload, kind: str) -> Finding:
    """Compare the images/s of several runs at once with those of one run.

    Args:
        totals: images/s of all runs together by their number, which begins with 1.
    """
    gains = {count: total / totals[1] for count, total in totals.items()}
    best = max(gains, key=gains.__getitem__)
    listed = ", ".join(f"{count}: {total:,.0f}" for count, total in totals.items())
    figure = f"images/s of runs at once, {workload.network} B={workload.batch}: {listed}"
    values: dict[str, Any] = {f"images_s_{count}": total for count, total in totals.items()}
    values |= {"best": best, "gain": gains[best]}
    advice = f"for grids of small runs, set {'runs_per_gpu' if kind == 'cuda' else 'hydra.launcher.n_jobs'}={best}"
    worst = min(gains, key=gains.__getitem__)
    if gains[worst] < 0.8:
        reason = f"{worst} runs at once reach {gains[worst]:.0%} of the images/s of one, less than 80%"
        return Finding(figure, Verdict.SLOW, reason, advice, values)
    return Finding(figure, Verdict.GOOD, advice=advice, values=values)
