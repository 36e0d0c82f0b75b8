"""Damaged and hostile files of weights: a sentence within two seconds and no code that runs, or exactly the tensors."""

import io
import json
import resource
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from ssl_bench.commands.evaluate import main
from ssl_bench.errors import ConfigError
from ssl_bench.networks.backbones import DigitsResNet
from ssl_bench.networks.weights import load_weights, read_weights
from tests.networks import hostile

LONGEST = 2.0  # seconds for a file of less than a megabyte
MEMORY = 300 * 2**20  # bytes beside those that the process had
TENSORS = {
    "state_dict": {
        "a.weight": torch.arange(15.0).reshape(3, 5) / 7,
        "a.bias": torch.ones(5).half(),
        "n": torch.tensor(7),
    },
    "view": torch.arange(12.0).reshape(3, 4).T[1:],
    "epoch": 3,
}


def outcome(content: bytes, path: Path) -> dict[str, Tensor] | None:
    """The tensors of a file, or None if it is refused: in a sentence, in time, without memory, and without its code."""
    path.write_bytes(content)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    tensors = None
    try:
        tensors = read_weights(path)
    except ConfigError as error:
        sentence = str(error)
        assert sentence.startswith(f"init={path}: ") and "\n" not in sentence and len(sentence) < 1000
        assert ": set init to a state dict" in sentence
    assert time.process_time() - start < LONGEST
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MEMORY
    assert not Path(hostile.RUN).exists()
    return tensors


@pytest.mark.parametrize(
    ("files", "ending"),
    [
        (hostile.pickles, "pth"),
        (hostile.archives, "pth"),
        (hostile.safetensors, "safetensors"),
        (hostile.other_files, "pth"),
        (hostile.other_files, "safetensors"),
    ],
)
def test_hostile_files(files: Callable[[], Iterator[tuple[str, bytes, hostile.Names]]], ending: str) -> None:
    for label, content, names in files():
        tensors = outcome(content, Path(f"file.{ending}"))
        assert (tensors and tensors.keys()) == names, label
        assert all(torch.equal(value, hostile.TENSOR) for value in (tensors or {}).values()), label


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether two files have the same tensors, to the bit."""
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype
        and a[name].shape == b[name].shape
        and a[name].contiguous().numpy().tobytes() == b[name].contiguous().numpy().tobytes()
        for name in a
    )


def flat(content: dict[str, Any], prefix: str = "") -> dict[str, Tensor]:
    tensors = dict[str, Tensor]()
    for name, value in content.items():
        if isinstance(value, dict):
            tensors |= flat(value, f"{prefix}{name}.")
        elif isinstance(value, Tensor):
            tensors[f"{prefix}{name}"] = value
    return tensors


def test_an_archive_that_was_damaged_by_chance_is_refused_or_has_its_tensors() -> None:
    content, refused = io.BytesIO(), 0
    torch.save(TENSORS, content)
    for label, changed in hostile.damaged(content.getvalue(), 60, seed=0):
        tensors = outcome(changed, Path("file.pth"))
        assert tensors is None or same(tensors, flat(TENSORS)), label
        refused += tensors is None
    assert refused >= 90


def as_its_header_says(content: bytes) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, read by its description alone."""
    (size,) = struct.unpack("<Q", content[:8])
    header, values, tensors = json.loads(content[8 : 8 + size]), content[8 + size :], {}
    types = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        dtype = types[entry["dtype"]]
        tensors[name] = torch.frombuffer(bytearray(values[first:last]), dtype=dtype).reshape(entry["shape"])
    return tensors


def test_a_safetensors_file_that_was_damaged_by_chance_is_refused_or_has_what_its_header_says() -> None:
    refused = 0
    for label, changed in hostile.damaged(save({n: v.contiguous() for n, v in flat(TENSORS).items()}), 60, seed=0):
        tensors = outcome(changed, Path("file.safetensors"))
        refused += tensors is None
        assert tensors is None or same(tensors, as_its_header_says(changed)), label
    assert refused >= 60


def test_a_command_refuses_a_hostile_file_in_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    wanted = {"a call instead of a mapping", "mappings that double", "torch before 1.6", "a pickle alone"}
    for label, content, _ in hostile.pickles():
        if label in wanted:
            Path("file.pth").write_bytes(content)
            assert main(["--weights", "file.pth"]) == 2
            (line,) = capfd.readouterr().err.splitlines()
            assert line.startswith("ssl-bench: file.pth: ") and not Path(hostile.RUN).exists()
            wanted.remove(label)
    assert not wanted and not Path("outputs").exists()


def test_many_names_are_refused_in_time() -> None:
    """All names are compared with each prefix that is looked at."""
    backbone = DigitsResNet(4, 1)
    first, value = next(iter(backbone.state_dict().items()))
    numbered = {f"p{i}.{n}.0.weight": value for i in range(4_000) for n in range(5)}
    prefixes = {f"p{i}.{first}": value for i in range(20_000)}
    clip = {f"p{i}.visual.class_embedding": value for i in range(20_000)}
    for weights in (prefixes, numbered, clip, {"." * 400 + first: value}):
        start = time.process_time()
        with pytest.raises(ConfigError, match=r"^init=x: "):
            load_weights(backbone, weights, "x")
        assert time.process_time() - start < LONGEST
