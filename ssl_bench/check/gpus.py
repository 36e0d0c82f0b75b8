"""Checks of the section environment about GPUs: build, driver, architecture, memory, links, clocks and other work.

Clocks, temperatures and other processes come from ``nvidia-smi``, which belongs to the driver. Without it these checks
say so.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import torch

from ssl_bench.check.finding import Check, Finding, Setting, Verdict
from ssl_bench.errors import ConfigError
from ssl_bench.hardware import check_architecture
from ssl_bench.networks.backbones import timm_backbone

GIB = 2**30
CONTEXT = GIB  # bytes beside tensors: CUDA's context, cuDNN's work space and fragments
ECC = "ecc.errors.uncorrected.volatile.total"
FIELDS = ["index", "uuid", "driver_version", "temperature.gpu", "clocks.sm", "clocks.max.sm", "power.draw"]
FIELDS += ["power.limit", "utilization.gpu", "memory.used", ECC, "compute_mode"]
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # the second one in drivers before 535
# Bits of these masks that mean a fault of cooling or power. Idle and limits that the user has set are none.
THROTTLES = {
    0x8: "the hardware slows down",
    0x20: "too hot",
    0x40: "much too hot",
    0x80: "the power supply is too weak",
}
OTHERS = 1.5 * GIB  # bytes used before the first tensor that are more than contexts of this command's processes
BUSY = 10  # percent


def checks(setting: Setting) -> Iterator[Check]:
    """Checks of torch's build and of each GPU that is used."""
    present = len(list(Path("/dev").glob("nvidia[0-9]*")))  # in a container, only those that it was given
    yield Check("cuda", lambda: build(torch.cuda.is_available(), present, os.environ.get("CUDA_VISIBLE_DEVICES")), 2)
    if setting.device.type != "cuda":
        return
    for index in range(setting.devices):
        yield Check(f"gpu {index}", partial(_architecture, index))
        yield Check(f"gpu {index} memory", partial(_memory, index))
        yield Check(f"gpu {index} state", partial(_state, index))
    if setting.devices > 1:
        yield Check("links", partial(_links, setting.devices))


def build(usable: bool, present: int, visible: str | None) -> Finding:
    """Report what torch was built for, and whether it can use the GPUs that are there.

    Args:
        usable: torch can use a GPU.
        present: GPUs that the driver shows to this machine or container.
        visible: ``CUDA_VISIBLE_DEVICES``.
    """
    version, driver = torch.version.cuda, driver_version()
    cudnn = torch.backends.cudnn.version() if version else None  # type: ignore[no-untyped-call]
    values = {"cuda": version, "cudnn": cudnn, "driver": driver, "gpus_of_machine": present}
    parts = [f"torch built for CUDA {version}" if version else "torch built without CUDA"]
    parts += [f"cuDNN {cudnn}"] if cudnn else []
    parts += [f"driver {driver}"] if driver else []
    if usable:
        values["architectures"] = torch.cuda.get_arch_list()
        return Finding(", ".join(parts), Verdict.GOOD, values=values)
    if present and visible != "" and visible != "-1":
        reason = f"the driver shows {present} GPUs, and torch can use none"
        advice = "install a build of torch for this driver's CUDA" if version else "install a build of torch with CUDA"
        return Finding(", ".join(parts), Verdict.WRONG, reason, advice, values)
    return Finding(", ".join([*parts, "no GPU"]), Verdict.KNOWN, values=values)


def driver_version(path: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Version of NVIDIA's driver; None without one."""
    try:
        found = re.search(r"(\d+\.\d+(?:\.\d+)?)", path.read_text())
    except OSError:
        return None
    return found[1] if found else None


def _architecture(index: int) -> Finding:
    return architecture(
        torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index), torch.cuda.get_arch_list()
    )


def architecture(name: str, capability: tuple[int, int], built_for: list[str]) -> Finding:
    """Whether torch's build has code for a GPU."""
    figure = f"{name}, compute capability {capability[0]}.{capability[1]}"
    values = {"name": name, "capability": list(capability)}
    try:
        check_architecture(name, capability, built_for)
    except ConfigError as error:
        reason, _, advice = str(error).partition(": install ")
        return Finding(figure, Verdict.WRONG, reason, f"install {advice}", values)
    return Finding(figure, Verdict.GOOD, values=values)


