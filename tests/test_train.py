"""``ssl_bench.train``: the rows of a grid from Python, the command's sentences as exceptions, scripts and notebooks."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import ssl_bench
from ssl_bench import files
from ssl_bench.errors import ConfigError, RunError
from tests.conftest import SMALL, no_pictures

RUN = [*SMALL, "max_steps=1", "evaluate=knn"]
CALL = f"ssl_bench.train({[*RUN, 'loss=infonce,dcl']}, name='mine', jobs=2)"


def listed(table: Any) -> list[dict[str, Any]]:
    """The rows of a table, which is a list without pandas."""
    return table if isinstance(table, list) else list(table.to_dict("records"))


def test_the_rows_are_those_of_the_runs_and_nothing_is_trained_twice(capfd: pytest.CaptureFixture[str]) -> None:
    with no_pictures():
        rows = listed(ssl_bench.train([*RUN, "loss=dcl,infonce", "seed=1,0"], name="mine"))
    assert [(row["loss"], row["seed"]) for row in rows] == [("dcl", 1), ("dcl", 0), ("infonce", 1), ("infonce", 0)]
    for row in rows:
        results = files.read_json(Path(row["path"]) / "results.json")
        assert row["knn/top1"] == results["metrics"]["knn/top1"] and row["state"] == "done"
        assert row["run_id"] == results["run_id"] and results["name"] == "mine"
    out, _ = capfd.readouterr()
    assert "4 runs: 4 trained" in out and "4 of 4  loss=infonce seed=0  knn " in out
    again = listed(ssl_bench.train([*RUN, "loss=infonce", "seed=0"], name="mine"))
    assert [row["path"] for row in again] == [rows[3]["path"]] and "0 trained, 1 done before" in capfd.readouterr().out


def test_errors_are_the_sentences_of_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    refused = {
        (
            "loss=infonec",
        ): r"loss=infonec: there is no such option \(did you mean infonce\?\); set loss to one of align",
        ("epochs=0",): "1 of 1 runs cannot be: epochs=0: set epochs to 1 or more",
        (
            "negatives=random_k",
            "negatives.k=16,200",
        ): "1 of 2 runs cannot be: negatives.k=200: set negatives.k to 126 or",
        ("dcl",): "dcl is no key=value",
        ("--dry-run",): "--dry-run is a flag of the command: leave it out",
    }
    for words, sentence in refused.items():
        with pytest.raises(ConfigError, match=sentence):
            ssl_bench.train(words)
    with pytest.raises(ConfigError, match="overrides=seed=3: set overrides to a list of texts"):
        ssl_bench.train("seed=3")
    with pytest.raises(ConfigError, match=r"n_jobs=0: set hydra\.launcher\.n_jobs to 1 or more"):
        ssl_bench.train(["seed=3"], jobs=0)
    with pytest.raises(RunError, match="not finite"):
        ssl_bench.train([*SMALL, "max_steps=3", "optimizer.lr=1e38"])
    assert capfd.readouterr().err == ""
    caught: list[BaseException] = []

    def elsewhere() -> None:
        try:
            ssl_bench.train([*RUN])
        except RunError as error:
            caught.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "only the main thread receives signals" in str(caught[0])


def test_a_run_that_failed_beside_others_is_a_row(capfd: pytest.CaptureFixture[str]) -> None:
    rows = listed(ssl_bench.train([*SMALL, "max_steps=3", "optimizer.lr=1e38,0.1"]))
    assert [row["state"] for row in rows] == ["failed", "done"]
    assert "1 of 2  optimizer.lr=1e+38  failed: " in capfd.readouterr().out


@pytest.mark.slow
def test_a_script_is_not_run_again_in_the_processes_of_its_runs() -> None:
    """A script without ``if __name__ == "__main__"``, as people write them."""
    Path("script.py").write_text(f"import ssl_bench\nprint('once')\nprint(len({CALL}))\n")
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0 and done.stdout.splitlines().count("once") == 1, done.stdout + done.stderr
    assert "2 runs: 2 trained" in done.stdout and done.stdout.splitlines()[-1] == "2"


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore")  # of the client of notebooks
def test_a_notebook_trains_a_grid() -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    cells = [
        f"import ssl_bench\nrows = {CALL}",
        "sorted(rows['loss']), rows['state'].tolist()",
        "ssl_bench.train(['x'])",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3", allow_errors=True).execute()
    texts = [[output.get("text", "") for output in cell["outputs"]] for cell in book.cells]
    assert "2 of 2  loss=" in "".join(texts[0]) and "2 runs: 2 trained" in "".join(texts[0]), book.cells[0]
    (answer,) = book.cells[1]["outputs"]
    assert answer["data"]["text/plain"] == "(['dcl', 'infonce'], ['done', 'done'])"
    (error,) = [output for output in book.cells[2]["outputs"] if output["output_type"] == "error"]
    assert error["ename"] == "ConfigError" and error["evalue"].startswith("x is no key=value")
