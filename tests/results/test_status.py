"""``ssl-bench status``: the states of runs and grids from their files, and the table of them."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import yaml
from rich.console import Console

import ssl_bench
from ssl_bench import files
from ssl_bench.launch.grid import record
from ssl_bench.launch.lock import Lock
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.report.collect import collect
from ssl_bench.results.differing import labels
from ssl_bench.results.numbers import Numbers
from ssl_bench.results.scan import Entry, Scan
from ssl_bench.results.status import lines, screen
from tests.conftest import SMALL
from tests.ranks import Command
from tests.results.conftest import Status
from tests.results.folders import (
    OUTPUTS,
    claim_elsewhere,
    configuration,
    finish,
    make,
    make_grid,
    read_until,
    rows,
    running,
    terminal,
    touch,
)

Train = Callable[..., tuple[int, str]]


def scan(now: float | None = None) -> tuple[dict[str, Entry], float | None]:
    """The entries by the name of their directory, or by their overrides; and the seconds left."""
    entries, left = Scan(OUTPUTS).update(time.time() if now is None else now)
    names = [entry.run.folder.name if entry.run else " ".join(entry.overrides or []) for entry in entries]
    assert len({*names}) == len(names)
    return dict(zip(names, entries, strict=True)), left


def states(now: float | None = None) -> dict[str, str]:
    return {name: entry.state.value for name, entry in scan(now)[0].items()}


# ---- states and numbers


def test_each_state_from_the_files(status: Status) -> None:
    finish(make("a/done", rows(10)), 120.0, knn_top1=0.5, knn_init_top1=0.9, linear_top1=0.75)
    (make("a/failed", rows(2)) / "failed.json").write_text('{"reason": "out of\\n memory", "detail": ""}')
    make("a/partial", rows(3))
    make("b/begun")
    Lock(make("b/here", rows(4))).take()
    claim_elsewhere(make("b/there", rows(5)), "node7", silent=5)
    claim_elsewhere(make("b/gone", rows(6)), "node7", silent=100)
    done = status("--json")
    assert done.returncode == 0 and done.stderr == ""
    records = {record["run_id"]: record for record in json.loads(done.stdout)}
    expected = {"done": "done", "failed": "failed", "partial": "partial", "begun": "partial"}
    expected |= {"here": "running", "there": "running", "gone": "partial"}
    assert {name: record["state"] for name, record in records.items()} == expected
    assert records["done"]["folder"] == "outputs/a/done"
    assert records["done"]["best"] == {"knn/top1": 0.5, "linear/top1": 0.75}
    assert records["failed"]["reason"] == "out of memory" and records["partial"]["reason"] == ""
    assert [records[name]["epoch"] for name in expected] == [10, 2, 3, None, 4, 5, 6]
    assert {record["epochs"] for record in records.values()} == {10}
    assert records["partial"]["images_per_second"] == 10.0
    assert (records["here"]["host"], records["here"]["pid"]) == (socket.gethostname(), os.getpid())
    assert (records["there"]["host"], records["there"]["pid"]) == ("node7", 77)
    assert records["gone"]["host"] is None and records["gone"]["eta_seconds"] is None


def test_a_finished_run_that_is_at_work_again_says_at_what_and_keeps_its_results() -> None:
    folder = make("a/x", rows(10))
    finish(folder, 120.0, knn_top1=0.5)

    def shown() -> tuple[str, str, float | None, dict[str, float]]:
        (entry,) = scan()[0].values()
        assert entry.run
        return entry.state.value, entry.doing, entry.run.end, Numbers([entry.run]).main(entry.run)

    best = {"knn/top1": 0.5}
    assert shown() == ("done", "", 10, best)
    lock = Lock(folder)
    lock.take()
    assert shown() == ("running", "evaluating", 10, best)
    lock.release(False)
    (folder / "failed.json").write_text('{"reason": "an evaluation failed"}')
    assert shown() == ("done", "", 10, best)
    (folder / "config.yaml").write_text(yaml.safe_dump(configuration(epochs=20)))  # it is to go on
    touch(folder / "results.json", time.time() - 5)
    assert shown() == ("failed", "", 20, best)
    (folder / "failed.json").unlink()
    assert shown() == ("partial", "", 20, best)
    lock = Lock(folder)
    lock.take()
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps(rows(15)[-1]) + "\n")
    assert shown() == ("running", "training", 20, best)
    assert scan()[0]["x"].left == pytest.approx(50, abs=5)


def test_what_a_run_watches_is_shown_live_and_what_it_warns_of_at_its_end(status: Status) -> None:
    folder = make("a/live", [*rows(3), {"step": 6, "epoch": 3.0, "watch/knn_top1": 0.5, "watch/effective_rank": 7.0}])
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps(rows(4)[-1]) + "\n")
    Lock(folder).take()
    warned = make("a/warned", rows(10), seed=1)
    finish(warned, 1.0, knn_top1=0.25)
    content = json.loads((warned / "results.json").read_text())
    (warned / "results.json").write_text(json.dumps(content | {"warnings": ["knn/top1 is below its initialisation"]}))
    table = status().stdout.splitlines()
    assert table[0].split("  ")[-1] == "reason" and "watched kNN" in table[0] and "50.0%" in table[1]
    assert "done !" in table[2] and table[2].endswith("  knn/top1 is below its initialisation")
    live, other = json.loads(status("--json").stdout)
    assert (live["watched"], live["warnings"], other["watched"]) == (0.5, [], None)
    assert other["warnings"] == ["knn/top1 is below its initialisation"] and other["reason"] == ""


def test_the_name_of_the_folder(status: Status) -> None:
    finish(make("lr=0.1/a/x"), 1.0)
    done = status("outputs/lr=0.1")
    assert done.returncode == 0 and "1 done" in done.stdout


def test_time_left_of_a_run() -> None:
    now = time.time() + 100
    evaluated = [r | {"seconds": r["seconds"] + 30 * (r["epoch"] - 1)} for r in rows(8)]
    folders = [
        make("a/plain", rows(4)),  # ten epochs in 100 s, four are done
        make("a/first", rows(1)),
        make("a/steps", rows(4), max_steps=10),  # five epochs
        make("a/evaluated", evaluated, evaluate={"every": 1}),  # eight epochs in 290 s
        make("a/trained", rows(10)),  # in its final evaluation, whose length is unknown
        make("a/new"),
    ]
    for folder in folders:
        Lock(folder).take()
        if (folder / "metrics.jsonl").exists():
            touch(folder / "metrics.jsonl", now - 5)
    entries, left = scan(now)
    assert {name: entry.left and round(entry.left, 6) for name, entry in entries.items()} == {
        "plain": 60 - 5,
        "first": 90 - 5,
        "steps": 10 - 5,
        "evaluated": 2 * 290 / 8 - 5,
        "trained": None,
        "new": None,
    }
    assert entries["steps"].run and entries["steps"].run.end == 5.0 and left == pytest.approx(85)
    touch(OUTPUTS / "a/plain/metrics.jsonl", 0)  # the pause before a resume is no silence
    assert scan(now - 100)[0]["plain"].left == pytest.approx(60, abs=2)


def test_an_update_sees_what_changed() -> None:
    evaluations = [{"step": 2 * e, "epoch": float(e), "knn/top1": 0.9 - 0.3 * e, "knn_raw/top1": 0.9} for e in (1, 2)]
    folder = make("a/x", [*rows(3), *evaluations], evaluate={"every": 1, "knn": {"k": 5}})
    metrics, repeated = folder / "metrics.jsonl", Scan(OUTPUTS)

    def update() -> tuple[str, Any, dict[str, float]]:
        (entry,) = repeated.update(time.time())[0]
        assert entry.run
        return entry.state.value, entry.run.epoch, Numbers([entry.run]).main(entry.run)

    best = {"knn/top1": 0.9 - 0.3}
    assert update() == ("partial", 3, best)
    row = json.dumps(rows(4)[-1])
    with open(metrics, "a") as file:
        file.write(row[:20])
    assert update() == ("partial", 3, best)
    with open(metrics, "a") as file:
        file.write(row[20:] + "\n")
    assert update() == ("partial", 4, best)
    shorter = metrics.with_name("shorter")
    shorter.write_text(json.dumps(rows(1)[0]) + "\n")
    shorter.replace(metrics)  # as a run does that resumes from an earlier step
    assert update() == ("partial", 1, {})
    finish(folder, 1, knn_top1=0.25)
    assert update()[::2] == ("done", {"knn/top1": 0.25})


def test_damaged_and_foreign_files_do_no_harm(status: Status) -> None:
    half = make("a/half")
    (half / "metrics.jsonl").write_text('{"step": 2, "epoch": 1.0, "seconds": 10.0}\n{"step": 4, "epo')
    for name, text in {"list": "[]", "cut": '{"metrics": {"knn/', "nan": '{"metrics": {"knn/top1": NaN}}'}.items():
        (make(f"a/{name}", rows(1)) / "results.json").write_text(text)
    (make("a/unquoted", rows(1)) / "command.txt").write_text("ssl-bench 'train")
    make("a/values", epochs="many", max_steps=[], batch_size=7, evaluate=None)
    for name, text in {"yaml": "{a: [", "bytes": "\x00", "foreign": "a: 1\n", "text": "hello"}.items():
        (OUTPUTS / "b" / name).mkdir(parents=True)
        (OUTPUTS / "b" / name / "config.yaml").write_text(text)
    odd = make_grid("odd", ["seed=0", "seed=1", "seed=2"], {}, started=0)
    record(odd, 7, [], Outcome.failed("no"))
    (odd / "jobs" / "2.json").write_text('{"state": "lost"}')
    assert states() == dict.fromkeys(("half", "list", "cut", "nan", "unquoted"), "partial")
    run = scan()[0]["half"].run
    assert run and run.epoch == 1
    json.loads(status("--json").stdout, parse_constant=pytest.fail)


def test_one_damaged_file_does_not_hide_the_other_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named, also where the cache knows the run, and the numbers of the other runs are shown."""
    monkeypatch.setattr("ssl_bench.record.cache.FEW_CHANGES", 0)
    parts = {"environment": "x", "facts": [], "seconds": "1", "warnings": 3, "evaluations": [1], "config": {"init": 3}}
    for name, value in {"good": {}, **parts}.items():
        finish(make(f"a/{name}"), 1.0, knn_top1=0.5)
        path = OUTPUTS / "a" / name / "results.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | ({name: value} if name in parts else {})))
    grid = make_grid("1", ["seed=0", "seed=1"], {0: Outcome.failed("no"), 1: Outcome.failed("yes")}, started=0)
    job = json.loads((grid / "jobs/0.json").read_text())
    (grid / "jobs/0.json").write_text(json.dumps(job | {"folder": True}))
    bad = make_grid("2", ["seed=0"], {}, started="now")
    damaged = {*(f"outputs/a/{name}/results.json" for name in parts), str(grid / "jobs/0.json"), str(bad / "grid.json")}
    for _ in range(2):
        files.say_once.cache_clear()
        capsys.readouterr()
        found = {row["path"]: row["state"] for row in ssl_bench.runs().to_dict("records") if row["state"] != "failed"}
        assert found == {"outputs/a/good": "done"} | {f"outputs/a/{name}": "partial" for name in parts}
        collect([], OUTPUTS, OUTPUTS)
        assert {line.split()[1] for line in capsys.readouterr().err.splitlines()} == damaged


