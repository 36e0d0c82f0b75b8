"""Batch norm with what follows it in one kernel: torch's values on a CPU that interprets the kernels; machine code."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
# Triton's interpreter cuts bf16 off instead of rounding it.
ROUNDING = {"torch.float32": 1e-6, "torch.bfloat16": 2**-7, "torch.float16": 2**-11}
MAPS = ("y", "dx", "dadded")  # which have the format of the input; the others have single precision


def interpreted(*functions: str) -> dict[str, Any]:
    """Results of functions of fused.py."""
    command = [sys.executable, "-m", "tests.networks.fused", *functions]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_values_gradients_and_running_statistics_are_those_of_float64_up_to_rounding() -> None:
    for dtype, distances in interpreted("kernels")["kernels"].items():
        assert len(distances) == 7
        for name, distance in distances.items():
            assert distance <= (ROUNDING[dtype] if name in MAPS else 1e-6), (dtype, name, distance)


def test_whatever_follows_a_batch_norm_has_torchs_values_and_what_kernels_cannot_compute_is_torchs() -> None:
    found = interpreted("uses", "others", "not_a_number", "by_function")
    assert len(found["uses"]) == 7 and max(found["uses"].values()) <= 1e-6, found["uses"]
    assert found["others"] == ["Tensor"] * 4
    assert found["not_a_number"] is True
    assert found["by_function"] == "an autograd.Function got a batch norm that is not computed"


@pytest.mark.slow
def test_networks_are_as_exact_as_torchs_and_have_no_other_norm_addition_or_relu() -> None:
    networks = interpreted("networks_far")["networks_far"]
    assert len(networks) == 3
    for name, of_network in networks.items():
        torchs, fused = of_network["far"]
        assert {key: far for key, far in fused.items() if far > max(1e-6, 4 * torchs[key])} == {}, name
        counted = of_network["counted"]
        assert counted["_FusedBackward"] == of_network["norms"], name
        assert not [node for node in counted if node.startswith(("Relu", "Add", "NativeBatch"))], counted


@pytest.mark.parametrize(
    "architecture", [pytest.param(70, marks=pytest.mark.slow), pytest.param(80, marks=pytest.mark.slow), 90]
)
def test_kernels_compile_and_read_and_write_16_bytes_at_once(architecture: int) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from ssl_bench.networks import fused_norm

    tile, flags = {"BM": 32, "BC": 64}, {"ADD": True, "RELU": True}
    half = "*fp16" if architecture == 70 else "*bf16"
    types = {"M": "i32", "C": "i32", "rows": "i32", "S": "i32", "eps": "fp32", "momentum": "fp32"}
    types |= dict.fromkeys(("x", "y", "dy", "dx", "added", "of_added"), half)
    for kernel, constants, writes_maps in (
        (fused_norm._statistics, tile, False),
        (fused_norm._combine, {"BS": 512, "BC": 8}, False),
        (fused_norm._apply, tile | flags, True),
        (fused_norm._sums, tile | flags, False),
        (fused_norm._gradient, tile | flags, True),
    ):
        names = kernel.arg_names
        signature = {name: "constexpr" if name in constants else types.get(name, "*fp32") for name in names}
        aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name][0] in "*i"}
        values = {(names.index(name),): value for name, value in constants.items()}
        source, target = ASTSource(kernel, signature, values, aligned), GPUTarget("cuda", architecture, 32)
        compiled: Any = triton.compile(source, target, fused_norm.OPTIONS)
        assert len(compiled.asm["cubin"]) > 1000
        of_maps = re.findall(r"(?:ld|st)\.global\S*", compiled.asm["ptx"])
        assert "ld.global.v4.b32" in of_maps
        assert ("st.global.v4.b32" in of_maps) is writes_maps
