"""Random views of a batch of uint8 images, computed on the device that holds the batch.

    views = Views(32, jitter=(0.4, 0.4, 0.4, 0.1), mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26))
    x = views(images, generator)                        # uint8 [n, C, H, W] -> float32 [n, C, 32, 32]

Every image gets its own parameters, distributed as in torchvision's RandomResizedCrop, RandomHorizontalFlip,
ColorJitter, RandomGrayscale, GaussianBlur and RandomSolarize; for given parameters the values are those of
torchvision's functionals on the image in [0, 1]. Drawing and applying are separate steps: `uniform` is cheap and can
cover a global batch, while each device applies only its own rows.

Codes that give torchvision a PIL image have whole numbers of 255 after each operation, and jitter cuts off what is
behind the point: on CIFAR-10 their views are darker in the mean by 0.004 (conf/augment/simclr_cifar.yaml) or 0.005
(moco_v1.yaml) of 1. So are those of the codes of MoCo, CLD, lemniscate, Inv. Spread and leftthomas/SimCLR.

Images of floats are normalised before everything else, so that views do not depend on the units of their files. Their
values have no bounds and are never clamped, and their channels are no colours.

Images of one size are one tensor, images of many sizes a list. Channels after the normalised ones are constant over
the image (bits, see constructed.py) and pass through unchanged.

n images  C channels of the picture  E extra channels  H, W input size  S output size
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta
from torch import Tensor

from ssl_bench.config.ranges import Probability, in_range
from ssl_bench.data import operations
from ssl_bench.data.pixels import Normalize, compute_dtype, padded, sizes, white, with_constants
from ssl_bench.data.source import ImageBatch
from ssl_bench.errors import in_one_line, require

log = logging.getLogger("ssl_bench")

STRONGEST = 10  # jitter x strength: a factor of 11 leaves nothing but black and white
TRIES = 10  # boxes tried before the central one, as in torchvision
CHUNK = 2**18  # numbers of a view, per thread, that the CPU computes at a time: a megabyte, which stays in its cache
LARGE = 96  # views of this side or more are cut one by one on the CPU: a product with a whole matrix is mostly zeros
BLOCK = 32  # rows or columns of such views that are blurred at a time

# (operation, x, rows, *arguments) -> x with the operation applied where rows [n] is True
OnRows = Callable[..., Tensor]


@dataclass(frozen=True, eq=False)
class ViewParameters:
    """All random parameters of one view of n images; the leading dimension of each tensor is n, also in subclasses.

    Attributes:
        top: int64 [n], first row of the box.
        left: int64 [n], first column of the box.
        height: int64 [n], rows of the box.
        width: int64 [n], columns of the box.
        flip: bool [n], whether to mirror left and right.
        jitter: bool [n], whether the four parts below act.
        order: int64 [n, 4], permutations: which of brightness, contrast, saturation, hue is first, second, ...
        strength: float32 [n, 4]: factors of brightness, contrast and saturation, then the turn of the hue.
        grayscale: bool [n], whether to remove the colours.
        blur: bool [n], whether to blur.
        sigma: float32 [n], width of the blur in pixels.
        solarize: bool [n], whether to invert bright values.
    """

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    flip: Tensor
    jitter: Tensor
    order: Tensor
    strength: Tensor
    grayscale: Tensor
    blur: Tensor
    sigma: Tensor
    solarize: Tensor

    def __getitem__(self, rows: slice | Tensor) -> ViewParameters:
        """Select the parameters of some images by a slice, indices or a mask."""
        return type(self)(*(getattr(self, field.name)[rows] for field in fields(self)))


class Views:
    """Random crop, flip, colour jitter, grayscale and blur of uint8 batches, then normalisation.

    Args:
        size: side S of the square output.
        scale: range, in (0, 1], of the crop's share of the image's area.
        ratio: positive range of the crop's width / height; its logarithm is uniform.
        interpolation: "bilinear" or "bicubic", both antialiased, or "bicubic_tf", which is not (google-research/simclr;
            see resize_matrix). Both bicubic ones are clamped to [0, 1], as torchvision does for uint8 images.
        flip: probability of mirroring left to right.
        jitter: strengths [b, c, s, h] of the colour jitter; None switches it off. Factors of brightness, contrast and
            saturation lie in [max(0, 1 - b), 1 + b] (c and s likewise), the turn of the hue in [-h, h], h <= 0.5. The
            order of the four is random for each image.
        strength: factor of the four jitter strengths (SimCLR's s).
        jitter_p: probability of the whole jitter.
        grayscale: probability of replacing the colours by their luma (ITU-R 601).
        grayscale_first: grayscale before the jitter (MoCo v1), not after it (SimCLR, MoCo v2).
        blur: probability of a Gaussian blur with reflected borders.
        blur_kernel: odd width of the blur in pixels; None is a tenth of the size, made odd and at least 3, as in
            SimCLR: 3 at 32, 9 at 96, 23 at 224.
        blur_sigma: positive range of the blur's standard deviation in pixels.
        solarize: probability of inverting values of 0.5 or more (BYOL).
        mean, std: one number per channel, for (x - mean) / std with x in [0, 1]; None leaves x as it is.

    Saturation, hue and grayscale change images of three channels of uint8 only, as in torchvision.
    A flip commutes with all later operations, so recipes that flip last (MoCo) are the same recipe.
    """

    @in_range
    def __init__(
        self,
        size: Annotated[int, Meta(ge=1, le=10_000)],
        *,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        interpolation: Literal["bilinear", "bicubic", "bicubic_tf"] = "bilinear",
        flip: Probability = 0.5,
        jitter: Sequence[float] | None = None,
        strength: Annotated[float, Meta(ge=0, le=STRONGEST)] = 1.0,
        jitter_p: Probability = 0.8,
        grayscale: Probability = 0.2,
        grayscale_first: bool = False,
        blur: Probability = 0.0,
        blur_kernel: int | None = None,
        blur_sigma: Sequence[float] = (0.1, 2.0),
        solarize: Probability = 0.0,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        kernel = 2 * max(1, size // 20) + 1 if blur_kernel is None else blur_kernel
        strengths = (0.0, 0.0, 0.0, 0.0) if jitter is None else tuple(strength * part for part in jitter)
        for name, bounds in {"scale": scale, "ratio": ratio, "blur_sigma": blur_sigma}.items():
            most = 1 if name == "scale" else math.inf
            valid = len(bounds) == 2 and 0 < bounds[0] <= bounds[1] <= most
            require(valid, name, bounds, f"[low,high] with 0 < low <= high{' <= 1' * (most == 1)}")
        require(interpolation in operations.FILTERS, "interpolation", interpolation, " or ".join(operations.FILTERS))
        valid = len(strengths) == 4 and 0 <= min(strengths) <= max(strengths) <= STRONGEST and strengths[-1] <= 0.5
        remedy = "null or [brightness,contrast,saturation,hue], none negative; x strength at most 10, the hue 0.5"
        require(valid, "jitter", jitter, remedy)
        valid = blur == 0 or (kernel % 2 == 1 and 3 <= kernel < 2 * size)
        require(valid, "blur_kernel", kernel, f"an odd number of pixels from 3 to {2 * size - 1} (size x 2 - 1)")
        self.size, self.interpolation = size, interpolation
        self.scale, self.ratio = tuple(scale), tuple(ratio)
        self.flip, self.grayscale, self.grayscale_first = flip, grayscale, grayscale_first
        self.jitter, self.jitter_p = strengths, jitter_p if max(strengths) > 0 else 0.0
        self.blur, self.blur_kernel, self.blur_sigma = blur, kernel, tuple(blur_sigma)
        self.solarize = solarize
        self.normalize = Normalize(mean, std)
        self._compiled: dict[str, Callable[..., Tensor]] = {}

    def uniform(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw the random numbers of n views, [n, 36] in [0, 1), on the generator's device.

        Their shape depends on n only. So blur does not change the boxes of a seed, and a row of the global batch has
        the same view for any number of devices that share the batch. A subclass may draw more for each view.
        """
        return torch.rand(n, 2 * TRIES + 16, generator=generator, device=generator.device)

    def draw(self, n: int, height: int | Tensor, width: int | Tensor, generator: torch.Generator) -> ViewParameters:
        """Draw parameters for n images of height x width (numbers, or [n] each), on the generator's device."""
        return self.parameters(self.uniform(n, generator), height, width)

    def parameters(self, uniform: Tensor, height: int | Tensor, width: int | Tensor) -> ViewParameters:
        """Map numbers [n, 36] in [0, 1) to the parameters for n images of height x width (numbers, or [n] each)."""
        height, width = (_column(side, uniform.device) for side in (height, width))
        # Boxes as in RandomResizedCrop: area and log ratio uniform, sides rounded, the first of ten tries that fits.
        area = _spread(uniform[:, :TRIES], self.scale) * (height * width)  # [n, 10]
        ratio = _spread(uniform[:, TRIES : 2 * TRIES], [math.log(r) for r in self.ratio]).exp_()  # [n, 10]
        heights, widths = (area / ratio).sqrt_().round_(), (area * ratio).sqrt_().round_()  # [n, 10] each
        fits = (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)  # [n, 10]
        fit, first = fits.any(1), fits.byte().argmax(1, keepdim=True)  # [n], [n, 1]
        height, width = height[:, 0], width[:, 0]  # [1 or n]
        central_height, central_width = self._central_box(height, width)
        box_height = torch.where(fit, heights.gather(1, first)[:, 0], central_height)  # [n]
        box_width = torch.where(fit, widths.gather(1, first)[:, 0], central_width)  # [n]
        u = uniform[:, 2 * TRIES :]  # [n, 16]
        top = torch.where(fit, u[:, 0] * (height - box_height + 1), (height - central_height) // 2)  # [n]
        left = torch.where(fit, u[:, 1] * (width - box_width + 1), (width - central_width) // 2)  # [n]
        ranges = [(max(0.0, 1 - s), 1 + s) for s in self.jitter[:3]] + [(-self.jitter[3], self.jitter[3])]
        return ViewParameters(
            # .long() floors a number >= 0; minimum: a product that was rounded up must stay inside the image.
            top=torch.minimum(top, height - box_height).long(),
            left=torch.minimum(left, width - box_width).long(),
            height=box_height.long(),
            width=box_width.long(),
            flip=u[:, 2] < self.flip,
            jitter=u[:, 3] < self.jitter_p,
            order=u[:, 4:8].argsort(1),
            strength=torch.stack([_spread(u[:, 8 + part], ranges[part]) for part in range(4)], dim=1),
            grayscale=u[:, 12] < self.grayscale,
            blur=u[:, 13] < self.blur,
            sigma=_spread(u[:, 14], self.blur_sigma),
            solarize=u[:, 15] < self.solarize,
        )

    def _central_box(self, height: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
        """Height and width, each [1 or n], of the largest central box within the ratios: used if no try fits."""
        low, high = self.ratio
        ratio = width.double() / height
        narrow = (width / low).round().clamp(min=1).to(height.dtype)
        wide = (height * high).round().clamp(min=1).to(width.dtype)
        return torch.where(ratio < low, narrow, height), torch.where(ratio > high, wide, width)

    def apply(
        self,
        images: ImageBatch,
        parameters: ViewParameters,
        dtype: torch.dtype = torch.float32,
        masked: bool | None = None,
    ) -> Tensor:
        """uint8 [n, C + E, H, W] of any strides, or n of [C + E, h, w] -> contiguous [n, C + E, S, S] of `dtype`.

        Images of one size may also be float32.

        With extra channels (E > 0) it is contiguous in channels_last.

        ``masked`` selects one of two computations of the same views. True: every operation is applied to all images,
        and a mask selects the results. No shape depends on the parameters and the host never waits for the device, so
        this can be compiled or captured in a CUDA graph. False: an operation is applied only to the images that need
        it, a few images at a time. None: False on the CPU, True elsewhere.

        On the CPU, apply(images, parameters)[rows] equals apply(images[rows], parameters[rows]) to the last bit, and
        both computations are equal to the last bit for images of one size and views of less than 96 pixels. In float64
        both statements hold to 1e-13, because the order of summation in a matrix product can depend on the memory
        layout of its arguments. Larger views, and images of many sizes, are cropped one by one if ``masked`` is False,
        which rounds differently (1e-6).

        A subclass may override this method and change what it returns, also for masked=True: every view that is made,
        on any device and of images of one or of many sizes, is the result of one call. So all that is random in it
        comes from ``parameters``.

        Autocast has no effect: the computation is in float32, or in float64 if that is `dtype`. A GPU with TF32
        products rounds weights and intermediate pixels to 11 bits.
        """
        picture, extra = self.normalize.split(images)
        device, bounded = images[0].device, images[0].dtype == torch.uint8
        if not bounded and isinstance(images, Tensor):
            images = self.normalize(images.to(compute_dtype(dtype), copy=True))
        with torch.autocast(device.type, enabled=False):
            if masked if masked is not None else device.type != "cpu":
                x = self._cropped(images, picture, parameters, compute_dtype(dtype))
                if masked and not isinstance(images, Tensor):
                    out = self._run(self._from_crops, x, parameters, dtype, bounded)
                else:  # compiled with its crop, or never, as in an evaluation: its batches are of many lengths
                    out = self._from_crops(x, parameters, dtype, bounded)
            else:
                out = torch.empty(len(images), picture, self.size, self.size, dtype=dtype, device=device)
                step = max(1, CHUNK * torch.get_num_threads() // max(1, out[:1].numel()))
                for start in range(0, len(images), step):
                    rows = slice(start, start + step)
                    x = self._on_rows(images[rows], picture, parameters[rows], compute_dtype(dtype))
                    out[rows] = self.normalize(x) if bounded else x  # [step, C, S, S]
        return out if extra is None else with_constants(out, extra)

    def make(self, images: ImageBatch, uniform: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
        """Make several views of n uint8 images [C + E, h, w] from numbers [n, 36] each, at once, with masks.

        Each is [n, C + E, S, S] of ``dtype``. After :meth:`compile` this is one compiled function; of images of many
        sizes it is what follows their crops, whose shape alone does not change from batch to batch.
        """
        if isinstance(images, Tensor):
            return list(self._run(self._joint, images, list(uniform), dtype).chunk(len(uniform)))
        drawn = [self.parameters(numbers, *sizes(images)) for numbers in uniform]
        return [self.apply(images, parameters, dtype, masked=True) for parameters in drawn]

    def compile(self) -> None:
        """Let the next call of :meth:`make` compile its computation, which takes about a minute."""
        log.info("compiling the views, which can take a minute")
        functions = (self._joint, self._from_crops)
        self._compiled = {f.__name__: torch.compile(f, fullgraph=True, dynamic=False) for f in functions}

    def _run(self, function: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """Call a function; its compiled form if :meth:`compile` was called and the compilation succeeds."""
        if self._compiled:
            try:
                return self._compiled[function.__name__](*arguments)
            except Exception as error:  # whatever the compiler raises: the eager form has the same result
                self._compiled = {}
                name, reason = type(error).__name__, in_one_line(error)
                log.warning("the views cannot be compiled (%s: %s) and stay eager", name, reason)
        return function(*arguments)

    def _joint(self, images: Tensor, uniform: list[Tensor], dtype: torch.dtype) -> Tensor:
        parameters = self.parameters(torch.cat(uniform), images.shape[-2], images.shape[-1])
        return self.apply(images.repeat(len(uniform), 1, 1, 1), parameters, dtype, masked=True)

    def _from_crops(self, x: Tensor, parameters: ViewParameters, dtype: torch.dtype, bounded: bool) -> Tensor:
        x = self._after_crop(x, parameters, _on_all_rows, self.size, bounded)
        return (self.normalize(x) if bounded else x).to(dtype)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Draw and apply one random view of each image: uint8 [n, C, H, W] -> float32 [n, C, S, S].

        The generator is on the device of the images.
        """
        n, _, height, width = images.shape
        return self.apply(images, self.draw(n, height, width, generator))

    def _on_rows(self, images: ImageBatch, channels: int, parameters: ViewParameters, dtype: torch.dtype) -> Tensor:
        """The first C channels of each image -> [n, C, S, S] in [0, 1], each operation on the rows that need it."""
        one_by_one = channels > 0 and not (isinstance(images, Tensor) and self.size < LARGE)  # reads the boxes only
        if one_by_one:
            x = self._crop_one_by_one([image[:channels] for image in images], parameters, dtype)
        else:
            x = self._cropped(images, channels, parameters, dtype)
        block, bounded = BLOCK if one_by_one else self.size, images[0].dtype == torch.uint8
        return self._after_crop(x, parameters, _on_needed_rows, block, bounded)

    def _cropped(self, images: ImageBatch, channels: int, parameters: ViewParameters, dtype: torch.dtype) -> Tensor:
        """The first C channels of each image, cropped in few products -> [n, C, S, S] in [0, 1]."""
        if channels == 0:
            return torch.empty(len(images), 0, self.size, self.size, dtype=dtype, device=images[0].device)
        if isinstance(images, Tensor):
            return self._crop(images[:, :channels], parameters, dtype)
        x = torch.empty(len(images), channels, self.size, self.size, dtype=dtype, device=images[0].device)
        for rows, batch in padded(images):
            x.index_copy_(0, rows, self._crop(batch[:, :channels], parameters[rows], dtype))
        return x

    def _after_crop(self, x: Tensor, parameters: ViewParameters, on_rows: OnRows, block: int, bounded: bool) -> Tensor:
        """All but the crop: [n, C, S, S], in [0, 1] if ``bounded``, -> the same.

        The blur takes ``block`` rows or columns at a time.
        """
        channels, dtype = x.shape[1], x.dtype
        if channels == 0:
            return x
        colours = channels == 3 and bounded
        grays = self.grayscale > 0 and colours
        if grays and self.grayscale_first:
            x = on_rows(operations.to_gray, x, parameters.grayscale)
        if self.jitter_p > 0 and self.jitter[operations.HUE] > 0 and colours:
            # Operations before hue, hue, operations after it: hue costs most, so it is computed once for all.
            hue = (parameters.order == operations.HUE).byte().argmax(1, keepdim=True)  # [n, 1]
            before = torch.arange(4, device=x.device) < hue  # [n, 4]
            x = self._blend(x, parameters, before, range(3), on_rows, bounded)
            x = on_rows(operations.shift_hue, x, parameters.jitter, parameters.strength[:, operations.HUE].to(dtype))
            x = self._blend(x, parameters, ~before, range(1, 4), on_rows, bounded)
        elif self.jitter_p > 0:
            every = torch.ones_like(parameters.order, dtype=torch.bool)
            x = self._blend(x, parameters, every, range(4), on_rows, bounded)
        if grays and not self.grayscale_first:
            x = on_rows(operations.to_gray, x, parameters.grayscale)
        if self.blur > 0:
            x = on_rows(partial(self._blur, block=block), x, parameters.blur, parameters.sigma)
        if self.solarize > 0:
            x = on_rows(_solarize, x, parameters.solarize)
        return x

    def _blend(
        self, x: Tensor, parameters: ViewParameters, chosen: Tensor, positions: range, on_rows: OnRows, bounded: bool
    ) -> Tensor:
        """Apply brightness, contrast and saturation at the positions of each image's order where ``chosen`` [n, 4]."""
        if max(self.jitter[:3]) == 0:
            return x
        order, change = parameters.order, partial(operations.blend, bounded=bounded)
        blends = order < operations.SATURATION + (bounded and x.shape[1] == 3)  # [n, 4]
        chosen = chosen & blends & parameters.jitter[:, None]
        strength = parameters.strength.to(x.dtype).gather(1, order)  # [n, 4], in the order of application
        for position in positions:
            x = on_rows(change, x, chosen[:, position], strength[:, position], order[:, position])
        return x

    def _crop(self, images: Tensor, parameters: ViewParameters, dtype: torch.dtype) -> Tensor:
        """uint8 [n, C, H, W] -> [n, C, S, S] in [0, 1]; floats stay as they are."""
        height, width = images.shape[-2:]
        flip = parameters.flip if self.flip > 0 else None
        to = self.size, self.interpolation, dtype
        rows = operations.resize_matrix(parameters.top, parameters.height, None, height, *to)  # [n, S, H]
        columns = operations.resize_matrix(parameters.left, parameters.width, flip, width, *to)  # [n, S, W]
        x = operations.resample(images, rows.div_(white(images)), columns)  # [n, C, S, S]
        return self._clamped(x, images)

    def _crop_one_by_one(self, images: list[Tensor], parameters: ViewParameters, dtype: torch.dtype) -> Tensor:
        """n of uint8 [C, h, w] -> [n, C, S, S] in [0, 1], reading only the box of each image."""
        out = torch.empty(len(images), images[0].shape[0], self.size, self.size, dtype=dtype)
        sides = [parameters.top, parameters.left, parameters.height, parameters.width, parameters.flip.long()]
        for x, image, (top, left, height, width, flip) in zip(out, images, torch.stack(sides, 1).tolist(), strict=True):
            box = image[:, top : top + height, left : left + width]
            crop = operations.resize_box(box, self.size, self.interpolation, dtype)
            torch.div(crop.flip(-1) if flip and self.flip > 0 else crop, white(images), out=x)
        return self._clamped(out, images)

    def _clamped(self, x: Tensor, images: ImageBatch) -> Tensor:
        """Crops of the images without what bicubic interpolation overshoots."""
        return x if self.interpolation == "bilinear" or white(images) == 1 else x.clamp_(0, 1)

    def _blur(self, x: Tensor, sigma: Tensor, block: int) -> Tensor:
        """[n, C, S, S], [n] -> [n, C, S, S]: blocks of columns, then of rows, from what the kernel reaches."""
        reach, weights = self.blur_kernel // 2, operations.blur_matrix(sigma, self.blur_kernel, self.size, x.dtype)
        starts = range(0, self.size, block)
        bands = [(slice(i, i + block), slice(max(0, i - reach), i + block + reach)) for i in starts]
        flat = x.flatten(1, 2)  # [n, C*S, S]
        x = _join([torch.bmm(flat[:, :, near], weights[:, out, near].mT) for out, near in bands]).view_as(x)
        return _join([weights[:, None, out, near] @ x[:, :, near] for out, near in bands], 2)  # now the rows


def _join(parts: list[Tensor], dim: int = -1) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def _solarize(x: Tensor) -> Tensor:
    """[n, C, S, S] -> [n, C, S, S]: 1 - x where x is 0.5 or more"""
    return torch.where(x >= 0.5, 1 - x, x)


def _on_all_rows(operation: Callable[..., Tensor], x: Tensor, rows: Tensor, *arguments: Tensor) -> Tensor:
    return torch.where(rows[:, None, None, None], operation(x, *arguments), x)  # [n, C, S, S]


def _on_needed_rows(operation: Callable[..., Tensor], x: Tensor, rows: Tensor, *arguments: Tensor) -> Tensor:
    index = rows.nonzero()[:, 0]  # [m]
    if len(index) == len(x):  # large views come one at a time: no copies
        return operation(x, *arguments).contiguous()
    if len(index) > 0:
        x[index] = operation(x[index], *(argument[index] for argument in arguments))  # [m, C, S, S]
    return x


def _column(side: int | Tensor, device: torch.device) -> Tensor:
    """[1, 1] or [n, 1]. The device fills in a number: a copy from the host would wait for the device's current work."""
    return side.to(device).view(-1, 1) if isinstance(side, Tensor) else torch.full((1, 1), side, device=device)


def _spread(uniform: Tensor, bounds: Sequence[float]) -> Tensor:
    """Map numbers in [0, 1) to [low, high)."""
    return uniform * (bounds[1] - bounds[0]) + bounds[0]
