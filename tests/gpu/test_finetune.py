"""Fine-tuning on a GPU: the network of the CPU, and half precision with a scaled loss."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ssl_bench.evaluate.finetune import FineTune, Training
from tests.evaluate.test_finetune import SIDE, SMALL, Net, make_target


def tuned(device: str, half: bool = False) -> dict[str, Any]:
    """Some of the weights, the scale of the loss and the accuracy, in float64 or with float16."""
    plain, mixed = (torch.float32, torch.float16) if half else (torch.float64, None)

    def view(images: Tensor) -> Tensor:
        return images.to(plain) / 255

    target = make_target(Net().to(device, plain), device=device, autocast=mixed, view=view)
    recipe = FineTune(SIDE, **SMALL)
    training = Training(recipe, target, 4, False)
    state = training.finished().state_dict()
    names = ("network.0.weight", "network.1.running_mean", "linear.weight")
    numbers = [value for name in names for value in state[name].flatten().tolist()]
    return {"weights": numbers, "scale": training.scaler.get_scale(), **dict(recipe.run(target))}


def test_a_gpu_trains_the_network_of_the_cpu(gpu: Callable[..., Any]) -> None:
    expected, on_gpu = tuned("cpu"), gpu(tuned, "cuda:0")
    assert on_gpu["weights"] == pytest.approx(expected["weights"], rel=1e-9, abs=1e-11)
    assert on_gpu["top1"] == expected["top1"] and on_gpu["scale"] == 1.0


def test_half_precision_scales_the_loss(gpu: Callable[..., Any]) -> None:
    expected, on_gpu = tuned("cpu"), gpu(tuned, "cuda:0", True)
    assert on_gpu["weights"] == pytest.approx(expected["weights"], rel=0.01, abs=5e-4) and on_gpu["scale"] > 1