# ---- grids


def test_time_left_of_a_grid() -> None:
    """W = (120 + 100) / 2; the running one has 60 - 5 left; the grid has (55 + 2.5 W) / 1 left."""
    names = ("done", "running", "stopped")
    finished, active, stopped = (make(f"a/{name}", rows(n)) for name, n in zip(names, (8, 4, 5), strict=True))
    finish(finished, 120.0)
    Lock(active).take()
    now = time.time() + 100
    touch(active / "metrics.jsonl", now - 5)
    (stopped / "command.txt").write_text("ssl-bench train seed=2\n")
    seeds = [f"seed={seed}" for seed in range(6)]
    outcomes = {
        0: Outcome(State.DONE_BEFORE, folder="outputs/a/done"),
        1: running("outputs/a/running"),
        5: Outcome.failed("seed=5: no"),
    }
    grid = make_grid("1", seeds, outcomes)
    entries, left = scan(now)
    assert {name: entry.state for name, entry in entries.items()} == {
        "done": "done",
        "running": "running",
        "stopped": "waiting",  # the grid will resume the run, which has its command
        "seed=3": "waiting",
        "seed=4": "waiting",
        "seed=5": "failed",
    }
    assert entries["running"].left == pytest.approx(55) and entries["seed=5"].reason == "seed=5: no"
    assert left == pytest.approx(55 + 2.5 * 110)
    named = zip(labels([*entries.values()]), entries.values(), strict=True)
    assert [label for label, entry in named if not entry.run] == ["seed=3", "seed=4", "seed=5"]
    Lock(stopped).take()  # two at a time
    record(grid, 2, ["seed=2"], running("outputs/a/stopped"))
    touch(stopped / "metrics.jsonl", now)
    entries, left = scan(now)
    whole = (120 + 100 + 100) / 3
    assert entries["stopped"].left == pytest.approx(50)
    assert left == pytest.approx((55 + 50 + 2 * whole) / 2)
    for seed in (3, 4):
        record(grid, seed, [f"seed={seed}"], Outcome.failed(""))
    assert scan(now)[1] == pytest.approx(55)  # the longest


