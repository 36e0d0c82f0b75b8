"""Encoded photos of many sizes, decoded by threads when they are read.

Reading and decoding release Python's global lock, so threads are enough: no data is pickled or copied between
processes. An image is decoded once per step, for any number of views.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

import torch
from torch import Tensor

from ssl_bench.data.source import Source
from ssl_bench.errors import RunError, reason
from ssl_bench.files import open_regular
from ssl_bench.hardware import cores_per_process

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

log = logging.getLogger("ssl_bench")
T = TypeVar("T")
LARGEST = 2**30  # bytes of an encoded image
MAX_DAMAGED = 0.001  # largest share of damaged images in a split
# Formats of Pillow that are read; for some others it would start another program.
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM")
JPEG = [0xFF, 0xD8, 0xFF]  # its first bytes
RGB = 3  # torchvision.io.ImageReadMode.RGB


class Photos(Source):
    """Base class of splits that keep only the encoded bytes of their images.

    A damaged image is replaced by the next image of its class that can be decoded, always by the same one. It is logged
    once.

    Args:
        labels: int64 [N].
        workers: threads that decode; None shares the CPU cores among the processes of this machine.
        upright: turn the images as EXIF's orientation says.

    Attributes:
        damaged: index and reason of the damaged images so far.
    """

    def __init__(self, labels: Tensor, workers: int | None, upright: bool = False) -> None:
        self.labels, self.upright = labels, upright
        self.workers = workers or cores_per_process()
        self.damaged: dict[int, str] = {}
        self._lock = threading.Lock()

    def encoded(self, i: int) -> Tensor:
        """Read the bytes of image i, uint8 [k].

        Raises:
            RuntimeError, OSError: they cannot be read.
        """
        raise NotImplementedError

    def name(self, i: int) -> str:
        """Path of image i, for messages."""
        raise NotImplementedError

    def take(self, ids: Tensor) -> list[Tensor]:
        """Decode the images ``ids`` [n], each uint8 [3, h, w], channels last in memory."""
        return self.map(lambda image: image, ids.tolist())

    def map(self, function: Callable[[Tensor], T], ids: Sequence[int]) -> list[T]:
        """Decode the images ``ids`` and apply ``function`` to each uint8 [3, h, w], both in the threads.

        Raises:
            RunError: more than a thousandth of the split is damaged.
        """
        # Few pieces, as each costs time, but small enough that the threads finish at about the same time.
        size = max(1, len(ids) // (4 * self.workers))
        pieces = (ids[start : start + size] for start in range(0, len(ids), size))
        with self._lock:
            pool = self._pool  # made once: several threads read batches
        mapped = pool.map(lambda piece: [function(self._image(i)) for i in piece], pieces)
        return list(chain.from_iterable(mapped))

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.workers, "decode")

    def _image(self, i: int) -> Tensor:
        """Decode image i, or the next image of its class that is not damaged."""
        for j in chain(range(i, len(self)), range(i)):
            if j in self.damaged or (j != i and self.labels[j] != self.labels[i]):
                continue
            try:
                return decode(self.encoded(j), self.upright)
            except (RuntimeError, OSError, ValueError) as error:
                self._record_damage(j, error)
        raise RunError(f"{self.name(i)} cannot be decoded, and no other image of its class can: replace them")

    def _record_damage(self, i: int, error: Exception) -> None:
        with self._lock:
            if i in self.damaged:
                return  # another thread was first
            self.damaged[i] = reason(error)
            log.warning("%s is damaged and replaced by the next image of its class: %s", self.name(i), self.damaged[i])
            if len(self.damaged) > MAX_DAMAGED * len(self):
                first = ", ".join(self.name(j) for j in list(self.damaged)[:3])
                raise RunError(
                    f"{len(self.damaged)} damaged images so far, more than {MAX_DAMAGED:.1%} of {len(self)} ({first}"
                    f"{', ...' if len(self.damaged) > 3 else ''}): replace or remove them, or prepare the dataset again"
                )


def decode(data: Tensor, upright: bool = False) -> Tensor:
    """Decode an image of one of ``FORMATS``, detected from the content: uint8 [k] -> uint8 [3, h, w].

    As in torchvision's ImageFolder, grey becomes three equal channels, CMYK is converted, an alpha channel is dropped
    and EXIF's orientation is ignored unless the image is to be ``upright``. Of a moving picture it is the first frame.
    Grey of more than 8 bits is scaled by the range of its type (:func:`grey_shares`).

    Raises:
        RuntimeError, OSError, ValueError: the data is damaged, or no picture.
    """
    native = _native() if data[:3].tolist() == JPEG else None  # for JPEGs only: a damaged PNG can end its process
    image = _pillow(data, upright) if native is None else native(data, RGB, upright)
    if image.ndim != 3 or image.shape[0] != 3 or 0 in image.shape:
        raise ValueError(f"it has the shape {list(image.shape)}")
    return image


@cache
def _native() -> Callable[[Tensor, int, bool], Tensor] | None:
    """torchvision's decoder, or None if this version of torchvision has none (it is deprecated since 0.29)."""
    try:
        import torchvision.io  # noqa: F401  # registers the operator, which unlike its wrapper does not warn

        return torch.ops.image.decode_image  # type: ignore[no-any-return]
    except (ImportError, AttributeError):
        return None


