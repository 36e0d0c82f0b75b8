"""What random views and the view of evaluation both do to images.

n images  C channels that are a picture  E further ones  S output size
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import interpolate


class Normalize:
    """(x - mean) / std for x in [0, 1]; with mean and std None, x itself."""

    def __init__(self, mean: Sequence[float] | None, std: Sequence[float] | None) -> None:
        require((mean is None) == (std is None), "mean", "given together with std, or both None", mean)
        self.mean, self.std = None if mean is None else tuple(mean), tuple(std or ())
        count = 1 if self.mean is None else len(self.mean)
        require(count in (0, 1, 3), "mean", "one number for each of 1 or 3 channels", mean)
        valid = self.mean is None or (len(self.std) == count and all(s > 0 for s in self.std))
        require(valid, "std", "positive numbers, as many as mean has", std)

    def split(self, images: Tensor | list[Tensor]) -> tuple[int, Tensor | None]:
        """The number C of channels that are a picture, and the values [n, E] in {0 .. 255} of those that are constant.

        Raises:
            ValueError: images of another type or shape, or with fewer channels than mean.
        """
        first = images[0]
        channels = first.shape[0] if first.ndim == 3 else -1
        picture = channels if self.mean is None else len(self.mean)
        wanted = (1, 3) if self.mean is None else range(picture, 10**6)
        if first.dtype != torch.uint8 or channels not in wanted:
            shape = list(images.shape) if isinstance(images, Tensor) else [len(images), *first.shape]
            expected = "1 or 3" if self.mean is None else f"{picture} or more"
            raise ValueError(f"images must be uint8 [n, {expected}, H, W], not {first.dtype} {shape}.")
        if channels == picture:
            return picture, None
        if isinstance(images, Tensor):
            return picture, images[:, picture:, 0, 0]
        return picture, torch.stack([image[picture:, 0, 0] for image in images])

    def __call__(self, x: Tensor) -> Tensor:
        """[n, C, h, w] -> [n, C, h, w], in place"""
        # Plain numbers, one channel at a time: constants on the device would have to be copied there first.
        for channel, (mean, std) in enumerate(zip(self.mean or (), self.std, strict=True)):
            x[:, channel].sub_(mean).div_(std)  # [n, h, w]
        return x


def resize(x: Tensor, size: Sequence[int], interpolation: str) -> Tensor:
    """[n, C, h, w] -> [n, C, *size], antialiased."""
    return interpolate(x, tuple(size), mode=interpolation, antialias=True)


def by_size(images: Tensor | list[Tensor], step: int) -> list[list[int]]:
    """The places of images, those together whose sides fall into the same multiples of ``step``."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, image in enumerate(images):
        groups.setdefault(tuple(-(-side // step) for side in image.shape[1:]), []).append(i)
    return list(groups.values())


def sizes(images: Tensor | list[Tensor]) -> tuple[int | Tensor, int | Tensor]:
    """Height and width of images: of all of them, or [n] each on their device."""
    if isinstance(images, Tensor):
        return images.shape[-2], images.shape[-1]
    device = images[0].device
    height, width = torch.tensor([image.shape[-2:] for image in images]).to(device, non_blocking=True).unbind(1)
    return height, width


def constants(values: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """uint8 [n, E] -> [n, E, S, S] in [0, 1]"""
    return values.to(dtype).div_(255)[..., None, None].expand(-1, -1, size, size)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def require(condition: bool, name: str, expected: str, value: object) -> None:
    if not condition:
        raise ValueError(f"{name} must be {expected}, not {value!r}.")
