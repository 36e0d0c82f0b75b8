"""Before a run starts, build its backbone, and try it on two images of each size."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ssl_bench.config.build import build
from ssl_bench.errors import ConfigError, InvalidValue, reason, require

MOST_WEIGHTS_ON_CPU = 30e6  # a pass of two images there takes less time than the imports of one on the device meta


def try_backbone(
    node: Mapping[str, Any], channels: int, sizes: Mapping[int, str], needs_map: str = "", option: str = ""
) -> nn.Module:
    """Build the backbone of a configuration, and refuse it if it computes no features.

    A network of many weights is built and tried on the device meta, which takes no memory. The global generator stays
    as it was.

    Args:
        node: the ``backbone`` of the configuration.
        channels: of the images.
        sizes: of the images, each with the key that sets it.
        needs_map: the part of the run that needs a map of features, if there is one.
        option: of the group ``backbone``, to name it.

    Returns:
        The network, to compare weights with.

    Raises:
        ConfigError: it cannot be built; or a pass fails, or its output is not floating-point and [2, num_features]; or
            ``forward_features`` gives no map [2, num_features, h, w] of several cells of the first size.
    """
    built = partial(build, {key: value for key, value in node.items() if key != "freeze"}, "backbone")
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"), _Undrawn():
                backbone: Any = built()
                if sum(weights.numel() for weights in backbone.parameters()) > MOST_WEIGHTS_ON_CPU:
                    return _tried(backbone, node, channels, sizes, needs_map, option)
        except Exception as error:  # not every network can be built there
            if isinstance(error, ConfigError) and not re.search(r"\bmeta\b", str(error)):
                raise
        return _tried(built(), node, channels, sizes, needs_map, option)


class _Undrawn(TorchFunctionMode):
    """Draws no numbers: on the device meta, drawing imports torch's compiler, which takes two seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        values = [*args, *(kwargs or {}).values()]  # the tensor is the first of them, by place or by name
        return values[0] if func.__name__ in ("normal_", "uniform_") else func(*args, **kwargs or {})


def _tried(
    backbone: Any, node: Mapping[str, Any], channels: int, sizes: Mapping[int, str], needs_map: str, option: str
) -> nn.Module:
    """The backbone, if a pass over two images of each size succeeds."""
    name, width = node.get("name") or option or node["_target_"], getattr(backbone, "num_features", None)
    args = node.get("args")
    key_of_it, value, other = ("backbone.args", args, "others") if args else ("backbone", name, "another network")
    require(type(width) is int, "backbone", name, f"a network whose num_features, now {width}, is its output's width")
    for size, key in sizes.items():
        try:
            features: Any = backbone(torch.zeros(2, channels, size, size))
        except Exception as error:  # networks have no error class for images of a wrong size
            remedy = f"{_made_for(backbone, size)}, or {key_of_it} to {other}: {name} does not accept this size"
            raise InvalidValue(key, size, f"{remedy} ({reason(error)})") from error
        made = f"{features.dtype} {list(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        remedy = f"{other}: of two images, {name} makes {made}, not floating-point features [2, {width}]"
        require(re.fullmatch(rf"torch\.b?float\d+ \[2, {width}\]", made) is not None, key_of_it, value, remedy)
    if needs_map:
        try:
            cells = backbone.eval().forward_features(torch.zeros(2, channels, *[next(iter(sizes))] * 2))
            pooled = backbone.forward_head(cells).shape
            fits = cells.ndim == 4 and cells[0, 0].numel() > 1 and cells.shape[:2] == pooled == (2, width)
            fault = "" if fits else f"it makes {list(cells.shape)}, not a map of several cells"
        except Exception as error:  # a network without a map may raise any error
            fault = reason(error)
        require(not fault, "backbone", name, f"resnet_digits or another that has a map, for {needs_map} ({fault})")
    return backbone  # type: ignore[no-any-return]


def _made_for(backbone: Any, size: int) -> str:
    """The size of images that the backbone was built for, or published for by timm, if it is not ``size``."""
    built = getattr(getattr(backbone, "patch_embed", None), "img_size", None)
    both = built, (getattr(backbone, "pretrained_cfg", None) or {}).get("input_size")
    sides = (sizes[-1] for sizes in both if isinstance(sizes, tuple | list))
    return str(next((side for side in sides if side != size), "another size"))
