"""The images of each step with their views, in an order that depends on the seed and the epoch only.

An epoch is a permutation of all images, cut into global batches; rank r of W takes the r-th of W equal slices of each.
So no image comes twice in an epoch, and the last, incomplete batch is left out. The images of a step are computed from
its number: a resumed run continues in the middle of an epoch as if it had not stopped.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from ssl_bench.data.arrays import ImageBatch, Source
from ssl_bench.data.batch import Step
from ssl_bench.data.pixels import sizes
from ssl_bench.data.views import ViewParameters, Views
from ssl_bench.distributed import rank, world
from ssl_bench.seeding import stream

AHEAD = 2  # batches fetched in advance, so that training does not wait for a single slow batch


class Loader:
    """Batches for a range of steps.

    Args:
        images: the split to train on. If it is on ``device``, batches are read there; if not, a thread fetches the next
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
        self._generator = torch.Generator(device)

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
        with ThreadPoolExecutor(1, "images", _use, (self.device,)) as pool:
            ahead = deque(self._fetch(pool, step) for step in range(start, min(start + AHEAD, stop)))
            for step in range(start, stop):
                ids, images, labels = ahead.popleft().result()
                if step + AHEAD < stop:
                    ahead.append(self._fetch(pool, step + AHEAD))
                images = _move(images, self.device)
                yield Step(ids, labels, images, self._parameters(step, images), self.views, self.dtype)

    def sample(self, count: int) -> Step:
        """A trial step of the first ``count`` images of the split."""
        ids = torch.arange(count, device=self.images.labels.device)
        images = _move(self.images.take(ids), self.device)
        labels = self.images.labels[ids].to(self.device)
        return Step(ids.to(self.device), labels, images, self._parameters(0, images), self.views, self.dtype)

    def _fetch(self, pool: ThreadPoolExecutor, step: int) -> "Future[tuple[Tensor, ImageBatch, Tensor]]":
        if self.images.labels.device.type == "cpu":
            return pool.submit(self._take, step)  # reading the files overlaps with the step before
        done: Future[tuple[Tensor, ImageBatch, Tensor]] = Future()
        done.set_result(self._take(step))
        return done

    def _take(self, step: int) -> tuple[Tensor, ImageBatch, Tensor]:
        ids = self.ids(step)
        images, labels = self.images.take(ids), self.images.labels[ids]
        if self.device.type == "cuda" and ids.device.type == "cpu":
            if isinstance(images, Tensor):
                images = images.pin_memory()
            else:
                flat, shapes = flatten(images, pinned=True)
                images = unflatten(flat.to(self.device, non_blocking=True), shapes)
            ids, labels = (t.pin_memory().to(self.device, non_blocking=True) for t in (ids, labels))
        return ids, images, labels

    def _parameters(self, step: int, images: ImageBatch) -> list[ViewParameters]:
        """Draw the parameters of each view of a step."""
        share = len(images)
        local_rows = slice(rank() * share, (rank() + 1) * share)
        height, width = sizes(images)
        parameters = []
        for view, views in enumerate(self.views):
            # Numbers are drawn for the global batch and this rank keeps its rows: the same for any number of ranks.
            self._generator.manual_seed(stream("view", self.seed, step, view))
            uniform = views.uniform(share * world(), self._generator)[local_rows]
            parameters.append(views.parameters(uniform, height, width))
        return parameters


def flatten(images: list[Tensor], pinned: bool = False) -> tuple[Tensor, list[tuple[int, ...]]]:
    """Join images [C, h, w] into one buffer, channels last, and return it with the shape [h, w, C] of each.

    One copy moves all of them to a device; many small copies would take longer to start than to run.
    """
    rows = [image.permute(1, 2, 0) for image in images]  # contiguous if the channels are last in memory
    flat = torch.empty(sum(image.numel() for image in images), dtype=images[0].dtype, pin_memory=pinned)
    torch.cat([row.reshape(-1) for row in rows], out=flat)
    return flat, [tuple(row.shape) for row in rows]


def unflatten(flat: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Split the buffer of :func:`flatten` into its images, each a view of the buffer."""
    parts = flat.split([math.prod(shape) for shape in shapes])
    return [part.view(shape).permute(2, 0, 1) for part, shape in zip(parts, shapes, strict=True)]


def _use(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)  # each thread has its own current device, on which it pins memory


def _move(images: ImageBatch, device: torch.device) -> ImageBatch:
    if isinstance(images, Tensor):
        return images.to(device, non_blocking=True)
    return [image.to(device, non_blocking=True) for image in images]
