"""Operations on a batch of images with other numbers for each image: crop, flip, resize and blur as products with one
small matrix per image and axis, and changes of colours.

A separable resampling is `rows @ image @ columns.T`. Images differ (in box, flip, width of the blur) only by numbers
inside these matrices, so a whole batch is always two batched products. Values of colours equal those of torchvision's
functionals on floats; three channels are red, green and blue, and strengths are [n]. Colours change no argument.

n images  C channels  H, W input size  S output size  r blur radius
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ssl_bench.data import pixels

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)  # the numbers of the four parts in torchvision's ColorJitter
STEPS = 1024  # offsets of a filter between two pixels for which TensorFlow's bicubic kernel has weights in its table


def _bilinear(x: Tensor) -> Tensor:
    """Triangle filter of support 1; x is a distance >= 0 in units of the (stretched) pixel."""
    return (1 - x).clamp_(min=0)


def _bicubic(x: Tensor) -> Tensor:
    """Keys' cubic filter with a = -1/2, as in Pillow and in antialiased torch resizing: support 2."""
    near = (1 - x).clamp_(min=0).square_().mul_(2 * x - 1)  # on [0, 1]: the filter minus the cubic of [1, 2]
    return (2 - x).clamp_(min=0).square_().mul_(0.5 - 0.5 * x).add_(near)


FILTERS = {"bilinear": _bilinear, "bicubic": _bicubic, "bicubic_tf": _bicubic}


def resize_matrix(
    start: Tensor,
    length: Tensor,
    flip: Tensor | None,
    in_size: int,
    out_size: int,
    interpolation: str,
    dtype: torch.dtype,
) -> Tensor:
    """Weights [n, out_size, in_size] that crop an axis to [start, start + length), resize it and mirror it by flip.

    start, length: [n], in whole pixels, inside the axis; flip: bool [n], or None for no mirroring. When shrinking, the
    filter is stretched by the scale (antialias); pixels outside the box have weight 0, as in Pillow. ``bicubic_tf`` is
    the kernel of ``tf.image.resize(..., BICUBIC)``, whose antialias is off: the filter is never stretched, and its
    centre is rounded to 1 / 1024 pixel. Enlarging, it is ``bicubic`` except for the rounding.
    """
    # Pixel centres lie at .5. `step` input pixels make one output pixel. Source positions count from the box's start,
    # which is exact, so the precision of a weight does not depend on the box's position.
    first = start.to(dtype)[:, None, None]  # [n, 1, 1]
    extent = length.to(dtype)[:, None, None]  # [n, 1, 1]
    step = extent / out_size  # [n, 1, 1]
    target = torch.arange(out_size, device=start.device, dtype=dtype)[:, None]  # [S, 1]
    if flip is not None:
        target = torch.where(flip[:, None, None], out_size - 1 - target, target)  # [n, S, 1]
    source = torch.arange(in_size, device=start.device, dtype=dtype) + 0.5 - first  # [n, 1, in]
    centre = (target + 0.5) * step  # [n, S, 1]
    if interpolation == "bicubic_tf":
        distance = (source - (centre * STEPS).round_() / STEPS).abs_()  # [n, S, in]
    else:
        distance = (source - centre).abs_().div_(step.clamp(min=1))  # [n, S, in]
    weights = FILTERS[interpolation](distance)  # [n, S, in]
    weights = weights.mul_((source > 0) & (source < extent))  # [n, S, in]
    return weights.div_(weights.sum(-1, keepdim=True))  # [n, S, in]


def resize_box(image: Tensor, size: int, interpolation: str, dtype: torch.dtype) -> Tensor:
    """[C, h, w] -> [C, size, size] of ``dtype``, by torch's own operation if it has one for this interpolation."""
    if interpolation != "bicubic_tf":
        return pixels.resize(image[None], (size, size), interpolation, dtype)[0]
    start, to = torch.zeros(1, device=image.device), (size, interpolation, dtype)
    rows, columns = (resize_matrix(start, start + side, None, side, *to) for side in image.shape[1:])
    return resample(image[None], rows, columns)[0]


def blur_matrix(sigma: Tensor, kernel: int, size: int, dtype: torch.dtype) -> Tensor:
    """Weights [n, size, size] of a Gaussian blur with an odd kernel and reflected borders; sigma: [n], in pixels."""
    radius = kernel // 2
    offset = torch.arange(-radius, radius + 1, device=sigma.device, dtype=torch.float64)  # [2r+1]
    # In double: the last bit of exp depends on the position in the batch, and must not reach the result.
    bell = (offset / sigma.double()[:, None]).square().mul(-0.5).exp()  # [n, 2r+1]
    bell = (bell / bell.sum(1, keepdim=True)).to(dtype)  # [n, 2r+1]
    # A window that slides over the zero-padded bell makes every shift: row i has the bell around pixel i + r of the
    # padded axis.
    shifts = pad(bell, (size - 1, size - 1)).unfold(1, size + 2 * radius, 1).flip(1)  # [n, S, S+2r]
    weights = shifts[:, :, radius : radius + size].contiguous()  # [n, S, S]
    # Reflection: a weight d pixels before the first (after the last) pixel is added to the pixel d after (before) it.
    weights[:, :, 1 : radius + 1] += shifts[:, :, :radius].flip(2)  # [n, S, r]
    weights[:, :, size - 1 - radius : size - 1] += shifts[:, :, size + radius :].flip(2)  # [n, S, r]
    return weights


def resample(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """`rows @ image @ columns.T` for every channel: [n, C, H, W] of any dtype and strides -> contiguous [n, C, S, S].

    rows: [n, S, H], columns: [n, S, W]; their dtype is the result's.
    """
    n, channels, height, width = images.shape
    # Prepared data have the channels last: the product over rows then needs no copy except the cast. The product over
    # columns needs the channels apart from the columns and leaves them first, as operations per channel need them.
    x = images.permute(0, 2, 3, 1).to(rows.dtype, memory_format=torch.contiguous_format)  # [n, H, W, C]
    x = torch.bmm(rows, x.reshape(n, height, width * channels))  # [n, S, W*C]
    x = x.view(n, -1, width, channels).permute(0, 3, 1, 2).reshape(n, -1, width)  # [n, C*S, W]
    return torch.bmm(x, columns.mT).view(n, channels, rows.shape[1], columns.shape[1])  # [n, C, S, S]


# ---- colours


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
