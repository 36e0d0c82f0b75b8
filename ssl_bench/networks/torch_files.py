"""The two formats of ``torch.save``: an archive of a pickle and storages, and before torch 1.6 one after the other.

States of this package are written by :func:`packed` and read by :func:`unpacked`, files from elsewhere by :func:`read`.
"""

import io
import pickle
import sys
import warnings
import zipfile
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

from ssl_bench import files
from ssl_bench.networks.pickles import LONGEST, STORAGES, numbers, require_plain, strided, unpickled

MAGIC = 0x1950A86A20F9469CFC6C  # the first number of a file in the format before torch 1.6
PROTOCOL = 1001


def packed(state: dict[str, Any]) -> memoryview:
    """The file of a state: tensors and plain values."""
    buffer = io.BytesIO()  # torch.save to a file hides the reason of a failure such as a full disk
    torch.save(state, buffer)
    return buffer.getbuffer()


def unpacked(file: BinaryIO) -> Any:
    """The state in a file of :func:`packed`, on the CPU. It raises many kinds of errors if the file is damaged."""
    files.compare_checksums(file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(file, map_location="cpu", weights_only=True)


def read(file: BinaryIO) -> tuple[Any, list[str]]:
    """The content of a file of ``torch.save``, and the names of what stands in it as inert objects.

    Raises:
        pickle.UnpicklingError: it is damaged, or of another kind.
        ValueError: its checksums differ, or its numbers have the other order of bytes.
        EOFError: it is empty or cut short.
    """
    archive = file.read(4) == b"PK\x03\x04"  # else the format before torch 1.6, which has no checksums
    file.seek(0)
    if not archive:
        return _read_old(file)
    files.compare_checksums(file)
    with zipfile.ZipFile(file) as parts:
        return _read_archive(parts)


def _read_archive(parts: zipfile.ZipFile) -> tuple[Any, list[str]]:
    names, storages = list[str](), dict[str, Tensor]()
    folder = next((name.removesuffix("data.pkl") for name in parts.namelist() if name.endswith("/data.pkl")), None)
    if folder is None or f"{folder}constants.pkl" in parts.namelist():
        raise pickle.UnpicklingError("it is an archive of another kind than that of torch.save")
    order = f"{folder}byteorder"
    if order in parts.namelist():
        _check_order(parts.read(order) == sys.byteorder.encode())

    def persistent(_: object, kind: Any, key: Any, *__: object) -> Tensor:
        require_plain(type(key) is str and len(key) <= LONGEST)
        if key not in storages:
            part = parts.getinfo(f"{folder}data/{key}")
            with parts.open(part) as content:
                storages[key] = _bytes(cast(BinaryIO, content), part.file_size)
        return storages[key].view(STORAGES[kind.name])

    return unpickled(io.BytesIO(parts.read(f"{folder}data.pkl")), persistent, names), names


def _read_old(file: BinaryIO) -> tuple[Any, list[str]]:
    names, storages = list[str](), dict[str, Tensor]()
    left = file.seek(0, 2)  # bytes that storages can have yet
    file.seek(0)

    def persistent(what: Any, kind: Any, key: Any = None, _: object = None, count: Any = 0, view: Any = None) -> Any:
        nonlocal left
        if what == "module":
            return kind
        dtype = STORAGES[kind.name]
        require_plain(type(key) is str and len(key) <= LONGEST)
        if key not in storages:
            (count,) = numbers((count,))
            left -= count * dtype.itemsize
            if left < 0:
                raise EOFError
            storages[key] = torch.empty(count, dtype=dtype)
        values = storages[key].view(dtype)
        if view is None:
            return values
        require_plain(isinstance(view, tuple) and len(view) == 3)
        return strided(values, view[1], (view[2],), (1,))

    def part() -> Any:
        return unpickled(file, persistent, names)

    magic, protocol, info = part(), part(), part()
    require_plain(type(magic) is int and type(protocol) is int and isinstance(info, dict))
    if (magic, protocol) != (MAGIC, PROTOCOL):
        raise pickle.UnpicklingError("it is no file of torch.save")
    _check_order(info.get("little_endian", True) is (sys.byteorder == "little"))
    content, keys, unread = part(), part(), dict(storages)
    require_plain(isinstance(keys, list) and len(keys) == len(storages))
    for key in keys:
        require_plain(type(key) is str and key in unread)
        values = unread.pop(key)
        require_plain(int.from_bytes(file.read(8), "little") == len(values))
        _fill(file, values.view(torch.uint8))
    return content, names


def _check_order(same: bool) -> None:
    if not same:
        raise ValueError("its numbers have the other order of bytes")


def _bytes(file: BinaryIO, count: int) -> Tensor:
    values = torch.empty(count, dtype=torch.uint8)
    _fill(file, values)
    return values


def _fill(file: BinaryIO, values: Tensor) -> None:
    """Read bytes into a tensor uint8 [count]."""
    place, filled = memoryview(cast(Any, values.numpy())), 0
    while filled < len(place):
        count = cast(Any, file).readinto(place[filled : filled + 2**24])
        if not count:
            raise EOFError
        filled += count
