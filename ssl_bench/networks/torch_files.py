"""The content of a file of ``torch.save`` without the classes and functions that it names: tensors, and inert objects.

Neither ``torch.load`` nor pickle's own loader is used: what a file calls is compared with a short list, ``MAKERS``, and
anything else becomes an :class:`Inert` object.
"""

import pickle
import sys
import zipfile
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

from ssl_bench import files

MAGIC = 0x1950A86A20F9469CFC6C  # the first number of a file in the format before torch 1.6
PROTOCOL = 1001


class Inert(dict[Any, Any]):
    """Stands for an object of any class. It keeps entries, as a mapping of its own class would have them."""

    def __hash__(self) -> int:  # type: ignore[override]  # it may be the key of a mapping
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def append(self, _: object) -> None:
        """Ignore an element of a list."""

    def extend(self, _: object) -> None:
        """Ignore elements of a list."""

    def add(self, _: object) -> None:
        """Ignore an element of a set."""


class _Named(Inert):
    """Stands for a class or a function by its name; calling it makes an :class:`Inert` object."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


def _strided(values: Tensor, offset: int, size: Sequence[int], stride: Sequence[int], *_: object) -> Tensor:
    """A view of the values of a storage; torch raises an error if it leaves the storage."""
    return values.as_strided(size, stride, values.storage_offset() + offset)


def _strided_as(
    values: Tensor,
    offset: int,
    size: Sequence[int],
    stride: Sequence[int],
    _: object,
    __: object,
    dtype: Any,
    *___: Any,
) -> Tensor:
    return _strided(values.view(_DTYPES[dtype.name]), offset, size, stride)


def _without_storage(dtype: Any, size: Sequence[int], *_: object) -> Tensor:
    return torch.empty(size, dtype=_DTYPES[dtype.name], device="meta")


def _sparse(_: object, data: Sequence[Any]) -> Tensor:
    """A sparse tensor of that shape without its values, which are never loaded."""
    size = next(part for part in data if isinstance(part, tuple))
    return torch.sparse_coo_tensor(size=size, check_invariants=True)  # type: ignore[call-arg]


def _data(tensor: Any, *_: object) -> Any:
    return tensor


def _of_type(make: Any, _: object, arguments: Any, *__: object) -> Any:
    return _made(make, arguments)


MAKERS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": dict,
    "torch.Size": tuple,
    "torch._utils._rebuild_tensor": _strided,
    "torch._utils._rebuild_tensor_v2": _strided,
    "torch._utils._rebuild_tensor_v3": _strided_as,
    "torch._utils._rebuild_parameter": _data,
    "torch._utils._rebuild_parameter_with_state": _data,
    "torch._utils._rebuild_sparse_tensor": _sparse,
    "torch._utils._rebuild_meta_tensor_no_storage": _without_storage,
    "torch._tensor._rebuild_from_type_v2": _of_type,
}
_DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
_STORAGES = {
    f"torch.{name}Storage": dtype
    for name, dtype in (
        ("Double", torch.float64),
        ("Float", torch.float32),
        ("Half", torch.float16),
        ("BFloat16", torch.bfloat16),
        ("Long", torch.int64),
        ("Int", torch.int32),
        ("Short", torch.int16),
        ("Char", torch.int8),
        ("Byte", torch.uint8),
        ("Bool", torch.bool),
        ("ComplexDouble", torch.complex128),
        ("ComplexFloat", torch.complex64),
    )
} | {"torch.storage.UntypedStorage": torch.uint8}


def _made(named: Any, arguments: Any) -> Any:
    """What a call of the file gives."""
    make = MAKERS.get(named.name) if isinstance(named, _Named) else None
    return make(*arguments) if make and isinstance(arguments, tuple) else Inert()


_Loader: Any = cast(Any, pickle)._Unpickler  # the one in Python, whose steps can be replaced


class _Reader(_Loader):  # type: ignore[misc]
    """Reads a pickle and calls nothing but :data:`MAKERS`.

    Args:
        file: at the start of the pickle.
        persistent: gives the values of a storage for its persistent id.
        names: takes the names of classes and functions that are not called.
    """

    def __init__(self, file: BinaryIO, persistent: Callable[[Any], Any], names: list[str]) -> None:
        super().__init__(file, encoding="latin1")  # text of Python 2
        self._persistent, self._names = persistent, names

    def find_class(self, module: str, name: str) -> _Named:
        path = f"{module}.{name}"
        if path not in MAKERS and path not in _STORAGES and path not in _DTYPES:
            self._names.append(path)
        return _Named(path)

    def get_extension(self, code: int) -> None:
        """Stands for an object that a program has registered by a number."""
        self.append(Inert())

    def persistent_load(self, pid: Any) -> Any:
        return self._persistent(pid)

    def _reduce(self) -> None:
        arguments = self.stack.pop()
        self.stack[-1] = _made(self.stack[-1], arguments)

    def _new_with_keywords(self) -> None:
        self.stack.pop()
        self._reduce()

    def _build(self) -> None:
        """Leave the state of an object out."""
        self.stack.pop()

    def _instance(self) -> None:
        module, name = (self.readline()[:-1].decode("ascii") for _ in range(2))
        arguments = tuple(self.pop_mark())
        self.append(_made(self.find_class(module, name), arguments))

    def _object(self) -> None:
        named, *arguments = self.pop_mark()
        self.append(_made(named, tuple(arguments)))

    dispatch = _Loader.dispatch | {
        pickle.REDUCE[0]: _reduce,
        pickle.NEWOBJ[0]: _reduce,
        pickle.NEWOBJ_EX[0]: _new_with_keywords,
        pickle.BUILD[0]: _build,
        pickle.INST[0]: _instance,
        pickle.OBJ[0]: _object,
    }


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
    if order in parts.namelist() and parts.read(order).decode() != sys.byteorder:
        raise ValueError("its numbers have the other order of bytes")

    def persistent(pid: Any) -> Tensor:
        _, kind, key, _, _ = pid
        name = f"{folder}data/{key}"
        if name not in storages:
            with parts.open(name) as part:
                storages[name] = _bytes(cast(BinaryIO, part), parts.getinfo(name).file_size)
        return storages[name].view(_STORAGES[kind.name])

    with parts.open(f"{folder}data.pkl") as part:
        return _unpickled(_Reader(cast(BinaryIO, part), persistent, names)), names


def _read_old(file: BinaryIO) -> tuple[Any, list[str]]:
    names, storages = list[str](), dict[str, Tensor]()
    size = file.seek(0, 2)
    file.seek(0)

    def persistent(pid: Any) -> Any:
        if pid[0] == "module":
            return pid[1]
        _, kind, key, _, count, view = pid
        dtype = _STORAGES[kind.name]
        if key not in storages:
            if not 0 <= count * dtype.itemsize <= size:
                raise EOFError
            storages[key] = torch.empty(count * dtype.itemsize, dtype=torch.uint8)
        values = storages[key].view(dtype)
        return values if view is None else values[view[1] : view[1] + view[2]]

    def part() -> Any:
        return _unpickled(_Reader(file, persistent, names))

    if part() != MAGIC or part() != PROTOCOL:
        raise pickle.UnpicklingError("it is no file of torch.save")
    if not cast(Any, part()).get("little_endian", True) == (sys.byteorder == "little"):
        raise ValueError("its numbers have the other order of bytes")
    content = part()
    for key in part():
        values, count = storages[key], int.from_bytes(file.read(8), "little")
        if count and len(values) % count:
            raise pickle.UnpicklingError("a storage has another size than its tensors")
        _fill(file, values)
    return content, names


def _unpickled(reader: Any) -> Any:
    try:
        return reader.load()
    except (EOFError, OSError):
        raise
    except Exception as error:  # a damaged pickle makes the loader raise errors of any kind
        raise pickle.UnpicklingError(str(error)) from error


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
