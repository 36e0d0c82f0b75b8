"""The section environment: versions, cores, memory, disks and limits; ``gpus.py`` has what concerns GPUs."""

import importlib
import os
import platform
import re
import resource
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

import torch
import torch.distributed as dist

from ssl_bench.check import gpus
from ssl_bench.check.finding import Check, Finding, Level, Setting, Verdict
from ssl_bench.files import write_text
from ssl_bench.hardware import available_cores
from ssl_bench.precision import bf16_is_slow
from ssl_bench.record.environment import processor

GIB, MIB = 2**30, 2**20
WRITE_FLOOR = (
    50e6  # bytes/s: a hard disk has 100 MB/s, and a checkpoint of ResNet-50 with momentum network takes 300 MB
)
REPLACE_FLOOR = 0.1  # seconds; a local disk takes a few milliseconds
FREE_FLOOR = 2 * GIB  # bytes: two checkpoints of a ResNet-50 at the same time, and records
HOST_OF_RANK = 2 * GIB  # bytes: libraries, CUDA's context and pinned images
DESCRIPTORS = 512  # a rank uses about 100 for its libraries, pipes, sockets and arrays
SHM_OF_NCCL = GIB  # bytes of /dev/shm that NVIDIA advises for NCCL in containers


def section(setting: Setting) -> Iterator[Check]:
    """Checks of what is installed and of what the machine has."""
    yield Check("versions", versions)
    yield Check("torchvision operators", torchvision_operators)
    yield from gpus.checks(setting)
    yield Check("cores", lambda: cores(available_cores(), os.cpu_count() or 1, cpu_quota()))
    yield Check("processor", lambda: instructions(flags(), torch.backends.cpu.get_cpu_capability()))
    yield Check("load", lambda: load(os.getloadavg()[0], available_cores()))
    yield Check("memory", lambda: memory(*memory_sizes(), *_needed_memory(setting)), 2)
    yield Check("disk of outputs", lambda: disk(setting.folder, FREE_FLOOR))
    yield Check("disk of data", lambda: disk(setting.data, 0))
    size = (32 if setting.level is Level.QUICK else 128) * MIB
    yield Check("writing", lambda: writing(setting.folder, size), 3)
    yield Check("small files", lambda: small_files(setting.folder))
    yield Check("file descriptors", lambda: descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)))
    if Path("/dev/shm").is_dir():
        several = setting.devices if setting.device.type == "cuda" else 1
        yield Check("shared memory", lambda: shared_memory(shutil.disk_usage("/dev/shm"), several))
    yield Check("collectives", lambda: collectives(setting))


# ---- software


def versions() -> Finding:
    """Versions of the packages that a run depends on most, against the oldest ones that this package accepts."""
    wanted = {"torch": "", "torchvision": "", "timm": ""} | _required()
    found = {"python": platform.python_version()}
    old, absent = [], []
    for package, oldest in wanted.items():
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            absent.append(package)
            continue
        if _numbers(found[package]) < _numbers(oldest):
            old.append(f"{package} {found[package]} is older than {oldest}")
    figure = ", ".join(f"{name} {found[name]}" for name in ("python", "torch", "torchvision", "timm") if name in found)
    if old or absent:
        reason = "; ".join([*old, *(f"{package} is not installed" for package in absent)])
        return Finding(figure, Verdict.WRONG, reason, "pip install --upgrade ssl-bench", found)
    return Finding(figure, Verdict.GOOD, values=found)


def _required() -> dict[str, str]:
    """Oldest version of each required package; nothing if this package is not installed."""
    try:
        required = metadata.requires("ssl-bench") or []
    except metadata.PackageNotFoundError:
        return {}
    parts = (re.match(r"([\w-]+)[^;]*?>=\s*([\d.]+)", each) for each in required if "extra ==" not in each)
    return {part[1]: part[2] for part in parts if part}


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])][:3]


def torchvision_operators() -> Finding:
    """Whether torchvision's compiled operators load: they belong to one version of torch only."""
    try:
        importlib.import_module("torchvision")
        boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 1.9]])
        kept = torch.ops.torchvision.nms(boxes, torch.tensor([1.0, 0.5]), 0.5).tolist()
        if kept != [0]:
            raise RuntimeError(f"of two boxes it keeps {kept} and not [0]")
    except (ImportError, AttributeError, RuntimeError) as error:
        reason = f"torchvision does not fit torch {torch.__version__}: {str(error).splitlines()[0]}"
        return Finding("", Verdict.WRONG, reason, "install torch and torchvision together, from the same index")
    return Finding("they load and give the right result", Verdict.GOOD)


