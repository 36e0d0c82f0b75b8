"""Time, memory and operations of a call on a device."""

import contextlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ssl_bench.hardware import release_memory

SECONDS = 0.8  # that a call is repeated
ROUNDS = 3


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_per_call(call: Callable[[], object], device: torch.device, warm_up: int = 1) -> float:
    """Measure the seconds of a call: the median of three rounds of calls that follow each other without waiting.

    A call that takes longer than ``SECONDS`` is measured once.

    Args:
        warm_up: calls before, which do not count.
    """
    for _ in range(warm_up):
        call()
    one = seconds_of_calls(call, device, 1)
    rounds = min(ROUNDS, int(SECONDS / one))
    if rounds == 0:
        return one
    count = max(1, int(SECONDS / rounds / one))
    return statistics.median(seconds_of_calls(call, device, count) for _ in range(rounds))


def seconds_of_calls(call: Callable[[], object], device: torch.device, count: int) -> float:
    """Measure ``count`` calls that follow each other without waiting: seconds of one."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(count):
        call()
    synchronize(device)
    return (time.perf_counter() - start) / count


def seconds_at_best(call: Callable[[], object], device: torch.device) -> float:
    """Measure what a call takes at least: the fastest of three or more single calls within ``SECONDS``, after one."""
    call()
    end, found = time.perf_counter() + SECONDS, list[float]()
    while len(found) < ROUNDS or time.perf_counter() < end:
        found.append(seconds_of_calls(call, device, 1))
    return min(found)


def extra_bytes(call: Callable[[], object], device: torch.device) -> int | None:
    """Peak memory of a call beyond what is in use before it; None where the system does not tell.

    On a CPU that is memory of this process, as Linux counts it.
    """
    release_memory(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError):
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak starts again at what is in use
        before = _peak_bytes()
        call()
        return _peak_bytes() - before
    return None


def _peak_bytes() -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 2**10 for line in lines if line.startswith("VmHWM"))


class DispatchCounter(TorchDispatchMode):
    """Counts the operations of torch that are carried out inside its block, on any device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def launches_and_waits(step: Callable[[], object], device: torch.device) -> tuple[float, float, float]:
    """Count what a step does on a GPU: kernels, launches by the host, and waits of the host; each per step.

    Profiles of one step and of three are compared, because the profiler itself waits at its end.
    """
    one, three = (_traced(step, device, steps) for steps in (1, 3))
    kernels, launches, waits = ((b - a) / 2 for a, b in zip(one, three, strict=True))
    return kernels, launches, waits


def _traced(step: Callable[[], object], device: torch.device, steps: int) -> tuple[int, int, int]:
    from torch.profiler import ProfilerActivity, profile

    synchronize(device)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        for _ in range(steps):
            step()
    events = trace.events() or []
    on_gpu = [e for e in events if e.device_type.name == "CUDA"]
    on_gpu = [e for e in on_gpu if not getattr(e, "is_user_annotation", False)]  # a name for several kernels
    kernels = sum(not e.name.startswith(("Memcpy", "Memset")) for e in on_gpu)
    calls = [e.name for e in events if e.device_type.name == "CPU"]
    launches = sum(name.startswith(("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cuGraphLaunch")) for name in calls)
    waits = sum(name.startswith("cuda") and name.endswith("Synchronize") for name in calls)
    return kernels, launches, waits
