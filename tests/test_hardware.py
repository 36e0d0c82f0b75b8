"""Memory that a run on CPUs keeps and gives back, and the refusal of GPUs that the installed torch cannot use."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ssl_bench import hardware
from ssl_bench.commands import train
from ssl_bench.errors import ConfigError
from ssl_bench.hardware import check_architecture, check_devices
from tests.conftest import SMALL
from tests.door.door import refused


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", 4), ("250000 100000", 2), ("50000 100000", 1), ("", 4)])
def test_the_quota_of_a_container_counts(
    quota: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    (tmp_path / "cpu.max").write_text(quota)
    assert hardware.available_cores() == cores


# Page faults of ten tensors of 64 MiB after ten others, and the MiB in use before and after the memory is released.
CODE = """
import resource, psutil, torch
from ssl_bench.hardware import local_device, release_memory
device = local_device(0)
for _ in range(10):
    torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
tensors = [torch.ones(2**22) for _ in range(32)]
last = torch.ones(2**10)
del tensors
for _ in range(2):
    print(psutil.Process().memory_info().rss // 2**20)
    release_memory(device)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc" or torch.cuda.is_available(), reason="for CPUs under glibc")
def test_freed_memory_is_used_again_until_it_is_released() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    faults, kept, released = map(int, done.stdout.split())
    assert faults < 10 * 1024  # of 160 Ki pages
    assert kept - released > 400  # of 512 MiB


def test_a_gpu_that_torch_was_not_built_for_is_refused() -> None:
    modern = ["sm_75", "sm_80", "sm_90", "compute_90"]
    check_architecture("H200", (9, 0), modern)
    check_architecture("A6000", (8, 6), modern)  # a binary for 8.0 runs on 8.6
    check_architecture("B200", (10, 0), modern)  # compiled at run time from compute_90
    with refused("V100 7.0 torch<2.11 torchvision"):
        check_architecture("V100", (7, 0), modern)
    check_architecture("V100", (7, 0), ["sm_70", "sm_80"])


@pytest.fixture
def unseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose GPU torch does not see."""
    if torch.cuda.is_available():
        pytest.skip("torch sees a GPU")
    (tmp_path / "gpus" / "0000:01:00.0").mkdir(parents=True)
    monkeypatch.setattr(hardware, "GPUS", tmp_path / "gpus")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_gpu_that_torch_does_not_see_is_refused_unless_the_cpu_is_meant(
    unseen: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"torch .*device=cpu"):
        check_devices(1)
    assert train.main([*SMALL, "max_steps=1"]) == 2 and not Path("outputs").exists()
    check_devices(1, "cpu")
    for hidden in ("", "-1", "-1,0", "NoDevFiles"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        check_devices(1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    with pytest.raises(ConfigError, match=r"torch .*device=cpu"):
        check_devices(1)
