"""Files that are read back: records of a shape, and caches that hold exactly what was written."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import pytest

from ssl_bench import files


class Colour(StrEnum):
    RED = "red"


class Inner(TypedDict):
    number: float
    maybe: NotRequired[list[int]]


@dataclass
class Owner:
    name: str
    born: str | None


@pytest.mark.parametrize(
    ("shape", "good", "bad"),
    [
        (Any, [None, 1, {}], []),
        (bool, [True], [1, None]),
        (int, [-3, 0], [True, 1.0, "1", 2**63, -(2**63)]),
        (float, [1, 1.5, float("nan"), float("inf")], [True, "1", None, 2**70]),
        (int | None, [1, None], ["", False]),
        (dict, [{}, {"x": 1}], [[], None]),
        (dict[str, float], [{}, {"x": 1}], [{"x": "1"}, {"x": 1, "y": None}, []]),
        (list[list[str]], [[], [["x"], []]], [["x"], [[1]], {}]),
        (tuple[int, str], [[1, "x"]], [[1], ["x", 1], [1, "x", 2]]),
        (Literal["", "_raw"], ["", "_raw"], ["_init", None, []]),
        (Colour, ["red"], ["RED", None, {}]),
        (Inner, [{"number": 1}, {"number": 0.5, "maybe": [1], "more": {}}], [{}, {"number": 1, "maybe": None}, []]),
        (Owner, [{"name": "x", "born": None}], [{"name": "x"}, {"name": 1, "born": None}, "x"]),
    ],
)
def test_shapes(shape: Any, good: list[Any], bad: list[Any]) -> None:
    assert all(files.fits(value, shape) for value in good)
    assert not any(files.fits(value, shape) for value in bad)


def test_a_damaged_record_counts_as_missing_and_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    path, link = Path("a.json"), Path("b.json")
    link.symlink_to("nowhere")
    assert files.read_json(path, dict) is files.read_json(link, dict) is None and capsys.readouterr().err == ""
    for content in (b"{", b"[1]", b"\xff", b"[" * 5000):
        path.write_bytes(content)
        assert files.read_json(path, dict[str, int]) is None
    path.unlink()
    path.mkdir()
    assert files.read_json(path, dict) is None
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "ssl-bench: a.json is damaged, or was not written by ssl-bench: it counts as missing"


@pytest.mark.parametrize(
    "text", ["{1: [2000-01-01]}", "!!set {a}", "&a [*a]", "{a: [", "\0", "!!python/name:os.system"]
)
def test_yaml_is_read_as_json_would_have_it(text: str) -> None:
    path = Path("a.yaml")
    path.write_text(text)
    assert files.read_yaml(path) is None
    path.write_text("{1: [x, 2.0, null]}")
    assert files.read_yaml(path) == {"1": ["x", 2.0, None]}


def test_damaged_rows_are_counted_but_not_one_that_is_still_written(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("rows.jsonl")
    path.write_text('{"x": 1}\n{"x": "1"}\n[\n{"x": 2}\n{"x"')
    assert files.read_json_lines(path, dict[str, int]) == [{"x": 1}, {"x": 2}]
    assert capsys.readouterr().err == "ssl-bench: rows.jsonl has 2 damaged rows, which are left out\n"
    path.write_text('{"x": 1}\n{"x"')
    assert files.read_json_lines(path) == [{"x": 1}] and capsys.readouterr().err == ""


def test_a_cache_with_any_change_counts_as_missing() -> None:
    path, content = Path("cache.json"), {"knn/top1": 0.125, "é": [1, None]}
    files.write_cache(path, content)
    written = path.read_bytes()
    assert files.read_cache(path) == content
    for place in range(len(written)):
        path.write_bytes(written[:place] + bytes([written[place] ^ 1]) + written[place + 1 :])
        assert files.read_cache(path) is None
        path.write_bytes(written[:place])
        assert files.read_cache(path) is None
    Path("other.json").write_bytes(written)  # it belongs to its name
    assert files.read_cache(Path("other.json")) is None
