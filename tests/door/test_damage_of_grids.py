"""Each field of ``grid.json`` and of its jobs is replaced by each kind of value, and every reader is asked.

The runs keep their numbers, and a file of another shape is named.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ssl_bench import files
from ssl_bench.commands import report, status
from ssl_bench.record import grids, lease
from tests.door.damage import SHARES, changed, environment, some_changes
from tests.door.readers import asked, means, numbers, pairs


@pytest.fixture
def outputs(whole: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(whole, "here")
    monkeypatch.chdir("here")
    environment(monkeypatch, Path.cwd())
    return Path("outputs")


def shown() -> tuple[Any, str]:
    """The numbers of all readers, without what the file of a grid says itself, and what ``status`` says beside them."""
    records, said = numbers()
    for record in records.values():
        del record["overrides"]
    return (records, means(), pairs()), said


@pytest.mark.parametrize("every", SHARES)
def test_a_damaged_record_of_a_grid_changes_no_run(every: tuple[int, int, int], outputs: Path) -> None:
    (path,) = outputs.glob("*/grid-*.json")
    before, (expected, said) = path.read_text(), shown()
    content = json.loads(before)
    assert said == ""
    for at, value in some_changes(content, every[0]):
        path.write_text(json.dumps(changed(content, at, value)))
        now, said = shown()
        whole = files.read_json(path, grids.Grid, named=False) is not None
        assert now == expected and whole != (f"{path} is damaged" in said), (at, value, said)
    path.write_text(before)
    assert asked(report.main, "outputs")[0] == 0


@pytest.mark.parametrize("text", ["", "\0" * 40, "filelock/2\npid=-1\n", "x" * 2000, "{}"])
def test_a_run_with_a_damaged_lease_is_busy_until_it_has_expired(text: str, outputs: Path) -> None:
    victim = sorted((outputs / "g").iterdir())[1]
    (victim / "results.json").unlink()
    (expected, _), path = numbers(), victim / lease.FILE
    assert expected[victim.name]["state"] == "evaluation missing"
    path.write_text(text)
    fresh, said = numbers()
    assert said == "" and {**fresh, victim.name: None} == {**expected, victim.name: None}
    assert fresh[victim.name]["state"] == "busy"
    os.utime(path, times=(path.stat().st_mtime - 2 * lease.DURATION,) * 2)
    assert numbers() == (expected, "") and asked(status.main, "outputs")[0] == 0
