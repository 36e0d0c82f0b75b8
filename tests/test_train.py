"""``ssl_bench.train``: the rows of a grid from Python, the command's sentences as exceptions, threads and scripts."""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import ssl_bench
from ssl_bench import files
from ssl_bench.errors import RunError
from ssl_bench.signals import IN_A_THREAD, STOPS
from tests.conftest import SMALL, no_pictures
from tests.door.door import refused

RUN = [*SMALL, "max_steps=1", "evaluate=knn"]
CALL = f"ssl_bench.train({[*RUN, 'loss=infonce,dcl']}, name='mine', jobs=2)"


def test_the_rows_are_those_of_the_runs_and_nothing_is_trained_twice(capfd: pytest.CaptureFixture[str]) -> None:
    with no_pictures():
        rows = ssl_bench.train([*RUN, "loss=dcl,infonce", "seed=1,0"], name="mine").to_dict("records")
    assert [(row["loss"], row["seed"]) for row in rows] == [("dcl", 1), ("dcl", 0), ("infonce", 1), ("infonce", 0)]
    for row in rows:
        results = files.read_json(Path(row["path"]) / "results.json")
        assert row["knn/top1"] == results["metrics"]["knn/top1"] and row["state"] == "finished"
        assert row["run_id"] == results["run_id"] and results["name"] == "mine"
    out, _ = capfd.readouterr()
    assert "4 runs: 4 trained" in out and "loss=infonce seed=0" in out
    again = ssl_bench.train([*RUN, "loss=infonce", "seed=0"], name="mine").to_dict("records")
    assert [row["path"] for row in again] == [rows[3]["path"]] and "0 trained, 1 done" in capfd.readouterr().out


def test_errors_are_the_sentences_of_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    for words, names in {
        "loss=infonec": "loss=infonec infonce",
        "epochs=0": "epochs=0 1",
        "negatives=random_k negatives.k=16,200": "negatives.k=200 1 2 126",
        "dcl": "dcl key=value",
        "--dry-run": "--dry-run",
    }.items():
        with refused(names):
            ssl_bench.train(words.split())
    with refused("overrides=seed=3"):
        ssl_bench.train("seed=3")
    with refused("jobs=0 1"):
        ssl_bench.train(["seed=3"], jobs=0)
    with pytest.raises(RunError, match="not finite"):
        ssl_bench.train([*SMALL, "max_steps=3", "optimizer.lr=1e38"])
    assert capfd.readouterr().err == ""


def test_threads_train_in_turn_with_the_bits_of_the_main_thread(capfd: pytest.CaptureFixture[str]) -> None:
    handlers = [signal.getsignal(number) for number in STOPS]
    with no_pictures(), ThreadPoolExecutor(2) as threads:
        words = [[*RUN, f"seed={seed}", "paths.outputs=threads"] for seed in (0, 1)]
        pairs = [table.to_dict("records")[0] for table in threads.map(ssl_bench.train, words)]
        rows = ssl_bench.train([*RUN, "seed=0,1"]).to_dict("records")
    assert [signal.getsignal(number) for number in STOPS] == handlers
    for row, same in zip(pairs, rows, strict=True):
        results, others = (files.read_json(Path(of["path"]) / "results.json") for of in (row, same))
        assert results["run_id"] == others["run_id"] and results["metrics"] == others["metrics"]
        assert (Path(row["path"]) / "train.log").read_text().count(IN_A_THREAD) == 1
        assert IN_A_THREAD not in (Path(same["path"]) / "train.log").read_text()


def test_a_run_that_diverged_beside_others_is_a_row(capfd: pytest.CaptureFixture[str]) -> None:
    rows = ssl_bench.train([*SMALL, "max_steps=3", "optimizer.lr=1e38,0.1"]).to_dict("records")
    assert [row["state"] for row in rows] == ["diverged", "finished"]
    assert "optimizer.lr=1e+38" in capfd.readouterr().out


@pytest.mark.slow
def test_a_script_is_not_run_again_in_the_processes_of_its_runs() -> None:
    """A script without ``if __name__ == "__main__"``, as people write them."""
    Path("script.py").write_text(f"import ssl_bench\nprint('once')\nprint(len({CALL}))\n")
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0 and done.stdout.splitlines().count("once") == 1, done.stdout + done.stderr
    assert "2 runs: 2 trained" in done.stdout and done.stdout.splitlines()[-1] == "2"
