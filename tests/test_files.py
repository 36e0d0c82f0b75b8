"""Files that are read back: records of a shape, and caches that hold exactly what was written."""

from pathlib import Path

import pytest

from ssl_bench import files
from ssl_bench.disk.shapes import misfit


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
    assert line.startswith("ssl-bench: a.json ")
    path.rmdir()
    path.write_text('{"x": {"y": "\\u001b[31m"}}')
    assert files.read_json(path, dict[str, dict[str, int]]) is None
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ssl-bench: a.json ") and r"(x.y=\x1b[31m)" in line


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
    assert files.read_json_lines(path, lambda row: misfit(row, dict[str, int])) == [{"x": 1}, {"x": 2}]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ssl-bench: rows.jsonl ") and " 2 " in line and "(x=1)" in line
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