def collectives(setting: Setting) -> Finding:
    """Whether torch can connect processes: gloo on CPUs, which GPUs use too for votes, and NCCL on GPUs."""
    have = {"gloo": dist.is_available() and dist.is_gloo_available()}
    if setting.device.type == "cuda":
        have["nccl"] = dist.is_available() and dist.is_nccl_available()
    figure = ", ".join(name for name, there in have.items() if there)
    if have.get("nccl"):
        figure += " " + ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    if not all(have.values()):
        reason = f"torch was built without {', '.join(name for name, there in have.items() if not there)}"
        return Finding(figure, Verdict.WRONG, reason, "install an official build of torch; devices=1 works without")
    return Finding(figure, Verdict.GOOD)


# ---- processor and memory


def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Cores' worth of time that a container may use; None without a limit."""
    for name in ("cpu.max", "cpu/cpu.cfs_quota_us"):
        words = _read(root / name).split()
        if len(words) == 1:
            words += _read(root / "cpu/cpu.cfs_period_us").split()
        if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal():
            return int(words[0]) / int(words[1])
    return None


def cores(available: int, present: int, quota: float | None) -> Finding:
    """Cores that this process may use.

    Args:
        available: by its affinity.
        present: in the machine.
        quota: cores' worth of time that its container may use.
    """
    figure = f"{available} of {present}" + (f", time of {quota:.1f}" if quota is not None else "")
    values = {"cores": available, "cores_of_machine": present, "quota_cores": quota}
    if quota is not None and quota < available:
        reason = (
            f"the container may use the time of {quota:.1f} cores, but shows {available}: threads wait for each other"
        )
        advice = f"start the command with taskset -c 0-{max(0, int(quota) - 1)}, or give the container whole cores"
        return Finding(figure, Verdict.SLOW, reason, advice, values)
    if available == 1 < present:
        reason = f"this process may use 1 core of {present}"
        return Finding(
            figure, Verdict.SLOW, reason, "ask for more (Slurm: --cpus-per-task; taskset -p shows it)", values
        )
    return Finding(figure, Verdict.GOOD, values=values)


def flags() -> set[str]:
    """Instruction sets of the processor, as Linux names them; empty elsewhere."""
    listed = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", _read(Path("/proc/cpuinfo")), re.M)
    return set(listed[1].split()) if listed else set()


def instructions(found: set[str], capability: str) -> Finding:
    """Model of the processor and its vector instructions.

    Args:
        found: instruction sets of the processor.
        capability: those that torch uses.
    """
    vectors = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16") if name in found]
    figure = f"{processor()}, {' '.join(vectors) or 'instructions unknown'}; torch uses {capability}"
    figure += "; precision=bf16 is many times slower than fp32" if bf16_is_slow() else ""
    values: dict[str, Any] = {"processor": processor(), "instructions": vectors, "capability": capability}
    if "avx2" in found and capability == "DEFAULT":
        reason = "the processor has avx2, but torch does not use it"
        return Finding(figure, Verdict.SLOW, reason, "unset ATEN_CPU_CAPABILITY, or install another build", values)
    frequencies = [_read(path).strip() for path in sorted(Path("/sys/devices/system/cpu").glob("cpu*/cpufreq/*_freq"))]
    if clocks := [int(each) / 1e6 for each in frequencies if each.isdecimal()]:
        values |= {"slowest_clock_ghz": min(clocks), "fastest_clock_ghz": max(clocks)}
    return Finding(figure, Verdict.KNOWN, values=values)


def load(average: float, available: int) -> Finding:
    """Whether other work uses the cores, by the load of the last minute."""
    figure, values = f"{average:.1f} of {available} cores were busy in the last minute", {"load": average}
    if average > max(1.0, 0.5 * available):
        reason = f"{average:.1f} of {available} cores were busy, more than half: times are not those of a free machine"
        return Finding(figure, Verdict.SLOW, reason, "end the other work and check again", values)
    return Finding(figure, Verdict.GOOD, values=values)


