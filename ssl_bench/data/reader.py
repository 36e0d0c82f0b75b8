"""Batches of a split, read by threads and copied to a device while the device works on earlier ones; and the images of
each step with their views, in an order that depends on the seed and the epoch only.

An epoch is a permutation of all images, cut into global batches; rank r of W takes the r-th of W equal slices of each.
So no image comes twice in an epoch, and the last, incomplete batch is left out. The images of a step are computed from
its number: a resumed run continues in the middle of an epoch as if it had not stopped.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from ssl_bench.data.batch import Step
from ssl_bench.data.pixels import Padded, pad
from ssl_bench.data.source import ImageBatch, Source
from ssl_bench.data.views import Views
from ssl_bench.distributed import rank, world
from ssl_bench.seeding import stream

AHEAD = 2  # batches read in advance, so that the device does not wait for a single slow batch
THREADS = 2  # one joins the decoded images of a batch, while those of the next batch are decoded


class Read(NamedTuple):
    """A batch of n images."""

    ids: Tensor  # [n]
    images: ImageBatch
    labels: Tensor  # [n] or [n, num_classes]


class Reader:
    """Reads images of a split by their ids and brings them to a device.

    To a GPU they are copied on a stream of its own, from pinned memory: neither the host nor the work on earlier
    batches waits for a copy. Images of many sizes are padded before, once for all of their views.

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
            yield from map(self.take, ids)
            return
        with ThreadPoolExecutor(THREADS, "images", _use, (self.device,)) as pool:
            ahead: deque[Future[tuple[Read, torch.cuda.Event | None]]] = deque()
            for of_batch in ids:
                ahead.append(pool.submit(self._read, of_batch))
                if len(ahead) > AHEAD:
                    yield self._arrived(*ahead.popleft().result())
            while ahead:
                yield self._arrived(*ahead.popleft().result())

    def take(self, ids: Tensor) -> Read:
        """Read the images ``ids`` [n] now."""
        return self._arrived(*self._read(ids))

    def _read(self, ids: Tensor) -> "tuple[Read, torch.cuda.Event | None]":
        """Read a batch and start to copy it; with the event of the copy's end."""
        images, labels = self.source.take(ids), self.source.labels[ids]
        if not self._copies:
            return Read(ids, images, labels), None
        images = images if isinstance(images, Tensor) else pad(images, pinned=True)
        stream = _copy_stream(self.device)
        with torch.cuda.stream(stream):
            copies = [t.pin_memory().to(self.device, non_blocking=True) for t in _tensors(Read(ids, images, labels))]
            ids, labels, *rest = copies
            images = images.copied(rest[:-1], rest[-1]) if isinstance(images, Padded) else rest[0]
            return Read(ids, images, labels), stream.record_event()

    def _arrived(self, batch: Read, copied: "torch.cuda.Event | None") -> Read:
        """Let the device's work from now on wait for the copy."""
        if copied is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(copied)
            for tensor in _tensors(batch):
                tensor.record_stream(stream)  # its memory is not given to a later copy before this work is done
        return batch


def _tensors(batch: Read) -> list[Tensor]:
    """The tensors that hold a batch of one tensor or of padded images."""
    images = [*batch.images.batches, batch.images.order] if isinstance(batch.images, Padded) else [batch.images]
    return [batch.ids, batch.labels, *images]


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    # One for all readers: memory that was freed on a stream is reused on the same stream only.
    return torch.cuda.Stream(device)


def _use(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)  # each thread has its own current device, on which it pins memory


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
