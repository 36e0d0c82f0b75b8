"""Backbones: images [B, channels, H, W] to features [B, num_features]."""

import re
from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ssl_bench.config.ranges import near
from ssl_bench.errors import InvalidValue, reason, require

Arguments = dict[str, Any] | None  # of timm.create_model


class Backbone(nn.Module, ABC):
    """Base of the backbones.

    One with a feature map has timm's two methods ``forward_features``, images to the map [B, num_features, h, w], and
    ``forward_head``, the map to the output; a framework may need it.

    Attributes:
        num_features: width of the output.
    """

    num_features: int

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Images [B, channels, H, W] to features [B, num_features]."""


def timm_backbone(
    name: str,
    in_channels: int,
    stem: Literal["imagenet", "cifar"] = "imagenet",
    zero_init_residual: bool | None = None,
    size: int | None = None,
    args: Arguments = None,
) -> Backbone:
    """Build a network of timm without its classifier.

    Args:
        name: timm's name, such as ``resnet50``.
        in_channels: channels of the images.
        stem: ``cifar`` replaces a ResNet's 7 x 7 convolution by a 3 x 3 one of stride 1 and removes the max-pool.
        zero_init_residual: start each residual block's last BN at scale 0; None: timm's default.
        size: height and width of the images, for networks that accept one size only (ViT, Swin); None: timm's default.
        args: further arguments of ``timm.create_model``, such as ``img_size`` and ``patch_size`` of a ViT.

    Raises:
        InvalidValue: timm has no such network, or the network has no such option or no stem that can be replaced.
    """
    import timm  # heavy: only where it is used

    if not timm.is_model(name):
        raise InvalidValue("name", name, f"a network in timm.list_models(){near(name, timm.list_models())}")
    fault = re.search(r"(?<![\d.])\d{5}", str(args))  # so many layers need minutes and memory, even without weights
    require(not fault, "args", args, "arguments below 10,000")
    options: dict[str, Any] = {} if zero_init_residual is None else {"zero_init_last": zero_init_residual}
    args = args or {}
    for argument in sorted(OF_THE_RUN & args.keys()):
        raise InvalidValue(f"args.{argument}", args[argument], "nothing: dataset decides it, and init=FILE the weights")
    try:
        if size is not None and getattr(timm.get_pretrained_cfg(name), "fixed_input_size", False):
            options["img_size"] = size
        model: Any = timm.create_model(name, num_classes=0, in_chans=in_channels, **(options | args))
    except Exception as error:  # timm has no error class for arguments that do not fit
        given = f"args={args}, {in_channels} channels, dataset.size={size}, zero_init_residual={zero_init_residual}"
        raise InvalidValue("name", name, f"a network that timm can make with {given} ({reason(error)})") from error
    patches = getattr(getattr(model, "patch_embed", None), "num_patches", None)
    if patches == 1:
        side = model.patch_embed.patch_size[0]
        one = f"a divisor of {side} below it: name={name} makes one patch of an image, and so one token"
        raise InvalidValue("args.patch_size", side, one)
    model.num_features = model.head_hidden_size  # width of the output: some networks have one more layer at their end
    if stem == "cifar":
        conv = getattr(model, "conv1", None)
        if not isinstance(conv, nn.Conv2d) or not hasattr(model, "maxpool"):
            raise InvalidValue("stem", stem, f"imagenet: cifar is for ResNets, and name={name} is none")
        model.conv1 = nn.Conv2d(in_channels, conv.out_channels, 3, 1, 1, bias=False)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
        model.maxpool = nn.Identity()
    return cast(Backbone, model)


def moco_v3_vit(
    name: str,
    in_channels: int,
    size: int | None = None,
    args: Arguments = None,
    freeze_patches: bool = True,
) -> Backbone:
    """Build a ViT of timm that starts as in MoCo v3 (Chen, Xie and He, arXiv 2104.02057), with fixed positions.

    Linears, the patch projection, and queries, keys and values each by itself are from Glorot's uniform distribution;
    biases are 0. The positions are those of :func:`positions`, 0 for the class token.

    Args:
        name: timm's name of a ViT, such as ``vit_small_patch16_224``.
        in_channels: channels of the images.
        size, args: as in :func:`timm_backbone`.
        freeze_patches: the patch projection stays as it starts.

    Raises:
        InvalidValue: as :func:`timm_backbone`; or the network is no ViT, or has no positions, or a width that 4 does
            not divide.
    """
    from timm.models.vision_transformer import VisionTransformer  # heavy: only where it is used

    model: Any = timm_backbone(name, in_channels, size=size, args=args)
    positioned = isinstance(model, VisionTransformer) and model.pos_embed is not None
    require(positioned, "name", name, "a ViT with position embeddings, such as vit_small_patch16_224")
    width, (rows, columns) = model.embed_dim, model.patch_embed.grid_size
    require(width % 4 == 0, "args.embed_dim", width, "a multiple of 4, for sines and cosines of rows and columns")
    model.init_weights("moco")
    patches, fixed = model.patch_embed.proj, torch.zeros_like(model.pos_embed)
    nn.init.xavier_uniform_(patches.weight.data.flatten(1))
    nn.init.zeros_(patches.bias)
    fixed[:, -rows * columns :] = positions(rows, columns, width)
    model.pos_embed = nn.Parameter(fixed, requires_grad=False)
    patches.requires_grad_(not freeze_patches)
    return cast(Backbone, model)


def positions(rows: int, columns: int, width: int) -> Tensor:
    """Positions of patches, row by row [rows * columns, width]: sin r w, cos r w, sin c w, cos c w of row r, column c.

    The frequencies w are 10000^(-4 i / width) for i from 0 to width / 4 - 1.
    """
    frequencies = 10_000 ** -(torch.arange(0, width, 4, dtype=torch.float64) / width)
    places = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    angles = [place.reshape(-1, 1) * frequencies for place in places]
    return torch.cat([f(angle) for angle in angles for f in (torch.sin, torch.cos)], 1)


OF_THE_RUN = {"pretrained", "checkpoint_path", "in_chans", "num_classes", "features_only"}  # arguments of timm


def wide_resnet50(width: int, in_channels: int, zero_init_residual: bool) -> Backbone:
    """Build timm's ResNet-50 with ``width`` times the channels in every layer, stem and features included.

    SimCLR (Chen et al., arXiv 2002.05709, figure 7) and later tables call it 2x and 4x. It is not the "wide ResNet" of
    Zagoruyko and Komodakis, which widens the 3 x 3 convolutions only.

    Args:
        width: 1 or more.
        in_channels: of the images.
        zero_init_residual: start the last norm of each block at 0.

    Raises:
        InvalidValue: width is below 1.
    """
    import timm  # heavy: only where it is used

    require(width >= 1, "width", width, "1 or more")
    stem = 64 * width
    options: dict[str, Any] = {"channels": tuple(stem * 2**i for i in range(4)), "zero_init_last": zero_init_residual}
    model: Any = timm.create_model("resnet50", num_classes=0, in_chans=in_channels, **options)
    # timm's stem always has 64 channels: replace it and the layers that read it.
    first = model.get_submodule("layer1.0")
    model.conv1, model.bn1 = nn.Conv2d(in_channels, stem, 7, 2, 3, bias=False), nn.BatchNorm2d(stem)
    first.conv1 = nn.Conv2d(stem, stem, 1, bias=False)
    first.get_submodule("downsample")[0] = nn.Conv2d(stem, 4 * stem, 1, bias=False)  # type: ignore[operator]
    for conv in (model.conv1, first.conv1, first.get_submodule("downsample.0")):
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")  # type: ignore[arg-type]
    return cast(Backbone, model)


class DigitsResNet(Backbone):
    """A ResNet with the CIFAR stem and one basic block in each of three stages, for small and simple images.

    Args:
        width: channels of the first stage; the output has 4 x ``width`` features.
        in_channels: channels of the images.
    """

    def __init__(self, width: int, in_channels: int) -> None:
        super().__init__()
        require(width >= 1, "width", width, "1 or more")
        self.stem = nn.Sequential(_conv(in_channels, width), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        self.stages = nn.Sequential(_Block(width, width), _Block(width, 2 * width), _Block(2 * width, 4 * width))
        self.num_features = 4 * width

    def forward(self, x: Tensor) -> Tensor:  # [B, in_channels, H, W] -> [B, 4 width]
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Tensor) -> Tensor:  # [B, in_channels, H, W] -> [B, 4 width, H / 4, W / 4]
        return self.stages(self.stem(x))  # type: ignore[no-any-return]

    def forward_head(self, x: Tensor) -> Tensor:  # [B, 4 width, h, w] -> [B, 4 width]
        return x.mean((2, 3))


class ConvN(Backbone):
    """Three 3 x 3 convolutions of stride 2 without padding and one Linear, each with BN and ReLU; 128 features.

    The network of the RandBit-MNIST notebook of google-research/simclr (arXiv 2011.02803, section 4.4).

    Args:
        in_channels: channels of the images.
        size: height and width of the images, 15 or more.
    """

    def __init__(self, in_channels: int, size: int) -> None:
        super().__init__()
        require(size >= 15, "size", size, "15 or more: each of three convolutions halves it")
        widths, layers = (in_channels, 32, 64, 64), []
        for inputs, outputs in pairwise(widths):
            layers += [_conv(inputs, outputs, 2, 0), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
            size = (size - 1) // 2
        self.num_features = 128
        layers += [nn.Flatten(), nn.Linear(widths[-1] * size * size, self.num_features, bias=False)]
        self.layers = nn.Sequential(*layers, nn.BatchNorm1d(self.num_features), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:  # [B, in_channels, size, size] -> [B, 128]
        return self.layers(x)  # type: ignore[no-any-return]


class KerasConvN(ConvN):
    """:class:`ConvN` with the weights at the start and the batch norms of Keras, as in the notebook."""

    def __init__(self, in_channels: int, size: int) -> None:
        super().__init__(in_channels, size)
        start_as_keras(self)


class _Block(nn.Module):
    """Two 3 x 3 convolutions and a shortcut; a block that widens its input also halves the resolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        first = _conv(inputs, outputs, stride), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
        self.body = nn.Sequential(*first, _conv(outputs, outputs), nn.BatchNorm2d(outputs))
        self.shortcut: nn.Module = nn.Identity()
        if stride == 2:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, 2, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def _conv(inputs: int, outputs: int, stride: int = 1, padding: int = 1) -> nn.Conv2d:
    conv = nn.Conv2d(inputs, outputs, 3, stride, padding, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


def start_as_keras(network: nn.Module) -> None:
    """Give convolutions and Linears new weights, and BNs new constants, in place: the defaults of Keras.

    Weights are uniform in +- sqrt(6 / (inputs + outputs)) (Glorot and Bengio 2010), where an input or output of a
    convolution counts once for each pixel of the kernel; there must be no biases. A BN adds 1e-3 to the variance, and
    its running averages keep 0.99 of their values in each forward.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            assert module.bias is None
            nn.init.xavier_uniform_(module.weight)
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.eps, module.momentum = 1e-3, 0.01
