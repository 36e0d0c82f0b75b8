"""The view of an image that evaluation sees: nothing in it is random."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ssl_bench.data.pixels import Normalize, by_size, compute_dtype, constants, require
from ssl_bench.data.pixels import resize as resized


class EvalView:
    """What evaluation sees: the image in [0, 1] and normalised, as it is or the centre of it.

    Args:
        resize: length to which the short side is resized, antialiased; None leaves the image as it is.
        size: side of the square that is then cut out of the centre; given together with ``resize``.
        mean, std: as for `Views`.
    """

    def __init__(
        self,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        resize: int | None = None,
        size: int | None = None,
    ) -> None:
        self.normalize = Normalize(mean, std)
        require((resize is None) == (size is None), "resize", "given together with size, or both None", resize)
        require(resize is None or resize >= (size or 0) >= 1, "resize", f"at least size ({size})", resize)
        self.resize, self.size = resize or 0, size

    def __call__(self, images: Tensor | list[Tensor], dtype: torch.dtype = torch.float32) -> Tensor:
        """uint8 [n, C + E, H, W] -> contiguous [n, C + E, H, W] of `dtype`; with a size, or n of [C + E, h, w],
        -> [n, C + E, size, size]."""
        picture, further = self.normalize.split(images)  # refuses what it cannot normalise
        compute = compute_dtype(dtype)
        if self.size is None:
            if not isinstance(images, Tensor):
                raise ValueError("images of many sizes need a resize and a size")
            x = images.to(compute, memory_format=torch.contiguous_format).div_(255)  # [n, C + E, H, W]
            return self.normalize(x).to(dtype)
        x = torch.empty(len(images), picture, self.size, self.size, dtype=compute, device=images[0].device)
        # A GPU takes images of one size together; on a CPU each one alone stays in its cache.
        for group in [[i] for i in range(len(images))] if x.device.type == "cpu" else by_size(images, 1):
            same = torch.stack([images[i][:picture] for i in group]).to(compute)  # [m, C, H, W]
            for i, centre in zip(group, self._centre(same, self.size), strict=True):
                x[i] = centre
        x = self.normalize(x.div_(255)).to(dtype)
        return x if further is None else torch.cat([x, constants(further, self.size, dtype)], 1)

    def _centre(self, x: Tensor, size: int) -> Tensor:
        """[m, C, H, W] -> [m, C, size, size], as torchvision's Resize and CenterCrop."""
        short = min(x.shape[2:])
        height, width = (self.resize * side // short for side in x.shape[2:])  # the long side rounded down
        top, left = round((height - size) / 2), round((width - size) / 2)
        x = x.contiguous(memory_format=torch.contiguous_format)
        return resized(x, (height, width), "bilinear")[:, :, top : top + size, left : left + size]
