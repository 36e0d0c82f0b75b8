"""Tables of the user's own, in a YAML file."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssl_bench.commands import figure, reproduce, table
from ssl_bench.papers import tables
from tests.conftest import SMALL
from tests.door.door import refused

Output = pytest.CaptureFixture[str]
SET = ["dataset=scattered_digits", "max_steps=2", *(o for o in SMALL if not o.startswith("evaluate"))]
TABLE: dict[str, Any] = {
    "title": "two losses",
    "metric": "knn/top1",
    "set": [*SET, "evaluate=[knn]", "evaluate.baselines=[]"],
    "columns": {"mine": {"set": ["loss=mine"], "x": 1}, "DCL": {"set": ["loss=dcl"], "x": 2}},
    "rows": {"digits": {"values": [50, 60]}},
    "x": {"label": "loss"},
    "y": "kNN",
}
CLAIM = {"title": "t", "claim": "DCL is better.", "where": "table 1", "kind": "comparison", "minutes": 1}
CLAIM |= {"seeds": [0, 1], "seeds_because": "two", "criteria": [{"says": "s", "of": {}, "above": 0}]}


def content(stem: str = "mine", **changed: Any) -> dict[str, Any]:
    return {"paper": stem, "cite": "me", "tables": {"table1": {**TABLE, **changed}}}


@pytest.fixture
def folder() -> Path:
    """``conf/papers/mine.yaml``, whose first cell needs a loss in ``conf/loss``."""
    path = Path("conf/papers/mine.yaml")
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(content(), sort_keys=False))
    Path("conf/loss").mkdir()
    Path("conf/loss/mine.yaml").write_text("_target_: ssl_bench.objective.losses.EqCo\nalpha: 17\n")
    return Path("conf")


def numbers(capsys: Output, *words: str) -> list[int]:
    """How many runs fill each cell."""
    capsys.readouterr()
    assert table.main([*words, "--format", "json"]) == 0
    return [cell["n"] for cell in json.loads(capsys.readouterr().out)["cells"]]


def test_two_cells_are_planned_trained_and_shown(folder: Path, capsys: Output) -> None:
    words = ["conf/papers/mine.yaml/table1", "--config-dir", "conf"]
    assert numbers(capsys, *words) == [0, 0]
    assert reproduce.main([*words, "--dry-run"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ssl-bench")]
    assert [shlex.split(line)[:6] for line in lines] == [
        ["ssl-bench", "train", "-m", "--config-dir", "conf", "name=mine"],
    ] * 2
    assert reproduce.main(words) == 0
    assert numbers(capsys, *words) == [1, 1]
    paths = list(Path("outputs/mine").glob("*/results.json"))
    assert sorted(json.loads(path.read_text())["config"]["choices"]["loss"] for path in paths) == ["dcl", "mine"]
    assert figure.main([*words, "--out", "own.png"]) == 0 and Path("own.png").read_bytes()[1:4] == b"PNG"
    assert table.main([*words, "seed=1"]) == 2  # as for a table of the package
    assert numbers(capsys, "conf/papers/mine.yaml") == [0, 1]  # without that option the first cell cannot be composed
    assert reproduce.main(words) == 0 and "0 runs to go in 0 cells" in capsys.readouterr().out


def test_what_is_empty_is_named_in_a_command_to_paste(folder: Path, capsys: Output) -> None:
    for words in (["conf/papers/mine.yaml", "--config-dir", "conf"], ["conf/papers/mine.yaml"]):
        assert table.main([*words, "--format", "md"]) == 0
        (command,) = re.findall("`ssl-bench reproduce (.*)`", capsys.readouterr().out)
        assert reproduce.main([*shlex.split(command), "--dry-run"]) == 0
        assert "runs to go in" in capsys.readouterr().out


def test_committed_numbers_and_claims_stand_beside_the_file(folder: Path, capsys: Output) -> None:
    known = content(columns={"DCL": {"set": ["loss=dcl"], "x": 2}}, rows={"digits": {"values": [50]}})
    claim = {**known["tables"]["table1"], **CLAIM, "rows": {"digits": []}}
    known["claims"] = {"better": claim}
    Path("a b").mkdir()
    Path("a b/mine.yaml").write_text(yaml.safe_dump(known))
    assert table.main(["--claims", "a b/mine.yaml", "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("mine/better: DCL is better. (table 1),not run,")
    assert table.main(["a b/mine.yaml/better", "--format", "tex"]) == 0
    assert "DCL is better." in capsys.readouterr().out
    assert figure.main(["a b/mine.yaml/claims"]) == 0 and Path("mine-claims.png").exists()
    (cell,) = tables.find("a b/mine.yaml")[0].cells
    Path("a b/measured").mkdir()
    place = {"row": cell.label, "column": cell.column, "metric": cell.metric, "seed": 0, "value": 12.5}
    Path("a b/measured/mine_table1.json").write_text(json.dumps({"cells": [place]}))
    assert table.main(["a b/mine.yaml", "--format", "md"]) == 0
    assert "|  | project | 12.50 (1) |" in capsys.readouterr().out


LAUGHS = "recipes:\n  a0: &a0 [x]\n" + "".join(
    f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
LARGE = f"recipes:\n  long: &long {'x' * 10_000}\n  many: [{', '.join(['*long'] * 200)}]\n"
HOSTILE = {
    LAUGHS: "1,000,000",
    LARGE: "1,000,000",
    "recipes:\n  a: &a [x, [*a]]\n": "line 4",
    "recipes: &a\n  b: {c: *a}\n": "line 3",
}


@pytest.mark.parametrize("text", HOSTILE)
def test_anchors_without_a_bound_or_an_end_are_refused(text: str, capsys: Output) -> None:
    Path("mine.yaml").write_text(f"paper: mine\ncite: me\n{text}{yaml.safe_dump({'tables': {'t': TABLE}})}")
    for main in (table.main, reproduce.main):
        assert main(["mine.yaml"]) == 2
        error = capsys.readouterr().err
        assert error.startswith("ssl-bench: mine.yaml ") and HOSTILE[text] in error and error.count("\n") == 1


def test_a_file_may_have_the_name_of_a_paper_of_the_package(capsys: Output) -> None:
    Path("dcl.yaml").write_text(yaml.safe_dump(content("dcl")))
    assert numbers(capsys, "dcl.yaml") == [0, 0]


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"paper": None}, "paper"),
        ({"paper": "yours"}, "paper=yours mine"),
        ({"cite": 3}, "cite=3"),
        ({"tables": None}, "tables"),
        ({"tables": {"a/b": TABLE}}, "name=a/b"),
        ({"tables": {"t": []}}, "mine/t []"),
        ({"title": None}, "mine/table1 title"),
        ({"columns": None}, "mine/table1 columns"),
        ({"rows": []}, "mine/table1 rows=[]"),
        ({"metric": None}, "metric= name@50"),
        ({"seeds": 3}, "mine/table1 seeds=3 [0, 1, 2]"),
        ({"seeds": [-1]}, "mine/table1 digits seeds=[-1] 0"),
        ({"set": ["dataset"]}, "mine/table1 digits set=dataset"),
        ({"rows": {"a": {"values": ["much", 2]}}}, "mine/table1 a values=much"),
        ({"rows": {"a": {"values": [[1], 2]}}}, "mine/table1 a is=[1]"),
        ({"x": {"doubling": True}}, "mine/table1 x label"),
        ({"columns": {"A": [], "B": []}}, "mine/table1 A x=A"),
    ],
)
def test_a_wrong_file_says_what_to_set(changed: dict[str, Any], names: str) -> None:
    top = {key: value for key, value in changed.items() if key in ("paper", "cite", "tables")}
    known = content(**{key: value for key, value in changed.items() if key not in top}) | top
    Path("mine.yaml").write_text(yaml.safe_dump(known))
    with refused(names):
        tables.find("mine.yaml")


@pytest.mark.parametrize("text", [b"\xff", b"tables: [", b"- 1", b"", b"paper: 2020-13-41"])
def test_a_file_that_is_no_yaml_is_refused(text: bytes, capsys: Output) -> None:
    Path("mine.yaml").write_bytes(text)
    assert reproduce.main(["mine.yaml"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ssl-bench: mine.yaml") and error.count("\n") == 1
