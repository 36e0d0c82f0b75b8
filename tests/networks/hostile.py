"""Damaged and hostile files of weights, made byte by byte: what each is, its content, and the names of its tensors."""

import io
import json
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Iterator
from typing import Any

import torch
from safetensors.torch import save

TENSOR = torch.arange(6.0).reshape(2, 3)
RUN = "run"  # the folder that a payload makes
Names = set[str] | None  # of tensors that all are TENSOR; None: the file is refused
HUGE = 10**11  # bytes, more than a machine has


# ---- pickles, by their opcodes


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def group(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


def listed(*items: bytes) -> bytes:
    return b"](" + b"".join(items) + b"e"


def mapping(*items: bytes) -> bytes:
    """Keys and values by turns."""
    return b"}(" + b"".join(items) + b"u"


def name(path: str) -> bytes:
    module, _, function = path.rpartition(".")
    return f"c{module}\n{function}\n".encode()


def call(path: str, *arguments: bytes) -> bytes:
    return name(path) + group(*arguments) + b"R"


def put(place: int) -> bytes:
    return b"r" + struct.pack("<I", place)


def get(place: int) -> bytes:
    return b"j" + struct.pack("<I", place)


def storage(
    kind: bytes = name("torch.FloatStorage"),
    key: bytes = text("0"),
    count: bytes = number(6),
    what: bytes = text("storage"),
) -> bytes:
    return group(what, kind, key, text("cpu"), count) + b"Q"


def tensor(
    values: bytes,
    offset: bytes = number(0),
    size: bytes = group(number(2), number(3)),
    stride: bytes = group(number(3), number(1)),
) -> bytes:
    return call("torch._utils._rebuild_tensor_v2", values, offset, size, stride, b"\x89", b"N")


def numbers(*values: int) -> bytes:
    return group(*map(number, values))


MKDIR = call("os.mkdir", text(RUN))
# Values that cost much where they are hashed, printed, copied or iterated over; each is left at place 9.
DOUBLED = b")" + put(9) + b"0" + b"".join(group(get(9), get(9)) + put(9) + b"0" for _ in range(60))
DEEP = b")" + b"\x85" * 200_000 + put(9) + b"0"
LISTS = b"]" * 100_000 + b"a" * 99_999 + put(9) + b"0"
LONG = text("x" * 200_000) + put(9) + b"0"
MANY = listed(*[group(text("k"), b"N")] * 5_000) + put(9) + b"0"


def expanded() -> bytes:
    """A tensor of 2^40 elements that are one; it is left at place 9."""
    return tensor(storage(), size=numbers(2**40), stride=numbers(0)) + put(9) + b"0"


def programs() -> Iterator[tuple[str, bytes, Names]]:
    """Pickles: a name, the opcodes before STOP, and the names of the tensors."""
    good = tensor(storage())
    w, again, only = text("w") + good, get(9), {"w"}
    repeated = 20_000
    yield "as it should be", mapping(w), only
    # code
    yield "a call", mapping(w, text("x"), MKDIR), only
    yield "a call instead of a mapping", MKDIR, None
    yield "a call as a key", mapping(w, MKDIR, good), only
    yield "a call as the size", mapping(text("w"), tensor(storage(), size=MKDIR)), None
    yield "a call as the storage", mapping(text("w"), tensor(MKDIR)), None
    yield "a call as the kind of storage", mapping(text("w"), tensor(storage(kind=MKDIR))), None
    yield "a function as the kind of storage", mapping(text("w"), tensor(storage(kind=name("os.mkdir")))), None
    yield (
        "a state",
        mapping(w, text("x"), call("os.mkdir", text("a")) + mapping(text("__setstate__"), name("eval")) + b"b"),
        only,
    )
    yield (
        "a call by a helper",
        mapping(
            w, text("x"), call("torch._tensor._rebuild_from_type_v2", name("os.mkdir"), b"N", group(text(RUN)), b"N")
        ),
        only,
    )
    yield (
        "getattr",
        mapping(w, text("x"), call("builtins.getattr", name("os.mkdir"), text("__call__")) + group(text(RUN)) + b"R"),
        only,
    )
    # tensors beside their storage
    for label, arguments in (
        ("a size beyond", {"size": numbers(2, 4)}),
        ("a huge size", {"size": numbers(2**40, 2**40), "stride": numbers(2**40, 1)}),
        ("a huge size of one element", {"size": numbers(2**40, 2**40), "stride": numbers(0, 0)}),
        ("a stride beyond", {"stride": numbers(4, 1)}),
        ("a stride that overflows", {"stride": numbers(2**63 + 3, 1)}),
        ("a negative stride", {"stride": numbers(-3, 1)}),
        ("an offset beyond", {"offset": number(1)}),
        ("a negative offset", {"offset": number(-1)}),
        ("an offset that is a text", {"offset": text("0")}),
        ("sizes of another length", {"size": numbers(6)}),
        ("a size of texts", {"size": group(text("2"), text("3"))}),
        ("a thousand dimensions", {"size": numbers(*[1] * 1000), "stride": numbers(*[1] * 1000)}),
    ):
        yield label, mapping(text("w"), tensor(storage(), **arguments)), None
    yield (
        "an offset that is a large tensor",
        expanded() + mapping(text("w"), tensor(storage(), offset=again)),
        None,
    )
    yield (
        "a size that is a large tensor",
        expanded() + mapping(text("w"), tensor(storage(), size=again)),
        None,
    )
    yield (
        "entries that are a large tensor",
        expanded() + mapping(w, text("x"), call("collections.OrderedDict", again)),
        only,
    )
    yield "a tensor larger than its storage", expanded() + mapping(w, text("x"), again), only
    # persistent ids
    for label, pid in (
        ("an id that is a text", text("run") + b"Q"),
        ("an id that is a number", number(1) + b"Q"),
        ("an id of protocol 0", b"Prun\n"),
        ("an id that is a large tensor", expanded() + again + b"Q"),
        ("an id of a module", group(text("module"), name("os.mkdir"), text(RUN), text("code")) + b"Q"),
        ("a key outside", storage(key=text("../../etc/passwd"))),
        ("a key that is a number", storage(key=number(0))),
        ("a key that doubles", DOUBLED + storage(key=again)),
        ("a key that is long", LONG + storage(key=again)),
    ):
        yield label, mapping(text("w"), tensor(pid)), None
    # time and memory
    yield "a key that is hashed for ages", DOUBLED + mapping(w, again, good), only
    yield "a key that is too deep to hash", DEEP + mapping(w, again, good), only
    yield "a set", DOUBLED + mapping(w, text("x"), b"\x8f(" + again + b"\x90", text("y"), b"(" + again + b"\x91"), None
    yield "a mapping by DICT", DOUBLED + b"(" + w + again + good + b"d", None
    yield "deep lists", LISTS + mapping(w, text("x"), again), only
    mappings = b"".join(mapping(text("x"), again, text("y"), again) + put(9) + b"0" for _ in range(40))
    yield "mappings that double", mapping(w) + put(9) + b"0" + mappings + again, None
    yield "a mapping in itself", mapping(w) + put(9) + text("x") + again + b"s", None
    yield (
        "mappings too deep",
        mapping(w) + put(9) + b"0" + (mapping(text(""), again) + put(9) + b"0") * 3_000 + again,
        None,
    )
    yield "long names", LONG + b"(" + (again + again + b"\x93") * repeated + b"l" + b"0" + mapping(w), None
    yield "a long key", LONG + mapping(w, again, good), None
    yield (
        "entries in many places",
        MANY + b"(" + (name("collections.OrderedDict") + again + b"\x85R") * repeated + b"l0" + mapping(w),
        only,
    )
    yield (
        "many arguments",
        b"("
        + b"N" * 50_000
        + b"t"
        + put(9)
        + b"0("
        + (name("torch._utils._rebuild_parameter") + again + b"R") * repeated
        + b"l0"
        + mapping(w),
        None,
    )
    for label, code in (
        ("bytes", b"\x8e" + struct.pack("<Q", HUGE)),
        ("bytes in place", b"\x96" + struct.pack("<Q", HUGE)),
        ("a text", b"\x8d" + struct.pack("<Q", HUGE)),
        ("a frame", b"\x95" + struct.pack("<Q", HUGE)),
        ("a number", b"\x8b" + struct.pack("<i", 2**31 - 1)),
        ("a place", b"Nr\xff\xff\xff\xff0j\xff\xff\xff\x00"),
    ):
        yield f"{label} of a huge size", code, None
    yield "marks without an end", b"(" * 100_000, None
    yield "nothing but the end", b"", None


# ---- what stands around a pickle


def archive(pickled: bytes) -> bytes:
    """A file of torch.save with another pickle."""
    given, content = io.BytesIO(), io.BytesIO()
    torch.save({"w": TENSOR}, given)
    with zipfile.ZipFile(given) as parts, zipfile.ZipFile(content, "w") as file:
        for part in parts.namelist():
            file.writestr(part, pickled if part.endswith("/data.pkl") else parts.read(part))
    return content.getvalue()


def pickles() -> Iterator[tuple[str, bytes, Names]]:
    for label, program, names in programs():
        yield label, archive(b"\x80\x02" + program + b"."), names
    yield "a pickle alone", pickle.dumps({"w": [1.0, 2.0]}), None
    yield "a pickle that is a call", b"\x80\x02" + MKDIR + b".", None
    content = io.BytesIO()
    torch.save({"w": TENSOR}, content, _use_new_zipfile_serialization=False)
    yield "torch before 1.6", content.getvalue(), None


def archives() -> Iterator[tuple[str, bytes, Names]]:
    pickled = b"\x80\x02" + mapping(text("w"), tensor(storage())) + b"."
    good = archive(pickled)

    evil = pickle.dumps(os.mkdir)

    def with_parts(*names: str, compression: int = zipfile.ZIP_STORED) -> bytes:
        content = io.BytesIO(good)
        with zipfile.ZipFile(content, "a", compression) as file:
            for part in names:
                file.writestr(part, bytes(2**22) if compression else evil)
        return content.getvalue()

    yield "paths of parts", with_parts("../run", "/run", "b/data.pkl", "c\n"), {"w"}
    yield "a compressed bomb", with_parts("x", compression=zipfile.ZIP_DEFLATED), None
    yield "TorchScript", with_parts("archive/constants.pkl"), None
    record = good.rindex(b"PK\x05\x06")
    directory = good.index(b"PK\x01\x02")
    entry = good.index(b"archive/data/0", directory) - 46

    def with_bytes(place: int, data: bytes) -> bytes:
        return good[:place] + data + good[place + len(data) :]

    yield "a part that declares 4 GB", with_bytes(entry + 20, b"\xf0\xff\xff\xff" * 2), None
    yield "a part that is encrypted", with_bytes(entry + 8, b"\x01"), None
    yield "a part that is compressed", with_bytes(entry + 10, b"\x08"), None
    yield "a part beyond the end", with_bytes(entry + 42, b"\xff\xff\xff\x7f"), None
    yield "a part at another place", with_bytes(entry + 42, b"\x00\x00\x00\x00"), None
    yield "another number of parts", with_bytes(record + 8, b"\xff\xff\xff\xff"), {"w"}
    yield "no end", good[:record], None
    name_at = good.index(b"archive/data/0")
    yield "a part of another name", with_bytes(name_at, b"archive/data/1"), None
    both = with_bytes(name_at, b"archive/data/1")
    yield "a missing storage", both[: entry + 46] + b"archive/data/1" + both[entry + 60 :], None
    large = io.BytesIO()
    with zipfile.ZipFile(large, "w") as file:
        file.writestr("archive/data.pkl", pickled)
        file.writestr("archive/data/0", bytes(2**20))
        first = file.infolist()[-1]
        for n in range(1, 20_000):  # the same bytes under many names
            file.filelist.append(other := zipfile.ZipInfo(f"archive/data/{n}"))
            other.header_offset, other.CRC = first.header_offset, first.CRC
            other.file_size = other.compress_size = 2**20
    yield "parts that are the same bytes", large.getvalue(), None


def safetensors() -> Iterator[tuple[str, bytes, Names]]:
    good = save({"w": TENSOR})
    values = good[-24:]

    def with_header(header: Any, size: int | None = None, data: bytes = values) -> bytes:
        written = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(written) if size is None else size) + written + data

    def one(**changes: Any) -> bytes:
        return with_header({"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} | changes})

    yield "as it should be", good, {"w"}
    yield "a huge header", with_header({}, size=2**62), None
    yield "a header of 90 MB", with_header({}, size=90_000_000), None
    yield "an empty header", with_header(b""), None
    yield "a header that is no JSON", with_header(b"{" * 200), None
    yield "a header that is deep", with_header(b'{"w":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), None
    yield "a header that is a list", with_header([1]), None
    yield "a header of bytes", with_header(b"\xff" * 40), None
    yield "a huge shape", one(shape=[2**40, 2**40]), None
    yield "a shape that overflows", one(shape=[2**62, 2**62, 0], data_offsets=[0, 0]), None
    yield "another shape", one(shape=[2, 4]), None
    yield "a negative shape", one(shape=[-2, -3]), None
    yield "another type", one(dtype="F64"), None
    yield "a type that is none", one(dtype="os.mkdir"), None
    yield "an end before the start", one(data_offsets=[24, 0]), None
    yield "an end beyond the file", one(shape=[HUGE // 4], data_offsets=[0, HUGE]), None
    yield "a gap", with_header({"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}), None
    yield "a long name", with_header({"w" * 1000: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}), None
    yield "more bytes", good + b"x", None


def other_files() -> Iterator[tuple[str, bytes, Names]]:
    yield "empty", b"", None
    yield "text", b"no weights\n", None
    yield "zeros", bytes(4096), None
    yield "a pointer of Git LFS", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 24\n", None
    yield "HTML", b"<!DOCTYPE html><html><body>404</body></html>", None
    yield "gzip", b"\x1f\x8b\x08" + bytes(40), None
    yield "the start of an archive", b"PK\x03\x04", None


# ---- files that were damaged by chance


def damaged(content: bytes, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """The content cut at drawn places, and with drawn bits flipped, ``count`` of each."""
    draw = random.Random(seed)
    for _ in range(count):
        place = draw.randrange(len(content))
        yield f"cut at {place}", content[:place]
        place, bit = draw.randrange(len(content)), draw.randrange(8)
        yield f"bit {bit} of byte {place}", content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]
