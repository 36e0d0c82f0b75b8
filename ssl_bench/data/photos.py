"""Encoded photos of many sizes, decoded by threads when they are taken.

Reading and decoding let go of the interpreter's lock, so threads are enough: nothing is pickled or copied between
processes. An image is decoded once per step, however many views are made of it.
"""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from io import BytesIO
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor

from ssl_bench.data.arrays import Source
from ssl_bench.errors import RunError
from ssl_bench.launch.slots import available_cores

log = logging.getLogger("ssl_bench")
T = TypeVar("T")
BAD = 0.001  # share of a split's images that may be damaged
RGB = 3  # torchvision.io.ImageReadMode.RGB


class Photos(Source):
    """Images of which only the encoded bytes are kept.

    A damaged image is not trained on: the next one of its class that can be decoded stands in for it, whenever and
    wherever it is taken. It is logged once.

    Args:
        labels: int64 [N].
        workers: threads that decode; None shares the CPU cores among the processes of this machine.

    Attributes:
        bad: of the damaged images met so far, place and reason.
    """

    def __init__(self, labels: Tensor, workers: int | None) -> None:
        self.labels = labels
        self.workers = workers or max(1, available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
        self.bad: dict[int, str] = {}
        self._lock = threading.Lock()

    def encoded(self, i: int) -> Tensor:
        """The bytes of image i, uint8 [k]. Raises RuntimeError or OSError where they cannot be read."""
        raise NotImplementedError

    def name(self, i: int) -> str:
        """Where image i comes from, for messages."""
        raise NotImplementedError

    def take(self, ids: Tensor) -> list[Tensor]:
        """Images ``ids`` [n], each uint8 [3, h, w], channels last in memory."""
        return self.map(lambda image: image, ids.tolist())

    def map(self, function: Callable[[Tensor], T], ids: Sequence[int]) -> list[T]:
        """``function`` of each decoded image, computed by the threads.

        Raises:
            RunError: more than a thousandth of the split is damaged.
        """
        piece = max(1, len(ids) // (4 * self.workers))  # handing over costs, waiting for the last one does too
        pieces = (ids[start : start + piece] for start in range(0, len(ids), piece))
        made = self._pool.map(lambda some: [function(self._image(i)) for i in some], pieces)
        return list(chain.from_iterable(made))

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.workers, "decode")

    def _image(self, i: int) -> Tensor:
        for j in chain(range(i, len(self)), range(i)):
            if j in self.bad or (j != i and self.labels[j] != self.labels[i]):
                continue
            try:
                return decode(self.encoded(j))
            except (RuntimeError, OSError) as error:
                self._note(j, error)
        raise RunError(f"{self.name(i)} cannot be decoded, and no other image of its class can: replace them")

    def _note(self, i: int, error: Exception) -> None:
        with self._lock:
            if i in self.bad:
                return  # another thread was first
            self.bad[i] = str(error).splitlines()[0]
            log.warning("%s is damaged, the next image of its class stands in for it: %s", self.name(i), self.bad[i])
            if len(self.bad) > BAD * len(self):
                first = ", ".join(self.name(j) for j in list(self.bad)[:3])
                raise RunError(
                    f"{len(self.bad)} damaged images so far, more than {BAD:.1%} of {len(self)} ({first}"
                    f"{', ...' if len(self.bad) > 3 else ''}): replace or remove them, or prepare the dataset again"
                )


def decode(data: Tensor) -> Tensor:
    """An encoded image, uint8 [k] -> uint8 [3, h, w]; JPEG, PNG, GIF or WebP, whatever its file is called.

    Grey becomes three equal channels, CMYK is converted, an alpha channel is dropped and EXIF's orientation is left
    alone, as in torchvision's ImageFolder.
    """
    native = _native()
    image = _pillow(data) if native is None else native(data, RGB, False)
    if image.dtype != torch.uint8:  # PNG of 16 bits
        image = (image.int() >> 8).byte()
    return image


@cache
def _native() -> Callable[[Tensor, int, bool], Tensor] | None:
    """torchvision's decoder, or None in the releases to come that have none: 0.29 calls it deprecated."""
    try:
        import torchvision.io  # noqa: F401  # registers the operator, which unlike its wrapper does not warn

        return torch.ops.image.decode_image  # type: ignore[no-any-return]
    except (ImportError, AttributeError):
        return None


def _pillow(data: Tensor) -> Tensor:
    import numpy as np
    from PIL import Image

    with Image.open(BytesIO(data.numpy().tobytes())) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