def memory_sizes(root: Path = Path("/sys/fs/cgroup")) -> tuple[int, int]:
    """Total and available bytes of memory of this machine or, if that is less, of its container."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    listed = re.search(r"^MemAvailable:\s*(\d+) kB", _read(Path("/proc/meminfo")), re.M)
    available = int(listed[1]) * 1024 if listed else total
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        most, now = _read(root / limit).strip(), _read(root / used).strip()
        if most.isdecimal() and now.isdecimal() and int(most) < total:
            return int(most), min(available, max(0, int(most) - int(now)))
    return total, available


def _needed_memory(setting: Setting) -> tuple[int, str]:
    """Bytes of memory that runs need, and what for."""
    if setting.device.type == "cuda":
        return HOST_OF_RANK * setting.devices, f"{setting.devices} processes with CUDA take"
    return gpus.step_bytes(torch.float32), "a step of ResNet-18 with 256 images of 32 px takes"


def memory(total: int, available: int, needed: int, purpose: str) -> Finding:
    """Whether the memory is enough.

    Args:
        needed: bytes.
        purpose: what needs them, with a verb.
    """
    figure = f"{available / GIB:.1f} of {total / GIB:.1f} GiB available"
    values = {"bytes": total, "available_bytes": available, "needed_bytes": needed}
    if available < needed:
        reason = f"{purpose} {needed / GIB:.1f} GiB, more than the {available / GIB:.1f} GiB available"
        advice = "free memory, raise the container's limit, or set batch_size.chunk"
        return Finding(figure, Verdict.WRONG, reason, advice, values)
    return Finding(figure, Verdict.GOOD, values=values)


# ---- disks and limits


def disk(folder: Path, needed: int) -> Finding:
    """Free space of the file system of a folder, which may not exist yet."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    usage = shutil.disk_usage(there)
    figure = f"{usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB free" + (
        "" if there == folder else ", no folder yet"
    )
    values = {"bytes": usage.total, "free_bytes": usage.free}
    if usage.free < needed:
        reason = f"{usage.free / GIB:.2f} GiB are free, less than {needed / GIB:.0f}: checkpoints may not fit"
        return Finding(figure, Verdict.WRONG, reason, "free some space, or set paths.outputs to another disk", values)
    return Finding(figure, Verdict.GOOD if needed else Verdict.KNOWN, values=values)


def _open(path: Path) -> BinaryIO:
    return open(path, "wb", buffering=0)


def writing(folder: Path, size: int, opened: Callable[[Path], BinaryIO] = _open, longest: float = 2.0) -> Finding:
    """Speed of writing a file and flushing it to the disk, as a checkpoint is written.

    Args:
        size: bytes, written by 4 MiB at a time.
        opened: opens the file.
        longest: seconds after which writing stops.
    """
    block = os.urandom(4 * MIB)  # a file system that compresses must not help
    path, written = folder / "write", 0
    start = time.monotonic()
    with opened(path) as file:
        while written < size and time.monotonic() - start < longest:
            written += file.write(block[: size - written])
        os.fsync(file.fileno())
    rate = written / (time.monotonic() - start)
    path.unlink()
    figure, values = f"{rate / 1e6:,.0f} MB/s", {"bytes_s": rate}
    if rate < WRITE_FLOOR:
        reason = (
            f"{rate / 1e6:.1f} MB/s, less than {WRITE_FLOOR / 1e6:.0f}: a checkpoint of 300 MB takes {3e8 / rate:.0f} s"
        )
        return Finding(
            figure, Verdict.SLOW, reason, "set paths.outputs to a faster disk, or a larger checkpoint.every", values
        )
    return Finding(figure, Verdict.GOOD, values=values)


def small_files(folder: Path, files: int = 8, replace: Callable[[Path, str], None] = write_text) -> Finding:
    """Time to replace a small file safely, as records and claims of runs are written."""
    path, times = folder / "small", list[float]()
    for number in range(files):
        start = time.monotonic()
        replace(path, str(number))
        times.append(time.monotonic() - start)
    path.unlink()
    middle = sorted(times)[len(times) // 2]
    figure, values = f"{middle * 1e3:.1f} ms to replace one", {"seconds": middle}
    if middle > REPLACE_FLOOR:
        reason = f"{middle * 1e3:.0f} ms to replace a small file, more than {REPLACE_FLOOR * 1e3:.0f}"
        return Finding(figure, Verdict.SLOW, reason, "set paths.outputs to a local disk, or a larger log_every", values)
    return Finding(figure, Verdict.GOOD, values=values)


def descriptors(limits: tuple[int, int]) -> Finding:
    """Number of files that a process may have open: now, and at most."""
    soft, hard = limits
    figure, values = f"{soft} (at most {hard})", {"soft": soft, "hard": hard}
    if 0 <= soft < DESCRIPTORS:  # -1: no limit
        return Finding(figure, Verdict.WRONG, f"{soft} open files, less than {DESCRIPTORS}", "ulimit -n 4096", values)
    return Finding(figure, Verdict.GOOD, values=values)


def shared_memory(usage: Iterable[int], ranks: int) -> Finding:
    """Size of /dev/shm, which NCCL needs between GPUs.

    Args:
        usage: total, used and free bytes.
        ranks: GPUs of a run; 1 needs none.
    """
    total, _, free = usage
    figure, values = f"{free / GIB:.2f} of {total / GIB:.2f} GiB free", {"bytes": total, "free_bytes": free}
    if ranks > 1 and free < SHM_OF_NCCL:
        reason = (
            f"{free / MIB:.0f} MiB of /dev/shm are free; NCCL needs up to {SHM_OF_NCCL / GIB:.0f} GiB for {ranks} GPUs"
        )
        return Finding(figure, Verdict.WRONG, reason, "start the container with --shm-size=1g or --ipc=host", values)
    return Finding(figure, Verdict.GOOD if ranks > 1 else Verdict.KNOWN, values=values)


def _read(path: Path) -> str:
    """Content of a small file of the kernel; empty if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
