"""Batches of a split, read by threads while the device works on earlier ones, in an order that depends on the seed and
the epoch only; and the images of one step: ``Step`` makes their views on request, ``Batch`` is the input of a method.

An epoch is a permutation of all images, cut into global batches; rank r of W takes the r-th of W equal slices of each.
So no image comes twice in an epoch, and an incomplete last batch is skipped. The images of a step are computed
from its number: a resumed run continues in the middle of an epoch as if it had not stopped.

Shapes: B images on this rank; C channels.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ssl_bench.data.pixels import sizes
from ssl_bench.data.source import ImageBatch, Source
from ssl_bench.data.views import ViewParameters, Views
from ssl_bench.distributed import rank, world
from ssl_bench.seeding import stream

AHEAD = 2  # batches read in advance, so that the device does not wait for a single slow batch
THREADS = 2  # one joins the decoded images of a batch, while those of the next batch are decoded


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
        made = list[Tensor]()
        if rows == slice(None) and self.images[0].device.type != "cpu":
            # In as few kernels as possible: consecutive views that one maker makes are one batch.
            for views, group in itertools.groupby(self.views):
                made += views.make(self.images, self.uniform[len(made) :][: len(list(group))], self.dtype)
        else:
            for views, parameters in zip(self.views, self.parameters, strict=True):
                made.append(views.apply(self.images[rows], parameters[rows], self.dtype))
        return Batch(made, self.ids[rows], self.labels[rows])


class Read(NamedTuple):
    """A batch of n images."""

    ids: Tensor  # [n]
    images: ImageBatch
    labels: Tensor  # [n] or [n, num_classes]

    def transformed(self, change: Callable[[Tensor], Tensor]) -> "Read":
        """The batch with ``change`` applied to all of its tensors."""
        one_size = isinstance(self.images, Tensor)
        images = change(self.images) if one_size else [change(image) for image in self.images]  # type: ignore[arg-type]
        return Read(change(self.ids), images, change(self.labels))


class Reader:
    """Reads images of a split by their ids and brings them to a device.

    Threads read them, for a GPU into pinned memory: the host does not wait for a copy.

    Args:
        source: the split. If it is on ``device``, it is read there, without threads.
        device: of the results.
    """

    def __init__(self, source: Source, device: torch.device) -> None:
        self.source, self.device = source, device
        self._copies = device.type == "cuda" and source.labels.device.type == "cpu"

    def batches(self, ids: Iterable[Tensor]) -> Iterator[Read]:
        """Yield the batches of the images ``ids``, each [n] on the device of the split, in their order."""
        if self.source.labels.device.type != "cpu":
            yield from map(self._read, ids)
            return
        # Each thread has its own current device, on which it pins memory.
        begin: Any = (torch.cuda.set_device, (self.device,)) if self._copies else ()
        with ThreadPoolExecutor(THREADS, "images", *begin) as pool:
            ahead: deque[Future[Read]] = deque()
            for of_batch in ids:
                ahead.append(pool.submit(self._read, of_batch))
                if len(ahead) > AHEAD:
                    yield self._on_device(ahead.popleft().result())
            while ahead:
                yield self._on_device(ahead.popleft().result())

    def take(self, ids: Tensor) -> Read:
        """Read the images ``ids`` [n] now."""
        return self._on_device(self._read(ids))

    def _read(self, ids: Tensor) -> Read:
        read = Read(ids, self.source.take(ids), self.source.labels[ids])
        return read.transformed(Tensor.pin_memory) if self._copies else read

    def _on_device(self, read: Read) -> Read:
        return read.transformed(lambda x: x.to(self.device, non_blocking=True)) if self._copies else read


@dataclass(eq=False)
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

    images: Source
    views: Sequence[Views]
    batch_size: int
    device: torch.device
    seed: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        self.steps_per_epoch = len(self.images) // self.batch_size
        self._order: tuple[int, Tensor] | None = None
        self._generator, self._reader = torch.Generator(self.device), Reader(self.images, self.device)

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
