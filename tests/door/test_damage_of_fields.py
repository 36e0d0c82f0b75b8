"""Each field of the files of a run is replaced by each kind of value, beside healthy runs, and every reader is asked.

No reader ends in a traceback, and the healthy runs keep their numbers. The damaged run keeps its own, or it counts as
missing and is named with what is wrong in it.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import ssl_bench
from ssl_bench import files
from ssl_bench.commands import evaluate, export, figure, report, status, table
from ssl_bench.config.identity import evaluation_id
from ssl_bench.results.runs import _entries, finished
from ssl_bench.train import main
from tests.conftest import no_pictures
from tests.door.damage import MISSING, PAPER, RUN, SHARES, Change, as_lines, as_yaml, changed, environment, some_changes
from tests.door.readers import Screen, Truth, asked, numbers, pairs


@pytest.fixture
def victim(whole: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of one of the runs, in a copy of them."""
    shutil.copytree(whole, "here")
    monkeypatch.chdir("here")
    environment(monkeypatch, Path.cwd())
    return sorted(Path("outputs/g").iterdir())[1]


def damage_each(path: Path, chosen: Sequence[Change], content: Any, write: Callable[[Any], str], truth: Truth) -> int:
    """Damage a file in each way; return how often the run counted as missing."""
    before, missing = path.read_bytes(), 0
    for at, value in chosen:
        path.write_text(write(changed(content, at, value)))
        missing += bool(truth.holds((path.name, at, value)))
    path.write_bytes(before)
    return missing


@pytest.mark.parametrize("every", SHARES)
def test_a_field_of_another_type_counts_as_missing_and_is_named(every: tuple[int, int, int], victim: Path) -> None:
    truth = Truth(victim)
    content = json.loads((victim / "results.json").read_text())
    chosen = some_changes(content, every[0])
    missing = damage_each(victim / "results.json", chosen, content, json.dumps, truth)
    assert 0.5 * len(chosen) < missing <= len(chosen)
    stored = yaml.safe_load((victim / "config.yaml").read_text())
    assert damage_each(victim / "config.yaml", some_changes(stored, every[1]), stored, as_yaml, truth) == 0
    rows = [json.loads(line) for line in (victim / "metrics.jsonl").read_text().splitlines()]
    assert damage_each(victim / "metrics.jsonl", some_changes(rows, every[2]), rows, as_lines, truth) == 0


def metrics_beside(victim: Path) -> dict[str, list[float]]:
    """The numbers of the other runs; an unfinished run with another evaluation may change their names."""
    records, _ = numbers()
    return {name: list(record["metrics"].values()) for name, record in records.items() if name != victim.name}


@pytest.mark.parametrize("every", SHARES)
def test_of_an_unfinished_run_a_damaged_configuration_is_named(every: tuple[int, int, int], victim: Path) -> None:
    (victim / "results.json").unlink()
    others = metrics_beside(victim)
    path = victim / "config.yaml"
    stored, named = yaml.safe_load(path.read_text()), 0
    chosen = some_changes(stored, every[1])
    for at, value in chosen:
        path.write_text(as_yaml(changed(stored, at, value)))
        now, said = numbers()
        assert metrics_beside(victim) == others, (at, value)
        assert (victim.name in now) != (f"{path} is damaged" in said), (at, value, said)
        named += victim.name not in now
    assert named > 0.5 * len(chosen)


IMPOSSIBLE: list[tuple[str, Any, str]] = [
    ("knn/top1", 1.5, "evaluations[0].metrics.knn/top1=1.5, which is no share"),
    ("knn/top1", -3.0, "evaluations[0].metrics.knn/top1=-3.0, which is no share"),
    ("knn/top1", 0.5, "knn/top1=0.5, and hits/knn-top1"),
    ("epochs", 99, "evaluations[0].epochs=99, and the training has 28"),
    ("seconds", -1.0, "seconds=-1.0"),
    ("evaluator", "linear", "evaluations[0].id="),
    ("k", 7, "evaluations[0].id="),
    ("unit", "percent", "units.knn.*top1.unit=percent"),
]


