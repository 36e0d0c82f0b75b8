"""``ssl-bench status``: what the files of runs and grids say, and how it is shown."""

import fcntl
import json
import os
import pty
import re
import shlex
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from ssl_bench.launch.claim import Claim
from ssl_bench.status.names import cells, names
from ssl_bench.status.scan import Cell, Survey
from ssl_bench.status.view import view
from tests.conftest import SMALL, only_run

Cli = Callable[..., Any]
Train = Callable[..., tuple[int, str]]
OUTPUTS = Path("outputs")


def configuration(**values: Any) -> dict[str, Any]:
    """Of ten epochs of 100 images, two steps each."""
    known: dict[str, Any] = {"epochs": 10, "max_steps": None, "batch_size": {"size": 50}, "evaluate": {"every": 0}}
    return known | {"choices": {"dataset": "mnist", "loss": "dcl"}, "paths": {"outputs": "outputs"}} | values


def make(name: str, rows: Sequence[dict[str, Any]] = (), **values: Any) -> Path:
    """A run directory under ``outputs``."""
    folder = OUTPUTS / name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(configuration(**values)))
    if rows:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def rows(epochs: int, seconds: float = 10.0) -> list[dict[str, Any]]:
    """A row at the end of each epoch."""
    return [
        {"step": 2 * e, "epoch": float(e), "loss": 1.0, "images_per_second": 100 / seconds, "seconds": seconds * e}
        for e in range(1, epochs + 1)
    ]


def finish(folder: Path, seconds: float, **metrics: float) -> None:
    found = {name.replace("_top1", "/top1"): value for name, value in metrics.items()}
    (folder / "results.json").write_text(json.dumps({"metrics": found, "seconds": seconds}))


def elsewhere(folder: Path, host: str, silent: float) -> None:
    """A claim of another machine, ``silent`` seconds old."""
    (folder / "claims").mkdir()
    owner = {"host": host, "pid": 77, "since": time.time() - 1000, "machine": f"{host}/boot", "born": "1"}
    (folder / "claims" / "1").write_text(json.dumps(owner))
    os.utime(folder / "claims" / "1", times=(time.time() - silent,) * 2)


def grid(name: str, cells: Sequence[str], records: Mapping[int, Any], **values: Any) -> Path:
    """A grid of this process, started now, unless told otherwise."""
    folder = OUTPUTS / ".sweeps" / name
    (folder / "cells").mkdir(parents=True)
    known = {"command": f"ssl-bench train -m {' '.join(cells)}", "host": socket.gethostname(), "pid": os.getpid()}
    split = [shlex.split(cell) for cell in cells]
    (folder / "grid.json").write_text(json.dumps(known | {"started": time.time(), "cells": split} | values))
    for number, record in records.items():
        (folder / "cells" / f"{number}.json").write_text(json.dumps({"overrides": split[number], **record}))
    return folder


def look(now: float | None = None) -> tuple[dict[str, Cell], float | None]:
    """The cells by the last part of their directory, or by their overrides."""
    found, left = Survey(OUTPUTS).look(time.time() if now is None else now)
    named = [cell.run.folder.name if cell.run else " ".join(cell.overrides or []) for cell in found]
    assert len({*named}) == len(named)
    return dict(zip(named, found, strict=True)), left


def states(now: float | None = None) -> dict[str, str]:
    return {name: cell.state for name, cell in look(now)[0].items()}


# ---- states and numbers


