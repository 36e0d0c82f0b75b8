"""Timing for the benchmarks: alternating rounds, a table of ratios, extra memory, the machine as one line, and JSON.

python scripts/timing.py                                # prints that line
"""

import platform
import resource
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch

from ssl_bench import files
from ssl_bench.launch.run import out_of_memory

T = TypeVar("T")
Seconds = Mapping[str, Sequence[float]]  # of the counted rounds, by contender


def environment(packages: Sequence[str], device: str = "cpu") -> str:
    """One line with system, processor, threads, GPU and versions; a package that is absent is "not installed"."""
    cpu = platform.processor() or platform.machine()
    if sys.platform == "linux":
        with open("/proc/cpuinfo") as lines:
            cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), cpu)
    parts = [f"{platform.system()}, {cpu}, {torch.get_num_threads()} threads"]
    parts += [torch.cuda.get_device_name(), f"CUDA {torch.version.cuda}"] if device == "cuda" else []
    parts += [f"python {platform.python_version()}"]
    for package in ("ssl-bench", "torch", *packages):
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            parts.append(f"{package} not installed")
    return ", ".join(parts)


def try_each(contenders: Mapping[str, Callable[[], T]]) -> tuple[dict[str, T], dict[str, str]]:
    """Call each contender once: the results, and why a contender has none: not installed, no memory, or its error."""
    results: dict[str, T] = {}
    missing: dict[str, str] = {}
    for name, call in contenders.items():
        try:
            results[name] = call()
        except ImportError as error:
            missing[name] = f"not installed ({error.name or error})"
        except Exception as error:  # the table goes on with the others
            words = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            missing[name] = "out of memory" if out_of_memory(error) else f"failed: {words}"
    return results, missing


@dataclass
class Times:
    """Seconds of each counted round, on the clock and as CPU time of this process."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def alternate(contenders: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 1) -> dict[str, Times]:
    """Time the contenders in turns, so that a busy machine slows all of them.

    Args:
        contenders: called once in every round.
        rounds: rounds that count.
        warm_up: rounds before them that do not count.
    """
    times = {name: Times() for name in contenders}
    for number in range(warm_up + rounds):
        for name, call in contenders.items():
            wall, cpu = time.perf_counter(), time.process_time()
            call()
            spent = time.perf_counter() - wall, time.process_time() - cpu
            if number >= warm_up:
                times[name].wall.append(spent[0])
                times[name].cpu.append(spent[1])
    return times


def print_table(
    seconds: Seconds,
    base: str,
    unit: str,
    scale: float,
    columns: Mapping[str, Callable[[str], str]] | None = None,
    missing: Mapping[str, str] | None = None,
    typical: Callable[[Sequence[float]], float] = statistics.median,
) -> None:
    """Print a row per contender: median, fastest and slowest round, and the ratio to the contender ``base``.

    Args:
        seconds: of each round, by contender.
        base: the contender whose ratio is 1.
        unit: of the printed times.
        scale: one second in that unit.
        columns: further columns by title, each a function of a contender's name; computed row by row.
        missing: contenders that could not run, with the reason.
        typical: the value of the rounds that the ratio compares.
    """
    columns, missing = columns or {}, missing or {}
    width = 2 + max(map(len, (*seconds, *missing)))
    titles = [f"median {unit}", "fastest", "slowest", "ratio", *columns]
    widths = [max(11, 2 + len(title)) for title in titles]
    print(" " * width + "".join(f"{title:>{w}}" for title, w in zip(titles, widths, strict=True)))
    for name, rounds in seconds.items():
        values = [f"{scale * value(rounds):.2f}" for value in (statistics.median, min, max)]
        values += [f"{typical(rounds) / typical(seconds[base]):.2f}" if base in seconds else "-"]
        values += [column(name) for column in columns.values()]
        print(f"{name:{width}}" + "".join(f"{v:>{w}}" for v, w in zip(values, widths, strict=True)), flush=True)
    for name, reason in missing.items():
        print(f"{name:{width}}{reason}")


def result_rows(seconds: Seconds, missing: Mapping[str, str], **common: Any) -> list[dict[str, Any]]:
    """A row for JSON per contender: median, fastest and slowest round in ms, or the reason why there is none."""
    values: dict[str, Callable[[Sequence[float]], float]]
    values = {"median_ms": statistics.median, "fastest_ms": min, "slowest_ms": max}
    rows = [
        common | {"name": name} | {key: 1e3 * value(rounds) for key, value in values.items()}
        for name, rounds in seconds.items()
    ]
    return rows + [common | {"name": name, "missing": reason} for name, reason in missing.items()]


def save(path: Path | None, machine: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace a file, if one is asked for, by rows as JSON with the command and the machine."""
    if path is not None:
        command = shlex.join(["python", *sys.argv])
        files.write_json(path, {"command": command, "environment": machine, "rows": rows})


def extra_megabytes(
    call: Callable[[T], object], small: Callable[[], T], full: Callable[[], T], device: str = "cpu"
) -> float:
    """Peak memory of ``call(full())`` in a new process, beyond its inputs and what ``call(small())`` took before."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_extra_megabytes, call, small, full, device, torch.get_num_threads()).result()


def _extra_megabytes(
    call: Callable[[T], object], small: Callable[[], T], full: Callable[[], T], device: str, threads: int
) -> float:
    torch.set_num_threads(threads)
    inputs = full()
    call(small())
    before = _peak_megabytes(device, restart=True)
    call(inputs)
    return _peak_megabytes(device) - before


def _peak_megabytes(device: str, restart: bool = False) -> float:
    """Peak memory of this process, on Linux and on a GPU since the last restart."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats() if restart else None
        return torch.cuda.max_memory_allocated() / 2**20
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    if restart:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 2**10 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    print(environment(["torchvision", "kornia", "lightly"], "cuda" if torch.cuda.is_available() else "cpu"))
