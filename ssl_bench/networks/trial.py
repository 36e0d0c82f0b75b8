"""Before a run starts, build its backbone without memory for weights, and try it on two images of each size."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ssl_bench.config.build import build
from ssl_bench.errors import ConfigError, InvalidValue, reason, require

OLDEST_TIMM = "1.0.24"  # of which all but two of 50 networks can be built on the device meta


def try_on_meta(
    node: Mapping[str, Any], channels: int, sizes: Mapping[int, str], needs_map: str = "", option: str = ""
) -> nn.Module:
    """Build the backbone of a configuration on the device meta, and refuse it if it computes no features there.

    A network of a plugin that cannot be built or computed there is tried on the CPU. The global generator stays as it
    was.

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
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"), _Undrawn():
                return _tried(node, channels, sizes, needs_map, option)
        except Exception as error:
            if not str(node["_target_"]).startswith("ssl_bench."):
                return _tried(node, channels, sizes, needs_map, option)
            if isinstance(error, ConfigError) and not re.search(r"\bmeta\b", str(error)):
                raise
            remedy = f"a network that can be built without weights, or install timm>={OLDEST_TIMM} ({reason(error)})"
            raise InvalidValue("backbone", node.get("name") or node["_target_"], remedy) from error


class _Undrawn(TorchFunctionMode):
    """Draws no numbers: on the meta device that imports torch's compiler, two seconds of every start."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        values = [*args, *(kwargs or {}).values()]  # the tensor is the first of them, by place or by name
        return values[0] if func.__name__ in ("normal_", "uniform_") else func(*args, **kwargs or {})


@torch.no_grad()
def _tried(node: Mapping[str, Any], channels: int, sizes: Mapping[int, str], needs_map: str, option: str) -> nn.Module:
    """As :func:`try_on_meta`, on the current device."""
    backbone: Any = build({key: value for key, value in node.items() if key != "freeze"}, "backbone")
    name, width = node.get("name") or option or node["_target_"], getattr(backbone, "num_features", None)
    named = "backbone", name, "another network"
    key_of_it, value, other = ("backbone.args", node["args"], "others") if node.get("args") else named
    remedy = f"a network whose num_features is the width of its output: it is {width}"
    require(type(width) is int and width > 0, "backbone", name, remedy)
    for size, key in sizes.items():
        try:
            features: Any = backbone(torch.zeros(2, channels, size, size))
        except Exception as error:  # networks have no error class for images of a wrong size
            remedy = f"{_made_for(backbone, size)}, or {key_of_it} to {other}: {name} cannot take {size} x {size} px"
            raise InvalidValue(key, size, f"{remedy} ({reason(error)})") from error
        made = f"{features.dtype} {list(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        remedy = f"{other}: of two images, {name} makes {made}, not floating-point features [2, {width}]"
        require(re.fullmatch(rf"torch\.b?float\d+ \[2, {width}\]", made) is not None, key_of_it, value, remedy)
    if needs_map:
        try:
            cells = backbone.eval().forward_features(torch.zeros(2, channels, *[next(iter(sizes))] * 2))
            shapes = cells.shape, backbone.forward_head(cells).shape
            fits = cells.ndim == 4 and cells[0, 0].numel() > 1 and shapes[0][:2] == shapes[1] == (2, width)
            fault = "" if fits else f"it makes {list(cells.shape)}, not a map of several cells"
        except Exception as error:  # a network without a map may raise any error
            fault = reason(error)
        require(not fault, "backbone", name, f"resnet_digits or another that has a map, for {needs_map} ({fault})")
    return backbone  # type: ignore[no-any-return]


def _made_for(backbone: Any, size: int) -> str:
    """Another size of images: the one that the backbone was built for, or that timm's network was published for."""
    built = getattr(getattr(backbone, "patch_embed", None), "img_size", None)
    both = built, (getattr(backbone, "pretrained_cfg", None) or {}).get("input_size")
    sides = (sizes[-1] for sizes in both if isinstance(sizes, tuple | list))
    return str(next((side for side in sides if side != size), "another size"))
