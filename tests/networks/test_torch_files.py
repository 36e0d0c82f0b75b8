"""Files of ``torch.save`` with objects beside the tensors: the tensors are read, and nothing of the file is run."""

import argparse
import collections
import contextlib
import io
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from ssl_bench.errors import ConfigError
from ssl_bench.networks.weights import read_weights

TENSOR = torch.arange(6.0).reshape(2, 3)
RUN = Path("run")  # what a payload creates


class HistoryBuffer:
    """As mmengine's: plain state with NumPy arrays."""

    def __init__(self) -> None:
        self.values = np.arange(3.0)


class Settings(dict[str, Any]):
    """A mapping of another library's class."""


def test_tensors_are_read_beside_objects_of_any_class() -> None:
    base = torch.arange(8.0)
    tensors: dict[str, Any] = {
        "plain": TENSOR,
        "transposed": TENSOR.T,
        "half": TENSOR.bfloat16(),
        "counter": torch.tensor(3),
        "mask": TENSOR > 2,
        "empty": torch.empty(0, 2),
        "view": base[5:],
        "same_storage": base[:2],
        "parameter": torch.nn.Parameter(TENSOR),
    }
    objects = {
        "cfg": OmegaConf.create({"lr": 0.1, "layers": [1, 2]}),
        "path": Path("/somewhere"),
        "numbers": [np.float64(0.5), np.arange(3), np.random.default_rng(0)],
        "log": {"loss": HistoryBuffer()},
        "args": argparse.Namespace(arch="resnet18", fraction=Fraction(1, 3)),
        "factory": collections.defaultdict(list),
        "dtype": torch.float16,
        "device": torch.device("cpu"),
        "set": {1, 2},
        "counted": collections.Counter("abc"),
    }
    content = {"state_dict": collections.OrderedDict(tensors), "settings": Settings(inner=TENSOR), **objects}
    torch.save(content, "file.pth")
    read = read_weights(Path("file.pth"))
    assert read.keys() == {f"state_dict.{name}" for name in tensors} | {"settings.inner"}
    for name, value in tensors.items():
        assert read[f"state_dict.{name}"].dtype == value.dtype and torch.equal(read[f"state_dict.{name}"], value)
    assert torch.equal(read["settings.inner"], TENSOR)


def test_what_is_missing_of_a_pickled_network_is_said() -> None:
    torch.save({"model": torch.nn.Linear(2, 2)}, "whole.pth")
    with pytest.raises(
        ConfigError, match=r"torch\.nn\.modules\.linear\.Linear, whose code is not run.* torch\.save\(model\.state_dict"
    ):
        read_weights(Path("whole.pth"))


class Reduced:
    def __reduce__(self) -> Any:
        return os.mkdir, (str(RUN),)


class ReducedToEval:
    def __reduce__(self) -> Any:
        return eval, (f"__import__('os').mkdir({str(RUN)!r})",)


class WithState:
    """Its state creates the file when it is set."""

    def __init__(self) -> None:
        self.path = str(RUN)

    def __setstate__(self, state: dict[str, str]) -> None:
        os.mkdir(state["path"])


class WithNew:
    def __new__(cls, path: str) -> "WithNew":
        if path:
            os.mkdir(path)
        return super().__new__(cls)

    def __getnewargs__(self) -> tuple[str]:
        return (str(RUN),)


class OfTensorsHelper:
    """A call of the file inside a helper of torch."""

    def __reduce__(self) -> Any:
        return torch._tensor._rebuild_from_type_v2, (os.mkdir, torch.Tensor, (str(RUN),), None)  # type: ignore[attr-defined]


class OfParametersHelper:
    def __reduce__(self) -> Any:
        return torch._utils._rebuild_parameter, (Reduced(), False, collections.OrderedDict())  # type: ignore[attr-defined]


