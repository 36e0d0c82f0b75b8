"""The view of an image for evaluation, in which nothing is random; the operations that random views share with it; and
images of many sizes, padded to a few batches of about one size, so that few operations transform all of them.

n images  m images of a batch  C channels of the picture  E extra channels, constant over the image  S output size
h, w sides of an image  H, W sides of a batch
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from ssl_bench.data.source import ImageBatch
from ssl_bench.errors import require

MOST_CHANNELS = 32  # of a picture
BAND = 2**20  # pixels that a CPU resizes at a time
BUCKET = 128  # pixels: images whose sides round up to the same multiples of it are padded to one size


class Normalize:
    """(x - mean) / std for x as :func:`white` divides it; the identity if mean and std are None."""

    def __init__(self, mean: Sequence[float] | None, std: Sequence[float] | None) -> None:
        count = 1 if mean is None else len(mean)
        remedy = f"null or a list of 0 to {MOST_CHANNELS} numbers, one per channel of the picture"
        require(count <= MOST_CHANNELS and (mean is not None or std is None), "mean", mean, f"{remedy}, as std has")
        valid = mean is None or (std is not None and len(std) == count and all(s > 0 for s in std))
        require(valid, "std", std, f"as many positive numbers as mean has ({count})")
        self.mean, self.std = None if mean is None else tuple(mean), tuple(std or ())

    def split(self, images: ImageBatch) -> tuple[int, Tensor | None]:
        """Count the channels C of the picture and read the extra channels: [n, E] in {0 .. 255}, or None without any.

        Raises:
            ValueError: images of another type or shape, or with fewer channels than mean.
        """
        first, plain = images[0], self.mean is None
        channels = first.shape[0] if first.ndim == 3 else -1
        picture = channels if self.mean is None else len(self.mean)
        dtypes = [torch.uint8] if plain else [torch.uint8, torch.float32, torch.float64]
        if first.dtype not in dtypes or channels < picture or channels < 0 or (plain and channels not in (1, 3)):
            expected = "1 or 3" if plain else f"{picture} or more"
            raise ValueError(f"images must be uint8 [n, {expected}, H, W], not {first.dtype} [n, {first.shape}].")
        if channels == picture:
            return picture, None
        if isinstance(images, Tensor):
            return picture, images[:, picture:, 0, 0]
        return picture, torch.stack([image[picture:, 0, 0] for image in images])

    def __call__(self, x: Tensor) -> Tensor:
        """[n, C, h, w] -> [n, C, h, w], in place"""
        # One channel at a time with plain numbers: tensors of constants would first have to be copied to the device.
        for channel, (mean, std) in enumerate(zip(self.mean or (), self.std, strict=True)):
            x[:, channel].sub_(mean).div_(std)  # [n, h, w]
        return x


def white(images: ImageBatch) -> int:
    """The value of white, by which images are divided: 255 for uint8, and 1 for floats, which are not scaled."""
    return 255 if images[0].dtype == torch.uint8 else 1


def resize(x: Tensor, size: Sequence[int], interpolation: str, dtype: torch.dtype) -> Tensor:
    """[n, C, h, w] -> [n, C, *size] of ``dtype``, antialiased; ``interpolation`` is bilinear or bicubic.

    On a CPU a large image is not converted as a whole: bands of its rows get their width one after the other, and then
    all rows their height, as in torch's own order and to the same bits.
    """
    height, width = x.shape[2:]
    rows = max(1, BAND // (len(x) * width)) if x.device.type == "cpu" else height
    options: dict[str, Any] = {"mode": interpolation, "antialias": True}
    if rows < height:
        floats = (band.to(dtype, memory_format=torch.contiguous_format) for band in x.split(rows, 2))
        x = torch.cat([interpolate(band, (band.shape[2], size[1]), **options) for band in floats], 2)
    return interpolate(x.to(dtype, memory_format=torch.contiguous_format), tuple(size), **options)


def padded(images: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Images [C, h, w] as batches of about one size: the indices of m images, and uint8 [m, C, H, W].

    Batches are channels last in memory. Pixels outside an image are undefined: no box of a view reaches them.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, image in enumerate(images):
        groups.setdefault(tuple(-(-side // BUCKET) for side in image.shape[1:]), []).append(i)
    for group in groups.values():
        height, width = (max(images[i].shape[side] for i in group) for side in (1, 2))
        batch = images[0].new_empty(len(group), height, width, len(images[0]))
        for row, i in zip(batch, group, strict=True):
            row[: images[i].shape[1], : images[i].shape[2]] = images[i].permute(1, 2, 0)
        yield torch.tensor(group).to(batch.device, non_blocking=True), batch.permute(0, 3, 1, 2)


def sizes(images: ImageBatch) -> tuple[int | Tensor, int | Tensor]:
    """Height and width of images: two numbers if all have one size, else two tensors [n] on their device."""
    if isinstance(images, Tensor):
        return images.shape[-2], images.shape[-1]
    device = images[0].device
    height, width = torch.tensor([image.shape[-2:] for image in images]).to(device, non_blocking=True).unbind(1)
    return height, width


def with_constants(x: Tensor, values: Tensor) -> Tensor:
    """Append constant channels: [n, C, H, W] and uint8 [n, E] -> [n, C + E, H, W], those of ``values`` in [0, 1].

    The result is in channels_last. A network with many channels would copy it into this layout in every pass.
    """
    picture, shape = x.shape[1], (len(x), x.shape[1] + values.shape[1], *x.shape[2:])
    out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    out[:, :picture] = x
    out[:, picture:] = values.to(x.dtype).div_(255)[..., None, None]
    return out


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type to compute in for a result of type ``dtype``: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class EvalView:
    """The view for evaluation: the image, or its centre after a resize, divided by 255 if it is of uint8, normalised.

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
        self.normalize = Normalize(mean, std)
        require((resize is None) == (size is None), "resize", resize, "a number of pixels, as size, or both to null")
        fits = resize is None or resize >= (size or 0) >= 1
        require(fits, "resize", resize, f"size ({size}) or more, and size to 1 or more")
        self.resize, self.size, self.interpolation = resize or 0, size, interpolation

    def __call__(self, images: ImageBatch, dtype: torch.dtype = torch.float32) -> Tensor:
        """Make the views of uint8 or float32 images with C + E channels, as a contiguous tensor of ``dtype``.

        With a size: [n, C + E, H, W] or n times [C + E, h, w] -> [n, C + E, size, size].
        Without: [n, C + E, H, W] -> [n, C + E, H, W].
        """
        picture, extra = self.normalize.split(images)  # refuses images that it cannot normalise
        compute = compute_dtype(dtype)
        if self.size is None:
            if not isinstance(images, Tensor):
                raise ValueError("images of many sizes need a resize and a size")
            x = images.to(compute, memory_format=torch.contiguous_format, copy=True)  # [n, C + E, H, W]
            return self.normalize(x.div_(white(images))).to(dtype)
        x = torch.empty(len(images), picture, self.size, self.size, dtype=compute, device=images[0].device)
        for i, image in enumerate(images):  # a single image at a time stays in the cache of a CPU
            x[i] = self._centre(image[None, :picture], self.size, compute)[0]
        x = self.normalize(x.div_(white(images))).to(dtype)
        return x if extra is None else with_constants(x, extra)

    def _centre(self, x: Tensor, size: int, dtype: torch.dtype) -> Tensor:
        """[m, C, H, W] -> [m, C, size, size], as torchvision's Resize and CenterCrop."""
        short = min(x.shape[2:])
        height, width = (self.resize * side // short for side in x.shape[2:])  # the long side is rounded down
        top, left = round((height - size) / 2), round((width - size) / 2)
        x = resize(x, (height, width), self.interpolation, dtype)
        return x[:, :, top : top + size, left : left + size]
