"""The dashboard of conf/README.md, a class of the user's: it shows the rows of metrics.jsonl, and changes no run."""

import json
import shlex
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from ssl_bench.config.compose import load
from ssl_bench.config.identity import run_id
from tests.conftest import only_run, stopped_at
from tests.door.door import enter, refuses
from tests.door.test_plugins import README, written

COMMAND = "train tracking=database --config-dir my_dashboard/conf"
WORDS = [*shlex.split(COMMAND)[1:], "dataset.share=0.1", "evaluate.watch=0"]  # two steps an epoch
Train = Callable[..., tuple[int, str]]


@pytest.fixture
def dashboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The source of the example, which is allowed."""
    monkeypatch.setenv("SSL_BENCH_PLUGINS", "my_dashboard")
    for folder in written("my_dashboard", monkeypatch):
        yield folder / "__init__.py"


def edit(source: Path, old: str, new: str) -> None:
    text = source.read_text()
    assert old in text
    source.write_text(text.replace(old, new))
    sys.modules.pop("my_dashboard", None)  # as in the next process


def shown(file: str = "rows.sqlite") -> dict[str, list[tuple[int, str]]]:
    """The numbers and rows in the example's file, by run."""
    with sqlite3.connect(file) as client:
        rows = client.execute("select run_id, number, row from rows order by rowid").fetchall()
    client.close()
    return {run: [(number, row) for of, number, row in rows if of == run] for run, *_ in rows}


def recorded() -> dict[str, list[tuple[int, str]]]:
    paths = Path("outputs/default").glob("*/metrics.jsonl")
    return {path.parent.name: [*enumerate(path.read_text().splitlines())] for path in paths}


def losses(run: Path) -> list[float]:
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "loss" in row]


@pytest.mark.usefixtures("dashboard")
def test_a_dashboard_has_the_rows_of_the_file_also_after_a_resume(train: Train) -> None:
    assert f"SSL_BENCH_PLUGINS=my_dashboard ssl-bench {COMMAND}" in README.read_text()
    local = Path("my_dashboard/conf/local/default.yaml")
    local.parent.mkdir()
    local.write_text("# @package _global_\ntracking: {entity: mine}\n")  # of W&B, and no argument of this one
    words = [*WORDS, "epochs=2", "evaluate.every=1"]
    with stopped_at(3):
        assert train(*words)[0] == 143
    assert [json.loads(row)["step"] for _, row in shown()[only_run().name]] == [1, 2, 2, 3] and shown() == recorded()
    Path("rows.sqlite").unlink()  # which the next process writes again from the earlier rows
    assert train(*words)[0] == 0
    assert [json.loads(row)["step"] for _, row in shown()[only_run().name]] == [1, 2, 2, 3, 4, 4]
    assert shown() == recorded()


@pytest.mark.slow
@pytest.mark.usefixtures("dashboard")
def test_the_first_of_several_ranks_shows_each_run_of_a_grid_once(train: Train) -> None:
    code, printed = train("-m", *WORDS, "max_steps=2", "devices=2", "seed=0,1", 'tracking.file="1e5"')
    assert code == 0, printed
    assert len(shown("1e5")) == 2 and shown("1e5") == recorded()


def test_a_run_does_not_depend_on_its_dashboard(
    dashboard: Path, train: Train, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [*WORDS, "max_steps=1", "tracking.file=a.sqlite"]
    assert train(*words)[0] == 0
    config = yaml.safe_load((only_run() / "config.yaml").read_text())
    assert config["tracking"] == {"_target_": "my_dashboard.Database", "file": "a.sqlite"} and not config.get("plugins")
    folder = Path("my_dashboard/conf")
    assert run_id(load(["tracking=database"], folder=folder)) == run_id(load(["tracking=off"], folder=folder))
    edit(dashboard, "The rows of all runs", "All rows")
    assert "already done" in train(*words)[1] and "already done" in train(*words[3:-1])[1]  # without tracking
    edit(dashboard, "def show", "def shown")
    answer = enter(f"evaluate {only_run()} evaluate=geometry", capfd)
    assert answer.code == 0 and "my_dashboard.Database" in answer.err and "show" in answer.err


FAULTS = {
    "the constructor": ("self.file = file", "raise OSError('no server')"),
    "open": ("client = sqlite3.connect(self.file, isolation_level=None)", "raise OSError('no server')"),
    "show": ("client.execute(\"insert", "self.config.clear(); self.facts.clear(); raise OSError('no server')\n#"),
    "end": ("client.close()", "raise OSError('no server')"),
}  # fmt: skip


@pytest.mark.parametrize("place", FAULTS)
def test_what_a_dashboard_raises_is_a_warning(
    dashboard: Path, train: Train, place: str, undisturbed: list[float]
) -> None:
    edit(dashboard, *FAULTS[place])
    code, printed = train(*WORDS, "max_steps=2")
    assert code == 0 and printed.count("metrics.jsonl has all rows: no server") == 1, printed
    assert losses(only_run()) == undisturbed
    assert json.loads((only_run() / "results.json").read_text())["facts"]["steps"] == 2


@pytest.fixture
def undisturbed(train: Train) -> list[float]:
    """The losses of the run without a dashboard."""
    assert train(*WORDS[3:], "max_steps=2", "paths.outputs=others")[0] == 0
    values = losses(only_run(Path("others")))
    assert len(values) == 2
    return values


BASE = "my_dashboard.Database ssl_bench.record.dashboard.Dashboard end open show"
REFUSED = {  # by what is edited, to what, and what the refusal names
    "class Database(Dashboard)": ("class Database", BASE),
    "def end": ("def finished", f"tracking._target_=my_dashboard.Database {BASE}"),
    "file: str": ("path: str", "tracking.file Database"),
    "import sqlite3": ("import nothing_of_this_name", "nothing_of_this_name"),
}


@pytest.mark.parametrize("old", REFUSED)
def test_a_dashboard_that_cannot_be_used_is_refused(
    dashboard: Path, capfd: pytest.CaptureFixture[str], old: str
) -> None:
    new, says = REFUSED[old]
    edit(dashboard, old, new)
    refuses(COMMAND, says, capfd)


@pytest.mark.usefixtures("dashboard")
def test_a_dashboard_needs_consent(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_BENCH_PLUGINS")
    refuses(COMMAND, "Dashboard SSL_BENCH_PLUGINS=<package>", capfd)
    assert "my_dashboard" not in sys.modules
