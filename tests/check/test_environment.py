"""The section environment: the whole of it here, and planted faults of machines that are not here."""

import io
import os
import time
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

import pytest
import torch

from ssl_bench import files
from ssl_bench.check import environment, gpus
from ssl_bench.check.finding import Finding, Level, Setting, Verdict, findings

GIB, MIB = 2**30, 2**20
GOOD, SLOW, WRONG, KNOWN = Verdict.GOOD, Verdict.SLOW, Verdict.WRONG, Verdict.KNOWN


def is_found(finding: Finding, verdict: Verdict, *words: str) -> None:
    """Check a verdict and what its reason says; a fault comes with an advice."""
    assert finding.verdict is verdict, finding
    assert all(word in finding.reason for word in words), finding.reason
    assert bool(finding.advice) == (verdict in (SLOW, WRONG)), finding


def test_the_section_here() -> None:
    setting = Setting(torch.device("cpu"), 2, Level.QUICK, Path(), Path("no/data"), time.monotonic() + 60)
    found = {name: finding for name, finding, _ in findings(environment.section, setting)}
    assert {*("versions", "cuda", "cores", "memory", "disk of outputs", "writing", "collectives")} <= found.keys()
    assert [name for name, each in found.items() if each.verdict in (WRONG, Verdict.SKIPPED)] == []
    assert found["versions"].values["torch"] == metadata.version("torch")
    assert found["cores"].values["cores"] == len(os.sched_getaffinity(0))
    assert found["writing"].values["bytes_s"] > 0 and "no folder yet" in found["disk of data"].figure
    assert os.listdir() == []


def test_an_old_and_an_absent_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def required(name: str) -> list[str]:
        return ["timm>=99.1,<100", "nothing-like-it>=1", "wandb>=999 ; extra == 'dev'", "torch>=2.6"]

    monkeypatch.setattr(metadata, "requires", required)
    is_found(
        environment.versions(), WRONG, f"timm {metadata.version('timm')} is older than 99.1", "nothing-like-it is not"
    )


def test_torchvision_of_another_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def nms(*arguments: object) -> torch.Tensor:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(torch.ops.torchvision, "nms", nms)
    is_found(environment.torchvision_operators(), WRONG, "does not fit torch", "nms does not exist")
    monkeypatch.setattr(torch.ops.torchvision, "nms", lambda *arguments: torch.tensor([0, 1]))
    is_found(environment.torchvision_operators(), WRONG, "keeps [0, 1] and not [0]")


