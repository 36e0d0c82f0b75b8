"""Batch norm with what follows it in one kernel: the values of torch, on a CPU that interprets the kernels."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
ROUNDING = {"torch.float32": 1e-6, "torch.bfloat16": 2**-8, "torch.float16": 2**-11}
MAPS = ("y", "dx", "dadded")  # which have the format of the input; the others have single precision


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.networks.fused"]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_values_gradients_and_running_statistics_are_those_of_float64_up_to_rounding(interpreted: Any) -> None:
    for dtype, distances in interpreted["kernels"].items():
        assert len(distances) == 7
        for name, distance in distances.items():
            assert distance <= (ROUNDING[dtype] if name in MAPS else 1e-6), (dtype, name, distance)


def test_whatever_follows_a_batch_norm_has_torchs_values(interpreted: Any) -> None:
    assert {use: distance for use, distance in interpreted["uses"].items() if distance > 1e-6} == {}


def test_what_the_kernels_cannot_compute_stays_torchs_and_nan_is_seen(interpreted: Any) -> None:
    assert interpreted["others"] == ["Tensor"] * 4
    assert interpreted["not_a_number"] is True


def test_networks_are_as_exact_as_torchs_and_have_no_other_norm_addition_or_relu(interpreted: Any) -> None:
    for name, of_network in interpreted["networks_far"].items():
        torchs, fused = of_network["far"]
        assert fused <= max(1e-5, 2 * torchs), (name, fused, torchs)
        counted = of_network["counted"]
        assert counted["_FusedBackward"] == of_network["norms"], name
        assert not [node for node in counted if node.startswith(("Relu", "Add", "NativeBatch"))], counted
