"""A quick look at every image of a dataset before anything is trained: find broken ones and copies, and compute a hash
of all.

Of each image the header is read, and the end of the file for the format's end mark, which a file that was cut short
lacks. An image of a format without an end mark, or of more than 8 bits, is decoded. The result is kept in the
user's cache folder, by the names, sizes, places and times of the files, so that a grid looks once.
"""

import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import SEEK_END
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypedDict

import numpy as np

from ssl_bench import files
from ssl_bench.data.photos import OutOfRange, grey_shares, is_deep, is_deep_colour, open_photo, to_rgb
from ssl_bench.errors import ConfigError
from ssl_bench.hardware import available_cores

EDGE = 4096  # bytes at the start and at the end of an image that its checksum depends on
END = {"JPEG": b"\xff\xd9", "MPO": b"\xff\xd9", "PNG": b"IEND"}
MOST_PIXELS = 512  # of a JPEG for each byte: a bit for 8 x 8 of them
VERSION = 6  # of the result of a look, so that a result of an earlier version is not read
BLACK = 1 / 16  # highest value of a class of which 16 or fewer of 256 levels are left: 12 of 16 bits
DARKEST = 0.25  # highest value of all images of more than 8 bits that have their whole range; 14 of 16 bits do not
FEW = 2000  # images that are looked at within a second or so: no progress bar

_LOOKS: dict[Path, dict[str, Any]] = {}  # of this process


class Look(NamedTuple):
    """The look of an image: its bytes, the CRC-32 of both ends of the file, and a checksum for its identity."""

    size: int
    ends: str
    checksum: str
    wrong: str = ""
    brightest: float | None = None  # highest value as look_at_all has it

    @property
    def mark(self) -> str | None:
        """A key that copies of the image share; None for a broken image."""
        return None if self.wrong else f"{self.size} {self.ends}"


def look(file: BinaryIO, whole: bool) -> Look:
    """Look at one image. The checksum is the CRC-32 of both ends, or if ``whole`` the SHA-256 of all."""
    size = file.seek(0, SEEK_END)
    start, end = _read_edge(file, 0), _read_edge(file, max(0, size - EDGE))
    checksum, brightest = f"{zlib.crc32(start + end):08x}", None
    seen = Look(size, checksum, checksum)
    if whole:
        file.seek(0)
        checksum = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # BytesIO is one, too
        seen = seen._replace(checksum=checksum)
    try:
        file.seek(0)
        with open_photo(file) as image:
            form, pixels = image.format, image.width * image.height
            if is_deep(image):
                brightest = float(grey_shares(image).max())
            elif is_deep_colour(image):
                brightest = int(np.asarray(to_rgb(image)).max()) / 255
            elif form not in END or END[form] not in end:
                to_rgb(image)
            elif pixels > MOST_PIXELS * size:
                if END[form] == END["JPEG"]:  # which would be decoded as grey
                    raise ValueError("cut short")
                image.load()
    except OutOfRange as error:
        return seen._replace(wrong=str(error))
    except (OSError, ValueError) as error:
        wrong = "empty" if not size else "no image" if "cannot identify" in str(error) else "damaged"
        return seen._replace(wrong=wrong)
    return seen._replace(brightest=brightest)


def _read_edge(file: BinaryIO, start: int) -> bytes:
    file.seek(start)
    return file.read(EDGE)


class _Seen(TypedDict):
    """What :func:`look_at_all` returns."""

    content: str
    broken: dict[str, str]
    brightest: dict[str, float]
    copies: list[Any]
    marks: list[Any]


