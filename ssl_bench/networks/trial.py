"""Before a run starts, try its backbone on two images of the size that it will be given."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ssl_bench.errors import InvalidValue, reason, require


def try_backbone(backbone: nn.Module, node: Mapping[str, Any], channels: int, size: int, key: str) -> None:
    """Refuse a backbone that computes no features of images of a size.

    The pass is on the CPU, in the mode that the backbone is in. It changes neither the backbone, running statistics
    included, nor the global generator.

    Args:
        node: the ``backbone`` of the configuration.
        channels, size: of the images.
        key: what sets the size.

    Raises:
        InvalidValue: the pass fails, or its output is not finite and [2, num_features].
    """
    name, args = node.get("name") or node["_target_"], node.get("args")
    key_of_it, value, other = ("backbone.args", args, "others") if args else ("backbone", name, "another network")
    width = getattr(backbone, "num_features", None)
    valid = type(width) is int and width > 0
    require(valid, "backbone", name, f"a network whose num_features is the width of its output: it is {width}")
    images = torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(0))
    buffers = {name: buffer.clone() for name, buffer in backbone.named_buffers()}
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            features: Any = torch.func.functional_call(backbone, buffers, (images,))
    except Exception as error:  # networks have no error class for images of a wrong size
        remedy = f"{_made_for(backbone, size)}, or {key_of_it} to {other}: {name} cannot take {size} x {size} pixels"
        raise InvalidValue(key, size, f"{remedy} ({reason(error)})") from error
    shape = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
    refused = f"{other}: of two images, {name} makes"
    require(shape == [2, width], key_of_it, value, f"{refused} {shape}, not features [2, {width}]")
    finite = features.is_floating_point() and bool(features.isfinite().all())
    require(finite, key_of_it, value, f"{refused} values that are not finite floating-point numbers")


def try_map(backbone: Any, name: str, part: str, channels: int, size: int) -> None:
    """Refuse a backbone without a feature map, for a part of a run that needs one; as :func:`try_backbone`.

    Raises:
        InvalidValue: ``forward_features`` gives no map [2, num_features, h, w] of several cells, or ``forward_head`` no
            features of it.
    """
    images = torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(0))
    mode = backbone.training
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            cells = backbone.eval().forward_features(images)
            features = backbone.forward_head(cells)
        fault = _fault_of_map(cells, features, backbone.num_features)
    except Exception as error:  # a network without a map may raise any error
        fault = reason(error)
    finally:
        backbone.train(mode)
    remedy = f"a network with a feature map of several cells, such as resnet18 or resnet_digits, which {part} needs"
    require(not fault, "backbone", name, f"{remedy} ({fault})")


def _fault_of_map(cells: Tensor, features: Tensor, width: int) -> str:
    """Say why a map is not [2, width, h, w] with several cells, or its features not [2, width]; empty if they are."""
    if cells[0, 0].numel() <= 1:
        return "it has one cell"
    if cells.ndim != 4:
        return f"it makes {list(cells.shape)}"
    fits = cells.shape[1] == width and features.shape == cells.shape[:2]
    return "" if fits else f"it has {cells.shape[1]} channels"


def _made_for(backbone: Any, size: int) -> str:
    """Another size of images: the one that the backbone was built for, or that timm's network was published for."""
    built = getattr(getattr(backbone, "patch_embed", None), "img_size", None)
    published = (getattr(backbone, "pretrained_cfg", None) or {}).get("input_size")
    sides = (sizes[-1] for sizes in (built, published) if isinstance(sizes, tuple | list))
    return str(next((side for side in sides if side != size), "another size"))
