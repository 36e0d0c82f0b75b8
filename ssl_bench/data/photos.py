"""Encoded photos of many sizes, decoded by threads when they are read.

Reading and decoding release Python's global lock, so threads are enough: no data is pickled or copied between
processes. An image is decoded once per step, for any number of views.
"""

import contextlib
import hashlib
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from io import SEEK_END, BytesIO
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.nn.functional import interpolate

from ssl_bench import files
from ssl_bench.data.dataset import MissingData
from ssl_bench.data.source import Source
from ssl_bench.errors import ConfigError, RunError, printable, reason
from ssl_bench.hardware import cores_per_process

T = TypeVar("T")
LARGEST = 2**30  # bytes of an encoded image
# Formats of Pillow that are read; for some others it would start another program.
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM")
JPEG = [0xFF, 0xD8, 0xFF]  # its first bytes
RGB = 3  # torchvision.io.ImageReadMode.RGB
# A photo of more pixels is shrunk by a whole number to half as many or fewer when it is decoded, while its short side
# stays this long: its views are computed in float32, with 12 bytes for a pixel.
MOST_PIXELS, SHORTEST = 2**25, 1024


class Unsupported(ValueError):
    """A photo has more pixels or bits than are read."""


@dataclass(eq=False)
class Photos(Source):
    """A split of photos in files or in memory as encoded bytes, which are decoded each time an image is read.

    Args:
        labels: int64 [N].
        names: of the images.
        open_image: opens an image by its name; an OSError if it cannot be read.
        workers: threads that decode; None shares the CPU cores among the processes of this machine.
        upright: turn the images as EXIF's orientation says; done for the user's own images.
        folder: of the images, if they are files.
    """

    labels: Tensor
    names: Sequence[str]
    open_image: Callable[[str], BinaryIO]
    workers: int | None
    upright: bool = False
    folder: Path | None = None

    def __post_init__(self) -> None:
        self._threads = self.workers or cores_per_process()
        self._pool = ThreadPoolExecutor(self._threads, "decode")

    def encoded(self, i: int) -> Tensor:
        """Read the bytes of image i, uint8 [k]. Raises OSError or ValueError if they cannot be read."""
        with self.open_image(self.names[i]) as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)

    def name(self, i: int) -> str:
        """The path of image i if it is a file, else its name; for messages."""
        return f"{self.folder}/{self.names[i]}" if self.folder else self.names[i]

    def path_of(self, i: int) -> str:
        return self.name(i) if self.folder else self.names[i].rpartition("/")[2]

    def take(self, ids: Tensor) -> list[Tensor]:
        """Decode the images ``ids`` [n], each uint8 [3, h, w], channels last in memory."""
        return self.map(lambda image: image, ids.tolist())

    def map(self, function: Callable[[Tensor], T], ids: Sequence[int]) -> list[T]:
        """Decode the images ``ids`` and apply ``function`` to each uint8 [3, h, w], both in the threads.

        Raises:
            RunError: an image cannot be decoded.
        """
        # Few pieces, as each costs time, but small enough that the threads finish at about the same time.
        size = max(1, len(ids) // (4 * self._threads))
        pieces = (ids[start : start + size] for start in range(0, len(ids), size))
        mapped = self._pool.map(lambda piece: [function(self._image(i)) for i in piece], pieces)
        return list(chain.from_iterable(mapped))

    def _image(self, i: int) -> Tensor:
        try:
            return decode(self.encoded(i), self.upright)
        except (RuntimeError, OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or reason(error)
            remedy = "replace or remove it"
            remedy += "; dataset.skip_broken leaves out only images whose header or end is damaged" * self.upright
            raise RunError(printable(f"{self.name(i)} cannot be decoded ({why}): {remedy}")) from error


def decode(data: Tensor, upright: bool = False) -> Tensor:
    """Decode an image of one of ``FORMATS``, detected from the content: uint8 [k] -> uint8 [3, h, w].

    As in torchvision's ImageFolder, grey becomes three equal channels, CMYK is converted, an alpha channel is dropped
    and EXIF's orientation is ignored unless the image is to be ``upright``. Of several pages or frames it is the first.

    Raises:
        RuntimeError, OSError, ValueError: the data is damaged, no picture, or one of more than 8 bits.
    """
    if data[:3].tolist() != JPEG:  # a damaged PNG can end torchvision's process
        with open_photo(BytesIO(data.numpy().data)) as opened:
            return torch.from_numpy(np.array(to_rgb(opened, upright))).permute(2, 0, 1)
    import torchvision.io  # noqa: F401  # registers the operator, which unlike its wrapper does not warn

    image: Tensor = torch.ops.image.decode_image(data, RGB, upright)
    height, width = image.shape[1:]
    if (factor := _shrink_factor(height, width)) > 1:
        image = interpolate(image[None], (height // factor, width // factor), mode="bilinear", antialias=True)[0]
    return image


def _shrink_factor(height: int, width: int) -> int:
    if height * width <= MOST_PIXELS:
        return 1
    return min(math.ceil(math.sqrt(2 * height * width / MOST_PIXELS)), max(1, min(height, width) // SHORTEST))


def is_deep(image: Image.Image) -> bool:
    """Whether the header of an image says that its grey or its colours have more than 8 bits.

    Not so for colours of formats other than PNG and TIFF, which Pillow scales by the range that is in the file.
    """
    stored = str(getattr(image, "tile", ""))  # how the pixels are in the file
    return image.mode[0] in "IF" or (image.format in ("PNG", "TIFF") and ";16" in stored)


def to_rgb(image: Image.Image, upright: bool = False) -> Image.Image:
    """Convert an open image to RGB of 8 bits; ``upright``: turn it as EXIF's orientation says.

    Raises:
        OSError, ValueError: the image is damaged, has more than 8 bits, or Pillow does not convert it.
    """
    if is_deep(image):
        raise Unsupported("more than 8 bits")
    factor = _shrink_factor(image.height, image.width)
    image.load()
    if upright:
        ImageOps.exif_transpose(image, in_place=True)
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    return rgb.reduce(factor) if factor > 1 else rgb


@cache
def endings() -> tuple[str, ...]:
    """The endings of files of ``FORMATS`` that the installed Pillow reads, in lower case."""
    formats = (*FORMATS, "MPO")  # JPEGs in one file, of which the first is read
    return tuple(ending for ending, name in Image.registered_extensions().items() if name in formats)


@contextlib.contextmanager
def open_photo(file: BinaryIO) -> Iterator[Image.Image]:
    """Open a photo with Pillow, which decodes it when its pixels are read.

    Raises:
        OSError, ValueError: it is damaged, of another format, or has more pixels than Pillow's limit; also inside of
            the ``with`` block.
    """
    Image.init()
    try:
        with Image.open(file, formats=[name for name in FORMATS if name in Image.OPEN]) as image:
            image.info.pop("transparency", None)  # Pillow would warn that it is lost
            yield image
    except UnidentifiedImageError as error:  # its message has the object in memory, not the file
        raise UnidentifiedImageError("cannot identify image file") from error
    except (OSError, ValueError):
        raise
    except Image.DecompressionBombError as error:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise Unsupported(f"more than the {most:,} pixels that Pillow decodes") from error
    except Exception as error:  # plugins of Pillow raise many kinds of errors
        raise ValueError(reason(error)) from error


def read_photo(path: Path) -> Image.Image:
    """Read a photo as RGB.

    Raises:
        RunError: it cannot be read.
    """
    try:
        with files.open_regular(path) as file, open_photo(file) as image:
            return to_rgb(image)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no photo that can be read"
        raise RunError(printable(f"{path}: {why}")) from error


# ---- The check of a file before anything is trained

EMPTY = "empty"
EDGE = 4096  # bytes at the start and at the end of an image that its checksum depends on
END = {"JPEG": b"\xff\xd9", "MPO": b"\xff\xd9", "PNG": b"IEND"}


class Scanned(NamedTuple):
    """Facts about the file of an image."""

    size: int = 0  # bytes
    ends: str = ""  # CRC-32 of its first and last 4 KiB
    checksum: str = ""  # for the identity of the data
    wrong: str = ""  # why it is broken, or ""
    pages: bool = False  # whether it has several pages or frames


def scan_image(file: BinaryIO, whole: bool = False) -> Scanned:
    """Check an image by its header and by the mark at the end of its file, which is missing if the file was cut short.

    An image of a format without such a mark is decoded.

    Args:
        whole: the checksum is the SHA-256 of all bytes; else the CRC-32 of both ends.
    """
    size = file.seek(0, SEEK_END)
    start, end = (file.read(EDGE) for at in (0, max(0, size - EDGE)) if file.seek(at) == at)
    ends, wrong, pages = f"{zlib.crc32(start + end):08x}", "", False
    checksum = sha256(file) if whole else ends
    try:
        file.seek(0)
        with open_photo(file) as image:
            # Of the JPEGs in an MPO all but the first are the camera's own.
            pages = image.format != "MPO" and bool(getattr(image, "is_animated", False))
            mark = END.get(image.format or "")
            if is_deep(image) or mark is None or mark not in end:
                to_rgb(image)
    except (OSError, ValueError) as error:
        wrong = EMPTY if not size else "no image" if "cannot identify" in str(error) else "damaged"
        wrong = str(error) if isinstance(error, Unsupported) else wrong
    return Scanned(size, ends, checksum, wrong, pages)


def sha256(file: BinaryIO) -> str:
    """The hash of all bytes of a file."""
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # BytesIO is one, too


# ---- Packed photos

QUALITY = 90
LARGEST_INDEX = 2**32  # bytes: a photo takes 32
CHUNK = 1024  # images that are encoded between two writes

Track = Callable[[Iterable[list[int]]], Iterable[list[int]]]  # yields the same chunks and shows the progress


class Packed(Photos):
    """A packed split.

    Args:
        path: of its files, without their endings.
        workers: threads that decode.

    Raises:
        ConfigError: a file is missing or damaged, or the two do not belong together.
    """

    def __init__(self, path: Path, workers: int | None) -> None:
        self.path, index = path.with_name(f"{path.name}.jpegs"), path.with_name(f"{path.name}.npz")
        try:
            archive = BytesIO(files.read_bytes(index, LARGEST_INDEX))
            files.compare_checksums(archive)  # np.savez compresses nothing, either
            with np.load(archive) as content:
                self.offsets, labels = content["offsets"], content["labels"]
            with files.open_regular(self.path):  # of a pipe it would wait
                self._bytes = np.memmap(self.path, dtype=np.uint8, mode="c")  # copy-on-write: the file stays unchanged
            lengths = np.diff(self.offsets)
            whole = len(lengths) == len(labels) > 0 == self.offsets[0] and self.offsets[-1] == len(self._bytes)
            if not whole or lengths.min() <= 0:
                raise ValueError("the index is that of other photos")
        except Exception as error:  # zipfile and NumPy raise many kinds of errors, and advise to unpickle the file
            why = getattr(error, "strerror", None) or f"it is damaged, or does not belong to {self.path.name}"
            remedy = "make both with the same arguments after `ssl-bench prepare`, or set dataset.packed=false"
            kind = MissingData if isinstance(error, FileNotFoundError) else ConfigError
            file = getattr(error, "filename", None) or index
            raise kind(f"dataset.packed=true: {file} cannot be read ({why}): {remedy}") from error
        super().__init__(torch.from_numpy(labels), (), files.open_regular, workers)

    def name(self, i: int) -> str:
        return f"{self.path}[{i}]"

    def path_of(self, i: int) -> str:
        return str(i)

    def encoded(self, i: int) -> Tensor:
        return torch.from_numpy(self._bytes[self.offsets[i] : self.offsets[i + 1]])


def pack(photos: Photos, path: Path, side: int, track: Track) -> None:
    """Write photos as JPEGs with a short side of at most ``side``; smaller photos keep their size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lengths = list[int]()

    def fill(file: BinaryIO) -> None:
        for chunk in track(chunks(len(photos))):
            lengths.extend(file.write(data) for data in photos.map(lambda image: encode(image, side), chunk))

    files.write(path.with_name(f"{path.name}.jpegs"), fill)
    offsets, labels = np.cumsum([0, *lengths]), photos.labels.numpy()
    index = path.with_name(f"{path.name}.npz")
    files.write(index, lambda file: np.savez(file, offsets=offsets, labels=labels))


def encode(image: Tensor, side: int) -> bytes:
    """Encode uint8 [3, h, w] as a JPEG with a short side of at most ``side``."""
    photo, out = Image.fromarray(image.permute(1, 2, 0).numpy()), BytesIO()
    if (short := min(photo.size)) > side:
        width, height = (length * side // short for length in photo.size)
        photo = photo.resize((width, height), Image.Resampling.BILINEAR)
    photo.save(out, "JPEG", quality=QUALITY)
    return out.getvalue()


def chunks(count: int) -> list[list[int]]:
    """Split 0 .. count - 1 into lists of CHUNK."""
    return [list(range(start, min(start + CHUNK, count))) for start in range(0, count, CHUNK)]
