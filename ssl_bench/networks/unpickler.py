"""Files of ``torch.save``: those of this package by torch's own reader, those from elsewhere by :func:`read`.

:func:`read` calls neither ``torch.load`` nor pickle's own loader, since torch's refuses what PyTorch Lightning saves:
the functions that a file calls are compared with a short list, ``MAKERS``, and any other becomes an :class:`Inert`
object.

Reading a file needs time and memory in proportion to its size. So nothing computes with a value of the file before its
type is known to be plain, and no step copies, hashes or prints a value that may be large or deep: a file can name one
value in many places, for a few bytes each.
"""

import io
import math
import pickle
import sys
import warnings
import zipfile
from collections.abc import Callable
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

from ssl_bench import files

LONGEST = 500  # characters of the name of a class, a part or a tensor
MOST_DIMENSIONS = 64  # of a tensor, which torch can index
MOST_ARGUMENTS = 16  # of a function of MAKERS
BEFORE_1_6 = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # how files of torch before 1.6 begin


class Inert(dict[str, Any]):
    """Stands for an object of any class. Entries that a file sets in it are stored: it may be a mapping of tensors."""

    def ignore(self, _: object) -> None:
        """Do not store an element of a list or a set."""

    append = extend = ignore


class _Named(Inert):
    """Stands for a class or a function by its name; calling it makes an :class:`Inert` object."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


def _require_plain(holds: bool) -> None:
    """Refuse a file in which a value is not what ``torch.save`` writes in its place."""
    if not holds:
        raise pickle.UnpicklingError


def _numbers(given: Any) -> tuple[int, ...]:
    """Sizes or strides of a tensor, which are small tuples of whole numbers."""
    _require_plain(isinstance(given, tuple | list) and len(given) <= MOST_DIMENSIONS)
    _require_plain(all(type(number) is int and 0 <= number < 2**62 for number in given))
    return tuple(given)


def _strided(values: Any, offset: Any, size: Any, stride: Any, *_: object) -> Tensor | Inert:
    """A view of the values of a storage, [N]; an inert object for a tensor with more elements than its storage."""
    _require_plain(isinstance(values, Tensor) and values.ndim == 1)
    (first,), sizes, strides = _numbers((offset,)), _numbers(size), _numbers(stride)
    last = first + sum((length - 1) * step for length, step in zip(sizes, strides, strict=True))
    _require_plain(0 in sizes or last < len(values))
    if math.prod(sizes) > len(values):
        return Inert()
    return cast(Tensor, values.as_strided(sizes, strides, values.storage_offset() + first))


def _put(mapping: Any, key: Any, value: Any) -> None:
    """Set an entry of a mapping of the file, if its key can be part of a tensor's name: a text, or a whole number."""
    _require_plain(isinstance(mapping, dict))
    if type(key) is str or (type(key) is int and abs(key) < 2**63):
        mapping[str(key)] = value


def _first(value: Any, *_: object) -> Any:
    return value


def _of_type(make: Any, _: object, arguments: Any, *__: object) -> Any:
    return _made(make, arguments)


MAKERS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": lambda *_: {},  # its entries follow
    "torch._utils._rebuild_tensor_v2": _strided,
    "torch._utils._rebuild_parameter": _first,
    "torch._utils._rebuild_parameter_with_state": _first,
    "torch._tensor._rebuild_from_type_v2": _of_type,
}
# Codes that torch.save writes for no protocol of its own, and whose steps call, hash or take memory before they read.
REFUSED = (
    *(pickle.DICT, pickle.INST, pickle.OBJ, pickle.NEWOBJ_EX, pickle.EXT1, pickle.EXT2, pickle.EXT4),
    *(pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET, pickle.BYTEARRAY8),
)
STORAGES = {
    "torch.DoubleStorage": torch.float64,
    "torch.FloatStorage": torch.float32,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
    "torch.ComplexFloatStorage": torch.complex64,
}


