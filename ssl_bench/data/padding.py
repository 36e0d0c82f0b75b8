"""Images of many sizes, padded to a few batches of about one size, so that few operations transform all of them.

n images   m images of a batch   C channels   h, w sides of an image   H, W sides of a batch
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ssl_bench.data.pixels import by_size

BUCKET = 128  # pixels: images whose sides round up to the same multiples of it are padded to one size


class Padded(list[Tensor]):
    """A list of uint8 images [C, h, w], each a view of a row of one of the batches.

    Attributes:
        batches: uint8 [m, C, H, W], channels last in memory. Pixels beyond an image are any bytes: nothing reads them
            with a weight other than 0.
        order: int64 [n] on the device of the batches, the index of the image in each row of all batches, one batch
            after the other.
    """

    def __init__(self, batches: Sequence[Tensor], order: Tensor, groups: list[list[int]], shapes: list[torch.Size]):
        self.batches, self.order, self._groups, self._shapes = list(batches), order, groups, shapes
        rows = {i: batch[row] for batch, group in zip(batches, groups, strict=True) for row, i in enumerate(group)}
        super().__init__(rows[i][:, :height, :width] for i, (_, height, width) in enumerate(shapes))

    def copied(self, batches: Sequence[Tensor], order: Tensor) -> "Padded":
        """The same images in copies ``batches`` [m, C, H, W] of the batches, with a copy of ``order`` [n]."""
        return Padded(batches, order, self._groups, self._shapes)


def pad(images: Sequence[Tensor], pinned: bool = False) -> Padded:
    """Pad images [C, h, w]; padded ones stay as they are.

    Args:
        pinned: in host memory that a GPU can read directly.
    """
    if isinstance(images, Padded):
        return images
    device, groups, batches = images[0].device, by_size(list(images), BUCKET), []
    for group in groups:
        channels, height, width = (max(images[i].shape[side] for i in group) for side in (0, 1, 2))
        shape = len(group), height, width, channels
        batch = torch.empty(shape, dtype=torch.uint8, device=device, pin_memory=pinned)
        for row, i in zip(batch, group, strict=True):
            row[: images[i].shape[1], : images[i].shape[2]] = images[i].permute(1, 2, 0)
        batches.append(batch.permute(0, 3, 1, 2))
    order = torch.tensor([i for group in groups for i in group]).to(device, non_blocking=True)
    return Padded(batches, order, groups, [image.shape for image in images])
