"""Random views of batches of images, as the options of conf/augment make them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ssl_bench import files
from ssl_bench.api import options as conf
from ssl_bench.api.arguments import tensor
from ssl_bench.data.views import Views
from ssl_bench.errors import require

if TYPE_CHECKING:
    from PIL.Image import Image


def views(augment: str, size: int, *, count: int = 2, **options: Any) -> "BatchViews":
    """Make the function that draws the views of an option of conf/augment.

        make = ssl_bench.views("simclr", size=224, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
        x1, x2 = make(images)        # uint8 [B, C, H, W] on any device -> float32 [B, C, 224, 224] each

    Args:
        augment: simclr, simclr_cifar, moco_v1, moco_v2, byol, digits, crop, crop_simclr, none, multicrop_cifar or
            multicrop_imagenet.
        size: side of the views in pixels; the smaller crops of a multi-crop keep their own.
        count: number of views, where ``augment`` does not fix it (byol has 2, a multi-crop 8).
        options: arguments of :class:`ssl_bench.data.views.Views`, such as ``blur=0.0`` or ``mean`` and ``std`` (one
            number for each channel; without them the values stay in [0, 1]), for all views.

    Raises:
        ConfigError: an unknown augment or option, or a value out of range.
    """
    require(conf.checked(views, count=count)["count"] >= 1, "count", count, "1 or more")
    node = conf.node("augment", augment)
    nodes = [node | {"count": count}] if "_target_" in node else list(node.values())
    makers: list[Views] = []
    for views_node in nodes:
        times = views_node.pop("count")
        conf.check_known(options, conf.arguments(views_node, "augment"), f"augment={augment}")
        makers += [conf.make({"size": size} | views_node, "augment", options)] * times
    return BatchViews(makers)


def show_views(overrides: Sequence[str] = ()) -> "Image":
    """Draw the first eight images of a training, each above its views: what the network sees. A notebook shows it.

        ssl_bench.show_views(["dataset=folder", "dataset.root=photos", "dataset.size=32"])

    It is the picture of ``ssl-bench prepare ... --show FILE.png``.

    Args:
        overrides: as of :func:`ssl_bench.train`, each with one value.

    Raises:
        ConfigError: the configuration cannot be used, or the files of its dataset are missing.
    """
    from ssl_bench.config import compose, schema
    from ssl_bench.data.prepare import sheet
    from ssl_bench.training import build

    config = compose.load(*files.parted(overrides))
    schema.check(config)
    images = build.dataset(config).pretrain()
    return sheet(images, build.views(config), config["seed"], min(8, len(images)))


class BatchViews:
    """Draws one view of each image from each of the ``makers``."""

    def __init__(self, makers: Sequence[Views]) -> None:
        self.makers = makers

    def __call__(self, images: Any, generator: torch.Generator | None = None) -> list[Tensor]:
        """Draw the views of a batch; for given parameters their values are those of torchvision.

        Args:
            images: uint8 [B, C, H, W], C 1 or 3, on any device, which computes them; or an array of numpy.
            generator: generator of the random parameters; None: torch's global one, which ``torch.manual_seed`` sets.

        Returns:
            float32 [B, C, size, size] for each view.
        """
        x = tensor(images)
        valid = x.dtype == torch.uint8 and x.ndim == 4 and x.shape[1] in (1, 3) and x.numel() > 0
        require(valid, "images", f"{x.dtype} {list(x.shape)}", "uint8 [B, C, H, W] with C of 1 or 3")
        return [make(x, generator or torch.default_generator) for make in self.makers]
