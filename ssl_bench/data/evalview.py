"""The view of an image for evaluation: nothing in it is random."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ssl_bench.data import pixels
from ssl_bench.data.source import ImageBatch
from ssl_bench.errors import require


class EvalView:
    """The image in [0, 1], or as it is if it is of floats, normalised: the whole, or its centre.

    Args:
        resize: length of the short side after an antialiased resize; None leaves the image as it is.
        size: side of the square that is then cut out of the centre; given together with ``resize``.
        interpolation: of the resize.
        mean, std: as in `Views`.
    """

    def __init__(
        self,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        resize: int | None = None,
        size: int | None = None,
        interpolation: Literal["bilinear", "bicubic"] = "bilinear",
    ) -> None:
        self.normalize = pixels.Normalize(mean, std)
        require((resize is None) == (size is None), "resize", resize, "a number of pixels, as size, or both to null")
        fits = resize is None or resize >= (size or 0) >= 1
        require(fits, "resize", resize, f"size ({size}) or more, and size to 1 or more")
        self.resize, self.size, self.interpolation = resize or 0, size, interpolation

    def __call__(self, images: ImageBatch, dtype: torch.dtype = torch.float32) -> Tensor:
        """Make the view of uint8 or float32 images with C + E channels, as a contiguous tensor of ``dtype``.

        With a size: [n, C + E, H, W] or n times [C + E, h, w] -> [n, C + E, size, size].
        Without: [n, C + E, H, W] -> [n, C + E, H, W].
        """
        picture, extra = self.normalize.split(images)  # refuses images that it cannot normalise
        compute = pixels.compute_dtype(dtype)
        if self.size is None:
            if not isinstance(images, Tensor):
                raise ValueError("images of many sizes need a resize and a size")
            x = images.to(compute, memory_format=torch.contiguous_format, copy=True)  # [n, C + E, H, W]
            return self.normalize(x.div_(pixels.white(images))).to(dtype)
        x = torch.empty(len(images), picture, self.size, self.size, dtype=compute, device=images[0].device)
        # A GPU takes all images of one size together; on a CPU, a single image at a time stays in the cache.
        for group in [[i] for i in range(len(images))] if x.device.type == "cpu" else pixels.by_size(images, 1):
            first = images[group[0]][None, :picture]  # one image alone is not copied
            same = first if len(group) == 1 else torch.stack([images[i][:picture] for i in group])  # [m, C, H, W]
            for i, centre in zip(group, self._centre(same, self.size, compute), strict=True):
                x[i] = centre
        x = self.normalize(x.div_(pixels.white(images))).to(dtype)
        return x if extra is None else pixels.with_constants(x, extra)

    def _centre(self, x: Tensor, size: int, dtype: torch.dtype) -> Tensor:
        """[m, C, H, W] -> [m, C, size, size], as torchvision's Resize and CenterCrop."""
        short = min(x.shape[2:])
        height, width = (self.resize * side // short for side in x.shape[2:])  # the long side is rounded down
        top, left = round((height - size) / 2), round((width - size) / 2)
        x = pixels.resize(x, (height, width), self.interpolation, dtype)
        return x[:, :, top : top + size, left : left + size]
