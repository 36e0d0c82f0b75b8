"""Each field of the files of a run is replaced by each kind of value, beside healthy runs, and every reader is asked.

No reader ends in a traceback, and the healthy runs keep their numbers. A run that cannot be read is counted as damaged,
with what is wrong in it, and has no numbers.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssl_bench import files
from ssl_bench.commands import compare, evaluate, export, report, status, table
from ssl_bench.train import main
from tests.conftest import no_pictures
from tests.door.damage import MISSING, PAPER, RUN, SHARES, as_lines, as_yaml, changed, environment, some_changes
from tests.door.readers import Screen, asked, numbers


@pytest.fixture
def victim(whole: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of one of the runs, in a copy of them."""
    shutil.copytree(whole, "here")
    monkeypatch.chdir("here")
    environment(monkeypatch, Path.cwd())
    return sorted(Path("outputs/g").iterdir())[1]


def check_readers(victim: Path, kept: dict[str, Any], change: Any) -> bool:
    """Check what status says of all runs; return whether one counts as damaged."""
    records, _ = numbers()
    for name, record in kept.items():
        now = records[name]
        if name != victim.name:
            assert sorted(now["metrics"].values()) == sorted(record["metrics"].values()), (change, name)
        elif now["state"] == "damaged":
            assert now["reason"] and not now["metrics"], (change, now)
    return bool(records[victim.name]["state"] == "damaged")


@pytest.mark.parametrize("every", SHARES)
@pytest.mark.parametrize("finished", [True, False])
def test_a_field_of_another_kind_damages_its_run_alone(
    every: tuple[int, int, int], finished: bool, victim: Path
) -> None:
    kept, _ = numbers()
    if not finished:
        (victim / "results.json").unlink()
        kept, _ = numbers()
    rows = [json.loads(line) for line in (victim / "metrics.jsonl").read_text().splitlines()]
    contents: list[tuple[str, Callable[[Any], str], int]] = [("results.json", json.dumps, every[0])] * finished
    contents += [("config.yaml", as_yaml, every[1]), ("metrics.jsonl", as_lines, every[2])]
    for name, write, share in contents:
        path = victim / name
        before, damaged = path.read_bytes(), 0
        content = rows if name == "metrics.jsonl" else yaml.safe_load(before)
        chosen = some_changes(content, share)
        for at, value in chosen:
            path.write_text(write(changed(content, at, value)))
            if name == "metrics.jsonl" or (finished and name == "config.yaml"):
                numbers()  # no more than what the run says of its way
            else:
                damaged += check_readers(victim, kept, (name, at, value))
        path.write_bytes(before)
        assert damaged <= len(chosen)
    assert numbers()[0] == kept


SOME: list[tuple[str, Any]] = [("choices", [1]), ("evaluate", 3), ("epochs", "ten"), ("dataset", MISSING)]


@pytest.mark.parametrize(("field", "value"), SOME)
def test_every_command_ends_in_a_sentence(field: str, value: Any, victim: Path) -> None:
    kept, _ = numbers()
    path = victim / "results.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(changed(content, ("config", field), value)))
    check_readers(victim, kept, field)
    words = {"status": "outputs --csv", "table": "g --rows loss --format json", "report": "outputs"}
    words |= {"compare": "g --by loss --format json", "export": f"{victim} --format card --out card"}
    commands: dict[str, Any] = {"status": status, "table": table, "report": report, "compare": compare}
    for name, command in (commands | {"export": export}).items():
        code, _, said = asked(command.main, *words[name].split())
        assert code in (0, 1, 2) and "Traceback" not in said, (name, said)
    code, _, said = asked(evaluate.main, str(victim))
    assert code in (0, 1, 2) and "Traceback" not in said, said
    with no_pictures():  # the run goes on from its checkpoint, and has its numbers again
        loss, seed = content["config"]["choices"]["loss"], content["config"]["seed"]
        code, out, said = asked(main, *RUN, "name=g", f"seed={seed}", f"loss={loss}")
    assert code == 0, (out, said)
    assert numbers()[0][victim.name]["metrics"] == kept[victim.name]["metrics"]


def test_control_characters_reach_no_terminal(victim: Path, capfd: pytest.CaptureFixture[str]) -> None:
    clear, sheet = "\x1b[2J", {**PAPER["tables"]["table1"], "title": "t\x1b[2J"}  # type: ignore[index]
    sheet |= {"rows": {clear: {"values": [50.0]}}}
    Path("own.yaml").write_text(yaml.safe_dump({"paper": "own", "title": clear, "cite": clear, "tables": {"a": sheet}}))
    (victim / "results.json").unlink()
    files.write_json(victim / "failed.json", {"reason": clear, "detail": clear})
    Path("outputs/g").rename(f"outputs/{clear}")
    for form in ("rich", "md", "tex", "csv", "json"):
        code, out, said = asked(table.main, "own.yaml", "--format", form, out=Screen() if form == "csv" else None)
        assert "\x1b" not in out + said and (code == 0), (form, out, said)
        assert "x1b[2J" in out or "u001b[2J" in out
    for flag in ("", "--csv", "--json", "--runs"):
        words = ["outputs", *([flag] if flag else [])]
        code, out, said = asked(status.main, *words, out=Screen() if flag == "--csv" else None)
        assert code == 0 and "\x1b" not in out + said