def test_each_state_from_the_files(cli: Cli) -> None:
    finish(make("a/done", rows(10)), 120.0, knn_top1=0.5, knn_init_top1=0.9, linear_top1=0.75)
    (make("a/failed", rows(2)) / "failed.json").write_text('{"reason": "out of\\n memory", "detail": ""}')
    make("a/partial", rows(3))
    make("b/begun")
    Claim(make("b/here", rows(4))).take()
    elsewhere(make("b/there", rows(5)), "node7", silent=5)
    elsewhere(make("b/gone", rows(6)), "node7", silent=100)
    done = cli("status", "--json")
    assert done.returncode == 0 and done.stderr == ""
    found = {record["run_id"]: record for record in json.loads(done.stdout)}
    assert list(found["done"]) == [
        *("folder", "run_id", "state", "cell", "overrides", "epoch", "epochs", "images_per_second", "eta_seconds"),
        *("best", "host", "pid", "reason"),
    ]
    expected = {"done": "done", "failed": "failed", "partial": "partial", "begun": "partial"}
    expected |= {"here": "running", "there": "running", "gone": "partial"}
    assert {name: record["state"] for name, record in found.items()} == expected
    assert found["done"]["folder"] == "outputs/a/done" and found["done"]["best"] == {
        "knn/top1": 0.5,
        "linear/top1": 0.75,
    }
    assert found["failed"]["reason"] == "out of memory" and found["partial"]["reason"] == ""
    assert [found[name]["epoch"] for name in expected] == [10, 2, 3, None, 4, 5, 6]
    assert {record["epochs"] for record in found.values()} == {10}
    assert found["partial"]["images_per_second"] == 10.0
    assert (found["here"]["host"], found["here"]["pid"]) == (socket.gethostname(), os.getpid())
    assert (found["there"]["host"], found["there"]["pid"]) == ("node7", 77)
    assert found["gone"]["host"] is None and found["gone"]["eta_seconds"] is None
    printed = cli("status").stdout
    assert "1 done, 2 running, 3 partial, 1 failed" in printed and "running on node7" in printed
    missing = cli("status", "nowhere")
    assert missing.returncode == 2 and missing.stdout == "" and "there is no folder nowhere" in missing.stderr


def test_what_is_left_of_a_run() -> None:
    now = time.time() + 100
    runs = {
        "plain": make("a/plain", rows(4)),  # ten epochs in 100 s, four are done
        "first": make("a/first", rows(1)),  # one row: 10 images/s of 100 images an epoch
        "steps": make("a/steps", rows(4), max_steps=10),  # five epochs
        "judged": make(  # 10 s of training and 30 s of judging an epoch
            "a/judged",
            [r | {"seconds": r["seconds"] + 30 * (r["epoch"] - 1)} for r in rows(8)],
            evaluate={"every": 1},
        ),
        "over": make("a/over", rows(10)),  # being judged, which takes nobody knows how long
        "new": make("a/new"),
    }
    for folder in runs.values():
        Claim(folder).take()
        if (folder / "metrics.jsonl").exists():
            os.utime(folder / "metrics.jsonl", times=(now - 5, now - 5))
    found, left = look(now)
    assert {name: cell.left and round(cell.left, 6) for name, cell in found.items()} == {
        "plain": 60 - 5,
        "first": 90 - 5,
        "steps": 10 - 5,
        "judged": 2 * 40 - 5,
        "over": None,
        "new": None,
    }
    assert found["steps"].run and found["steps"].run.end == 5.0 and left == pytest.approx(85)


def test_a_run_that_has_just_resumed_was_not_silent_since_it_stopped() -> None:
    folder = make("a/x", rows(4))
    os.utime(folder / "metrics.jsonl", times=(0, 0))
    Claim(folder).take()
    assert look()[0]["x"].left == pytest.approx(60, abs=2)


def test_the_rate_is_that_of_the_last_rows() -> None:
    slow = rows(30, seconds=100.0)
    quick = [r | {"step": 60 + 2 * i, "epoch": 30.0 + i, "seconds": 3000.0 + i} for i, r in enumerate(rows(40), 1)]
    Claim(make("a/x", slow + quick, epochs=100)).take()
    assert look()[0]["x"].left == pytest.approx(30, abs=2)  # a second each


def test_the_best_on_the_way() -> None:
    judged = [{"step": 2 * e, "epoch": float(e), "knn/top1": v, "knn_raw/top1": 0.9} for e, v in ((1, 0.3), (2, 0.6))]
    judged.append({"step": 6, "epoch": 3.0, "knn/top1": 0.5})
    make("a/x", [*rows(3), *judged], evaluate={"every": 1})
    assert look()[0]["x"].best == {"knn/top1": 0.6}
    finish(OUTPUTS / "a/x", 40, knn_top1=0.5)  # what counts is the end
    assert look()[0]["x"].best == {"knn/top1": 0.5}


