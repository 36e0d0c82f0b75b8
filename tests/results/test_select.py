"""Which runs ``ssl-bench status`` shows, in which order and form: words, ``--sort --csv --runs`` and the overview."""

import csv
import io
import json
import os
import re
import subprocess
import sys
import time

import pytest

from ssl_bench.launch.grid import record
from ssl_bench.launch.lock import Lock
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.record.progress import clock
from ssl_bench.results.former_select import Condition
from ssl_bench.results.scan import Scan
from ssl_bench.results.status import overview
from tests.results.conftest import Status
from tests.results.folders import OUTPUTS, configuration, finish, make, make_grid, read_until, rows, running, terminal


def make_runs() -> None:
    """Make six runs: two losses with three learning rates, one of each failed, and one is waiting."""
    runs = []
    for place, (loss, lr) in enumerate([(loss, lr) for loss in ("dcl", "dclw") for lr in (0.3, 0.03, 3)]):
        values = {"optimizer": {"lr": lr}, "seed": place % 2, "mean": [0.1, 0.2], "tags": ["a b", "c"]}
        choices = configuration()["choices"] | {"loss": loss}
        folder = make(f"a/{place}", rows(10 - place), choices=choices, note="x=1,y", **values)
        if lr == 3:
            (folder / "failed.json").write_text('{"reason": "diverged"}')
        else:
            finish(folder, 100.0, knn_top1=0.5 + place / 10 * (-1) ** place, linear_top1=0.5)
        runs.append(f"loss={loss} optimizer.lr={lr}")
    outcomes = {n: Outcome(State.DONE, folder=f"outputs/a/{n}") for n in range(6)}
    make_grid("1", [*runs, "loss=eqco 'note=x=2,y'"], outcomes)


def names(status: Status, *arguments: str) -> list[str]:
    done = status("--json", *arguments)
    assert done.returncode == 0 and done.stderr == ""
    return [record["run_id"] or record["label"] for record in json.loads(done.stdout)]


CONDITIONS: list[tuple[list[str], str]] = [
    (["loss=dcl"], "012"),
    (["loss=dcl,dclw"], "012345"),
    (["optimizer.lr=0.30"], "03"),
    (["optimizer.lr=3e-2,3.0"], "1245"),
    (["loss=dcl", "optimizer.lr=0.3"], "0"),
    (["state=failed"], "25"),
    (["loss!=dcl"], "345w"),
    (["loss!=dcl,dclw"], "w"),
    (["optimizer.lr>0.03", "optimizer.lr<3"], "03"),
    (["optimizer.lr>=0.3"], "0235"),
    (["optimizer.lr<=0.3", "state!=failed"], "0134"),
    (["knn/top1>45"], "04"),  # percent, as it is printed
    (["knn/top1>0.45"], "04"),
    (["knn/top1=90,50"], "04"),
    (["a"], "012345"),
    (["a/3"], "3"),
    (["outputs/a/3", "a/4"], "34"),
    (["outputs", "loss=dcl"], "012"),
    (["state=failed,done", "loss=dclw"], "345"),
    (["epoch=10,9"], "01"),
    (["seed=1"], "135"),
    (["linear/top1=0.5"], "0134"),
    (["mean=[0.1,0.2]"], "012345"),
    (["mean=[0.1,0.3]"], ""),
    (["mean=0.1"], ""),
    (["tags=[a b,c]"], "012345"),
    (["max_steps=null"], "012345"),
    (["note=x=1,y"], "012345"),
    (["loss=eqco,dclw", "state=waiting,done"], "34w"),
    (["note=x=2,y"], "w"),
    (["loss=none"], ""),
]


def test_conditions(status: Status) -> None:
    make_runs()
    for conditions, expected in CONDITIONS:
        found = names(status, *conditions)
        assert [name if len(name) == 1 else "w" for name in sorted(found)] == [*expected], conditions