def test_a_running_run_without_a_row_takes_as_long_as_the_others() -> None:
    finish(make("a/done", rows(10)), 130.0)
    Lock(make("a/new")).take()
    now = time.time() + 50
    make_grid("1", ["seed=0", "seed=1"], {0: running("outputs/a/done"), 1: running("outputs/a/new")})
    entries, left = scan(now)
    assert entries["new"].left == pytest.approx(80, abs=2) and left == entries["new"].left


def test_runs_wait_only_for_a_grid_at_work() -> None:
    make("a/begun", rows(1))
    outcomes = {0: running("outputs/a/begun"), 1: Outcome.failed("no")}
    seeds = ["seed=0", "seed=1", "seed=2"]
    dead = make_grid("1", seeds, outcomes, started=1.0)  # of an earlier process with the number of this one
    abandoned = {"begun": "partial", "seed=1": "failed"}
    assert states() == abandoned
    shutil.rmtree(dead)
    remote = make_grid("2", seeds, outcomes, host="node7", started=time.time() - 5000)
    waiting = {"begun": "waiting", "seed=1": "failed", "seed=2": "waiting"}
    assert states() == waiting  # its last record is recent
    for path in (remote / "jobs").iterdir():
        touch(path, time.time() - 4000)
    assert states() == abandoned
    claim_elsewhere(OUTPUTS / "a/begun", "node8", silent=5)
    assert states() == waiting | {"begun": "running"}
    make_grid("3", ["seed=1"], {}, started=1.0)  # abandoned before it started the run
    assert states() == waiting | {"begun": "running"}
    make_grid("4", ["seed=1"], {})
    assert states() == waiting | {"begun": "running", "seed=1": "waiting"}


