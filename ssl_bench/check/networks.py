"""Gradients of narrow networks in the memory format of runs, on this device against float64 on the CPU.

In a section of its own: a kernel that writes past its buffer ends the process (uxlfoundation/oneDNN#6035 does).
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from ssl_bench.check.bounds import Difference, distance, finding_of
from ssl_bench.check.finding import Finding, Setting
from ssl_bench.hardware import move
from ssl_bench.networks.backbones import ConvN, DigitsResNet
from ssl_bench.networks.encoder import Encoder
from ssl_bench.training.precision import set_matmul_options

BOUND = 1e-2  # relative: a ReLU whose input is nearly zero may be on the other side; a faulty kernel is wrong by 0.75
LEAST = 1e-3  # norm of a gradient, below which it is zero but for rounding
CHANNELS, SIZES, BATCH = 2, (20, 15), 32


def _digits(width: int, size: int) -> nn.Module:
    return DigitsResNet(width, CHANNELS)


def _resnet(name: str, width: int, size: int) -> nn.Module:
    import timm  # heavy

    channels = tuple(width * 2**i for i in range(4))
    return timm.create_model(name, in_chans=CHANNELS, num_classes=0, channels=channels)  # type: ignore[no-any-return]


# All our kinds of networks with narrow layers, by the size of the images.
NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    **{f"resnet_digits width {width}": partial(_digits, width) for width in (1, 4, 7, 8, 16)},
    **{f"resnet18 width {width}": partial(_resnet, "resnet18", width) for width in (2, 16)},
    **{f"resnet50 width {width}": partial(_resnet, "resnet50", width) for width in (1, 4)},
    "conv_n": partial(ConvN, CHANNELS),
}


def section(setting: Setting) -> Iterator[Finding]:
    """The relative error of every gradient of every network, with as many threads as a run has."""
    set_matmul_options(tf32=False)
    yield finding_of(
        "gradients", [each for name in NETWORKS for each in differences(name, setting.device)], "gradients"
    )


def differences(name: str, device: torch.device) -> Iterator[Difference]:
    """Compare the gradients of the images and of all weights of a network, for images of both sizes."""
    for size in SIZES:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            exact, ours = (Encoder(NETWORKS[name](size), nn.Identity()) for _ in range(2))
            ours.load_state_dict(exact.state_dict())
            images = torch.randn(BATCH, CHANNELS, size, size, dtype=torch.float64)
            expected = gradients(exact.double(), images)
            found = gradients(move(ours, device), images.to(device, torch.float32))
        for parameter, right in expected.items():
            title = f"{name}, {size} pixels: gradient of {parameter}"
            yield distance(title, found[parameter], right, BOUND, LEAST)


def gradients(network: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Gradients of a sum of squares of the features, by parameter, and of the images [B, C, H, W]."""
    images = images.contiguous(memory_format=torch.channels_last).requires_grad_()
    weights = torch.linspace(-1, 1, BATCH, device=images.device)[:, None]
    (network(images)["backbone"] * weights).square().sum().backward()
    return {name: t.grad for name, t in [("images", images), *network.named_parameters()] if t.grad is not None}
