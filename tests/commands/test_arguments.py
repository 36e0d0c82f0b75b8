"""The parser of the commands: words and flags, ``key=value`` overrides, and exit codes."""

from pathlib import Path

import pytest

from ssl_bench.commands.arguments import Parser


@pytest.fixture
def parser() -> Parser:
    parser = Parser("example", "An example.")
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    return parser


def test_overrides_are_separated_from_words_and_flags(parser: Parser) -> None:
    options = parser.read(["evaluate=knn", "outputs/run", "--out", "file.json", "evaluate.knn.k=20", "--dry-run"])
    assert options.overrides == ["evaluate=knn", "evaluate.knn.k=20"]
    assert options.run == Path("outputs/run") and options.out == Path("file.json") and options.dry_run
    nothing = parser.read([])
    assert nothing.overrides == [] and nothing.run is None and nothing.out is None and not nothing.dry_run


@pytest.mark.parametrize("out", [["--out=a=b.json"], ["--out", "a=b.json"]])
def test_the_value_of_a_flag_is_no_override(parser: Parser, out: list[str]) -> None:
    options = parser.read([*out, "key=--value", "--dry-run", "row=lr=0.1"])
    assert options.out == Path("a=b.json") and options.overrides == ["key=--value", "row=lr=0.1"]


def test_help_exits_with_0(parser: Parser, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parser.read(["--help", "key=value"])
    printed = capsys.readouterr().out
    assert stop.value.code == 0 and "ssl-bench example" in printed and "An example." in printed


@pytest.mark.parametrize("arguments", [["--unknown"], ["--dry"], ["--out"], ["one", "two"]])
def test_wrong_arguments_exit_with_2(parser: Parser, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Flags cannot be abbreviated."""
    with pytest.raises(SystemExit) as stop:
        parser.read(arguments)
    refusal = capsys.readouterr().err
    assert stop.value.code == 2 and refusal.startswith("ssl-bench: ") and refusal.count("\n") == 1
    assert all(flag in refusal for flag in ("--help", "--out", "--dry-run"))
