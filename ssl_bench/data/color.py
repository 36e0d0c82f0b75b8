"""Colour changes of a batch with one strength per image; values equal torchvision's functionals on floats.

Images are [n, C, H, W], three channels are red, green and blue; strengths are [n]. No function changes its argument.
"""

from __future__ import annotations

import torch
from torch import Tensor

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)  # the numbers of the four parts in torchvision's ColorJitter


def luma(images: Tensor) -> Tensor:
    """[n, C, H, W] -> [n, 1, H, W]: the weighted sum of red, green and blue, or the mean of other channels."""
    if images.shape[1] != 3:
        return images if images.shape[1] == 1 else images.mean(1, keepdim=True)
    red, green, blue = images.split(1, dim=1)  # [n, 1, H, W] each
    return (red * 0.2989).add_(green * 0.587).add_(blue * 0.114)  # [n, 1, H, W]


def to_gray(images: Tensor) -> Tensor:
    """[n, C, H, W] -> [n, C, H, W]: every channel is the luma; a view of one channel."""
    return luma(images).expand_as(images)


def blend(images: Tensor, factor: Tensor, part: Tensor, bounded: bool = True) -> Tensor:
    """Change brightness, contrast or saturation: factor * image + (1 - factor) * target, clamped to [0, 1].

    `part` [n] has the number of one of the three for each image. The target is black, the image's mean luma, or its
    luma; one formula covers all three, so shapes do not depend on `part`. Images that are not ``bounded`` are not
    clamped, and their luma is the mean of their channels, which are no colours.
    """
    factor, part = factor[:, None, None, None], part[:, None, None, None]  # [n, 1, 1, 1]
    gray = luma(images) if bounded else images.mean(1, keepdim=True)  # [n, 1, H, W]
    # Rows first: sums of fewer numbers are more precise, and they are never split between threads.
    mean = gray.mean(-1, keepdim=True).mean(-2, keepdim=True)  # [n, 1, 1, 1]
    rest = 1 - factor  # [n, 1, 1, 1]
    target = (gray * (rest * (part == SATURATION))).add_(mean * (rest * (part == CONTRAST)))  # [n, 1, H, W]
    changed = (images * factor).add_(target)  # [n, C, H, W]
    return changed.clamp_(0, 1) if bounded else changed


def shift_hue(images: Tensor, turn: Tensor) -> Tensor:
    """Rotate the hue of RGB images [n, 3, H, W] by `turn` [n] in [-0.5, 0.5] circles; keep saturation and value."""
    red, green, blue = images.unbind(1)  # [n, H, W] each
    value = torch.maximum(red, green)  # [n, H, W]
    torch.maximum(value, blue, out=value)
    low = torch.minimum(red, green)  # [n, H, W]
    torch.minimum(low, blue, out=low)
    chroma = value - low  # [n, H, W]
    scale = chroma.clamp(min=1e-12).mul_(6).reciprocal_()  # [n, H, W]; a gray pixel keeps its chroma of 0 at any hue
    hue = torch.where(
        value == red,
        (green - blue).mul_(scale),
        torch.where(value == green, (blue - red).mul_(scale).add_(1 / 3), (red - green).mul_(scale).add_(2 / 3)),
    )  # [n, H, W] in turns, red at 0
    # A channel loses no chroma within 1/6 turn of the channel's hue, all of it within 1/6 turn of the opposite hue, and
    # a linearly growing share between.
    opposite = 0.5 - torch.arange(3, device=images.device, dtype=images.dtype) / 3  # [3]
    # [n, 3, H, W], an integer where the hue is opposite
    angle = hue.add_(turn[:, None, None])[:, None] + opposite[:, None, None]
    distance = angle.sub_(angle.round()).abs_()  # [n, 3, H, W] in [0, 1/2] turns
    lost = distance.mul_(-6).add_(2).clamp_(0, 1).mul_(chroma[:, None])  # [n, 3, H, W]
    return torch.sub(value[:, None], lost, out=lost)  # [n, 3, H, W]