def test_slurm_continues_a_grid_whose_process_is_gone() -> None:
    claim_elsewhere(make("a/x", rows(1)), "node8", silent=5)
    make("a/requeued", rows(1))
    outcomes = {0: running("outputs/a/x"), 1: Outcome(State.INTERRUPTED, 138, folder="outputs/a/requeued")}
    grid = make_grid("1", ["seed=0", "seed=1", "seed=2"], outcomes, started=1.0)
    assert states() == {"x": "running", "requeued": "partial"}
    (grid / "slurm").mkdir()
    assert states() == {"x": "running", "requeued": "waiting", "seed=2": "waiting"}


def test_runs_that_were_finished_before_the_grid_are_its_runs() -> None:
    for number in range(3):
        finish(make(f"a/{number}"), 10.0)
    (OUTPUTS / "a/1/results.json").unlink()
    before = {"0": "outputs/a/0", "1": "outputs/a/1", "9": "outputs/a/2"}  # there is no run 9
    make_grid("1", ["seed=0", "seed=1", "seed=2"], {}, finished=before, started=5.0)
    entries, _ = scan()
    assert [entries[name].index for name in "012"] == [0, 1, -1]
    assert states() == {"0": "done", "1": "partial", "2": "done"}


def test_a_later_start_outside_the_grid_counts() -> None:
    folder = make("a/x", rows(1))
    make_grid("1", ["seed=0"], {0: Outcome(State.FAILED, 1, "disk full", folder="outputs/a/x")}, started=1.0)
    assert states() == {"x": "failed"} and scan()[0]["x"].reason == "disk full"
    touch(folder / "config.yaml", time.time() + 1)  # started again, and stopped
    assert states() == {"x": "partial"}