def _made(named: Any, arguments: Any) -> Any:
    """The result of a call that a file asks for: of a known maker of tensors, otherwise an inert object."""
    make = MAKERS.get(named.name) if isinstance(named, _Named) else None
    if make is None or not isinstance(arguments, tuple):
        return Inert()
    _require_plain(len(arguments) <= MOST_ARGUMENTS)
    return make(*arguments)


_Loader: Any = cast(Any, pickle)._Unpickler  # the one in Python, whose steps can be replaced


class _Reader(_Loader):  # type: ignore[misc]
    """Reads a pickle and calls nothing but :data:`MAKERS`.

    Args:
        file: at the start of the pickle.
        persistent: gives the values of a storage, [N], for the parts of its persistent id.
        names: list to which the names of classes and functions that are not called are appended.
    """

    def __init__(self, file: BinaryIO, persistent: Callable[..., Any], names: list[str]) -> None:
        super().__init__(file)
        self._persistent, self._names = persistent, names

    def find_class(self, module: str, name: str) -> _Named:
        _require_plain(len(module) + len(name) <= LONGEST)
        path = f"{module}.{name}"
        if path not in MAKERS and path not in STORAGES:
            self._names.append(path)
        return _Named(path)

    def persistent_load(self, pid: Any) -> Any:
        _require_plain(isinstance(pid, tuple) and len(pid) <= MOST_ARGUMENTS)
        return self._persistent(*pid)

    def _reduce(self) -> None:
        arguments = self.stack.pop()
        self.stack[-1] = _made(self.stack[-1], arguments)

    def _build(self) -> None:
        """Drop the state of an object."""
        self.stack.pop()

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        _put(self.stack[-1], key, value)

    def _set_items(self) -> None:
        items = self.pop_mark()
        for key, value in zip(items[::2], items[1::2], strict=True):
            _put(self.stack[-1], key, value)

    dispatch = {code: step for code, step in _Loader.dispatch.items() if bytes([code]) not in REFUSED} | {
        pickle.REDUCE[0]: _reduce,
        pickle.NEWOBJ[0]: _reduce,
        pickle.BUILD[0]: _build,
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: _set_items,
    }


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
    """The content of a file of ``torch.save``, and the names of the classes and functions that were not called.

    Keys of mappings are texts; whole numbers become texts, and entries with other keys are not read.

    Raises:
        ValueError: the file is of another kind, which is named, or damaged.
        zipfile.BadZipFile: the file was cut short.
    """
    start = file.read(len(BEFORE_1_6))
    if start == BEFORE_1_6:
        raise ValueError("it is of torch before 1.6: torch.save(torch.load(FILE), FILE) converts it")
    if not start.startswith(b"PK\x03\x04"):
        raise ValueError("it is no file of torch.save" if start else "it is empty")
    with zipfile.ZipFile(file) as parts:
        present = parts.namelist()
        folder = next((name.removesuffix("data.pkl") for name in present if name.endswith("/data.pkl")), None)
        if folder is None:
            raise ValueError("it is an archive of another kind than that of torch.save")
        if f"{folder}constants.pkl" in present:
            remedy = "torch.save(torch.jit.load(FILE).state_dict(), 'weights.pth') makes a state dict of it"
            raise ValueError(f"it is a TorchScript archive: {remedy}")
        files.compare_checksums(file)
        order = f"{folder}byteorder"
        if order in present and parts.read(order) != sys.byteorder.encode():
            raise ValueError("its numbers have the other order of bytes")
        storages = dict[str, Tensor]()

        def persistent(_: object, kind: Any, key: Any, *__: object) -> Tensor:
            _require_plain(type(key) is str and len(key) <= LONGEST)
            if key not in storages:
                content = parts.read(f"{folder}data/{key}")
                storages[key] = torch.frombuffer(bytearray(content or 1), dtype=torch.uint8)[: len(content)]
            return storages[key].view(STORAGES[kind.name])

        names = list[str]()
        try:
            return _Reader(io.BytesIO(parts.read(f"{folder}data.pkl")), persistent, names).load(), names
        except Exception as error:  # a damaged pickle makes the loader raise errors of any kind
            raise ValueError("it is damaged, or no file of torch.save") from error
