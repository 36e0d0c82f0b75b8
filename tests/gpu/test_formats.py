"""Number formats inside a step on a GPU: the objective computes in float32, and nothing large in float64.

A GPU computes float64 at a small share of its speed. What torch refuses or a capture does not allow, such as tensors of
two devices or a wait for values, needs no test here: test_steps.py captures every framework.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import ssl_bench
from tests.gpu.runs import training
from tests.gpu.test_steps import variants

PACKAGE = Path(ssl_bench.__file__).parent
HALF = (torch.float16, torch.bfloat16)
# What is meant, by the function that does it or calls what does it, with the reason.
MEANT = {
    "temperature.py _alignment": "the mean cosine of a batch, from which a temperature follows",
    "resample.py blur_matrix": "the last bit of exp depends on the place in the batch, and must not reach a weight",
    "views.py _central_box": "the ratio of two sides is compared with a bound",
    "vae.py forward": "the decoder is a network, although it runs between two parts of the objective",
}


class Watch(TorchDispatchMode):
    """Records half precision in the objective of a method, and results in float64 that are more than a number."""

    def __init__(self, method: Any) -> None:
        super().__init__()
        self.faults, self.met, self.inside = list[str](), list[str](), False
        objective = method.objective

        def watched(*arguments: Any) -> Any:
            self.inside = True
            try:
                return objective(*arguments)
            finally:
                self.inside = False

        method.objective = watched

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        computed = not any(each.alias_info for each in func._schema.returns) and name != "_to_copy"
        for made in tree_leaves(result):
            if not isinstance(made, Tensor) or not made.is_cuda or not made.ndim:
                continue
            if made.dtype == torch.float64 or (computed and self.inside and made.dtype in HALF):
                self._report(f"{str(made.dtype).removeprefix('torch.')} {name}")
        return result

    def _report(self, fault: str) -> None:
        frame, calls = sys._getframe(1), list[str]()  # without those of this class
        while frame := frame.f_back:  # type: ignore[assignment]
            file = Path(frame.f_code.co_filename)
            if file.is_relative_to(PACKAGE):
                calls.append(f"{file.name} {frame.f_code.co_name}")
        meant = [call for call in calls if call in MEANT]
        self.met += meant
        if not meant:
            self.faults.append(f"{fault} in {calls[0] if calls else 'a backward pass'}")


def watched(configurations: list[list[str]]) -> dict[str, Any]:
    """The faults of the first step of some runs, and which exceptions were met."""
    faults, met = {}, set[str]()
    for overrides in configurations:
        run = training("graph=false", "precision=bf16", *overrides, one_layer=True)
        step = run.stepper()
        with Watch(run.state.method) as watch:
            step(True)
        met |= set(watch.met)
        if watch.faults:
            faults[" ".join(overrides)] = sorted(set(watch.faults))
    return {"faults": faults, "met": sorted(met)}


OTHERS = [
    ["framework=simclr", "augment=byol", "loss=macl", "temperature=macl_a"],
    ["framework=simclr", "cosines=tiled", "negatives=random_k", "negatives.k=3"],
    ["framework=simclr", "optimizer=lars", "temperature=learned", "loss=dcl"],
]


@pytest.mark.slow
def test_the_objective_is_float32_and_nothing_large_is_float64(gpu: Callable[..., Any]) -> None:
    found = gpu(watched, [*variants(), *OTHERS])
    assert found["faults"] == {}
    assert found["met"] == sorted(MEANT)  # no exception is out of date