@pytest.mark.parametrize(
    ("word", "holding"), [("m>=1", [1.0]), ("m=1", [1.0]), ("m<1", [0.0, 0.5]), ("m>2", [0.5, 1.0])]
)
def test_of_a_share_one_is_all_and_two_are_two_percent(word: str, holding: list[float]) -> None:
    condition = Condition.read(word)
    assert condition is not None and [v for v in (0.0, 0.5, 1.0) if condition.holds(v, 100)] == holding


ORDERS = [
    ("folder", "012345"),
    ("-folder", "543210"),
    ("epoch", "543210"),
    ("-epoch", "012345"),
    ("knn/top1", "401325"),  # 0.9, 0.5, 0.4, 0.2
    ("-knn/top1", "310425"),
    ("optimizer.lr", "140325"),
    ("-optimizer.lr", "250314"),
    ("loss", "012345"),
    ("-loss", "345012"),
    ("seed", "024135"),
    ("state", "250134"),
    ("label", "102435"),
]


def test_order(status: Status) -> None:
    """Runs without a value come last."""
    make_runs()
    for key in ("knn/top1", "-seed"):
        assert names(status, f"--sort={key}")[-1] == "loss=eqco note=x=2,y"
    (OUTPUTS / ".sweeps/1/grid.json").unlink()
    for key, expected in ORDERS:
        assert names(status, f"--sort={key}") == [*expected], key


def test_metrics_are_named_among_the_selected_runs(status: Status) -> None:
    """Another experiment has been evaluated with another k."""
    for name, k, values in (("a", 20, (0.5, 0.7)), ("b", 1, (0.9,))):
        for seed, value in enumerate(values):
            node = {"knn": {"_target_": "ssl_bench.evaluate.knn.KNN", "k": k}}
            finish(make(f"{name}/{name}{seed}", rows(10), seed=seed, evaluate=node, note=name), 100.0, knn_top1=value)
    assert names(status, "a", "--sort", "knn/top1") == ["a1", "a0"]
    assert names(status, "a", "knn/top1>60", "--sort", "knn/top1") == ["a1"]
    assert names(status, "knn/top1>60", "note=a") == ["a1"]
    assert status("--sort", "knn/top1").returncode == 2


def test_every_form_shows_the_selected_runs(status: Status) -> None:
    make_runs()
    selected = ["state=failed", "--sort=-loss"]
    printed = status(*selected).stdout.splitlines()
    assert [line.split()[0] for line in printed if line] == ["folder", "a/5", "a/2", "0"]
    assert printed[-1] == "0 done, 0 partial, 2 failed"
    assert re.findall(r"\d+", status("loss=none").stdout) == ["0", "0", "0"]


def test_csv_has_the_fields_of_json(status: Status) -> None:
    make_runs()
    records = json.loads(status("--json").stdout)
    table = list(csv.DictReader(io.StringIO(status("--csv").stdout)))
    settings = ["loss", "note", "optimizer.lr", "seed"]  # among all
    others = [n for n in table[0] if n not in (*settings, *records[0], "knn/top1", "linear/top1", "seconds")]
    assert {"dataset", "epochs"} - {*others} == {"epochs"}  # which is a field, too
    assert sorted(n for n in table[0] if n not in others) == sorted(
        [
            *("folder", "run_id", "state", "doing", "label", "overrides", "epoch", "epochs"),
            *(
                "images_per_second",
                "eta_seconds",
                "host",
                "pid",
                "watched",
                "warnings",
                "reason",
                *settings,
                "knn/top1",
                "linear/top1",
                "seconds",
            ),
        ]
    )
    assert len(table) == len(records) == 7
    for row, found in zip(table, records, strict=True):
        found |= {name: found["best"].get(name) for name in ("knn/top1", "linear/top1")}
        found |= {name: " ".join(found[name]) for name in ("overrides", "warnings")}
        assert {n: v for n, v in row.items() if n not in (*settings, *others, "seconds")} == {
            name: "" if value is None else str(value)
            for name, value in found.items()
            if name not in ("best", "metrics")
        }
    assert [table[0][name] for name in (*settings, "seconds")] == ["dcl", "x=1,y", "0.3", "0", "100.0"]