def _pillow(data: Tensor, upright: bool) -> Tensor:
    import numpy as np

    with open_photo(BytesIO(data.numpy().tobytes())) as image:
        return torch.from_numpy(np.array(to_rgb(image, upright))).permute(2, 0, 1)


def is_deep(image: "Image") -> bool:
    """Whether an image is grey of more than 8 bits, as integers or floats."""
    return image.mode[0] in "IF"


def is_deep_colour(image: "Image") -> bool:
    """Whether an image has more than 8 bits of each colour, of which Pillow reads the higher 8.

    Pillow scales those of the other formats by the range that is in the file.
    """
    return image.format in ("PNG", "TIFF") and ";16" in str(getattr(image, "tile", ""))  # how the pixels are stored


def to_rgb(image: "Image", upright: bool = False) -> "Image":
    """Convert an open image to RGB of 8 bits; ``upright``: turn it as EXIF's orientation says.

    Raises:
        OutOfRange: values that the range of their type does not have.
        OSError, ValueError: the image is damaged, or Pillow does not convert it.
    """
    import numpy as np
    from PIL import Image, ImageOps

    if is_deep(image):
        grey = Image.fromarray((256 * grey_shares(image)).clip(max=255).astype(np.uint8))
        grey.getexif()[0x0112] = image.getexif().get(0x0112, 1)  # the orientation
        image = grey
    return (ImageOps.exif_transpose(image) if upright else image).convert("RGB")


class OutOfRange(ValueError):
    """Values of an image that the range of its type does not have."""


def grey_shares(image: "Image") -> "np.ndarray":
    """Values of a grey image of more than 8 bits as shares of the range of their type: float64 [h, w] in [0, 1].

    The range is that of the file's type, not of the image's values, so that images keep their relative brightness:
    0 .. 2**bits - 1, without the negative half of a signed type, and 0 .. 1 of floats.

    Raises:
        OutOfRange: negative values, NaN, or floats above 1.
    """
    import numpy as np

    tags = getattr(image, "tag_v2", {})  # of a TIFF; the other formats have 16 bits, or Pillow scales to them
    values, bits = np.array(image), tags.get(258, (16,))[0]
    if image.mode != "F":
        signed = tags.get(339, (1,))[0] == 2
        values = values.view(np.uint32) if bits == 32 and not signed else values
        values = values.astype(np.int64)
        top, scale = 2 ** (bits - signed) - 1, 2.0 ** (bits - signed)
    else:
        top, scale = 1, 1.0
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= top):  # nor with NaN
        raise OutOfRange(f"values from {low:g} to {high:g}, not from 0 to {top}")
    return (top - values if tags.get(262) == 0 else values) / scale  # 0: white is zero


@cache
def endings() -> tuple[str, ...]:
    """The endings of files of ``FORMATS`` that the installed Pillow reads, in lower case."""
    from PIL import Image

    formats = (*FORMATS, "MPO")  # JPEGs in one file, of which the first is read
    return tuple(ending for ending, name in Image.registered_extensions().items() if name in formats)


@contextlib.contextmanager
def open_photo(file: BinaryIO) -> "Iterator[Image]":
    """Open a photo with Pillow, which decodes it when its pixels are asked for.

    Raises:
        OSError, ValueError: it is damaged, of another format, or has more pixels than Pillow's limit; also inside of
            the ``with`` block.
    """
    from PIL import Image, UnidentifiedImageError

    Image.init()
    try:
        with Image.open(file, formats=[name for name in FORMATS if name in Image.OPEN]) as image:
            image.info.pop("transparency", None)  # Pillow would warn that it is lost
            yield image
    except UnidentifiedImageError as error:  # its message has the object in memory, not the file
        raise UnidentifiedImageError("cannot identify image file") from error
    except (OSError, ValueError, MemoryError):
        raise
    except Exception as error:  # plugins of Pillow raise many kinds of errors
        raise ValueError(str(error)) from error


def read_photo(path: Path) -> "Image":
    """Read a photo as RGB.

    Raises:
        RunError: it cannot be read.
    """
    try:
        with open_regular(path) as file, open_photo(file) as image:
            return to_rgb(image)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no photo that can be read"
        raise RunError(f"{path}: {why}") from error
