"""Damaged and hostile files of weights: a sentence, in time and memory, and no code run, or exactly the tensors."""

import argparse
import builtins
import collections
import contextlib
import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from omegaconf import OmegaConf
from torch import Tensor

from ssl_bench.networks.backbones import DigitsResNet
from ssl_bench.networks.weights import load_weights, read_weights
from tests.door.hostile import MARKER, SEED, outcome, variants

TENSOR = torch.arange(6.0).reshape(2, 3)
HUGE = 10**11  # bytes, more than a machine has
Files = Iterator[tuple[str, bytes, bool]]  # what it is, its content, and whether it is read as {"w": TENSOR}


# ---- pickles, of values and opcodes


class Raw(bytes):
    """Opcodes that are written as they are."""


class Items(tuple[Any, ...]):
    """A mapping of keys and values by turns, which need not be hashed to be written."""


class Pid(tuple[Any, ...]):
    """A storage in a pickle: its ``value`` is the persistent id."""


class Reduced:
    """An object that a pickle makes by a call: a function, its arguments, and what else ``__reduce__`` may return."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced

    def __call__(self) -> None:
        """A pickle can also call what a call returns."""


class Pickler(pickle._Pickler):  # type: ignore[name-defined,misc]
    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, Raw):
            self.write(obj)  # type: ignore[attr-defined]
        elif isinstance(obj, Items):
            self.write(b"}(")  # type: ignore[attr-defined]
            for each in obj:
                self.save(each)
            self.write(b"u")  # type: ignore[attr-defined]
        else:
            super().save(obj, save_persistent_id)  # type: ignore[misc]

    def persistent_id(self, obj: Any) -> Any:
        return obj[0] if isinstance(obj, Pid) else None


def pickled(*parts: Any) -> bytes:
    """The pickle of the last part; earlier ones are executed before it."""
    file = io.BytesIO()
    pickler = Pickler(file, 2)
    file.write(b"\x80\x02")
    for part in parts:
        pickler.save(part)
    return file.getvalue() + b"."


def storage(kind: Any = torch.FloatStorage, key: Any = "0", count: Any = 6) -> Pid:
    return Pid((("storage", kind, key, "cpu", count),))


def tensor(values: Any, offset: Any = 0, size: Any = (2, 3), stride: Any = (3, 1)) -> Reduced:
    rebuild = torch._utils._rebuild_tensor_v2  # type: ignore[attr-defined]
    return Reduced(rebuild, (values, offset, size, stride, False, None))


def call(function: Any, *arguments: Any) -> Reduced:
    return Reduced(function, arguments)


PLACE = struct.pack("<I", 999)
AGAIN, KEEP = Raw(b"j" + PLACE), Raw(b"r" + PLACE + b"0")  # a value that costs much stays at a place
MKDIR, T = call(os.mkdir, MARKER), tensor(storage())
DOUBLED: Any = ()
for _ in range(60):
    DOUBLED = (DOUBLED, DOUBLED)
EXPANDED = tensor(storage(), size=(2**40,), stride=(0,)), KEEP
LONG = "x" * 200_000, KEEP
# Opcodes that call, or could call, os.mkdir("HACKED").
TEXT, OS_MKDIR = b"X\x06\x00\x00\x00HACKED", b"cos\nmkdir\n"
OPCODES = {
    "REDUCE": OS_MKDIR + b"(" + TEXT + b"tR",
    "INST": b"(" + TEXT + b"ios\nmkdir\n",
    "OBJ": b"(" + OS_MKDIR + TEXT + b"o",
    "NEWOBJ": OS_MKDIR + TEXT + b"\x85\x81",
    "NEWOBJ_EX": OS_MKDIR + TEXT + b"\x85}\x92",
    "STACK_GLOBAL": b"\x8c\x02os\x8c\x05mkdir\x93" + TEXT + b"\x85R",
    "BUILD": b"ccollections\nOrderedDict\n)R}X\x05\x00\x00\x00items" + OS_MKDIR + b"sb",
    "EXT1": b"\x82\x01" + TEXT + b"\x85R",
}
SIZES = {
    "bytes": b"\x8e" + struct.pack("<Q", HUGE),
    "bytes in place": b"\x96" + struct.pack("<Q", HUGE),
    "a text": b"\x8d" + struct.pack("<Q", HUGE),
    "a frame": b"\x95" + struct.pack("<Q", HUGE),
    "a number": b"\x8b" + struct.pack("<i", 2**31 - 1),
    "a place": b"Nr\xff\xff\xff\xff0j\xff\xff\xff\x00",
}
# Tensors beside their storage.
WRONG: list[dict[str, Any]] = [{"size": (2, 4)}, {"size": (2**40, 2**40), "stride": (2**40, 1)}, {"stride": (4, 1)}]
WRONG += [{"size": (2**40, 2**40), "stride": (0, 0)}, {"stride": (2**63 + 3, 1)}, {"stride": (-3, 1)}, {"offset": 1}]
WRONG += [{"offset": -1}, {"offset": "0"}, {"size": (6,)}, {"size": ("2", "3")}, {"size": MKDIR}, {"values": MKDIR}]
WRONG += [{"size": (1,) * 1000, "stride": (1,) * 1000}]
WRONG += [{"values": storage(kind=kind)} for kind in (MKDIR, os.mkdir)]
WRONG += [{"values": storage(key=key)} for key in ("../../etc/passwd", 0, DOUBLED, "x" * 200_000)]
WRONG += [{"values": Pid((each,))} for each in ("run", 1, ("module", os.mkdir, MARKER, "code"))]
WRONG += [{"values": Raw(b"Prun\n")}]


class Object:
    pass


def values() -> Iterator[tuple[str, Any]]:
    """A value beside a tensor, which is read; many of them make the folder where ``pickle`` reads them."""
    by_type = torch._tensor._rebuild_from_type_v2  # type: ignore[attr-defined]
    parameter = torch._utils._rebuild_parameter  # type: ignore[attr-defined]
    yield "a call", MKDIR
    yield "eval", call(eval, f"__import__('os').mkdir({MARKER!r})")
    yield "a call by a helper", call(by_type, os.mkdir, torch.Tensor, (MARKER,), None)
    yield "a call in a helper", call(parameter, MKDIR, False, collections.OrderedDict())
    yield "a state", Reduced(collections.OrderedDict, (), {"__setstate__": eval})
    yield "items", Reduced(collections.defaultdict, (os.mkdir,), None, None, iter([("a", MKDIR)]))
    yield "getattr", call(call(builtins.getattr, os.mkdir, "__call__"), MARKER)
    yield "a tensor larger than its storage", EXPANDED[0]
    yield "entries that are a large tensor", call(collections.OrderedDict, EXPANDED[0])


def pickles() -> Files:
    yield "as it should be", archive(pickled({"w": T})), True
    for name, value in values():
        yield name, archive(pickled({"w": T, "x": value})), True
    for name, opcodes in (OPCODES | SIZES).items():
        yield name, archive(pickled(Raw(opcodes))), False
    for number, change in enumerate(WRONG):
        yield f"a wrong tensor: {number}", archive(pickled({"w": tensor(**{"values": storage()} | change)})), False
    for name, parts, read in programs():
        yield name, archive(pickled(*parts)), read
    yield "a pickle alone", pickle.dumps({"w": [1.0, 2.0]}), False
    yield "a pickle that is a call", pickled(MKDIR), False
    content = io.BytesIO()
    torch.save({"w": TENSOR}, content, _use_new_zipfile_serialization=False)
    yield "torch before 1.6", content.getvalue(), False


def programs() -> Iterator[tuple[str, tuple[Any, ...], bool]]:
    """Whole pickles: those with a call in another place, and those that take time or memory."""
    yield "a call as a key", (Items(("w", T, MKDIR, T)),), True
    for key in ("offset", "size"):
        yield f"a {key} that is a large tensor", (*EXPANDED, {"w": tensor(storage(), **{key: AGAIN})}), False
    yield "an id that is a large tensor", (*EXPANDED, {"w": tensor(Raw(AGAIN + b"Q"))}), False
    yield "a key that is hashed for ages", (Items(("w", T, DOUBLED, T)),), True
    yield "a key that is too deep to hash", (Raw(b")" + b"\x85" * 200_000 + KEEP), Items(("w", T, AGAIN, T))), True
    hashed = Raw(b"\x8f("), AGAIN, Raw(b"\x90")
    yield "a set", (DOUBLED, KEEP, Raw(b"}("), "w", T, "x", *hashed, Raw(b"u")), False
    yield "a mapping by DICT", (DOUBLED, KEEP, Raw(b"("), "w", T, AGAIN, T, Raw(b"d")), False
    deep = Raw(b"]" * 100_000 + b"a" * 99_999 + KEEP)
    yield "deep lists", (deep, Items(("w", T, "x", AGAIN))), True
    pairs = [each for _ in range(40) for each in (Items(("x", AGAIN, "y", AGAIN)), KEEP)]
    yield "mappings that double", ({"w": T}, KEEP, *pairs, AGAIN), False
    yield "a mapping in itself", ({"w": T}, KEEP, AGAIN, "x", AGAIN, Raw(b"s")), False
    nested = [each for _ in range(3_000) for each in (Items(("", AGAIN)), KEEP)]
    yield "mappings too deep", ({"w": T}, KEEP, *nested, AGAIN), False
    yield "long names", (*LONG, Raw(b"(" + (AGAIN + AGAIN + b"\x93") * 20_000 + b"l0"), {"w": T}), False
    yield "a long key", (*LONG, Items(("w", T, AGAIN, T))), False
    entries = Raw(b"](" + b"(X\x01\x00\x00\x00kNt" * 5_000 + b"e" + KEEP)
    many = Raw(b"(" + (b"ccollections\nOrderedDict\n" + AGAIN + b"\x85R") * 20_000 + b"l0")
    yield "entries in many places", (entries, many, {"w": T}), True
    arguments = Raw(b"(" + b"N" * 50_000 + b"t" + KEEP)
    many = Raw(b"(" + (b"ctorch._utils\n_rebuild_parameter\n" + AGAIN + b"R") * 20_000 + b"l0")
    yield "many arguments", (arguments, many, {"w": T}), False
    yield "marks without an end", (Raw(b"(" * 100_000),), False
    yield "nothing but the end", (), False


# ---- what stands around a pickle


def archive(data: bytes = b"", /, **parts: bytes) -> bytes:
    """A file of torch.save with another pickle and with further parts."""
    given, content = io.BytesIO(), io.BytesIO()
    torch.save({"w": TENSOR}, given)
    with zipfile.ZipFile(given) as old, zipfile.ZipFile(content, "w") as file:
        for part in old.namelist():
            file.writestr(part, data if data and part.endswith("/data.pkl") else old.read(part))
        for part, value in parts.items():
            file.writestr(part, value)
    return content.getvalue()


def archives() -> Files:
    good, evil = archive(), pickled(MKDIR)
    parts = {name: evil for name in ("../HACKED", f"{Path.cwd()}/HACKED", "b/data.pkl", "c\n", "archive/code/run.py")}
    yield "paths of parts", archive(**parts), True
    yield "TorchScript", archive(**{"archive/constants.pkl": evil}), False
    content = io.BytesIO(good)
    with zipfile.ZipFile(content, "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x", bytes(2**22))
    yield "a compressed bomb", content.getvalue(), False
    record, directory = good.rindex(b"PK\x05\x06"), good.index(b"PK\x01\x02")
    name, entry = good.index(b"archive/data/0"), good.index(b"archive/data/0", directory) - 46

    def with_bytes(place: int, data: bytes, given: bytes = good) -> bytes:
        return given[:place] + data + given[place + len(data) :]

    other = with_bytes(name, b"archive/data/1")
    yield "a part that declares 4 GB", with_bytes(entry + 20, b"\xf0\xff\xff\xff" * 2), False
    yield "a part beyond the end", with_bytes(entry + 42, b"\xff\xff\xff\x7f"), False
    yield "another number of parts", with_bytes(record + 8, b"\xff\xff\xff\xff"), True
    yield "no end", good[:record], False
    yield "a part of another name", other, False
    yield "a missing storage", with_bytes(entry + 46, b"archive/data/1", other), False
    large = io.BytesIO()
    with zipfile.ZipFile(large, "w") as file:
        file.writestr("archive/data.pkl", pickled({"w": T}))
        file.writestr("archive/data/0", bytes(2**20))
        first = file.infolist()[-1]
        for n in range(1, 20_000):  # the same bytes under many names
            file.filelist.append(same := zipfile.ZipInfo(f"archive/data/{n}"))
            same.header_offset, same.CRC = first.header_offset, first.CRC
            same.file_size = same.compress_size = 2**20
    yield "parts that are the same bytes", large.getvalue(), False


def of_safetensors() -> Files:
    good = safetensors.torch.save({"w": TENSOR})

    def file(header: bytes, size: int | None = None) -> bytes:
        return struct.pack("<Q", len(header) if size is None else size) + header + good[-24:]

    described = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    yield "as it should be", good, True
    yield "more bytes", good + b"x", False
    yield "a long header", file(b"{}", 2**62), False
    for header in (b"", b'{"w":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"\xff" * 40, b"[1]"):
        yield f"a header {header[:9]!r}", file(header), False
    for change in ({"shape": [2**40, 2**40]}, {"dtype": "os.mkdir"}, {"shape": [HUGE // 4], "data_offsets": [0, HUGE]}):
        yield str(change), file(json.dumps({"w": described | change}).encode()), False
    yield "a long name", file(json.dumps({"w" * 1000: described}).encode()), False


def of_another_kind() -> Files:
    for content in (b"", b"no weights\n", bytes(4096), b"<!DOCTYPE html><html></html>", b"\x1f\x8b\x08" + bytes(40)):
        yield str(content[:10]), content, False
    yield "a pointer of Git LFS", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 24\n", False
    yield "the start of an archive", b"PK\x03\x04", False


KINDS = [(pickles, "pth"), (archives, "pth"), (of_safetensors, "safetensors")]
KINDS += [(of_another_kind, ending) for ending in ("pth", "safetensors")]


def tensors_of(content: bytes, path: Path) -> dict[str, Tensor] | None:
    """The tensors of a file, or None if it is refused in the sentence of all such files."""
    path.write_bytes(content)
    said, tensors = outcome(lambda: read_weights(path))
    assert not said or said.startswith(f"init={path}: "), said
    return tensors  # type: ignore[no-any-return]


@pytest.mark.parametrize(("files", "ending"), KINDS)
def test_a_hostile_file_is_refused_or_has_its_tensor(files: Any, ending: str) -> None:
    for label, content, read in files():
        tensors = tensors_of(content, Path(f"file.{ending}"))
        assert (tensors is not None) == read and (tensors or {}).keys() == ({"w"} if read else set()), label
        assert all(torch.equal(value, TENSOR) for value in (tensors or {}).values()), label
    assert not Path("../HACKED").exists()


def test_the_payloads_work_where_pickle_reads_them() -> None:
    made = set()
    every = [(name, pickled(value)) for name, value in values()]
    for name, content in every + [(name, pickled(Raw(opcodes))) for name, opcodes in OPCODES.items()]:
        with contextlib.suppress(Exception):
            pickle.loads(content)
        if Path(MARKER).exists():
            made.add(name)
            Path(MARKER).rmdir()
    assert made >= {"a call", "eval", "a call by a helper", "a call in a helper", "items"}
    assert made >= {"REDUCE", "INST", "OBJ", "STACK_GLOBAL"}


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_tensors_are_read_beside_objects_of_any_class_and_a_whole_network_is_refused() -> None:
    base = torch.arange(8.0)
    tensors: dict[str, Any] = {"transposed": TENSOR.T, "half": TENSOR.bfloat16(), "counter": torch.tensor(3)}
    tensors |= {"mask": TENSOR > 2, "empty": torch.empty(0, 2), "view": base[5:], "same_storage": base[:2]}
    tensors |= {"parameter": torch.nn.Parameter(TENSOR)}
    objects = [OmegaConf.create({"lr": [0.1]}), Path("/x"), np.float64(0.5), np.arange(3), np.random.default_rng(0)]
    objects += [Object(), argparse.Namespace(fraction=Fraction(1, 3)), collections.defaultdict(list), torch.float16]
    objects += [torch.device("cpu"), {1, 2}, collections.Counter("abc")]
    torch.save({"state_dict": collections.OrderedDict(tensors), **{f"x{i}": x for i, x in enumerate(objects)}}, "a.pth")
    read = read_weights(Path("a.pth"))
    assert read.keys() == {f"state_dict.{name}" for name in tensors}
    for name, value in tensors.items():
        assert read[f"state_dict.{name}"].dtype == value.dtype and torch.equal(read[f"state_dict.{name}"], value)
    torch.save({"model": torch.nn.Linear(2, 2)}, "whole.pth")
    torch.jit.script(torch.nn.Linear(2, 2)).save("script.pth")
    for path, word in (("whole.pth", "torch.nn.modules.linear.Linear"), ("script.pth", "torch.jit.load")):
        assert word in outcome(lambda: read_weights(Path(path)))[0]  # noqa: B023


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_a_file_that_was_damaged_by_chance_is_refused_or_has_its_tensors(ending: str) -> None:
    """A ``.safetensors`` file has no checksum: what its header says is what it has."""
    tensors = {"a.weight": torch.arange(15.0).reshape(3, 5) / 7, "a.bias": torch.ones(5).half(), "n": torch.tensor(7)}
    saved, refused = io.BytesIO(), 0
    torch.save(tensors, saved)
    content = saved.getvalue() if ending == "pth" else safetensors.torch.save(tensors)
    for label, changed in variants(content, SEED):
        found = tensors_of(changed, Path(f"file.{ending}"))
        refused += found is None
        expected = tensors if ending == "pth" or found is None else safetensors.torch.load(changed)
        for name, value in (found or {}).items():
            assert value.dtype == expected[name].dtype and value.shape == expected[name].shape, label
            assert value.numpy().tobytes() == expected[name].numpy().tobytes(), label
    assert 60 <= refused < 120


def test_many_names_are_refused_in_time() -> None:
    """All names are compared with each prefix that is looked at."""
    backbone = DigitsResNet(4, 1)
    first, value = next(iter(backbone.state_dict().items()))
    numbered = {f"p{i}.{n}.0.weight": value for i in range(4_000) for n in range(5)}
    prefixes = {f"p{i}.{first}": value for i in range(20_000)}
    clip = {f"p{i}.visual.class_embedding": value for i in range(20_000)}
    for weights in (prefixes, numbered, clip, {"." * 400 + first: value}):
        assert outcome(lambda: load_weights(backbone, weights, "x"))[0].startswith("init=x: ")  # noqa: B023
