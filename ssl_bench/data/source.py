"""Images of a split, read by their index."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

ImageBatch = Tensor | list[Tensor]  # uint8 or float32 [n, C, H, W], or n uint8 images [C, h, w] if their sizes differ
ROWS = 1024  # images that are copied to a device at a time


class Source:
    """Images of a split, read by their index. An image depends on its index only.

    Attributes:
        labels: int64 [N], -1 for an unlabelled image, or [N, num_classes] with the count of each class in the image.
        nbytes: bytes that all images take on a device; None: they cannot be copied there, since their sizes differ.
        twins: int64 [N], equal for images with the same bytes; None: the source does not know which are copies.
    """

    labels: Tensor
    nbytes: int | None = None
    twins: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, ids: Tensor) -> ImageBatch:
        """Read the images ``ids`` [n]."""
        raise NotImplementedError

    def to(self, device: torch.device) -> "Source":
        """Copy the split to ``device``; the ``take`` of the copy expects ids and returns images there."""
        raise NotImplementedError

    def path_of(self, i: int) -> str:
        """The path of the file of image i, or its number among the stored images."""
        return str(i)


@dataclass(frozen=True, eq=False)
class Images(Source):
    """Images of one size in one or more arrays. The numbers of the images go on from one array to the next.

    Attributes:
        parts: each [n, C, H, W], channels last in memory, possibly memory-mapped. Either all are uint8, or none is;
            other types than uint8 are read as float32.
        labels: [N] or [N, num_classes].
    """

    parts: list[Tensor]
    labels: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """The type of the images that :meth:`take` returns."""
        return torch.uint8 if self.parts[0].dtype == torch.uint8 else torch.float32

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return sum(part.numel() for part in self.parts) * self.dtype.itemsize

    def to(self, device: torch.device) -> "Images":
        """Copy the whole split into the memory of ``device``."""
        count, *shape = len(self.labels), *self.parts[0].shape[1:]
        images = torch.empty(count, *shape, dtype=self.dtype, device=device, memory_format=torch.channels_last)
        for ids in torch.arange(count).split(ROWS):  # never a second copy on the device
            images[ids[0] : ids[-1] + 1] = self.take(ids)
        return Images([images], self.labels.to(device))

    def take(self, ids: Tensor) -> Tensor:
        """Read the images ``ids`` [n] as [n, C, H, W] of :attr:`dtype`, channels last in memory."""
        if len(self.parts) == 1:
            return self._rows(self.parts[0], ids)
        first = self.parts[0]
        out = torch.empty(len(ids), *first.shape[1:], dtype=self.dtype).to(memory_format=torch.channels_last)
        start = 0
        for part in self.parts:
            inside = ((ids >= start) & (ids < start + len(part))).nonzero().flatten()
            out[inside] = self._rows(part, ids[inside] - start)
            start += len(part)
        return out

    @staticmethod
    def _rows(part: Tensor, ids: Tensor) -> Tensor:
        rows = part.permute(0, 2, 3, 1)  # with the channels last, as in the file, whole rows of memory are copied
        if part.dtype in (torch.uint8, torch.float32):
            return rows.index_select(0, ids).permute(0, 3, 1, 2)
        # torch selects no rows of uint16, NumPy those of every type.
        return torch.from_numpy(rows.numpy()[ids.numpy()].astype(np.float32)).permute(0, 3, 1, 2)


@dataclass(frozen=True, eq=False)
class Chosen(Source):
    """Some of the images of another source.

    Attributes:
        images: the other source.
        ids: int64 [n], the index there of each image.
    """

    images: Source
    ids: Tensor

    @property
    def labels(self) -> Tensor:  # type: ignore[override]
        return self.images.labels[self.ids]

    @property
    def twins(self) -> Tensor | None:  # type: ignore[override]
        return None if self.images.twins is None else self.images.twins[self.ids.to(self.images.twins.device)]

    @property
    def nbytes(self) -> int | None:  # type: ignore[override]
        whole = self.images.nbytes
        return None if whole is None else whole // len(self.images) * len(self.ids)

    def to(self, device: torch.device) -> Images:
        images = self.take(torch.arange(len(self.ids)))
        assert isinstance(images, Tensor), "images of many sizes stay where they are"
        return Images([images.to(device)], self.labels.to(device))

    def take(self, ids: Tensor) -> ImageBatch:
        """Read the images ``ids`` [n], which count from 0 in this source."""
        return self.images.take(self.ids[ids])

    def path_of(self, i: int) -> str:
        return self.images.path_of(int(self.ids[i]))


class Joined(Source):
    """Several sources as one, in their order."""

    def __init__(self, parts: Sequence[Source]) -> None:
        self.parts, self.labels = parts, torch.cat([part.labels for part in parts])
        self._starts = torch.tensor([0, *map(len, parts)]).cumsum(0)

    def take(self, ids: Tensor) -> ImageBatch:
        """Read the images ``ids`` [n]."""
        parts = torch.bucketize(ids, self._starts, right=True) - 1
        if len(only := parts.unique()) == 1:
            return self.parts[int(only)].take(ids - self._starts[only])
        images = [self.parts[p].take(i[None] - self._starts[p])[0] for p, i in zip(parts.tolist(), ids, strict=True)]
        return torch.stack(images) if len({image.shape for image in images}) == 1 else images

    def path_of(self, i: int) -> str:
        part = int(torch.bucketize(i, self._starts, right=True)) - 1
        return self.parts[part].path_of(i - int(self._starts[part]))


def without_copies(order: Tensor, count: int, twins: Tensor | None) -> tuple[Tensor, Tensor]:
    """Divide images so that no image of the second part is a copy of one of the first.

    The first part has the first ``count`` images, and all copies of them, unless the second would then be empty.

    Args:
        order: int64 [n], the images.
        count: from 0 to n.
        twins: of all images, as :attr:`Source.twins`.

    Returns:
        Both parts, int64.
    """
    first, rest = order.tensor_split([count])
    if twins is None:
        return first, rest
    of_image = twins.to(order.device)
    copies = torch.isin(of_image[rest], of_image[first])
    return (first, rest) if bool(copies.all()) else (torch.cat([first, rest[copies]]), rest[~copies])


def stratified(labels: Tensor, share: float, seed: int) -> Tensor:
    """Draw a share of the images of each class, rounded, at least one; a smaller share is a part of a larger one.

    Args:
        labels: int64 [N], where -1 counts as a class too; or [N, C], counts of objects: all images are then one class.
        share: in (0, 1].

    Returns:
        The images, int64 [n], in ascending order.
    """
    # RandomState has the same numbers in every version of NumPy.
    order = torch.from_numpy(np.random.RandomState(seed % 2**32).permutation(len(labels)))
    classes = labels[order] if labels.ndim == 1 else torch.zeros_like(order)
    grouped = order[classes.argsort(stable=True)]
    counts = classes.unique(return_counts=True)[1].tolist()
    drawn = [members[: max(1, round(share * len(members)))] for members in grouped.split(counts)]
    return torch.cat(drawn).sort().values
