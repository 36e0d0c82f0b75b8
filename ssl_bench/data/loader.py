"""The images of each step with their views, in an order that depends on the seed and the epoch only.

An epoch is a permutation of all images, cut into global batches; rank r of W takes the r-th of W equal slices of each.
So no image comes twice in an epoch, and the last, incomplete batch is left out. The images of a step are computed from
its number: a resumed run continues in the middle of an epoch as if it had not stopped.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ssl_bench.data.batch import Step
from ssl_bench.data.reader import Reader
from ssl_bench.data.source import Source
from ssl_bench.data.views import Views
from ssl_bench.distributed import rank, world
from ssl_bench.seeding import stream


class Loader:
    """Batches for a range of steps.

    Args:
        images: the split to train on. If it is on ``device``, batches are read there; if not, threads read the next
            batches during a step.
        views: how each view of an image is made, the global crops first.
        batch_size: images of all ranks together.
        device: where the views are made.
        seed: of the order of the images and of their views.
        dtype: of the views.
    """

    def __init__(
        self,
        images: Source,
        views: Sequence[Views],
        batch_size: int,
        device: torch.device,
        seed: int,
        dtype: torch.dtype,
    ) -> None:
        self.images, self.views, self.batch_size = images, views, batch_size
        self.device, self.seed, self.dtype = device, seed, dtype
        self.steps_per_epoch = len(images) // batch_size
        self._order: tuple[int, Tensor] | None = None
        self._generator, self._reader = torch.Generator(device), Reader(images, device)

    def ids(self, step: int) -> Tensor:
        """Ids of this rank's images at a step, [batch_size / W] int64, on the device of the images."""
        epoch, i = divmod(step, self.steps_per_epoch)
        if self._order is None or self._order[0] != epoch:
            generator = torch.Generator().manual_seed(stream("order", self.seed, epoch))
            order = torch.randperm(len(self.images), generator=generator)
            self._order = epoch, order.to(self.images.labels.device)
        share = self.batch_size // world()
        first = i * self.batch_size + rank() * share
        return self._order[1][first : first + share]

    def steps(self, start: int, stop: int) -> Iterator[Step]:
        """Yield the steps ``start`` to ``stop`` - 1."""
        read = self._reader.batches(self.ids(step) for step in range(start, stop))
        for step, (ids, images, labels) in enumerate(read, start):
            yield Step(ids, labels, images, self.uniform(step), self.views, self.dtype)

    def uniform(self, step: int) -> list[Tensor]:
        """The random numbers [B, 36] of each view of this rank's images at a step, on the device of the views."""
        share, drawn = self.batch_size // world(), []
        local_rows = slice(rank() * share, (rank() + 1) * share)
        for view, views in enumerate(self.views):
            # Numbers are drawn for the global batch and this rank keeps its rows: the same for any number of ranks.
            self._generator.manual_seed(stream("view", self.seed, step, view))
            drawn.append(views.uniform(self.batch_size, self._generator)[local_rows])
        return drawn