# ---- the overview


def make_grids() -> None:
    """Make a finished grid of 45 runs, a grid at work with 4 of 6, and two single runs."""
    lrs = (0.1, 0.2, 0.3)
    settings = [(loss, lr, seed) for loss in ("dcl", "eqco", "swd") for lr in lrs for seed in range(5)]
    first = [f"name=a loss={loss} optimizer.lr={lr} seed={seed}" for loss, lr, seed in settings]
    for n, overrides in enumerate(first):
        values = dict(word.split("=") for word in overrides.split())
        folder = make(f"a/{n}", rows(10), seed=int(values["seed"]), optimizer={"lr": float(values["optimizer.lr"])})
        finish(folder, 100.0, knn_top1=n / 100, linear_top1=0.99)
    outcomes = {n: Outcome(State.DONE, folder=f"outputs/a/{n}") for n in range(len(first))}
    make_grid("1", first, outcomes, started=1e9)
    second = [f"name=b epochs=10 seed={s}" for s in range(6)]
    for seed in range(4):
        folder = make(f"b/{seed}", rows(4), seed=seed)
        if seed == 0:
            Lock(folder).take()
        elif seed == 1:
            (folder / "failed.json").write_text('{"reason": "no"}')
        else:
            finish(folder, 120.0, knn_top1=seed / 10)
    grid = make_grid("2", second, {0: running("outputs/b/0")})
    for seed in range(1, 4):
        state = State.FAILED if seed == 1 else State.DONE
        record(grid, seed, second[seed].split(), Outcome(state, folder=f"outputs/b/{seed}"))
    finish(make("single/x", optimizer={"lr": 1.0}), 1.0, linear_top1=0.25)
    make("single/y", optimizer={"lr": 2.0})


def test_the_numbers_of_the_overview() -> None:
    make_grids()
    entries, left = Scan(OUTPUTS).update(time.time())
    columns = overview(entries)
    assert left is not None and columns["ETA"] == ["", clock(left), ""]
    assert {name: texts for name, texts in columns.items() if name not in ("started", "ETA")} == {
        "grid": ["name=a, loss x3, optimizer.lr x3, seed x5", "name=b, epochs=10, seed x6", "single/"],
        "runs": ["45", "6", "2"],
        "done": ["45", "2", "1"],
        "running": ["", "1", ""],
        "waiting": ["", "2", ""],
        "partial": ["", "", "1"],
        "failed": ["", "1", ""],
        "best": ["knn 44.0%", "knn 30.0%", "linear 25.0%"],
        "best run": ["loss=swd optimizer.lr=0.3 seed=4", "seed=3", "optimizer.lr=1.0"],
    }


def on_terminal(*arguments: str, width: int = 160, until: str) -> list[str]:
    """Lines of ``ssl-bench status`` on a terminal, without colours."""
    master, slave = terminal(width, 50)
    command = [sys.executable, "-m", "ssl_bench", "status", *arguments]
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")} | {"TERM": "xterm"}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    try:
        printed = read_until(master, until)
        assert process.wait(30) == 0
    finally:
        process.kill()
        os.close(master)
        os.close(slave)
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed).splitlines()]


def test_few_runs_are_listed_on_a_terminal_and_many_if_that_is_asked_for() -> None:
    make_grids()
    few = on_terminal("b/3", "b/2", "single/x", until="0 failed")
    first_words = [line.split()[0] for line in few if line]
    assert first_words == ["grid", "seed", "single/", "folder", "b/2", "b/3", "single/x", "3"]
    every = on_terminal("--runs", until="to go")
    assert sum(line.startswith("a/") for line in every) == 45 and every[0].startswith("grid")
    narrow = on_terminal(width=80, until="lists the runs")
    assert max(map(len, narrow)) <= 80 and narrow[0].split()[0] == "grid" and "best" in narrow[0]
