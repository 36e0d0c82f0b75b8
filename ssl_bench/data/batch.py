"""The images of one step: ``Step`` makes their views on request, ``Batch`` is the input of a method.

B images on this rank   C channels
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssl_bench.data.arrays import ImageBatch
from ssl_bench.data.views import ViewParameters, Views


@dataclass(frozen=True)
class Batch:
    """Views of some images of this rank."""

    views: list[Tensor]  # global crops first, each [B, C, height, width]; further crops may be smaller
    ids: Tensor  # [B] index of the image in the dataset
    labels: Tensor  # [B], -1 if unlabelled, or [B, num_classes] counts


@dataclass(frozen=True)
class Step:
    """This rank's images at one step, with the random parameters of their views."""

    ids: Tensor  # [B]
    labels: Tensor  # [B] or [B, num_classes]
    images: ImageBatch  # B images
    parameters: list[ViewParameters]  # one entry per view
    views: Sequence[Views]
    dtype: torch.dtype

    def batch(self, rows: slice = slice(None)) -> Batch:
        """Make the views of the images ``rows``, each [rows, C, size, size]."""
        pairs = zip(self.views, self.parameters, strict=True)
        views = [view.apply(self.images[rows], parameters[rows], self.dtype) for view, parameters in pairs]
        return Batch(views, self.ids[rows], self.labels[rows])
