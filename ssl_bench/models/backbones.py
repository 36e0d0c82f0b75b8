"""Backbones: images [B, channels, H, W] to features [B, num_features]."""

from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn


def timm_backbone(
    name: str, in_channels: int, stem: Literal["imagenet", "cifar"] = "imagenet", zero_init_residual: bool | None = None
) -> nn.Module:
    """A network of timm without its classifier.

    Args:
        name: timm's name, such as ``resnet50``.
        in_channels: channels of the images.
        stem: ``cifar`` puts a 3 x 3 convolution of stride 1 in place of a ResNet's 7 x 7 one and drops the max-pool.
        zero_init_residual: start each residual block's last BN at scale 0; None: timm's default.

    Raises:
        ValueError: no such network, or one without the stem that would be replaced.
    """
    import timm  # heavy: only where it is used

    options: dict[str, Any] = {} if zero_init_residual is None else {"zero_init_last": zero_init_residual}
    try:
        model: nn.Module = timm.create_model(name, num_classes=0, in_chans=in_channels, **options)
    except RuntimeError as error:  # timm's answer to an unknown name
        raise ValueError(f"name={name}: {error}; `timm.list_models()` has the names") from error
    except TypeError as error:
        raise ValueError(f"name={name} does not take zero_init_residual: set it to null") from error
    if stem == "cifar":
        conv = getattr(model, "conv1", None)
        if not isinstance(conv, nn.Conv2d) or not hasattr(model, "maxpool"):
            raise ValueError(f"stem=cifar is for ResNets, not for name={name}: set stem to imagenet")
        model.conv1 = nn.Conv2d(in_channels, conv.out_channels, 3, 1, 1, bias=False)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
        model.maxpool = nn.Identity()
    return model


class DigitsResNet(nn.Module):
    """A ResNet with the CIFAR stem and one basic block in each of three stages, for small images of simple things.

    Args:
        width: channels of the first stage; the features have 4 x ``width``.
        in_channels: channels of the images.
    """

    def __init__(self, width: int, in_channels: int) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"width={width} must be at least 1")
        self.stem = nn.Sequential(_conv(in_channels, width), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        self.stages = nn.Sequential(_Block(width, width), _Block(width, 2 * width), _Block(2 * width, 4 * width))
        self.num_features = 4 * width

    def forward(self, x: Tensor) -> Tensor:  # [B, in_channels, H, W] -> [B, 4 width]
        return self.stages(self.stem(x)).mean((2, 3))  # type: ignore[no-any-return]


class ConvN(nn.Module):
    """Three 3 x 3 convolutions of stride 2 without padding and one Linear, each with BN and ReLU; 128 features.

    The network of the RandBit-MNIST notebook of google-research/simclr (arXiv 2011.02803, section 4.4).

    Args:
        in_channels: channels of the images.
        size: height and width of the images.
    """

    def __init__(self, in_channels: int, size: int) -> None:
        super().__init__()
        if size < 15:
            raise ValueError(f"size={size} must be at least 15: three convolutions halve it")
        widths, layers = (in_channels, 32, 64, 64), []
        for inputs, outputs in pairwise(widths):
            layers += [_conv(inputs, outputs, 2, 0), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
            size = (size - 1) // 2
        self.num_features = 128
        layers += [nn.Flatten(), nn.Linear(widths[-1] * size * size, self.num_features, bias=False)]
        self.layers = nn.Sequential(*layers, nn.BatchNorm1d(self.num_features), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:  # [B, in_channels, size, size] -> [B, 128]
        return self.layers(x)  # type: ignore[no-any-return]


class _Block(nn.Module):
    """Two 3 x 3 convolutions and a shortcut; a wider output halves the resolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.body = nn.Sequential(
            _conv(inputs, outputs, stride),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            _conv(outputs, outputs),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride == 2:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, 2, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def _conv(inputs: int, outputs: int, stride: int = 1, padding: int = 1) -> nn.Conv2d:
    conv = nn.Conv2d(inputs, outputs, 3, stride, padding, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv
