"""The images of one step: ``Step`` makes their views on request, ``Batch`` is what a method receives.

B images on this rank   C channels
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssl_bench.data.arrays import Taken
from ssl_bench.data.views import Draw, Views


@dataclass(frozen=True)
class Batch:
    """Views of some images of this rank."""

    views: list[Tensor]  # global crops first, each [B, C, height, width]; further crops may be smaller
    ids: Tensor  # [B] index of the image in the dataset
    labels: Tensor  # [B], -1 if unlabelled


@dataclass(frozen=True)
class Step:
    """This rank's images at one step, with the parameters of their views already drawn."""

    ids: Tensor  # [B]
    labels: Tensor  # [B]
    images: Taken  # B images
    draws: list[Draw]  # the parameters of each view
    views: Sequence[Views]
    dtype: torch.dtype

    def batch(self, rows: slice = slice(None)) -> Batch:
        """Make the views of the images ``rows``, each [rows, C, size, size]."""
        pairs = zip(self.views, self.draws, strict=True)
        views = [view.apply(self.images[rows], draw[rows], self.dtype) for view, draw in pairs]
        return Batch(views, self.ids[rows], self.labels[rows])