def test_only_what_is_new_is_read_again() -> None:
    folder = make("a/x", rows(3), evaluate={"every": 1})
    journal, survey = folder / "metrics.jsonl", Survey(OUTPUTS)

    def epoch() -> float | None:
        (cell,) = survey.look(time.time())[0]
        return cell.run.journal.epoch if cell.run else None

    assert epoch() == 3
    size = journal.stat().st_size
    row = json.dumps(rows(4)[-1])
    with open(journal, "r+") as file:
        file.write("\n" * size + row[:20])  # nobody looks again at what was there
    assert epoch() == 3
    with open(journal, "a") as file:
        file.write(row[20:] + "\n")
    assert epoch() == 4
    fresh = journal.with_name("fresh")
    fresh.write_text(json.dumps(rows(1)[0]) + "\n")
    fresh.replace(journal)  # as a run does that resumes from an earlier step
    assert epoch() == 1
    stale = json.dumps({"metrics": {"knn/top1": 0.25}, "seconds": 1})
    (folder / "results.json").write_text(stale)
    (cell,) = survey.look(time.time())[0]
    assert cell.state == "done" and cell.best == {"knn/top1": 0.25}
    (folder / "results.json").unlink()
    assert [cell.state for cell in survey.look(time.time())[0]] == ["partial"]


def test_damaged_and_foreign_files_are_nothing_to_stumble_over(cli: Cli) -> None:
    for name, text in {
        "half": '{"step": 2, "epoch": 1.0, "seconds": 10.0}\n{"step": 4, "epo',
        "odd": '[1]\n{"step": "two", "epoch": 1}\n{"step": 2, "epoch": NaN}\n\xff\n{"epoch": 1.0}\n',
        "empty": "",
    }.items():
        (make(f"a/{name}") / "metrics.jsonl").write_text(text, encoding="latin1")
    for name, text in {
        "list": "[]",
        "cut": '{"metrics": {"knn/',
        "old": '{"accuracy": 1}',
        "nan": '{"metrics": {"knn/top1": NaN}}',
    }.items():
        (make(f"a/{name}", rows(1)) / "results.json").write_text(text)
    (make("a/claimed", rows(1)) / "claims").mkdir()
    (OUTPUTS / "a/claimed/claims/1").write_text('{"pid": 3}')
    (make("a/spoken", rows(1)) / "command.txt").write_text("ssl-bench 'train")
    make("a/values", epochs="many", max_steps=[], batch_size=7, evaluate=None)
    for name, text in {"yaml": "{a: [", "bytes": "\x00", "foreign": "a: 1\n", "text": "hello"}.items():
        (OUTPUTS / "b" / name).mkdir(parents=True)
        (OUTPUTS / "b" / name / "config.yaml").write_text(text)
    for number, text in enumerate(("no json", '{"command": "ssl-bench train", "cells": 3}', "[]", "{}", "null")):
        folder = OUTPUTS / ".sweeps" / str(number)
        folder.mkdir(parents=True)
        (folder / "grid.json").write_text(text)
    grid("odd", ["seed=0", "seed=1"], {}, started=0)
    (OUTPUTS / ".sweeps/odd/cells/0.json").write_text("[]")
    (OUTPUTS / ".sweeps/odd/cells/7.json").write_text('{"state": "failed"}')
    (OUTPUTS / ".sweeps/odd/cells/x.json").write_text("{}")
    counted = dict.fromkeys(("half", "odd", "empty", "list", "cut", "claimed", "spoken", "values"), "partial")
    assert states() == counted | {"old": "done", "nan": "done"}
    assert [cell.run.journal.epoch for cell in look()[0].values() if cell.run and cell.run.folder.name == "half"] == [1]
    for way in ([], ["--json"], ["--failed"]):
        done = cli("status", *way)
        assert done.returncode == 0 and done.stderr == ""
    json.loads(cli("status", "--json").stdout, parse_constant=pytest.fail)


# ---- grids


def test_what_is_left_of_a_grid() -> None:
    """W = (100 + 120) / 2; of the running one 60 + 20 - 5 are left; (75 + 2.5 W) / 1 in all."""
    names = ("done", "running", "stopped")
    done, running, stopped = (make(f"a/{name}", rows(n)) for name, n in zip(names, (8, 4, 5), strict=True))
    finish(done, 100.0)  # 20 s after its last row
    Claim(running).take()
    now = time.time() + 100
    os.utime(running / "metrics.jsonl", times=(now - 5, now - 5))
    cells = [f"seed={seed}" for seed in range(6)]
    old = {2: {"state": "interrupted", "folder": "outputs/a/stopped"}}
    grid("0", cells, old, started=0.0)
    records: dict[int, Any] = {
        0: {"state": "done before", "folder": "outputs/a/done"},
        1: {"state": "running", "folder": "outputs/a/running"},
        5: {"state": "failed", "folder": None, "reason": "seed=5: no"},
    }
    at = grid("1", cells, records)
    found, left = look(now)
    assert {name: cell.state for name, cell in found.items()} == {
        "done": "done",
        "running": "running",
        "stopped": "waiting",  # the new grid will come to what an earlier one began
        "seed=3": "waiting",
        "seed=4": "waiting",
        "seed=5": "failed",
    }
    assert found["running"].left == pytest.approx(75) and found["seed=5"].reason == "seed=5: no"
    assert left == pytest.approx(75 + 2.5 * 110)
    assert names_of(found) == ["seed=3", "seed=4", "seed=5"]
    Claim(stopped).take()  # two at a time
    record = {"overrides": ["seed=2"], "state": "running", "folder": "outputs/a/stopped"}
    (at / "cells" / "2.json").write_text(json.dumps(record))
    os.utime(stopped / "metrics.jsonl", times=(now, now))
    found, left = look(now)
    whole = (100 + 120 + 120) / 3
    assert found["stopped"].left == pytest.approx(50 + 20)
    assert left == pytest.approx((75 + 70 + 2 * whole) / 2)
    for seed in (3, 4):
        (at / "cells" / f"{seed}.json").write_text('{"state": "failed", "folder": null, "reason": ""}')
    assert look(now)[1] == pytest.approx(75)  # the longest


