"""A quick look at every image of a dataset before anything is trained: which are broken, and a hash of them all.

Of each image the header is read, and the mark at the end of the file that a copy which was cut short does not have. An
image of a format without such a mark is decoded. What was found is kept in the user's cache folder, under the names,
sizes and times of the files, so that a grid looks once.
"""

import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import SEEK_END
from pathlib import Path
from typing import Any, BinaryIO

from ssl_bench import files
from ssl_bench.data.photos import opened
from ssl_bench.hardware import available_cores

EDGE = 4096  # bytes at the start and at the end of an image that its mark depends on
END = {"JPEG": b"\xff\xd9", "MPO": b"\xff\xd9", "PNG": b"IEND"}
FEW = 2000  # images that are looked at within a second or so: no progress bar

_LOOKS: dict[Path, dict[str, Any]] = {}  # of this process

Look = tuple[int, str, str]  # size in bytes, mark of the content, what is wrong or ""


def look(file: BinaryIO, whole: bool) -> Look:
    """Look at one image. Its mark is the CRC-32 of both of its ends, or with ``whole`` the SHA-256 of all bytes."""
    size = file.seek(0, SEEK_END)
    start, end = _at(file, 0), _at(file, max(0, size - EDGE))
    mark = f"{zlib.crc32(start + end):08x}"
    if whole:
        file.seek(0)
        mark = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # BytesIO is one, too
    try:
        file.seek(0)
        with opened(file) as image:
            if image.format not in END or END[image.format] not in end:
                image.load()
    except (OSError, ValueError) as error:
        return size, mark, "empty" if not size else "no image" if "cannot identify" in str(error) else "damaged"
    return size, mark, ""


def _at(file: BinaryIO, place: int) -> bytes:
    file.seek(place)
    return file.read(EDGE)


def look_at_all(
    names: Sequence[str],
    labels: Sequence[int],
    open_image: Callable[[int], BinaryIO],
    whole: bool,
    stamp: Any,
) -> dict[str, Any]:
    """Look at all images, in threads, with a progress bar on a terminal.

    Args:
        names: of the images, which do not depend on where they are stored.
        labels: of the images.
        open_image: opens image i.
        whole: hash all bytes.
        stamp: plain values that change whenever an image may have changed.

    Returns:
        ``content``, ten digits for the names, labels, sizes and marks of the images that are not broken, and
        ``broken``, what is wrong with the others by name.
    """
    place = _cache(json.dumps([names, labels, whole, stamp]))
    if isinstance(known := _LOOKS.get(place) or files.read_json(place), dict):
        return known

    def one(i: int) -> Look:
        try:
            with open_image(i) as file:
                return look(file, whole)
        except OSError as error:
            return 0, "", error.strerror or str(error)

    with ThreadPoolExecutor(4 * available_cores()) as pool:  # more than cores: a network disk answers slowly
        looks = list(_shown(pool.map(one, range(len(names))), len(names)))
    content, broken = hashlib.sha256(), dict[str, str]()
    for name, label, (size, mark, wrong) in zip(names, labels, looks, strict=True):
        if wrong:
            broken[name] = wrong
        else:
            content.update(f"{name}\0{label}\0{size}\0{mark}\n".encode(errors="surrogateescape"))
    found = {"content": content.hexdigest()[:10], "broken": broken}
    _LOOKS[place] = found
    with contextlib.suppress(OSError):  # the home directory may be read-only
        place.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(place, found)
    return found


def _cache(text: str) -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = f"images-{hashlib.sha256(text.encode(errors='surrogateescape')).hexdigest()[:20]}.json"
    return Path(folder, "ssl_bench", name) if os.path.isabs(folder) else Path(os.devnull)  # a user without a home


def _shown(looks: Iterable[Look], count: int) -> Iterable[Look]:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(
        looks, f"looking at {count} images", count, console=console, disable=count < FEW or not console.is_terminal
    )