# ---- labels


def test_runs_are_described_by_what_distinguishes_them() -> None:
    def config(loss_option: str, option: str = "b64", batch: int | None = None, **values: Any) -> dict[str, Any]:
        choices = {"dataset": "mnist", "loss": loss_option, "batch_size": option}
        return configuration(choices=choices, batch_size={"size": batch or int(option[1:])}, **values)

    def differences(configs: Sequence[dict[str, Any]], command: str = "") -> list[str]:
        parent = f"p{len(list(OUTPUTS.glob('*')))}"
        for number, values in enumerate(configs):
            (make(f"{parent}/{number}", **values) / "command.txt").write_text(command)
        return labels([entry for entry in Scan(OUTPUTS).update(0.0)[0] if entry.run and entry.run.parent == parent])

    assert differences([config("dcl"), config("eqco")]) == ["loss=dcl", "loss=eqco"]
    assert differences([config("dcl")]) == ["dcl b64 mnist"]
    assert differences([config("dcl", batch=16)]) == ["dcl batch_size=16 mnist"]
    alphas = [config("eqco", loss={"alpha": alpha}, seed=s) for alpha in (64, 256) for s in (0, 1)]
    expected = [f"loss=eqco loss.alpha={alpha} seed={s}" for alpha in (64, 256) for s in (0, 1)]
    assert differences([*alphas, config("dcl", loss={"weight": 1.0}, seed=0)]) == [*expected, "loss=dcl seed=0"]
    assert differences([config("dcl"), config("dcl", "b128"), config("dcl", batch=48)]) == [
        "batch_size=b64",
        "batch_size=b128",
        "batch_size=48",
    ]
    sizes = [config("dcl", batch=size) for size in (16, 48)]
    assert differences(sizes, "ssl-bench train batch_size.size=16") == ["batch_size=16", "batch_size=48"]
    derived = [config("dcl", epochs=e, devices=e) for e in (1, 2)]
    for each, dataset in zip(derived, ("mnist", "stl10"), strict=True):
        each["choices"] = each["choices"] | {"dataset": dataset, "augment": dataset}
    assert differences(derived) == ["dataset=mnist", "dataset=stl10"]
    assert differences(derived, "ssl-bench train dataset=mnist epochs=1") == [
        "dataset=mnist epochs=1",
        "dataset=stl10 epochs=2",
    ]


# ---- the table


REASON = "the loss is not finite at step 2 (lr 2.5e+37, tau 0.2): set a smaller optimizer.lr"


