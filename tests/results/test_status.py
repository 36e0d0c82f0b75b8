"""``ssl-bench status``: the states of runs and experiments from their files, the time left, and the text."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from pandas import DataFrame

from ssl_bench.launch import lease
from ssl_bench.results import table as runs_table
from ssl_bench.results.status import experiments, main_metrics, time_left
from ssl_bench.results.table import chosen
from tests.results.conftest import Status
from tests.results.folders import (
    LOST,
    OUTPUTS,
    claim_elsewhere,
    configuration,
    fail,
    finish,
    make,
    make_grid,
    read_until,
    rows,
    terminal,
    touch,
)

GOES_ON = {"optimizer": {"lr": 1.0, "schedule": "constant"}}  # a training that may be asked for more epochs


def of(folder: Path, column: str = "state") -> Any:
    """The row of a run in the table."""
    return chosen([]).set_index("run_id").loc[folder.name, column]


@contextmanager
def busy(folder: Path) -> Iterator[Path]:
    with lease.held(folder, wait=False):
        yield folder


@pytest.fixture
def block() -> Iterator[ExitStack]:
    """Contexts that are left at the end of the test."""
    with ExitStack() as block:
        yield block


# ---- states and numbers


def test_each_state_from_the_files(status: Status) -> None:
    folders = {
        "finished": make("a/", rows(10)),
        "failed": fail(make("a/", rows(2)), "out of\n memory"),
        "diverged": fail(make("a/", rows(2)), LOST),
        "damaged": make("a/", rows(2)),
        "interrupted": make("a/", rows(3)),
        "evaluation missing": make("a/", rows(10)),
        "begun": make("b/", seed=10),
        "here": make("b/", rows(4), seed=11),
        "there": make("b/", rows(5), seed=12),
        "gone": make("b/", rows(6), seed=13),
    }
    finish(folders["finished"], 120.0, knn_top1=0.5, knn_init_top1=0.9, linear_top1=0.75)
    (folders["damaged"] / "config.yaml").write_text("{a: [")
    claim_elsewhere(folders["there"], "node7", silent=5)
    claim_elsewhere(folders["gone"], "node7", silent=100)
    with busy(folders["here"]):
        done = status("--json")
    assert done.returncode == 0 and done.stderr == ""
    records = {record["run_id"]: record for record in json.loads(done.stdout)}
    found = {name: records[folder.name] for name, folder in folders.items()}
    states = {"begun": "interrupted", "gone": "interrupted", "here": "busy", "there": "busy"}
    assert {name: one["state"] for name, one in found.items()} == {name: name for name in folders} | states
    assert found["finished"]["folder"] == str(folders["finished"])
    assert found["finished"]["best"] == {"knn/top1": 0.5, "linear/top1": 0.75}
    assert found["finished"]["metrics"] == {"knn/top1": 0.5, "knn_init/top1": 0.9, "linear/top1": 0.75}
    assert found["failed"]["reason"] == "out of memory" and found["interrupted"]["reason"] == ""
    assert "config.yaml" in found["damaged"]["reason"]
    assert [one["epoch"] for one in found.values()] == [10, 2, 2, 2, 3, 10, None, 4, 5, 6]
    assert {one["epochs"] for name, one in found.items() if name != "damaged"} == {10}
    assert found["interrupted"]["images_per_second"] == 10.0
    assert (found["here"]["host"], found["here"]["pid"]) == (socket.gethostname(), os.getpid())
    assert (found["there"]["host"], found["there"]["pid"]) == ("node7", 77)
    assert found["gone"]["host"] is None and found["gone"]["eta_seconds"] is None


def test_a_finished_run_that_is_at_work_again_says_at_what_and_keeps_its_results(status: Status) -> None:
    folder = make("a/", rows(10), seed=0, **GOES_ON)
    finish(folder, 120.0, knn_top1=0.5)

    def shown() -> tuple[str, str | None, float]:
        (record,) = json.loads(status("--json").stdout)
        assert record["epochs"] == 20 or record["best"] == {"knn/top1": 0.5}
        return record["state"], record["doing"], record["epochs"]

    assert shown() == ("finished", None, 10)
    with busy(folder):
        assert shown() == ("busy", "evaluating", 10)
    fail(folder, "an evaluation failed")
    assert shown() == ("finished", None, 10)
    (folder / "config.yaml").write_text(yaml.safe_dump(configuration(seed=0, epochs=20, **GOES_ON)))  # it is to go on
    touch(folder / "results.json", time.time() - 5)
    assert shown() == ("failed", None, 20)
    (folder / "failed.json").unlink()
    assert shown() == ("interrupted", None, 20)
    with busy(folder):
        with open(folder / "metrics.jsonl", "a") as file:
            file.write(json.dumps(rows(15)[-1]) + "\n")
        assert shown() == ("busy", "training", 20)
        assert [*time_left(chosen([]), time.time()).values()] == [pytest.approx(50, abs=5)] * 2


def test_what_a_run_watches_is_shown_live_and_what_it_warns_of_at_its_end(status: Status) -> None:
    folder = make("a/", [*rows(3), {"step": 6, "epoch": 3.0, "watch/knn_top1": 0.5, "seconds": 30.0}, rows(4)[-1]])
    warned = make("a/", rows(10))
    finish(warned, 1.0, knn_top1=0.25)
    content = json.loads((warned / "results.json").read_text())
    (warned / "results.json").write_text(json.dumps(content | {"warnings": ["knn/top1 is below its initialisation"]}))
    with busy(folder):
        text, (live, other) = status().stdout, json.loads(status("--json").stdout)
    assert (live["watched"], live["warnings"], other["watched"]) == (0.5, [], None)
    assert other["warnings"] == ["knn/top1 is below its initialisation"] and other["reason"] == ""
    assert "finished !" in text and "initialisation" not in text
    assert "knn/top1 is below its initialisation" in status(warned.name).stdout


def test_damaged_and_foreign_files_do_no_harm(status: Status) -> None:
    half = make("a/")
    (half / "metrics.jsonl").write_text('{"step": 2, "epoch": 1.0, "seconds": 10.0}\n{"step": 4, "epo')
    damaged = list[Path]()
    for text in ("[]", '{"metrics": {"knn/', '{"metrics": {"knn/top1": NaN}}', '{"run_id": 1}'):
        damaged.append(make("a/", rows(1)))
        (damaged[-1] / "results.json").write_text(text)
    (make("a/", rows(1)) / "command.txt").write_text("ssl-bench 'train")
    without = make("a/", rows(1))
    finish(without, 1.0)
    (without / "config.yaml").unlink()
    make("c/deep/down/", rows(2), seed=9)
    for name, text in {"yaml": "{a: [", "0123456789": "\x00", "abcdef0123": "a: 1\n", "text": "hello"}.items():
        (OUTPUTS / "b" / name).mkdir(parents=True)
        (OUTPUTS / "b" / name / "config.yaml").write_text(text)
    for place in (".hidden", "wandb", "c/wandb"):
        shutil.copytree(half.parent, OUTPUTS / place)
    odd = make_grid("odd", ["seed=0", "seed=1", "seed=2"])
    odd.with_name("grid-cut.json").write_text(odd.read_text()[:-9])
    table = chosen([])
    found = table.groupby("experiment")["state"].apply(lambda of: sorted(of)).to_dict()
    assert found == {
        "a": ["damaged"] * 4 + ["finished"] + ["interrupted"] * 2,
        "b": ["damaged"] * 2,
        "default": ["not begun"] * 3,
        "down": ["interrupted"],
    }
    assert {Path(path) for path in table["path"][table["state"] == "damaged"]} >= {*damaged}
    assert of(half, "run").progress.epoch == 1
    json.loads(status("--json").stdout, parse_constant=pytest.fail)


# ---- the time left


def left_of(now: float) -> dict[int | str, float]:
    """Seconds by the run_id of a run, or the name of an experiment."""
    table = chosen([])
    return {table["run_id"][key] if isinstance(key, int) else key: of for key, of in time_left(table, now).items()}


def test_time_left_of_a_run(block: ExitStack) -> None:
    now = time.time() + 100
    evaluated = [r | {"seconds": r["seconds"] + 30 * (r["epoch"] - 1)} for r in rows(8)]
    folders = {
        make("a/", rows(4)): 60 - 5,  # ten epochs in 100 s, four are done
        make("a/", rows(1)): 90 - 5,
        make("a/", rows(4), max_steps=10): 10 - 5,  # five epochs
        make("a/", evaluated, evaluate={"every": 1}): 2 * 290 / 8 - 5,  # eight epochs in 290 s
        make("trained/", rows(10)): None,  # in its final evaluation, whose length is unknown
        make("new/"): None,
    }
    for folder in folders:
        block.enter_context(busy(folder))
        if (folder / "metrics.jsonl").exists():
            touch(folder / "metrics.jsonl", now - 5)
    known = {folder.name: pytest.approx(seconds) for folder, seconds in folders.items() if seconds}
    assert left_of(now) == known | {"a": pytest.approx(85)}
    first = next(iter(folders))
    touch(first / "metrics.jsonl", 0)  # the pause before a resume is no silence
    assert left_of(now - 100)[first.name] == pytest.approx(60, abs=2)


def test_time_left_of_an_experiment(block: ExitStack) -> None:
    """W = (120 + 100) / 2; the busy one has 60 - 5 left, and two are not begun: (55 + 2 W) / 1 left."""
    finished, active, stopped = (make("a/", rows(n)) for n in (8, 4, 5))
    finish(finished, 120.0)
    block.enter_context(busy(active))
    now = time.time() + 100
    touch(active / "metrics.jsonl", now - 5)
    shutil.move(stopped, "stopped")
    seeds = [f"name=a seed={seed}" for seed in range(6)]
    make_grid("1", seeds, {0: finished, 1: active, 2: stopped})
    table = chosen([])
    assert [*table["state"]] == ["finished", "busy", *["not begun"] * 4] and table["experiment"].nunique() == 1
    labels = runs_table.labels(table)
    unbegun = [label for label, run in zip(labels, table["run"], strict=True) if not run.folder]
    assert unbegun == [f"seed={seed}" for seed in (2, 3, 4, 5)]
    assert left_of(now) == {active.name: pytest.approx(55), "a": pytest.approx(55 + 4 * 110)}
    shutil.move("stopped", stopped)
    block.enter_context(busy(stopped))  # two at a time
    touch(stopped / "metrics.jsonl", now)
    whole = (120 + 100 + 100) / 3
    assert left_of(now)["a"] == pytest.approx((55 + 50 + 3 * whole) / 2)


# ---- grids


def test_what_is_not_begun_of_the_newest_grid_of_an_experiment() -> None:
    begun = make("a/", rows(1))
    seeds = ["name=a seed=0", "name=a seed=1", "name=a seed=2"]
    make_grid("1", seeds, {0: begun}, started=1.0)
    make_grid("other", ["name=b seed=0"], started=9.0)
    assert [*chosen([])["state"]] == ["interrupted", "not begun", "not begun", "not begun"]
    make_grid("2", ["name=a seed=0"], {0: begun}, started=2.0)
    assert [*chosen([])["state"]] == ["interrupted", "not begun"]


# ---- labels


def test_runs_are_described_by_what_distinguishes_them() -> None:
    def config(loss_option: str, option: str = "b64", batch: int | None = None, **values: Any) -> dict[str, Any]:
        choices = {"dataset": "mnist", "loss": loss_option, "batch_size": option}
        values = {"seed": 0} | values
        return configuration(choices=choices, batch_size={"size": batch or int(option[1:])}, **values)

    def differences(*configs: dict[str, Any], command: str = "") -> list[str]:
        parent = f"p{len(list(OUTPUTS.glob('*')))}"
        for number, values in enumerate(configs):
            folder = make(f"{parent}/", **values)
            (folder / "command.txt").write_text(command)
            touch(folder / "config.yaml", 1e9 + number)
        return runs_table.labels(chosen([parent]))

    assert differences(config("dcl")) == ["loss=dcl batch_size=64 dataset=mnist"]
    alphas = [config("eqco", loss={"alpha": alpha}, seed=s) for alpha in (64, 256) for s in (0, 1)]
    expected = [f"loss=eqco loss.alpha={alpha} seed={s}" for alpha in (64, 256) for s in (0, 1)]
    assert differences(*alphas, config("dcl", loss={"weight": 1.0}, seed=0)) == [*expected, "loss=dcl seed=0"]
    sizes = config("dcl"), config("dcl", "b128"), config("dcl", batch=48)
    assert differences(*sizes) == [f"batch_size={size}" for size in (64, 128, 48)]
    derived = [config("dcl", epochs=e, devices=e) for e in (1, 2)]
    for each, dataset in zip(derived, ("mnist", "stl10"), strict=True):
        each["choices"] = each["choices"] | {"dataset": dataset, "augment": dataset}
    assert differences(*derived) == ["dataset=mnist", "dataset=stl10"]
    labels = ["dataset=mnist epochs=1", "dataset=stl10 epochs=2"]
    assert differences(*derived, command="ssl-bench train dataset=mnist epochs=1") == labels


# ---- the text


def make_grids() -> DataFrame:
    """Make a finished experiment of 45 runs, one at work with 4 of 6, and two single runs."""
    for loss in ("dcl", "eqco", "swd"):
        for place, (lr, seed) in enumerate([(lr, seed) for lr in (0.1, 0.2, 0.3) for seed in range(5)]):
            choices = configuration()["choices"] | {"loss": loss}
            folder = make("a/", rows(10), seed=seed, optimizer={"lr": lr}, choices=choices)
            finish(folder, 100.0, knn_top1=place / 100, linear_top1=0.99)
    folders = [make("b/", rows(4)) for _ in range(4)]
    claim_elsewhere(folders[0], "node7", silent=0)
    fail(folders[1], LOST)
    for folder, value in zip(folders[2:], (0.2, 0.3), strict=True):
        finish(folder, 120.0, knn_top1=value)
    make_grid("2", [f"name=b epochs=10 seed={s}" for s in range(6)], dict(enumerate(folders)))
    finish(make("single/", optimizer={"lr": 1.0}), 1.0, linear_top1=0.25)
    make("single/", optimizer={"lr": 2.0})
    return chosen([])


def test_the_numbers_of_the_experiments() -> None:
    table = make_grids()
    sheet = experiments(table, {"b": 90.0}, main_metrics(table))
    assert [[entry.text for entry in row] for row in sheet.rows] == [
        ["a", "45", "45 finished", "", "knn 14.0%"],
        ["b", "6", "1 busy, 1 diverged, 2 not begun, 2 finished", "1m30s", "knn 30.0%"],
        ["single", "2", "1 interrupted, 1 finished", "", "linear 25.0%"],
    ]


@contextmanager
def at_terminal(*arguments: str, width: int, height: int) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """``ssl-bench status`` on a terminal, whose other end comes with it; it ends well."""
    master, slave = terminal(width, height)
    command = [sys.executable, "-m", "ssl_bench", "status", *arguments]
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")} | {"TERM": "xterm"}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    try:
        yield process, master
        assert process.wait(30) == 0
    finally:
        process.kill()
        os.close(master)
        os.close(slave)


def plain(printed: str) -> list[str]:
    """Lines without colours."""
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed).splitlines()]


def on_terminal(*arguments: str, width: int, until: str) -> list[str]:
    with at_terminal(*arguments, width=width, height=50) as (_, master):
        return plain(read_until(master, until))


def test_few_runs_are_listed_on_a_terminal_and_many_in_a_pipe_or_if_that_is_asked_for(status: Status) -> None:
    table = make_grids()
    few = on_terminal("b", "single", width=160, until="go")
    assert [line.split()[0] for line in few if line][:4] == ["experiment", "b", "single", "run"]
    assert "on node7" in "".join(few) and LOST not in "".join(few)
    narrow = on_terminal(width=80, until="go")
    names = {line.split("  ")[0] for line in narrow if line[:1].strip()}
    assert max(map(len, narrow)) <= 80 and names >= {"experiment", "a", "b", "single"}
    assert sum(line.startswith("a/") for line in on_terminal("--runs", width=80, until="to go")) == 45
    piped = status("--sort=-loss").stdout.splitlines()
    assert sum(line.startswith("a/") for line in piped) == 45
    diverged = table["run_id"][table["state"] == "diverged"].item()
    assert LOST in " ".join(status(diverged).stdout.split()) and status(diverged).stdout.endswith("\n1 diverged\n")
    assert status("loss=dcl", "state=not begun").stdout == "there are no runs to show\n"


@pytest.mark.slow
def test_watch_shows_changes_until_it_is_interrupted() -> None:
    folder = make("grid/", rows(2))
    for _ in range(1, 40):
        finish(make("grid/"), 1.0)
    with at_terminal("--watch", width=80, height=20) as (process, master):
        first = [line for line in plain(read_until(master, "2/10")) if line]
        assert first[0].startswith("1 interrupted, 39 finished") and len(first) <= 20
        with open(folder / "metrics.jsonl", "a") as file:
            file.write(json.dumps(rows(3)[-1]) + "\n")
        read_until(master, "3/10")
        process.send_signal(signal.SIGINT)


# ---- real runs
