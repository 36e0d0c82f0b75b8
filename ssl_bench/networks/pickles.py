"""The content of a pickle without the classes and functions that it names: tensors, and inert objects.

Neither ``torch.load`` nor pickle's own loader is used: what a file calls is compared with a short list, ``MAKERS``, and
anything else becomes an :class:`Inert` object.

A file must not take more time or memory than its size is worth either. So nothing computes with a value of the file
before its type is known to be plain, and no step copies, hashes or prints a value that may be large or deep: a file can
name one value in many places, for a few bytes each.
"""

import pickle
from collections.abc import Callable
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

LONGEST = 500  # characters of the name of a class, a part or a tensor
MOST_DIMENSIONS = 64  # of a tensor, which torch can index
MOST_ARGUMENTS = 16  # of a function of MAKERS


class Inert(dict[str, Any]):
    """Stands for an object of any class. It keeps entries, as a mapping of its own class would have them."""

    def ignore(self, _: object) -> None:
        """Leave an element of a list or a set out."""

    append = extend = add = ignore


class _Named(Inert):
    """Stands for a class or a function by its name; calling it makes an :class:`Inert` object."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


def require_plain(holds: bool) -> None:
    """Refuse a file in which a value is not what ``torch.save`` writes in its place."""
    if not holds:
        raise pickle.UnpicklingError


def numbers(given: Any) -> tuple[int, ...]:
    """Sizes or strides of a tensor, which are small tuples of whole numbers."""
    require_plain(isinstance(given, tuple | list) and len(given) <= MOST_DIMENSIONS)
    require_plain(all(type(number) is int and 0 <= number < 2**62 for number in given))
    return tuple(given)


def strided(values: Any, offset: Any, size: Any, stride: Any, *_: object) -> Tensor:
    """A view of the values of a storage, [N]."""
    require_plain(isinstance(values, Tensor) and values.ndim == 1)
    (first,), sizes, strides = numbers((offset,)), numbers(size), numbers(stride)
    last = first + sum((length - 1) * step for length, step in zip(sizes, strides, strict=True))
    require_plain(0 in sizes or last < len(values))
    return cast(Tensor, values.as_strided(sizes, strides, values.storage_offset() + first))


def _strided_as(
    values: Any, offset: Any, size: Any, stride: Any, _: object, __: object, dtype: Any, *___: Any
) -> Tensor:
    return strided(values.view(_DTYPES[dtype.name]), offset, size, stride)


def _without_storage(dtype: Any, size: Any, *_: object) -> Tensor:
    return torch.empty(numbers(size), dtype=_DTYPES[dtype.name], device="meta")


def _sparse(_: object, data: Any) -> Tensor:
    """A sparse tensor of that shape without its values, which are never loaded."""
    require_plain(isinstance(data, tuple))
    size = next(part for part in data if isinstance(part, tuple))
    return torch.sparse_coo_tensor(size=numbers(size), check_invariants=True)  # type: ignore[call-arg]


def _ordered(pairs: Any = ()) -> dict[str, Any]:
    """A mapping; Python 2 wrote its entries as a list of pairs, which are moved into it."""
    content = dict[str, Any]()
    if isinstance(pairs, list):
        for pair in pairs:
            require_plain(isinstance(pair, tuple | list) and len(pair) == 2)
            _put(content, *pair)
        pairs.clear()
    return content


def _put(mapping: Any, key: Any, value: Any) -> None:
    """Set an entry of a mapping of the file, if its key can be part of a tensor's name: a text, or a whole number."""
    require_plain(isinstance(mapping, dict))
    if type(key) is str or (type(key) is int and abs(key) < 2**63):
        mapping[str(key)] = value


def _first(value: Any, *_: object) -> Any:
    return value


def _of_type(make: Any, _: object, arguments: Any, *__: object) -> Any:
    return _made(make, arguments)


