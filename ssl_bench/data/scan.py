"""A scan of every image of a dataset before anything is trained: find broken ones and copies, and hash all.

Of each image the header is read, and the end of the file for the format's end mark, which a file that was cut short
lacks. An image of a format without an end mark is decoded. The result is kept in the user's cache folder, by the names,
sizes, places and times of the files, so that a grid scans once.
"""

import contextlib
import hashlib
import json
import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import SEEK_END
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ssl_bench import files
from ssl_bench.data.photos import Unsupported, is_deep, open_photo, to_rgb
from ssl_bench.data.splits import Originals, twins
from ssl_bench.hardware import available_cores

EDGE = 4096  # bytes at the start and at the end of an image that its checksum depends on
END = {"JPEG": b"\xff\xd9", "MPO": b"\xff\xd9", "PNG": b"IEND"}
VERSION = 8  # of the result of a scan, so that a result of an earlier version is not read
SETTLED = 60  # seconds: a file may change once more without another time or size so soon after a change
MANY = 2000  # images that take more than a second or so: a progress bar


class Scanned(NamedTuple):
    """Facts about an image: its bytes, the CRC-32 of both ends of the file, and a checksum for its identity."""

    size: int = 0
    ends: str = ""
    checksum: str = ""
    wrong: str = ""  # why it is broken
    pages: bool = False  # several of them, or frames
    opened: bool = True


def scan_image(file: BinaryIO, whole: bool = False) -> Scanned:
    """Scan one image. The checksum is the CRC-32 of both ends, or if ``whole`` the SHA-256 of all."""
    size = file.seek(0, SEEK_END)
    start, end = (file.read(EDGE) for at in (0, max(0, size - EDGE)) if file.seek(at) == at)
    ends, wrong, pages = f"{zlib.crc32(start + end):08x}", "", False
    checksum = _sha256(file) if whole else ends
    try:
        file.seek(0)
        with open_photo(file) as image:
            # Of the JPEGs in an MPO all but the first are the camera's own.
            pages = image.format != "MPO" and bool(getattr(image, "is_animated", False))
            mark = END.get(image.format or "")
            if is_deep(image) or mark is None or mark not in end:
                to_rgb(image)
    except (OSError, ValueError) as error:
        wrong = "empty" if not size else "no image" if "cannot identify" in str(error) else "damaged"
        wrong = str(error) if isinstance(error, Unsupported) else wrong
    return Scanned(size, ends, checksum, wrong, pages)


def scan_images(
    names: Sequence[str],
    labels: Sequence[int],
    open_image: Callable[[str], BinaryIO],
    whole: bool,
    place: str,
    written: Mapping[str, files.Mark | None],
) -> dict[str, Any]:
    """Scan all images, in threads, with a progress bar on a terminal.

    Args:
        names: of the images, which do not depend on where they are stored.
        labels: of the images.
        open_image: opens an image by its name.
        whole: hash all bytes.
        place: where the files are.
        written: marks of the files, by their names; None: there is no such file.

    Returns:
        ``content``, a hash of ten digits of the names, labels, sizes and checksums of the images that are not broken;
        ``broken``, what is wrong with the others by name; ``pages``, how many images have several; ``twins``, for each
        image the first one with the same bytes; and ``marks``, of each image what copies of it have in common.
    """

    def scan(name: str) -> Scanned:
        try:
            with open_image(name) as file:
                return scan_image(file, whole)
        except OSError as error:
            return Scanned(wrong=error.strerror or str(error), opened=False)

    def scan_all() -> dict[str, Any]:
        from rich.console import Console
        from rich.progress import track

        content, console = hashlib.sha256(), Console(stderr=True)
        with ThreadPoolExecutor(4 * available_cores()) as pool:  # more than cores: a network disk answers slowly
            images, quiet = pool.map(scan, names), len(names) < MANY or not console.is_terminal
            shown = track(images, f"scanning {len(names)} images", len(names), console=console, disable=quiet)
            scanned = list(shown)
        for name, label, image in zip(names, labels, scanned, strict=True):
            if not image.wrong:
                text = f"{name}\0{label}\0{image.size}\0{image.checksum}\n"
                content.update(text.encode(errors="surrogateescape"))
        marks = [None if image.wrong else f"{image.size} {image.ends}" for image in scanned]
        return {
            "content": content.hexdigest()[:10],
            "broken": {name: image.wrong for name, image in zip(names, scanned, strict=True) if image.wrong},
            "pages": sum(image.pages for image in scanned),
            "twins": twins(Originals(marks, lambda i: hash_of(open_image, names[i]))),
            "marks": marks,
            "opened": all(image.opened for image in scanned),
        }

    newest = max((mark[3] for mark in written.values() if mark), default=0)
    return remembered([place, whole, names, labels, written], scan_all, newest)


def remembered(key: Any, find: Callable[[], dict[str, Any]], newest: int = 0) -> dict[str, Any]:
    """The result of reading files, kept in the cache folder.

    Args:
        key: plain values that change whenever the result may have changed.
        find: makes it, of plain values.
        newest: when one of the files has last changed, in nanoseconds; nothing is kept so soon after a change.
    """
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    text = json.dumps([VERSION, key]).encode(errors="surrogateescape")
    path = Path(folder, "ssl_bench", f"images-{hashlib.sha256(text).hexdigest()[:20]}.json")
    # A user without a home has no cache folder.
    settled = os.path.isabs(folder) and time.time_ns() - newest > SETTLED * 10**9
    if settled and (kept := files.read_json(path, dict, named=False)) is not None:
        return kept  # type: ignore[no-any-return]
    result = find()
    if settled and result.pop("opened", True):  # a file that could not be opened may be there the next time
        with contextlib.suppress(OSError):  # the home directory may be read-only
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_text(path, json.dumps(result))
    return result


def hash_of(open_image: Callable[[str], BinaryIO], name: str) -> str:
    """The hash of all bytes of an image; a text of its own if it cannot be read any more."""
    try:
        with open_image(name) as file:
            return _sha256(file)
    except OSError:
        return f"{name} cannot be read"


def _sha256(file: BinaryIO) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # BytesIO is one, too
