"""Number formats on a GPU like a V100: 16 GB, no bf16, and fp16 gradients that overflow."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ssl_bench.training.graph import EAGER_STEPS
from tests.gpu.conftest import REAL
from tests.gpu.runs import Log, training

V100 = {} if REAL else {"FAKE_CUDA_SM": "70", "FAKE_CUDA_MB": "16384"}
FP16 = "fp16" if REAL else "auto"
OPTIMISERS = ["sgd", "lars", "adam", "adamw"]
UNSCALED = [("fp32", "sgd"), ("fp32", "lars"), ("bf16", "sgd"), ("bf16", "adam"), ("bf16", "lars")]


def scaled(cases: list[tuple[list[str], int, float]], steps: int) -> list[dict[str, Any]]:
    """The loss, the scale and the weights of each run, if the scale is multiplied before a step.

    A step is skipped if it halves the scale; it must not change a weight, and every other step changes some.
    """
    found = []
    for overrides, at, factor in cases:
        log, run = Log(), training(*overrides, one_layer=True)
        step, losses, skipped = run.stepper(), list[float](), list[int]()
        weights = [p.detach().clone() for p in run.state.method.parameters()]
        kept = True  # whether skipped steps, and no others, have left the weights as they were
        counted = True  # whether the rows of metrics say so
        for number in range(steps):
            scaler = run.state.scaler
            if number == at:
                scaler.scale(torch.ones((), device="cuda"))  # the scale exists from the first use on
                scaler._scale.mul_(factor)  # type: ignore[union-attr]
            before = scaler.get_scale()
            step(False)
            row = run._row({})
            losses.append(row["loss"])
            halved = scaler.get_scale() < before
            counted &= row.get("skipped_steps", 0) == halved and row.get("loss_scale", 1.0) == scaler.get_scale()
            skipped += [number] if halved else []
            now = [p.detach().clone() for p in run.state.method.parameters()]
            kept, weights = kept and all(map(torch.equal, weights, now)) == halved, now
        finite = all(map(math.isfinite, losses)) and all(bool(w.isfinite().all()) for w in weights)
        found.append(
            {
                "precision": run.precision.name,
                "said": log.about("as a CUDA graph"),
                "finite": finite,
                "kept": kept and counted,
                "skipped": skipped,
            }
        )
    return found


@pytest.mark.parametrize(
    ("at", "optimisers"), [(0, ["sgd"]), *(pytest.param(at, OPTIMISERS, marks=pytest.mark.slow) for at in (0, 6))]
)
def test_fp16_gradients_that_overflow_are_skipped_until_the_scale_fits(
    at: int, optimisers: list[str], gpu: Callable[..., Any]
) -> None:
    """From the first step on, and in the middle, 20 times in a row."""
    steps = at + 36
    cases = [([f"precision={FP16}", f"optimizer={name}", "optimizer.clip=0.1"], at, 2.0**24) for name in optimisers]
    found = dict(zip(optimisers, gpu(scaled, cases, steps, **V100), strict=True))
    for name, each in found.items():
        assert each["precision"] == "fp16" and each["finite"] and each["kept"], (name, each)
        assert set(range(at, at + 20)) <= set(each["skipped"]), (name, each)
        assert sum(step >= steps - 12 for step in each["skipped"]) <= 2, (name, each)
        assert each["said"] == f"from step {EAGER_STEPS} on, steps are replayed as a CUDA graph", (name, each)


@pytest.mark.slow
def test_fp32_and_bf16_are_not_scaled(gpu: Callable[..., Any]) -> None:
    cases = [([f"precision={name}", f"optimizer={optimiser}"], -1, 1.0) for name, optimiser in UNSCALED]
    for each in gpu(scaled, cases, 6):
        assert each["finite"] and each["skipped"] == [] and each["kept"]