MAKERS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _ordered,
    "torch.Size": _first,
    "torch._utils._rebuild_tensor": strided,
    "torch._utils._rebuild_tensor_v2": strided,
    "torch._utils._rebuild_tensor_v3": _strided_as,
    "torch._utils._rebuild_parameter": _first,
    "torch._utils._rebuild_parameter_with_state": _first,
    "torch._utils._rebuild_sparse_tensor": _sparse,
    "torch._utils._rebuild_meta_tensor_no_storage": _without_storage,
    "torch._tensor._rebuild_from_type_v2": _of_type,
}
_DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
STORAGES = {
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
    """The result of a call that a file asks for: of a known maker of tensors, otherwise an inert object."""
    make = MAKERS.get(named.name) if isinstance(named, _Named) else None
    if make is None or not isinstance(arguments, tuple):
        return Inert()
    require_plain(len(arguments) <= MOST_ARGUMENTS)
    return make(*arguments)


_Loader: Any = cast(Any, pickle)._Unpickler  # the one in Python, whose steps can be replaced


class _Reader(_Loader):  # type: ignore[misc]
    """Reads a pickle and calls nothing but :data:`MAKERS`.

    Args:
        file: at the start of the pickle.
        persistent: as in :func:`unpickled`, and so are ``names``.
    """

    def __init__(self, file: BinaryIO, persistent: Callable[..., Any], names: list[str]) -> None:
        super().__init__(file, encoding="latin1")  # text of Python 2
        self._persistent, self._names = persistent, names

    def find_class(self, module: str, name: str) -> _Named:
        require_plain(len(module) + len(name) <= LONGEST)
        path = f"{module}.{name}"
        if path not in MAKERS and path not in STORAGES and path not in _DTYPES:
            self._names.append(path)
        return _Named(path)

    def get_extension(self, code: int) -> None:
        """Stands for an object that a program has registered by a number."""
        self.append(Inert())

    def persistent_load(self, pid: Any) -> Any:
        require_plain(isinstance(pid, tuple) and len(pid) <= MOST_ARGUMENTS)
        return self._persistent(*pid)

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

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        _put(self.stack[-1], key, value)

    def _set_items(self) -> None:
        items = self.pop_mark()
        for key, value in zip(items[::2], items[1::2], strict=True):
            _put(self.stack[-1], key, value)

    def _dict(self) -> None:
        items = self.pop_mark()
        self.append(_ordered(list(zip(items[::2], items[1::2], strict=True))))

    def _set(self) -> None:
        self.append(Inert())

    def _frozen_set(self) -> None:
        self.pop_mark()
        self.append(Inert())

    def _byte_array(self) -> None:
        """Read bytes; pickle's own step takes the memory before it reads."""
        self.append(self.read(int.from_bytes(self.read(8), "little")))

    dispatch = _Loader.dispatch | {
        pickle.REDUCE[0]: _reduce,
        pickle.NEWOBJ[0]: _reduce,
        pickle.NEWOBJ_EX[0]: _new_with_keywords,
        pickle.BUILD[0]: _build,
        pickle.INST[0]: _instance,
        pickle.OBJ[0]: _object,
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: _set_items,
        pickle.DICT[0]: _dict,
        pickle.EMPTY_SET[0]: _set,
        pickle.FROZENSET[0]: _frozen_set,
        pickle.BYTEARRAY8[0]: _byte_array,
    }


def unpickled(file: BinaryIO, persistent: Callable[..., Any], names: list[str]) -> Any:
    """The object of the pickle that begins here in a file.

    Keys of mappings are texts; entries with other keys than texts and whole numbers are left out.

    Args:
        persistent: gives the values of a storage, [N], for the parts of its persistent id.
        names: takes the names of classes and functions that are not called.

    Raises:
        pickle.UnpicklingError: it is damaged.
        EOFError: it is cut short.
    """
    try:
        return _Reader(file, persistent, names).load()
    except (EOFError, OSError):
        raise
    except Exception as error:  # a damaged pickle makes the loader raise errors of any kind
        raise pickle.UnpicklingError from error