@cache
def step_bytes(dtype: torch.dtype, images: int = 256, side: int = 32) -> int:
    """Bytes that a step of SimCLR takes with ResNet-18 and two views of each image, without work space.

    Counted on the meta device: what the forward pass keeps for the backward pass in ``dtype``, and weights, gradients
    and the optimiser's momentum in float32.
    """
    network = timm_backbone("resnet18", 3, "cifar").to("meta")
    views = torch.empty(2 * images, 3, side, side, device="meta")
    kept: dict[int, tuple[torch.Tensor, int]] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        kept[id(x)] = x, x.numel()  # a reference, so that no other tensor gets the same id
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        network(views)
    weights = {id(p) for p in network.parameters()}
    stored = sum(count for key, (_, count) in kept.items() if key not in weights)
    size = torch.empty((), dtype=dtype, device="meta").element_size()
    return stored * size + 3 * sum(p.numel() for p in network.parameters()) * 4


def _memory(index: int) -> Finding:
    free, total = torch.cuda.mem_get_info(index)
    half = torch.cuda.get_device_capability(index)[0] >= 7  # tensor cores: bf16, or fp16 on Volta and Turing
    return gpu_memory(total, free, step_bytes(torch.float16 if half else torch.float32) + CONTEXT)


def gpu_memory(total: int, free: int, needed: int) -> Finding:
    """Whether a GPU's memory holds a step of ResNet-18 with 256 images of 32 pixels.

    Args:
        total: bytes of the GPU.
        free: bytes that no process uses.
        needed: bytes of the step.
    """
    figure = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
    values = {"bytes": total, "free_bytes": free, "needed_bytes": needed}
    step = f"a step of ResNet-18 with 256 images of 32 px takes {needed / GIB:.1f} GiB"
    if total < needed:
        reason = f"{step}, and this GPU has {total / GIB:.1f}: it is too small"
        return Finding(figure, Verdict.WRONG, reason, "set batch_size.chunk or a smaller batch_size.size", values)
    if free < needed:
        reason = f"{step}, and {free / GIB:.1f} are free: other processes use the rest"
        return Finding(figure, Verdict.WRONG, reason, "end them (nvidia-smi lists them) or choose another GPU", values)
    return Finding(figure, Verdict.GOOD, values=values)


# ---- nvidia-smi


def _smi(*arguments: str) -> str:
    """Output of ``nvidia-smi``; empty if it fails or is not there."""
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


@cache
def _queried() -> dict[str, dict[str, str]]:
    """Facts of each GPU of the machine by its UUID."""
    for reason in REASONS:
        if text := _smi(f"--query-gpu={','.join((*FIELDS, reason))}", "--format=csv,noheader,nounits"):
            return parsed(text)
    return {}


def parsed(text: str) -> dict[str, dict[str, str]]:
    """Rows of ``nvidia-smi --query-gpu`` by UUID; the last field is ``throttle``."""
    rows = (dict(zip((*FIELDS, "throttle"), re.split(r",\s*", line), strict=False)) for line in text.splitlines())
    return {row["uuid"]: row for row in rows if "uuid" in row}


def _state(index: int) -> Finding:
    uuid = f"GPU-{getattr(torch.cuda.get_device_properties(index), 'uuid', '')}"
    text = _smi("--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv,noheader")
    return state(_queried().get(uuid, {}), others(text, uuid, os.getpid()))


def others(text: str, uuid: str, ours: int) -> list[str]:
    """Processes that compute on a GPU beside ``ours``, as far as the driver shows them in a container.

    Args:
        text: the rows of ``nvidia-smi --query-compute-apps``.
    """
    rows = [re.split(r",\s*", line) for line in text.splitlines()]
    return [" ".join(row[1:]) for row in rows if len(row) == 4 and row[0] == uuid and row[1] != str(ours)]


