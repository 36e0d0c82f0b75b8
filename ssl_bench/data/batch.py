"""The images of one step: ``Step`` makes their views on request, ``Batch`` is the input of a method.

Shapes: B images on this rank; C channels.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ssl_bench.data.pixels import pad, sizes
from ssl_bench.data.source import ImageBatch
from ssl_bench.data.views import ViewParameters, Views


@dataclass(frozen=True)
class Batch:
    """Views of some images of this rank.

    Attributes:
        views: global crops first, each [B, C, height, width]; further crops may be smaller.
        ids: [B] index of the image in the dataset.
        labels: [B], -1 if unlabelled, or [B, num_classes] counts.
    """

    views: list[Tensor]
    ids: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Step:
    """This rank's images at one step, with the random numbers of their views.

    Attributes:
        ids: [B] index of each image in the dataset.
        labels: [B] or [B, num_classes].
        images: B images.
        uniform: one entry [B, 36] per view.
        views: what makes each view.
        dtype: of the views.
    """

    ids: Tensor
    labels: Tensor
    images: ImageBatch
    uniform: list[Tensor]
    views: Sequence[Views]
    dtype: torch.dtype

    @cached_property
    def parameters(self) -> list[ViewParameters]:
        """Of each view."""
        height, width = sizes(self.images)
        return [view.parameters(uniform, height, width) for view, uniform in zip(self.views, self.uniform, strict=True)]

    def batch(self, rows: slice = slice(None)) -> Batch:
        """Make the views of the images ``rows``, each [rows, C, size, size]."""
        if rows == slice(None) and self.images[0].device.type != "cpu":
            return Batch(self._on_device(self.images), self.ids, self.labels)
        images = self.images if rows == slice(None) else self.images[rows]  # a slice of padded images is a plain list
        if isinstance(images, list) and images[0].is_cuda:
            images = pad(images)  # once for all views
        pairs = zip(self.views, self.parameters, strict=True)
        views = [view.apply(images, parameters[rows], self.dtype) for view, parameters in pairs]
        return Batch(views, self.ids[rows], self.labels[rows])

    def _on_device(self, images: ImageBatch) -> list[Tensor]:
        """All views in as few kernels as possible: consecutive views that one maker makes are one batch."""
        images, made = images if isinstance(images, Tensor) else pad(images), list[Tensor]()
        for views, group in itertools.groupby(self.views):
            made += views.make(images, self.uniform[len(made) :][: len(list(group))], self.dtype)
        return made