class ThrottledFile(io.FileIO):
    """A file that is written at about 5 MB/s."""

    def write(self, data: object) -> int:
        size = super().write(bytes(data[: MIB // 4]))  # type: ignore[index]
        time.sleep(size / 5e6)
        return size


def test_a_slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def throttled(path: Path) -> BinaryIO:
        return ThrottledFile(path, "wb")

    found = environment.writing(Path(), 32 * MIB, throttled, longest=0.3)
    is_found(found, SLOW, "MB/s, less than 50: a checkpoint of 300 MB takes")
    assert 3e6 < found.values["bytes_s"] < 5.2e6
    assert not Path("write").exists()

    def delayed(path: Path, text: str) -> None:
        time.sleep(0.12)
        files.write_text(path, text)

    is_found(environment.small_files(Path(), 3, delayed), SLOW, "ms to replace a small file, more than 100")
    is_found(environment.small_files(Path()), GOOD)


def test_a_full_disk() -> None:
    is_found(environment.disk(Path(), 10**18), WRONG, "GiB are free, less than 931322575: checkpoints may not fit")


def test_cores(tmp_path: Path) -> None:
    is_found(environment.cores(8, 8, None), GOOD)
    is_found(environment.cores(8, 64, 8.0), GOOD)
    is_found(environment.cores(1, 64, None), SLOW, "1 core of 64")
    found = environment.cores(64, 64, 4.0)
    is_found(found, SLOW, "the time of 4.0 cores, but shows 64")
    assert "taskset -c 0-3" in found.advice
    assert environment.cpu_quota(tmp_path) is None
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert environment.cpu_quota(tmp_path) is None
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    assert environment.cpu_quota(tmp_path) == 2.5
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("50000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert environment.cpu_quota(tmp_path) == 0.5


def test_instructions_and_load() -> None:
    is_found(environment.instructions({"avx2", "amx_bf16"}, "AVX2"), KNOWN)
    is_found(environment.instructions({"avx2"}, "DEFAULT"), SLOW, "has avx2, but torch does not use it")
    is_found(environment.load(0.9, 2), GOOD)
    is_found(environment.load(40.0, 64), SLOW, "40.0 of 64 cores were busy, more than half")


def test_memory(tmp_path: Path) -> None:
    is_found(environment.memory(16 * GIB, 8 * GIB, 2 * GIB, "a step takes"), GOOD)
    is_found(
        environment.memory(16 * GIB, GIB, 2 * GIB, "a step takes"), WRONG, "a step takes 2.0 GiB, more than the 1.0"
    )
    total, _ = environment.memory_sizes(tmp_path)
    assert total == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    (tmp_path / "memory.max").write_text(f"{GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB // 4}\n")
    assert environment.memory_sizes(tmp_path) == (GIB, GIB * 3 // 4)
    (tmp_path / "memory.max").write_text("max\n")
    assert environment.memory_sizes(tmp_path)[0] == total


def test_limits() -> None:
    is_found(environment.descriptors((1024, 4096)), GOOD)
    is_found(environment.descriptors((-1, -1)), GOOD)
    is_found(environment.descriptors((256, 4096)), WRONG, "256 open files, less than 512")
    is_found(environment.shared_memory((64 * MIB, 0, 64 * MIB), 8), WRONG, "64 MiB of /dev/shm", "1 GiB for 8 GPUs")
    is_found(environment.shared_memory((64 * MIB, 0, 64 * MIB), 1), KNOWN)
    is_found(environment.shared_memory((8 * GIB, 0, 8 * GIB), 8), GOOD)


# ---- GPUs


def test_torch_that_cannot_use_the_gpus_of_the_machine() -> None:
    is_found(gpus.build(False, 8, None), WRONG, "the driver shows 8 GPUs, and torch can use none")
    is_found(gpus.build(False, 8, ""), KNOWN)
    is_found(gpus.build(False, 0, None), KNOWN)
    is_found(gpus.build(True, 8, None), GOOD)
    assert gpus.driver_version(Path("version")) is None
    Path("version").write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n")
    assert gpus.driver_version(Path("version")) == "580.65.06"


def test_a_gpu_that_torch_was_not_built_for() -> None:
    modern = ["sm_75", "sm_80", "sm_90", "sm_120"]
    is_found(gpus.architecture("NVIDIA H200", (9, 0), modern), GOOD)
    found = gpus.architecture("Tesla V100", (7, 0), modern)
    is_found(found, WRONG, "V100 has compute capability 7.0", "was built for sm_75")
    assert 'pip install "torch<2.15" torchvision --index-url' in found.advice and "cu126" in found.advice


def test_bytes_of_a_step() -> None:
    half, single = gpus.step_bytes(torch.float16), gpus.step_bytes(torch.float32)
    weights = 3 * 4 * 11_168_832
    assert single - weights == pytest.approx(2 * (half - weights))
    assert 1.2 * GIB < half < 1.3 * GIB  # about 2.4 MB of half-precision values a view
    assert gpus.step_bytes(torch.float16, 128) - weights == pytest.approx((half - weights) / 2, rel=0.01)


def test_a_gpu_that_is_too_small_or_in_use() -> None:
    needed = gpus.step_bytes(torch.float16) + gpus.CONTEXT
    is_found(gpus.gpu_memory(16 * GIB, 15 * GIB, needed), GOOD)
    is_found(gpus.gpu_memory(2 * GIB, 2 * GIB, needed), WRONG, "takes 2.2 GiB, and this GPU has 2.0: it is too small")
    is_found(gpus.gpu_memory(16 * GIB, GIB, needed), WRONG, "1.0 are free: other processes use the rest")


ROW = "0, GPU-12, 580.65, 41, 1980, 1980, 120.5, 700.00, 0, 620, 0, Default, 0x0000000000000001"


def row(**changes: str) -> dict[str, str]:
    return gpus.parsed(ROW)["GPU-12"] | changes


def test_the_state_of_a_gpu() -> None:
    found = gpus.state(row(), [])
    is_found(found, GOOD)
    assert found.figure == "1980 of 1980 MHz, 41 C, 120 of 700 W" and found.values["used_bytes"] == 620 * MIB
    is_found(gpus.state(row(throttle="0x0000000000000005"), []), GOOD)  # idle, or a power cap in normal work
    is_found(gpus.state(row(throttle="0x0000000000000048"), []), SLOW, "the hardware slows down, much too hot")
    is_found(gpus.state(row(**{"ecc.errors.uncorrected.volatile.total": "2"}), []), WRONG, "2 errors of its memory")
    is_found(gpus.state(row(**{"ecc.errors.uncorrected.volatile.total": "[N/A]"}), []), GOOD)
    is_found(gpus.state(row(compute_mode="Exclusive_Process"), []), SLOW, "lets one process use it")
    apps = "GPU-12, 77, python, 30000\nGPU-12, 78, ours, 500\nGPU-13, 79, python, 1\n"
    processes = gpus.others(apps, "GPU-12", 78)
    assert processes == ["77 python 30000"]
    busy = row(**{"utilization.gpu": "97", "memory.used": "30720"})
    is_found(gpus.state(busy, processes), SLOW, "97% busy, 30.0 GiB (77 python 30000)")
    assert gpus.state({}, []).verdict is Verdict.SKIPPED
    assert gpus.parsed("") == {}


TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV2\tSYS\tPIX\t0-15\t0
GPU1\tNV2\t X \tNV1\tPIX\t0-15\t0
GPU2\tSYS\tNV1\t X \tSYS\t16-31\t1
NIC0\tPIX\tPIX\tSYS\t X \t\t

Legend:
"""


def test_links() -> None:
    kinds = gpus.topology(TOPOLOGY)
    assert kinds == {"NV2": 2, "SYS": 2, "NV1": 2} and gpus.topology("") == {}
    found = gpus.links(3, [], kinds)
    is_found(found, GOOD)
    assert found.figure == "3 GPUs, 6 of 6 pairs with peer access: 2 x NV2, 2 x SYS, 2 x NV1"
    is_found(gpus.links(3, [(0, 2), (2, 0)], {}), SLOW, "GPU 0 cannot read the memory of GPU 2, and 1 more pairs")