def test_the_table_on_a_terminal_and_to_a_pipe() -> None:
    finish(make("grid/g123456789", rows(10), optimizer={"lr": 0.1}), 120.0, knn_top1=0.871, linear_top1=0.9)
    failed = make("grid/h123456789", rows(2), optimizer={"lr": 1e38})
    (failed / "failed.json").write_text(json.dumps({"reason": REASON}))
    claim_elsewhere(make("grid/i123456789", rows(4), optimizer={"lr": 0.3}), "node7", silent=0)
    entries, left = Scan(OUTPUTS).update((OUTPUTS / "grid/i123456789/metrics.jsonl").stat().st_mtime)
    shown = list(zip(entries, labels(entries), strict=True))
    piped = lines(OUTPUTS, shown, left)
    names = ["folder", "run", "state", "epoch", "images/s", "ETA", "loss", "knn", "linear", "reason"]
    assert piped[0].split() == names
    assert piped[2].startswith("grid/h123456789  optimizer.lr=1e+38  failed") and piped[2].endswith(f"    {REASON}")
    assert piped[3].split() == [
        *("grid/i123456789", "optimizer.lr=0.3", "training", "on", "node7", "4.0/10", "10.0", "1m00s", "1")
    ]
    assert piped[4:] == ["", "1 done, 1 running, 0 partial, 1 failed; about 1m00s to go"]
    for width in (160, 61):
        console = Console(width=width, color_system=None)
        with console.capture() as captured:
            console.print(screen(OUTPUTS, shown, left, True, width))
        printed = [line.rstrip() for line in captured.get().splitlines()]
        assert max(map(len, printed)) <= width and printed[-1] == piped[-1]
        if width == 160:
            assert printed[0].split() == names[:-1]
            assert printed[5] == f"grid/h123456789: optimizer.lr=1e+38: {REASON}"
        else:
            assert printed[0].split() == ["run", "state", "epoch", "knn", "linear"]


def test_watch_shows_changes_until_it_is_interrupted() -> None:
    make("grid/0", rows(2))
    for number in range(1, 40):
        finish(make(f"grid/{number}", seed=number), 1.0)
    master, slave = terminal(80, 20)
    command = [sys.executable, "-m", "ssl_bench", "status", "--watch"]
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")} | {"TERM": "xterm"}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    try:
        first = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", read_until(master, "2.0/10"))
        assert first.lstrip().startswith("39 done, 1 partial, 0 failed") and len(first.splitlines()) <= 20
        with open("outputs/grid/0/metrics.jsonl", "a") as file:
            file.write(json.dumps(rows(3)[-1]) + "\n")
        read_until(master, "3.0/10")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        os.close(master)
        os.close(slave)


# ---- real runs


@pytest.mark.slow
def test_a_grid_during_and_after_its_training(status: Status) -> None:
    command = Command("train", "-m", *SMALL, "epochs=4", "seed=0,1")
    OUTPUTS.mkdir()
    repeated, deadline = Scan(OUTPUTS), time.monotonic() + 90
    entries: list[Entry] = []
    left: float | None = None
    while left is None and time.monotonic() < deadline and command.code is None:
        time.sleep(0.1)
        entries, left = repeated.update(time.time())
    assert left is not None, command.printed()
    assert [entry.state for entry in entries] == ["running", "waiting"]
    first, second = entries
    assert first.run and first.run.owner and first.run.owner.pid == command.pid
    assert first.left is not None and left > first.left and second.overrides and second.overrides[-1] == "seed=1"
    assert labels(entries)[1] == "seed=1"
    printed = command.wait(90)
    assert command.code == 0, printed
    records = json.loads(status("--json").stdout)
    assert [(r["state"], r["label"], r["epoch"], r["epochs"], r["pid"]) for r in records] == [
        ("done", "seed=0", 4, 4, None),
        ("done", "seed=1", 4, 4, None),
    ]
    assert [r["overrides"][-1] for r in records] == ["seed=0", "seed=1"]
