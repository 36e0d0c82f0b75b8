"""Each field of ``grid.json``, of its jobs and of a claim is replaced by each kind of value, and every reader is asked.

The runs keep their numbers, and a file of another shape is named.
"""

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ssl_bench import files
from ssl_bench.commands import grid_end, report, status
from ssl_bench.disk.shapes import fits
from ssl_bench.launch import grid, lock
from ssl_bench.record.claim import Owner
from tests.door.damage import SHARES, changed, changes, environment, some_changes
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
    (path,) = outputs.glob(f".sweeps/*/{grid.NAME}")
    before, (expected, said) = path.read_text(), shown()
    content = {**json.loads(before), "finished": {"0": "outputs/g/x"}, "labels": ["a", "b", "c", "d"]}
    path.write_text(json.dumps(content))
    assert said == "" and shown() == (expected, "")
    for at, value in some_changes(content, every[0]):
        path.write_text(json.dumps(changed(content, at, value)))
        now, said = shown()
        whole = grid.read(path.parent) is not None
        assert now == expected and whole != (f"{path} is damaged" in said), (at, value, said)
        code, _, said = asked(lambda _: grid.summarise(path.parent, grid_end.show))
        assert (code, said) in ((0, ""), (1, f"ssl-bench: {path} {GONE}\n")), (at, value)
    path.write_text(before)
    (job,) = path.parent.glob("jobs/0.json")
    content = json.loads(job.read_text())
    for at, value in some_changes(content, every[0]):
        job.write_text(json.dumps(changed(content, at, value)))
        now, said = shown()
        whole = files.read_json(job, grid.Job, named=False) is not None
        assert now == expected and whole != (f"{job} is damaged" in said), (at, value, said)
    assert asked(report.main, "outputs")[0] == 0


GONE = "was removed or damaged while its grid ran: start the same command again"


def test_a_damaged_claim_is_named_once_it_cannot_be_one_that_is_being_written(outputs: Path) -> None:
    victim = sorted((outputs / "g").iterdir())[1]
    (victim / "results.json").unlink()
    (expected, said), path = numbers(), victim / "claims" / "1"
    assert said == "" and expected[victim.name]["state"] == "evaluation missing"
    path.parent.mkdir()
    content = asdict(Owner.this_process())
    for at, value in changes(content):
        damaged = changed(content, at, value)
        path.write_text(json.dumps(damaged))
        fresh, said = numbers()
        assert said == "" and {**fresh, victim.name: None} == {**expected, victim.name: None}, (at, value)
        running = fresh[victim.name]["state"] == "busy"
        os.utime(path, times=(path.stat().st_mtime - 2 * lock.LEASE,) * 2)
        late, said = numbers()
        readable = Owner.read(damaged).pid
        assert (readable or running) and (f"{path} is damaged, or was not written" in said) == (not readable), damaged
        assert late[victim.name]["state"] == ("busy" if damaged == content else "evaluation missing") or fits(
            damaged, Owner
        )
    assert asked(status.main, "outputs")[0] == 0
