"""The images of each step, in an order that depends on the seed and the epoch alone, with their views.

Every epoch is a permutation of all images, cut into global batches; rank r of W takes the r-th of W equal slices of
each, so no image comes twice in an epoch and the last, incomplete batch is left out. Step s is computed from s: a
resumed run goes on in the middle of an epoch as if it had not stopped.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from ssl_bench.data.arrays import Images
from ssl_bench.data.views import Views
from ssl_bench.distributed import rank, world
from ssl_bench.objective.contrast import Batch
from ssl_bench.seeding import stream


class Loader:
    """Batches for the steps ``start`` to ``stop``.

    Args:
        images: the split to train on; on ``device`` it is read there, elsewhere the next batch is fetched meanwhile.
        views: how a view is made.
        batch_size: images of all ranks together.
        dtype: of the views.
    """

    def __init__(
        self, images: Images, views: Views, batch_size: int, device: torch.device, seed: int, dtype: torch.dtype
    ) -> None:
        self.images, self.views, self.batch_size = images, views, batch_size
        self.device, self.seed, self.dtype = device, seed, dtype
        self.steps_per_epoch = len(images) // batch_size
        self._order: tuple[int, Tensor] | None = None
        self._generator = torch.Generator(device)

    def ids(self, step: int) -> Tensor:
        """This rank's images at a step, [batch_size / W] int64, where the images are."""
        epoch, i = divmod(step, self.steps_per_epoch)
        if self._order is None or self._order[0] != epoch:
            generator = torch.Generator().manual_seed(stream("order", self.seed, epoch))
            order = torch.randperm(len(self.images), generator=generator)
            self._order = epoch, order.to(self.images.labels.device)
        share = self.batch_size // world()
        first = i * self.batch_size + rank() * share
        return self._order[1][first : first + share]

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        with ThreadPoolExecutor(1, "images") as pool:
            ahead = self._fetch(pool, start)
            for step in range(start, stop):
                ids, images, labels = ahead.result()
                if step + 1 < stop:
                    ahead = self._fetch(pool, step + 1)
                yield Batch(self._views(images.to(self.device, non_blocking=True), step), ids, labels)

    def _fetch(self, pool: ThreadPoolExecutor, step: int) -> "Future[tuple[Tensor, Tensor, Tensor]]":
        if self.images.labels.device.type == "cpu":
            return pool.submit(self._take, step)  # reading the files overlaps with the step before
        done: Future[tuple[Tensor, Tensor, Tensor]] = Future()
        done.set_result(self._take(step))
        return done

    def _take(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        ids = self.ids(step)
        found = ids, self.images.take(ids), self.images.labels[ids]
        if self.device.type == "cuda" and ids.device.type == "cpu":
            ids, images, labels = (t.pin_memory() for t in found)
            return ids.to(self.device, non_blocking=True), images, labels.to(self.device, non_blocking=True)
        return found

    def _views(self, images: Tensor, step: int) -> list[Tensor]:
        """Two views of a step's images [B, C, H, W], each [B, C, size, size]."""
        share, made = self.batch_size // world(), []
        mine = slice(rank() * share, (rank() + 1) * share)
        for view in range(2):
            # Parameters are drawn for the global batch and this rank keeps its rows: the same for any number of ranks.
            self._generator.manual_seed(stream("view", self.seed, step, view))
            draw = self.views.draw(self.batch_size, images.shape[-2], images.shape[-1], self._generator)
            made.append(self.views.apply(images, draw[mine], self.dtype))
        return made
