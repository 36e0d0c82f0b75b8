"""Batches of a split, read by threads and copied to a device while the device works on earlier ones."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from ssl_bench.data.padding import Padded, pad
from ssl_bench.data.source import ImageBatch, Source

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
