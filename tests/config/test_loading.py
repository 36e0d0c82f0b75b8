"""Packages of plugins in one process: the code in memory is that of the files that are hashed, also after an edit."""

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssl_bench.config.loading import loaded
from ssl_bench.errors import ConfigError

PACKAGE = Path("edited")
TIME = (1_000_000_000, 1_000_000_000)


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    PACKAGE.mkdir()
    write("from edited.part import FACTOR\n\n\ndef value():\n    return 10 * FACTOR\n")
    write("FACTOR = 1\n", "part.py")
    monkeypatch.syspath_prepend(Path.cwd())
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "edited"]:
        del sys.modules[name]


def write(text: str, name: str = "__init__.py") -> None:
    (PACKAGE / name).write_text(text)


def value() -> tuple[int, str]:
    module, source = loaded("edited")
    return module.value(), source


def test_an_edit_counts_in_each_module_and_in_what_has_imported_it() -> None:
    first = value()
    import edited  # type: ignore[import-not-found]  # written by the fixture
    from edited import part

    assert first[0] == 10 and value() == first and edited is loaded("edited")[0]
    write("FACTOR = 2\n", "part.py")
    second = value()
    assert second[0] == 20 and second[1] != first[1]
    assert edited is sys.modules["edited"] and part is sys.modules["edited.part"]  # so that a notebook can reload them
    assert (edited.value(), part.FACTOR) == (20, 2)
    write("FACTOR = 1\n", "part.py")
    assert value() == first


def test_compiled_python_of_the_same_second_and_size_does_not_count() -> None:
    write("FACTOR = 3\n", "part.py")
    os.utime(PACKAGE / "part.py", TIME)
    importlib.invalidate_caches()
    importlib.import_module("edited")  # writes compiled files
    write("FACTOR = 4\n", "part.py.new")
    os.utime(PACKAGE / "part.py.new", TIME)
    os.replace(PACKAGE / "part.py.new", PACKAGE / "part.py")
    assert value()[0] == 40


def test_what_was_imported_and_edited_before_is_loaded_again() -> None:
    importlib.import_module("edited")
    write("FACTOR = 5\n", "part.py")
    assert value()[0] == 50
    write("FACTOR = 6\n", "part.py")
    importlib.reload(sys.modules["edited.part"])
    write("FACTOR = 7\n", "part.py")  # once more after the user's own reload
    assert value()[0] == 70


def test_what_cannot_be_loaded_again_is_refused_and_stays_as_it_was() -> None:
    first = value()
    text = (PACKAGE / "__init__.py").read_text()
    write("raise RuntimeError('registered twice')\n")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"^plugins=\[edited\].*RuntimeError: registered twice"):
            loaded("edited")
        assert sys.modules["edited"].value() == 10
    write(text)
    assert value() == first


def test_a_module_of_one_file_and_what_tools_keep_beside_the_source() -> None:
    Path("alone.py").write_text("NUMBER = 1\n")
    importlib.invalidate_caches()
    try:
        module, source = loaded("alone")
        Path("alone.py").write_text("NUMBER = 22\n")
        assert module.NUMBER == 1 and loaded("alone")[0].NUMBER == 22 and loaded("alone")[1] != source
    finally:
        sys.modules.pop("alone", None)
    first = value()
    (PACKAGE / "__pycache__").mkdir(exist_ok=True)
    (PACKAGE / "__pycache__" / "part.nbi").write_text("compiled by numba")
    assert value() == first