def names_of(found: dict[str, Cell]) -> list[str]:
    return [name for name, cell in zip(names([*found.values()]), found.values(), strict=True) if not cell.run]


def test_a_cell_that_runs_without_a_row_takes_as_long_as_the_others() -> None:
    finish(make("a/done", rows(10)), 130.0)
    Claim(make("a/new")).take()
    now = time.time() + 50
    cells = ["seed=0", "seed=1"]
    records = {n: {"state": "running", "folder": f"outputs/a/{name}"} for n, name in enumerate(("done", "new"))}
    grid("1", cells, records)
    found, left = look(now)
    assert found["new"].left == pytest.approx(80, abs=2) and left == found["new"].left


def test_a_grid_that_nobody_is_at_has_nothing_waiting() -> None:
    make("a/begun", rows(1))
    records = {0: {"state": "running", "folder": "outputs/a/begun"}, 1: {"state": "failed", "reason": "no"}}
    cells = ["seed=0", "seed=1", "seed=2"]
    sweep = grid("1", cells, records, started=1.0)  # this process is younger: only the number is the same
    abandoned = {"begun": "partial", "seed=1": "failed"}
    assert states() == abandoned
    (sweep / "grid.json").unlink()
    for path in (sweep / "cells").iterdir():
        path.unlink()
    (sweep / "cells").rmdir()
    sweep.rmdir()
    other = grid("2", cells, records, host="node7", started=time.time() - 5000)
    waiting = {"begun": "waiting", "seed=1": "failed", "seed=2": "waiting"}
    assert states() == waiting  # something was noted a moment ago
    for path in (other / "cells").iterdir():
        os.utime(path, times=(time.time() - 4000,) * 2)
    assert states() == abandoned
    elsewhere(OUTPUTS / "a/begun", "node8", silent=5)
    assert states() == waiting | {"begun": "running"}
    grid("3", ["seed=1"], {}, started=1.0)  # abandoned before it came to it
    assert states() == waiting | {"begun": "running"}
    grid("4", ["seed=1"], {})
    assert states() == waiting | {"begun": "running", "seed=1": "waiting"}


def test_slurm_has_the_cells_of_a_grid_whose_command_is_gone() -> None:
    elsewhere(make("a/x", rows(1)), "node8", silent=5)
    make("a/requeued", rows(1))
    records = {
        0: {"state": "running", "folder": "outputs/a/x"},
        1: {"state": "interrupted", "folder": "outputs/a/requeued", "code": 138},
    }
    sweep = grid("1", ["seed=0", "seed=1", "seed=2"], records, started=1.0)
    assert states() == {"x": "running", "requeued": "partial"}
    (sweep / "slurm").mkdir()
    assert states() == {"x": "running", "requeued": "waiting", "seed=2": "waiting"}


def test_a_later_attempt_by_itself_counts() -> None:
    folder = make("a/x", rows(1))
    grid("1", ["seed=0"], {0: {"state": "failed", "folder": "outputs/a/x", "reason": "disk full"}}, started=1.0)
    assert states() == {"x": "failed"} and look()[0]["x"].reason == "disk full"
    os.utime(folder / "config.yaml", times=(time.time() + 1,) * 2)  # begun again, and stopped
    assert states() == {"x": "partial"}


# ---- the commands of what has failed