def look_at_all(
    names: Sequence[str],
    labels: Sequence[int],
    groups: Sequence[str],
    open_image: Callable[[int], BinaryIO],
    whole: bool,
    stamp: Any,
) -> dict[str, Any]:
    """Look at all images, in threads, with a progress bar on a terminal.

    Args:
        names: of the images, which do not depend on where they are stored.
        labels: of the images.
        groups: of the images, by which ``brightest`` is counted.
        open_image: opens image i.
        whole: hash all bytes.
        stamp: plain values that change whenever an image may have changed.

    Returns:
        ``content``, a hash of ten digits of the names, labels, sizes and checksums of the images that are not broken;
        ``broken``, what is wrong with the others by name; ``brightest``, by group the highest value of the images of
        more than 8 bits, as a share of the range of its type; ``copies``, pairs of an image and the first one with the
        same bytes; and ``marks``, of each image what copies of it have in common.
    """
    path = _cache_path(json.dumps([VERSION, names, labels, groups, whole, stamp]))
    if (kept := _kept(path, _Seen)) is not None:
        return kept

    def look_at(i: int) -> Look | str:
        try:
            with open_image(i) as file:
                return look(file, whole)
        except OSError as error:
            return error.strerror or str(error)

    with ThreadPoolExecutor(4 * available_cores()) as pool:  # more than cores: a network disk answers slowly
        looks = list(_with_progress(pool.map(look_at, range(len(names))), len(names)))
        marks = [seen.mark if isinstance(seen, Look) else None for seen in looks]
        copies = _copies(marks, lambda alike: pool.map(partial(hash_of, open_image), alike))
    content, broken = hashlib.sha256(), dict[str, str]()
    for name, label, seen in zip(names, labels, looks, strict=True):
        if wrong := seen.wrong if isinstance(seen, Look) else seen:
            broken[name] = wrong
        elif isinstance(seen, Look):
            text = f"{name}\0{label}\0{seen.size}\0{seen.checksum}\n"
            content.update(text.encode(errors="surrogateescape"))
    brightest: dict[str, float] = {}
    for group, seen in zip(groups, looks, strict=True):
        if isinstance(seen, Look) and seen.brightest is not None:
            brightest[group] = max(seen.brightest, brightest.get(group, 0.0))
    result = {"content": content.hexdigest()[:10], "broken": broken, "brightest": brightest} | {
        "copies": copies,
        "marks": marks,
    }
    if all(isinstance(seen, Look) for seen in looks):  # a file that could not be opened may be there the next time
        _keep(path, result)
    return result


def remembered(key: Any, look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of a look at a file, kept like those of images.

    Args:
        key: plain values that change whenever the result may have changed.
        look: makes it, of plain values.
    """
    path = _cache_path(json.dumps([VERSION, key]))
    kept = _kept(path)
    return _keep(path, look()) if kept is None else kept


def _kept(path: Path, shape: Any = dict) -> dict[str, Any] | None:
    return _LOOKS.get(path) or files.read_json(path, shape, named=False)


def _keep(path: Path, result: dict[str, Any]) -> dict[str, Any]:
    _LOOKS[path] = result
    with contextlib.suppress(OSError):  # the home directory may be read-only
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(path, json.dumps(result))
    return result


def check_depth(brightest: Mapping[str, float], place: str) -> None:
    """Refuse images of more than 8 bits that would be almost black in 8 bits: all of them, or those of one group.

    Args:
        brightest: as :func:`look_at_all` returns it.
        place: the key that says where the images are, with its value.

    Raises:
        ConfigError: naming the place.
    """
    if not brightest:
        return
    black, highest = min(brightest, key=brightest.__getitem__), max(brightest.values())
    remedy = "save them with the whole range, or with 8 bits"
    if highest < DARKEST:
        raise ConfigError(
            f"{place}: the images of more than 8 bits would be almost black: their highest value is {highest:.2g} of "
            f"the range of their type: {remedy}"
        )
    if brightest[black] <= BLACK:
        raise ConfigError(
            f"{place}: the images of more than 8 bits in {black} would be almost black beside the others: their "
            f"highest value is {brightest[black]:.2g} of the range of their type, as of 12 bits in files of 16, and "
            f"{highest:.2g} elsewhere: {remedy}"
        )


def _copies(marks: Sequence[str | None], hashes: Callable[[Sequence[int]], Iterable[str]]) -> list[list[int]]:
    """Pairs of an image and the first one with the same bytes; ``hashes`` reads all bytes of images.

    Only images with one mark are read: those of formats without compression can have the same ends.
    """
    alike: dict[str, list[int]] = {}
    for i, mark in enumerate(marks):
        if mark is not None:
            alike.setdefault(mark, []).append(i)
    several = sorted(i for ids in alike.values() if len(ids) > 1 for i in ids)
    first: dict[str, int] = {}
    pairs = [[i, first.setdefault(digest, i)] for i, digest in zip(several, hashes(several), strict=True)]
    return [[i, other] for i, other in pairs if i != other]


def hash_of(open_image: Callable[[int], BinaryIO], i: int) -> str:
    """The hash of all bytes of an image; a text of its own if it cannot be read any more."""
    try:
        with open_image(i) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # BytesIO is one, too
    except OSError:
        return f"{i} cannot be read"


def _cache_path(text: str) -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = f"images-{hashlib.sha256(text.encode(errors='surrogateescape')).hexdigest()[:20]}.json"
    return Path(folder, "ssl_bench", name) if os.path.isabs(folder) else Path(os.devnull)  # a user without a home


def _with_progress(looks: Iterable[Look | str], count: int) -> Iterable[Look | str]:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(
        looks, f"looking at {count} images", count, console=console, disable=count < FEW or not console.is_terminal
    )
