"""Memory that a run on CPUs keeps and gives back, and the refusal of GPUs that the installed torch cannot use."""

import platform
import subprocess
import sys

import pytest
import torch

from ssl_bench.errors import ConfigError
from ssl_bench.hardware import check_architecture

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
    with pytest.raises(ConfigError, match=r"V100 has compute capability 7\.0.*torch<2\.15.*cu126"):
        check_architecture("V100", (7, 0), modern)
    check_architecture("V100", (7, 0), ["sm_70", "sm_80"])