def state(row: Mapping[str, str], processes: Sequence[str]) -> Finding:
    """Clocks, temperature and power of a GPU, its errors of memory, and other work on it.

    Args:
        row: one of :func:`parsed`; empty if it is not known.
        processes: that use the GPU beside this one.
    """
    if not row:
        return Finding("", Verdict.SKIPPED, "nvidia-smi does not show this GPU")
    names = ("clocks.sm", "clocks.max.sm", "temperature.gpu", "power.draw", "power.limit", "utilization.gpu")
    numbers = {name: _number(row.get(name, "")) for name in (*names, "memory.used", ECC)}
    clock, fastest, degrees, watts, most, busy = (numbers[name] for name in names)
    figure = f"{_text(clock)} of {_text(fastest)} MHz, {_text(degrees)} C, {_text(watts)} of {_text(most)} W"
    used = (numbers["memory.used"] or 0) * 2**20
    values = {"clock_mhz": clock, "celsius": degrees, "watt": watts, "busy_percent": busy, "used_bytes": used}
    if errors := numbers[ECC]:
        reason = f"{errors:.0f} errors of its memory that could not be corrected"
        return Finding(figure, Verdict.WRONG, reason, "reset or replace the GPU: its results may be wrong", values)
    mask = row.get("throttle", "")
    active = int(mask, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", mask) else 0
    if limits := [text for bit, text in THROTTLES.items() if active & bit]:
        return Finding(
            figure, Verdict.SLOW, f"it runs below its clock: {', '.join(limits)}", "check cooling and power", values
        )
    if (busy or 0) > BUSY or used > OTHERS:
        listed = f" ({'; '.join(processes)})" if processes else ""
        reason = f"other work uses it: {busy or 0:.0f}% busy, {used / GIB:.1f} GiB{listed}"
        return Finding(figure, Verdict.SLOW, reason, "end it and check again, or choose another GPU", values)
    if row.get("compute_mode") == "Exclusive_Process":
        reason = "its compute mode lets one process use it at a time: runs cannot share it"
        return Finding(figure, Verdict.SLOW, reason, "nvidia-smi -c DEFAULT, or leave runs_per_gpu at 1", values)
    return Finding(figure, Verdict.GOOD, values=values)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # [N/A], [Not Supported]
        return None


def _text(number: float | None) -> str:
    return "?" if number is None else f"{number:.0f}"


# ---- links


def _links(count: int) -> Finding:
    pairs = [(i, j) for i in range(count) for j in range(count) if i != j]
    missing = [(i, j) for i, j in pairs if not torch.cuda.can_device_access_peer(i, j)]
    return links(count, missing, topology(_smi("topo", "-m")))


def links(count: int, missing: Sequence[tuple[int, int]], kinds: Mapping[str, int]) -> Finding:
    """How GPUs are connected.

    Args:
        missing: pairs of GPUs that cannot read each other's memory.
        kinds: number of pairs by kind of link, such as NV12; empty if it is not known.
    """
    pairs = count * (count - 1)
    listed = ", ".join(f"{number} x {kind}" for kind, number in kinds.items())
    figure = f"{count} GPUs, {pairs - len(missing)} of {pairs} pairs with peer access" + (
        f": {listed}" if listed else ""
    )
    values = {"gpus": count, "pairs_with_peer_access": pairs - len(missing), "links": listed}
    if missing:
        reason = f"GPU {missing[0][0]} cannot read the memory of GPU {missing[0][1]}, and {len(missing) - 1} more pairs"
        advice = "gradients go through the host's memory: prefer one run per GPU, or enable peer access (ACS, IOMMU)"
        return Finding(figure, Verdict.SLOW, reason, advice, values)
    return Finding(figure, Verdict.GOOD, values=values)


def topology(text: str) -> dict[str, int]:
    """Number of pairs of GPUs by kind of link, from ``nvidia-smi topo -m``."""
    kinds: dict[str, int] = {}
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line).split() for line in text.splitlines()]
    header = next((words for words in lines if words[:1] == ["GPU0"] and "X" not in words), [])
    count = sum(bool(re.fullmatch(r"GPU\d+", word)) for word in header)
    for words in lines:
        if re.fullmatch(r"GPU\d+", (words or [""])[0]) and "X" in words:
            for kind in words[1 : count + 1]:
                if kind != "X":
                    kinds[kind] = kinds.get(kind, 0) + 1
    return kinds
