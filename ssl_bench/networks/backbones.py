"""Backbones: images [B, channels, H, W] to features [B, num_features]."""

from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ssl_bench.config.build import near


def timm_backbone(
    name: str,
    in_channels: int,
    stem: Literal["imagenet", "cifar"] = "imagenet",
    zero_init_residual: bool | None = None,
    size: int | None = None,
) -> nn.Module:
    """A network of timm without its classifier.

    Args:
        name: timm's name, such as ``resnet50``.
        in_channels: channels of the images.
        stem: ``cifar`` puts a 3 x 3 convolution of stride 1 in place of a ResNet's 7 x 7 one and drops the max-pool.
        zero_init_residual: start each residual block's last BN at scale 0; None: timm's default.
        size: height and width of the images, for networks that are made for one size (ViT, Swin); None: timm's default.

    Raises:
        ValueError: no such network, or one without the stem that would be replaced.
    """
    import timm  # heavy: only where it is used

    if not timm.is_model(name):
        raise ValueError(
            f"name={name}: timm has no such network{near(name, timm.list_models())}; see timm.list_models()"
        )
    options: dict[str, Any] = {} if zero_init_residual is None else {"zero_init_last": zero_init_residual}
    if size is not None and getattr(timm.get_pretrained_cfg(name), "fixed_input_size", False):
        options["img_size"] = size
    try:
        model: nn.Module = timm.create_model(name, num_classes=0, in_chans=in_channels, **options)
    except TypeError as error:
        raise ValueError(f"name={name} does not take zero_init_residual: set it to null") from error
    model.num_features = model.head_hidden_size  # of what comes out: some have a layer more before the classifier
    if stem == "cifar":
        conv = getattr(model, "conv1", None)
        if not isinstance(conv, nn.Conv2d) or not hasattr(model, "maxpool"):
            raise ValueError(f"stem=cifar is for ResNets, not for name={name}: set stem to imagenet")
        model.conv1 = nn.Conv2d(in_channels, conv.out_channels, 3, 1, 1, bias=False)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
        model.maxpool = nn.Identity()
    return model


def wide_resnet50(width: int, in_channels: int, zero_init_residual: bool) -> nn.Module:
    """timm's ResNet-50 with ``width`` times the channels in every layer, the stem and the features included.

    The 2x and 4x of SimCLR (Chen et al., arXiv 2002.05709, figure 7) and of tables after it; not the "wide ResNet" of
    Zagoruyko and Komodakis, which widens the 3 x 3 convolutions only.
    """
    import timm  # heavy: only where it is used

    if width < 1:
        raise ValueError(f"width={width} must be at least 1")
    stem = 64 * width
    options: dict[str, Any] = {"channels": tuple(stem * 2**i for i in range(4)), "zero_init_last": zero_init_residual}
    model: nn.Module = timm.create_model("resnet50", num_classes=0, in_chans=in_channels, **options)
    # timm's stem always has 64 channels: it and what reads it are made anew.
    first = model.get_submodule("layer1.0")
    model.conv1, model.bn1 = nn.Conv2d(in_channels, stem, 7, 2, 3, bias=False), nn.BatchNorm2d(stem)
    first.conv1 = nn.Conv2d(stem, stem, 1, bias=False)
    first.get_submodule("downsample")[0] = nn.Conv2d(stem, 4 * stem, 1, bias=False)  # type: ignore[operator]
    for conv in (model.conv1, first.conv1, first.get_submodule("downsample.0")):
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")  # type: ignore[arg-type]
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