class ListItems(list[Any]):
    def __reduce__(self) -> Any:
        return collections.defaultdict, (os.mkdir,), None, None, iter([("a", Reduced())])


PAYLOADS: list[Callable[[], Any]] = [Reduced, ReducedToEval, WithState, OfTensorsHelper, OfParametersHelper, ListItems]
PAYLOADS.append(lambda: WithNew(""))


@pytest.mark.parametrize("make", PAYLOADS)
def test_no_object_of_a_file_is_run(make: Callable[[], Any]) -> None:
    torch.save({"w": TENSOR, "x": make()}, "file.pth")
    with contextlib.suppress(Exception):
        torch.load("file.pth", weights_only=False)
    assert RUN.is_dir()  # the payload works where pickle runs it
    RUN.rmdir()
    assert torch.equal(read_weights(Path("file.pth"))["w"], TENSOR)
    assert not RUN.exists()


def archive(data: bytes, **parts: bytes) -> None:
    """A file of torch.save with another pickle, and with further parts."""
    content = io.BytesIO()
    torch.save({"w": TENSOR}, content)
    with zipfile.ZipFile(content) as given, zipfile.ZipFile("file.pth", "w") as file:
        for name in given.namelist():
            file.writestr(name, data if name.endswith("/data.pkl") and data else given.read(name))
        for name, part in parts.items():
            file.writestr(name, part)


MKDIR = b"cos\nmkdir\n"
CALLS = {
    "REDUCE": MKDIR + b"(X\x03\x00\x00\x00runtR.",
    "INST": b"(X\x03\x00\x00\x00runios\nmkdir\n.",
    "OBJ": b"(" + MKDIR + b"X\x03\x00\x00\x00runo.",
    "NEWOBJ": b"\x80\x02" + MKDIR + b"X\x03\x00\x00\x00run\x85\x81.",
    "NEWOBJ_EX": b"\x80\x04" + MKDIR + b"X\x03\x00\x00\x00run\x85}\x92.",
    "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x05mkdir\x93\x8c\x03run\x85R.",
    "BUILD": b"ccollections\nOrderedDict\n)R}X\x05\x00\x00\x00items" + MKDIR + b"sb.",
    "EXT1": b"\x80\x02\x82\x01X\x03\x00\x00\x00run\x85R.",
    "getattr": b"cbuiltins\ngetattr\n" + b"cos\nmkdir\n" + b"X\x08\x00\x00\x00__call__\x86R(X\x03\x00\x00\x00runtR.",
}


@pytest.mark.parametrize("call", CALLS)
def test_no_opcode_calls_a_function(call: str) -> None:
    with contextlib.suppress(Exception):
        pickle.loads(CALLS[call])
    assert RUN.exists() == (call not in ("NEWOBJ", "NEWOBJ_EX", "BUILD", "EXT1"))  # for which os.mkdir is of no use
    shutil.rmtree(RUN, ignore_errors=True)
    archive(CALLS[call])
    with pytest.raises(ConfigError, match=r"no weights can be read|no state dict"):
        read_weights(Path("file.pth"))
    assert not RUN.exists()


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_parts_of_an_archive_are_not_unpacked_and_no_torchscript_is_run() -> None:
    evil = pickle.dumps(Reduced())
    archive(b"", **{"../run": b"x", f"{Path.cwd()}/run": b"x", "other/data.pkl": evil, "archive/code/run.py": b"x"})
    assert torch.equal(read_weights(Path("file.pth"))["w"], TENSOR)
    assert not RUN.exists() and not Path("../run").exists()
    torch.jit.script(torch.nn.Linear(2, 2)).save("script.pth")
    archive(b"", **{"archive/constants.pkl": evil})  # by which torch knows TorchScript
    for name in ("script.pth", "file.pth"):
        with pytest.raises(ConfigError, match=r"TorchScript.*torch\.save\(torch\.jit\.load"):
            read_weights(Path(name))
    assert not RUN.exists()