def test_the_commands_of_what_failed(cli: Cli) -> None:
    single, lost, both = make("a/single"), make("a/lost"), make("a/both")
    for folder in (single, lost, both):
        (folder / "failed.json").write_text('{"reason": "no"}')
    (single / "command.txt").write_text("ssl-bench train 'evaluate=[knn,linear]' seed=1\n")
    command = "ssl-bench train -m --config-dir 'my conf' hydra/launcher=local 'name=two words' seed=0,1"
    records = {0: {"state": "failed", "folder": "outputs/a/both"}, 1: {"state": "failed", "folder": None}}
    cells = ["'name=two words' seed=0", "'name=two words' seed=1"]
    grid("1", cells, records, command=command, started=1.0)
    finish(make("a/done"), 1.0)
    done = cli("status", "--failed")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [
        "ssl-bench train 'evaluate=[knn,linear]' seed=1",
        "ssl-bench train --config-dir 'my conf' 'name=two words' seed=0",
        "ssl-bench train --config-dir 'my conf' 'name=two words' seed=1",
    ]
    assert done.stderr == "ssl-bench: nobody kept the command of outputs/a/lost: give it again by hand\n"


# ---- names


def test_cells_are_called_by_what_sets_them_apart() -> None:
    def cell(chosen: str, size: str = "b64", batch: int | None = None, **values: Any) -> dict[str, Any]:
        choices = {"dataset": "mnist", "loss": chosen, "batch_size": size}
        return configuration(choices=choices, batch_size={"size": batch or int(size[1:])}, **values)

    assert cells([cell("dcl"), cell("eqco")]) == ["loss=dcl", "loss=eqco"]
    assert cells([cell("dcl")]) == ["mnist dcl b64"] and cells([]) == []
    alphas = [cell("eqco", loss={"alpha": alpha}, seed=s) for alpha in (64, 256) for s in (0, 1)]
    expected = [f"loss=eqco loss.alpha={alpha} seed={s}" for alpha in (64, 256) for s in (0, 1)]
    assert cells([*alphas, cell("dcl", loss={"weight": 1.0}, seed=0)]) == [*expected, "loss=dcl seed=0"]
    assert cells([cell("dcl"), cell("dcl", "b128"), cell("dcl", batch=48)]) == [
        "batch_size=b64 batch_size.size=64",
        "batch_size=b128 batch_size.size=128",
        "batch_size=b64 batch_size.size=48",
    ]
    followed = [cell("dcl", epochs=e, devices=e) for e in (1, 2)]
    for config, dataset in zip(followed, ("mnist", "stl10"), strict=True):
        config["choices"] = config["choices"] | {"dataset": dataset, "augment": dataset}
    assert cells(followed) == ["dataset=mnist", "dataset=stl10"]
    assert cells(followed, {"dataset", "epochs"}) == ["dataset=mnist epochs=1", "dataset=stl10 epochs=2"]


# ---- what it looks like


def scene() -> None:
    finish(make("grid/0123456789", rows(10), optimizer={"lr": 0.1}), 120.0, knn_top1=0.871, linear_top1=0.9)
    failed = make("grid/1123456789", rows(2), optimizer={"lr": 1e38})
    reason = "the loss is not finite at step 2 (lr 2.5e+37, tau 0.2): set a smaller optimizer.lr"
    (failed / "failed.json").write_text(json.dumps({"reason": reason}))
    elsewhere(make("grid/2123456789", rows(4), optimizer={"lr": 0.3}), "node7", silent=0)


def rendered(width: int | None, rows: int | None = None) -> list[str]:
    found, left = Survey(OUTPUTS).look((OUTPUTS / "grid/2123456789/metrics.jsonl").stat().st_mtime)
    console = Console(width=width or 1000, color_system=None)
    with console.capture() as captured:
        console.print(view(OUTPUTS, found, names(found), left, width, rows))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_as_much_as_fits_is_shown(cli: Cli) -> None:
    scene()
    wide = rendered(160)
    assert wide[0].split() == ["run", "cell", "state", "epoch", "images/s", "ETA", "knn", "linear", "reason"]
    assert "grid/2123456789  optimizer.lr=0.3    running on node7   4.0/10      10.0  1m00s" in wide
    assert wide[-1] == "1 done, 1 running, 0 partial, 1 failed; about 1m00s to go"
    narrow = rendered(80)
    assert narrow[0].split() == ["cell", "state", "epoch", "images/s", "ETA", "knn", "linear"]
    assert max(map(len, narrow)) <= 80
    told = " ".join(narrow[4:-1]).strip()
    assert told.startswith("optimizer.lr=1e+38: the loss is not finite at step 2") and told.endswith("optimizer.lr")
    tiny = rendered(40)
    assert max(map(len, tiny)) <= 40 and tiny[0].split()[:3] == ["cell", "state", "epoch"]
    piped = cli("status", COLUMNS="40").stdout.splitlines()
    assert len(piped) == 6  # no line is folded or cut
    assert piped[2].startswith("grid/1123456789  optimizer.lr=1e+38  failed")
    assert piped[2].endswith("    the loss is not finite at step 2 (lr 2.5e+37, tau 0.2): set a smaller optimizer.lr")
    some = rendered(160, rows=1)
    assert "running" in some[1] and some[3] == "and 2 more: 1 done, 1 failed" and some[4] == wide[-1]


