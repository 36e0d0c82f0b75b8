"""The images of each step, in an order that depends on the seed and the epoch alone, with their views.

Every epoch is a permutation of all images, cut into global batches; rank r of W takes the r-th of W equal slices of
each, so no image comes twice in an epoch and the last, incomplete batch is left out. Step s is computed from s: a
resumed run goes on in the middle of an epoch as if it had not stopped.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from ssl_bench.data.arrays import Source, Taken
from ssl_bench.data.views import Draw, Views, sizes
from ssl_bench.distributed import rank, world
from ssl_bench.objective.contrast import Batch
from ssl_bench.seeding import stream


class Loader:
    """Batches for the steps ``start`` to ``stop``.

    Args:
        images: the split to train on; on ``device`` it is read there, elsewhere the next batch is fetched meanwhile.
        views: how each view of an image is made, the global crops first.
        batch_size: images of all ranks together.
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

    def steps(self, start: int, stop: int) -> Iterator["Step"]:
        with ThreadPoolExecutor(1, "images") as pool:
            ahead = self._fetch(pool, start)
            for step in range(start, stop):
                ids, images, labels = ahead.result()
                if step + 1 < stop:
                    ahead = self._fetch(pool, step + 1)
                images = _move(images, self.device)
                yield Step(ids, labels, images, self._draws(step, images), self.views, self.dtype)

    def sample(self, count: int) -> "Step":
        """The first images of the split, for a trial."""
        ids = torch.arange(count, device=self.images.labels.device)
        images = _move(self.images.take(ids), self.device)
        labels = self.images.labels[ids].to(self.device)
        return Step(ids.to(self.device), labels, images, self._draws(0, images), self.views, self.dtype)

    def _fetch(self, pool: ThreadPoolExecutor, step: int) -> "Future[tuple[Tensor, Taken, Tensor]]":
        if self.images.labels.device.type == "cpu":
            return pool.submit(self._take, step)  # reading the files overlaps with the step before
        done: Future[tuple[Tensor, Taken, Tensor]] = Future()
        done.set_result(self._take(step))
        return done

    def _take(self, step: int) -> tuple[Tensor, Taken, Tensor]:
        ids = self.ids(step)
        images, labels = self.images.take(ids), self.images.labels[ids]
        if self.device.type == "cuda" and ids.device.type == "cpu":
            images = images.pin_memory() if isinstance(images, Tensor) else [image.pin_memory() for image in images]
            ids, labels = (t.pin_memory().to(self.device, non_blocking=True) for t in (ids, labels))
        return ids, images, labels

    def _draws(self, step: int, images: Taken) -> list[Draw]:
        """The parameters of each of a step's views."""
        share = len(images)
        mine = slice(rank() * share, (rank() + 1) * share)
        height, width = sizes(images)
        made = []
        for slot, views in enumerate(self.views):
            # Numbers are drawn for the global batch and this rank keeps its rows: the same for any number of ranks.
            self._generator.manual_seed(stream("view", self.seed, step, slot))
            uniform = views.uniform(share * world(), self._generator)[mine]
            made.append(views.parameters(uniform, height, width))
        return made


def _move(images: Taken, device: torch.device) -> Taken:
    if isinstance(images, Tensor):
        return images.to(device, non_blocking=True)
    return [image.to(device, non_blocking=True) for image in images]


@dataclass(frozen=True)
class Step:
    """This rank's images of a step, from which views are made when they are asked for."""

    ids: Tensor  # [B]
    labels: Tensor  # [B]
    images: Taken  # of which B
    draws: list[Draw]  # of each view
    views: Sequence[Views]
    dtype: torch.dtype

    def batch(self, rows: slice = slice(None)) -> Batch:
        """The views of some of the images, each [rows, C, size, size]."""
        pairs = zip(self.views, self.draws, strict=True)
        views = [view.apply(self.images[rows], draw[rows], self.dtype) for view, draw in pairs]
        return Batch(views, self.ids[rows], self.labels[rows])
