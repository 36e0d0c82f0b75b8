"""Texts of any content in the place of YAML, JSON and lists: options, tables, records, labels and classes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssl_bench.config import anchors, compose, from_disk
from ssl_bench.data.folder import FolderDataset
from ssl_bench.papers import tables
from tests.door.hostile import PLACES, SEED, outcome, variants
from tests.papers.conftest import content

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of a process is not known")
GIVEN = yaml.safe_load(Path(__file__).with_name("texts.yaml").read_text())
READ: dict[str | bytes, Any] = {**{text: holds for text, holds in GIVEN["read"]}, "a: 1".encode("utf-8-sig"): {"a": 1}}
LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
LONG = [LAUGHS, f"a: !{'x' * 100_000} b", "a: " + "x" * 10**6, "\n".join(f"k{i}: {i}" for i in range(25_000))]
LONG += [f"a: {'9' * 5000}", f"a: 0x{'f' * 5000}", f"\na: 0b{'1' * 20_000}", f"a: {':'.join(['59'] * 3000)}"]
LONG += [f"{'9' * 500}: 1"]
# Hydra takes seconds for these.
DEEP = ["a: " + "[" * 10_000 + "]" * 10_000, "a: " + "{a: " * 10_000 + "}" * 10_000, "[" * 10_000]
DEEP += ["\n".join(" " * i + "a:" for i in range(700))]
WRONG = ["a: café".encode("latin1"), *("a: 1".encode(f"utf-{each}") for each in ("16", "16-le", "32"))]
TEXTS: list[str | bytes] = [*READ, *GIVEN["refused"], *LONG, *DEEP, *WRONG]


def as_bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def put(name: str, what: bytes | Callable[[Path], Any]) -> Path:
    """Put a text or something else in the place of a file."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    what(path) if callable(what) else path.write_bytes(what)
    return path


PART = [text for text in TEXTS if text not in DEEP][::4]
SLOW = [text for text in TEXTS if text not in PART]


@pytest.mark.parametrize("texts", [PART, pytest.param(SLOW, marks=pytest.mark.slow)])
def test_an_option_is_composed_or_refused(texts: list[str | bytes]) -> None:
    for number, text in enumerate(texts):
        path = put(f"{number}/loss/mine.yaml", as_bytes(text))
        said, loss = outcome(lambda: compose.load(["loss=mine"], Path(f"{number}"))["loss"])  # noqa: B023
        assert bool(said) == (text not in READ) and (said or loss == READ[text]), (text[:50], said)
        assert not said or str(path) in said or said.startswith(("loss.a: ", "a: ", "loss=[1]: ")), (text[:50], said)


def test_an_option_is_no_pipe_and_no_device() -> None:
    for name, place in PLACES.items():
        path = put(f"{name}/loss/mine.yaml", place)
        said, _ = outcome(lambda: compose.load(["loss=mine"], Path(f"{name}")))  # noqa: B023
        assert said.startswith(str(path)), said


def test_a_table_is_read_or_refused() -> None:
    right = yaml.safe_dump(content())
    for number, text in enumerate(TEXTS):
        path = put(f"{number}/mine.yaml", as_bytes(text))
        said, _ = outcome(lambda: tables.find(str(path)))  # noqa: B023
        assert said.startswith(str(path)), (text[:50], said)
    for name, place in PLACES.items():
        path = put(f"{name}/mine.yaml", place)
        said, _ = outcome(lambda: tables.read(path))  # noqa: B023
        assert said.startswith(str(path)), said
    read = 0
    for number, (description, changed) in enumerate(variants(right.encode(), SEED, 40)):
        path = put(f"changed{number}/mine.yaml", changed)
        said, value = outcome(lambda: tables.read(path))  # noqa: B023
        assert said or yaml.safe_load(changed)["tables"]["table1"]["rows"].keys() == {
            cell.row for cell in value[0][0].cells
        }, description
        read += not said
    assert 0 < read < 40


def test_a_record_is_read_or_counts_as_missing(capfd: pytest.CaptureFixture[str]) -> None:
    """Also the units of a run that is not finished, from which what is best is read."""
    for number, text in enumerate([*TEXTS, *PLACES]):
        path = put(f"{number}/config.yaml", PLACES[text] if text in PLACES else as_bytes(text))  # type: ignore[index]
        said, value = outcome(lambda: anchors.read_yaml(path, dict))  # noqa: B023
        assert said == "" and (
            value is None or value == json.loads(json.dumps(yaml.load(path.read_bytes(), yaml.CSafeLoader)))
        )
        if value is None and text not in PLACES:
            assert f"{path} is damaged" in capfd.readouterr().err
    capfd.readouterr()


def test_lists_of_images_and_of_classes_are_read_or_refused() -> None:
    for split in ("train", "val"):
        Path("images", split, "a").mkdir(parents=True)
    common: dict[str, Any] = {"size": 8, "channels": 3, "num_classes": 1, "mean": [0.5] * 3, "std": [0.5] * 3}
    for number, text in enumerate([*TEXTS, *PLACES, "\ufeffa\n", "a\r\n\r\n", "b" * 10**6]):
        path = put(f"{number}.txt", PLACES[text] if text in PLACES else as_bytes(text)).absolute()  # type: ignore[index]
        said, names = outcome(lambda: from_disk.read_names(path)[0])  # noqa: B023
        dataset = FolderDataset(folder="images", root=Path(), classes=str(path), **common)
        refused, _ = outcome(dataset.class_folders)
        try:
            lines = [] if text in PLACES else as_bytes(text).decode("utf-8-sig").splitlines()
        except UnicodeDecodeError:
            lines = []
        if expected := [line.strip() for line in lines if line.strip()]:
            assert names == expected
        else:
            assert said.startswith(f"evaluate.labels={path}: ")
        if expected == ["a"]:
            assert refused.startswith("dataset.folder=images: images/train")
        else:
            assert str(path) in refused


# ---- values as a loader has them, up to a bound on what anchors stand for


def nested(lines: int, times: int) -> str:
    """A text whose last list has ``times`` ^ ``lines`` values."""
    each = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * times)}]" for n in range(lines)]
    return "\n".join(each)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a {x: [1, 2.5, null, true]}\nb: {<<: *a, y: *a}",
        nested(5, 9),
        'name: "\\uDC80"\nb: &b [c]',  # a name that is no UTF-8
        "[&a b, *a, " + "x, " * 20_000 + "y" * 2_000_000 + "]",  # long, but not by anchors
        "",
    ],
)
def test_a_text_within_the_bound_is_read_as_by_its_loader(text: str) -> None:
    expected = yaml.load(text, Loader=yaml.SafeLoader if "DC80" in text else yaml.CSafeLoader)
    assert anchors.parse(text) == expected == anchors.parse(text.encode())
    anchors.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        nested(7, 9),
        nested(60, 9),
        "a: &a {x: 1}\n" + "".join(f"b{n}: &b{n} {{<<: [*a, *a]}}\n" for n in range(3)) + "c: &c [*c]",
        f"a: &a {'x' * 2000}\nb: [{', '.join(['*a'] * 1000)}]",
    ],
)
def test_a_text_beyond_the_bound_or_without_an_end_is_refused(text: str) -> None:
    for construct in (True, False):
        with pytest.raises(ValueError, match=r"1,000,000|line 5"):
            anchors.parse(text, construct=construct)