def terminal(width: int, height: int) -> tuple[int, int]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    return master, slave


def until(master: int, text: str) -> str:
    seen = ""
    deadline = time.monotonic() + 60
    while text not in (seen := seen + os.read(master, 65536).decode()):
        assert time.monotonic() < deadline, seen
    return seen


def test_watch_shows_what_changes_until_it_is_stopped() -> None:
    make("grid/0", rows(2))
    for number in range(1, 40):
        finish(make(f"grid/{number}", seed=number), 1.0)
    master, slave = terminal(80, 20)
    command = [sys.executable, "-m", "ssl_bench", "status", "--watch"]
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")} | {"TERM": "xterm"}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    try:
        first = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", until(master, "39 done, 1 partial"))
        assert "2.0/10" in first and re.search(r"and \d+ more: \d+ done", first)
        assert len(first.splitlines()) <= 20
        with open("outputs/grid/0/metrics.jsonl", "a") as file:
            file.write(json.dumps(rows(3)[-1]) + "\n")
        until(master, "3.0/10")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        os.close(master)
        os.close(slave)


# ---- real runs


def test_a_grid_while_it_runs_and_after(cli: Cli) -> None:
    command = [sys.executable, "-m", "ssl_bench", "train", "-m", *SMALL, "epochs=4", "seed=0,1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    OUTPUTS.mkdir()
    survey, deadline = Survey(OUTPUTS), time.monotonic() + 90
    found: list[Cell] = []
    left: float | None = None
    while left is None and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.1)
        found, left = survey.look(time.time())
    assert left is not None, process.communicate()[0]
    assert [cell.state for cell in found] == ["running", "waiting"]
    first, second = found
    assert first.run and first.run.owner and first.run.owner.pid == process.pid
    assert first.left is not None and left > first.left and second.overrides and second.overrides[-1] == "seed=1"
    assert names(found)[1] == "seed=1"
    printed = process.communicate(timeout=90)[0]
    assert process.returncode == 0, printed
    found, left = survey.look(time.time())
    assert [cell.state for cell in found] == ["done", "done"] and left is None
    records = json.loads(cli("status", "--json").stdout)
    assert [(r["cell"], r["epoch"], r["epochs"], r["pid"]) for r in records] == [
        ("seed=0", 4, 4, None),
        ("seed=1", 4, 4, None),
    ]
    assert [r["overrides"][-1] for r in records] == ["seed=0", "seed=1"]


def test_a_run_that_was_cut_short(train: Train, cli: Cli) -> None:
    assert train("max_steps=21")[0] == 0
    run = only_run()
    (run / "results.json").unlink()
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 22, "epo')  # by a crash
    printed = cli("status").stdout
    assert "partial  1.0/1 " in printed and "0 done, 1 partial, 0 failed" in printed


def test_failed_cells_of_a_real_grid_and_their_commands(train: Train, cli: Cli) -> None:
    assert train("-m", "max_steps=2", "optimizer.lr=0.1,1e38", "batch_size.size=0,64")[0] == 1
    found = json.loads(cli("status", "--json").stdout)
    assert sorted(record["state"] for record in found) == ["done", "failed", "failed", "failed"]
    commands = cli("status", "--failed").stdout.splitlines()
    assert len(commands) == 3
    (diverging,) = [command for command in commands if "batch_size.size=64" in command]
    assert "optimizer.lr=1e+38" in diverging and " -m" not in diverging
    again = cli(*shlex.split(diverging)[1:])
    assert again.returncode == 1 and "not finite" in again.stderr
    assert len(json.loads(cli("status", "--json").stdout)) == 4