@pytest.mark.parametrize(("field", "value", "says"), IMPOSSIBLE)
def test_what_cannot_be_counts_as_missing(field: str, value: Any, says: str, victim: Path) -> None:
    truth, path = Truth(victim), victim / "results.json"
    content = json.loads(path.read_text())
    entry = content["evaluations"][0]
    if field == "knn/top1":  # in both places
        content["metrics"][field] = entry["metrics"][field] = value
        if value != 0.5:
            del entry["hits"]
    elif field == "k":
        entry["settings"]["k"] = value
    elif field == "unit":
        content["units"]["knn"]["*top1"]["unit"] = value
    else:
        (entry if field in entry else content)[field] = value
    path.write_text(json.dumps(content))
    assert f"{path} is damaged ({says}" in truth.holds((path.name, (field,), value))


def test_bits_that_do_not_give_the_accuracy_count_as_missing_also_behind_the_cache(victim: Path) -> None:
    truth = Truth(victim)
    (path,) = victim.glob("hits/knn-top1*")
    bits = np.unpackbits(np.frombuffer(path.read_bytes(), dtype=np.uint8))
    bits[:20] ^= 1
    path.write_bytes(np.packbits(bits).tobytes())
    _entries.cache_clear()  # another process
    assert pairs() == truth.less[1]  # the index has read the results before
    Path("outputs/.runs.json").unlink(missing_ok=True)
    accuracy = truth.records[victim.name]["metrics"]["knn/top1"]
    assert f"knn/top1={accuracy}, and hits/" in truth.holds((path.name, (None, None), None))


ROWS: list[tuple[str, Any, str]] = [
    ("epoch", 29.5, "epoch=29.5, and the training has 28"),
    ("seconds", -1.0, "seconds=-1.0"),
    ("watch/knn_top1", 1.5, "watch/knn_top1=1.5, which is no share"),
    ("knn/top1", 7.0, "knn/top1=7.0, which is no share"),
]


@pytest.mark.parametrize(("field", "value", "says"), ROWS)
def test_an_impossible_row_is_left_out_and_named(field: str, value: Any, says: str, victim: Path) -> None:
    (victim / "results.json").unlink()
    path = victim / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[1].pop("seconds", None)
    wrong = {**rows["/" in field and not field.startswith("watch")], "step": 2, field: value}
    path.write_text(as_lines([*rows, wrong]))
    records, said = numbers()
    assert f"{path} has 1 damaged rows, which are left out ({says})" in said
    assert records[victim.name]["epoch"] == rows[0]["epoch"]
    assert records[victim.name]["best"].get("knn/top1", 0.0) == rows[1]["knn/top1"]


SOME: list[tuple[str, Any]] = [
    ("choices", MISSING),
    ("choices.batch_size", 64),
    ("evaluate.knn._target_", [1]),
    ("dataset", [1]),
    ("steady", "x"),
]


@pytest.mark.parametrize(("field", "value"), SOME)
def test_every_command_ends_in_a_sentence(field: str, value: Any, victim: Path, tmp_path: Path) -> None:
    truth, path = Truth(victim), victim / "results.json"
    content = json.loads(path.read_text())
    at = ("config", *field.split("."))
    if field == "steady":
        content["config"]["steady"] = []
    path.write_text(json.dumps(changed(content, at, value)))
    said = truth.holds((path.name, at, value))
    assert f"{path} is damaged ({'.'.join(at)}" in said
    assert asked(status.main, "outputs", "--csv")[0] == 0 and asked(status.main, "outputs")[0] == 0
    assert asked(figure.main, "seed=0,1", "--x", "seed", "--out", "f.svg")[0] == 0
    assert asked(table.main, "tiny/table1", "--format", "json")[0] == 0
    assert len(finished(Path("outputs"))) == 4
    assert len(ssl_bench.runs("outputs")) == 6
    for command, words in ((export, ["--format", "card", "--out", "card"]), (evaluate, [])):
        code, _, said = asked(command.main, str(victim), *words)
        assert code in (0, 1, 2) and "Traceback" not in said, said
    assert asked(report.main, "outputs")[0] == 0
    with no_pictures():  # the run goes on from its checkpoint, and has its numbers again
        config = content["config"]
        code, out, said = asked(main, *RUN, "name=g", f"seed={config['seed']}", f"loss={truth.loss}")
    assert code == 0, (out, said)
    assert numbers()[0][victim.name]["metrics"] == truth.records[victim.name]["metrics"]


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


def test_an_id_is_that_of_the_settings(victim: Path) -> None:
    for entry in json.loads((victim / "results.json").read_text())["evaluations"]:
        assert entry["id"] == evaluation_id(entry["evaluator"], entry["settings"])
