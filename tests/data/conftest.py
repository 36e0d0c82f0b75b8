"""Each test of images has a cache of its own."""

from pathlib import Path

import pytest

from ssl_bench import files


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files.SAID.clear()
