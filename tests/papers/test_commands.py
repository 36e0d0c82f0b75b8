"""``ssl-bench table``, ``figure`` and ``reproduce`` on made-up results and on a made-up paper of tiny cells."""

import csv
import fcntl
import io
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssl_bench.papers import figure, runs, smoke, tables
from ssl_bench.papers import formats as show
from ssl_bench.papers import plan as reproduce
from tests.conftest import SMALL

Output = pytest.CaptureFixture[str]
ROW, COLUMN = "CIFAR-10 DCL", "256"


def cell(table: str = "dcl/table1", row: str = ROW, column: str = COLUMN) -> tables.Cell:
    return next(c for t in tables.find(table) for c in t.cells if (c.row, c.column) == (row, column))


def result(of: tables.Cell, seed: int, metrics: dict[str, float], *extra: str, outputs: Path = Path("outputs")) -> Path:
    """A results.json as a run with these overrides would have written it."""
    config = runs.compose([*of.overrides, *extra], of.command, seed)
    folder = outputs / config["name"] / runs.run_id(config)
    folder.mkdir(parents=True, exist_ok=True)
    record = {"run_id": folder.name, "name": config["name"], "config": config, "metrics": metrics, "seconds": 1.0}
    (folder / "results.json").write_text(json.dumps(record))
    return folder


def entries(capsys: Output, *arguments: str) -> list[dict[str, Any]]:
    """The cells that ``ssl-bench table`` prints as JSON."""
    capsys.readouterr()
    assert show.main([*arguments, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"table", "cells"}
    cells: list[dict[str, Any]] = found["cells"]
    return cells


def test_mean_deviation_and_count_of_the_seeds_that_are_there(capsys: Output) -> None:
    for seed, top1 in enumerate((0.84, 0.85, 0.86)):
        result(cell(), seed, {"knn/top1": top1})
    result(cell(), 0, {"knn/top1": 0.84}, outputs=Path("outputs/copy"))  # the same run again counts once
    found = {(c["row"], c["column"]): c for c in entries(capsys, "dcl/table1")}
    assert len(found) == 40 and set(found[ROW, COLUMN]) == {
        *("row", "column", "metric", "paper", "mean", "std", "n", "note")
    }
    mine = found[ROW, COLUMN]
    assert (mine["paper"], mine["n"], mine["note"], mine["metric"]) == (84.2, 3, None, "knn/top1")
    assert mine["mean"] == pytest.approx(85.0) and mine["std"] == pytest.approx(1.0)
    other = found[ROW, "128"]
    assert (other["paper"], other["mean"], other["std"], other["n"]) == (84.4, None, None, 0)
    assert found["STL-10 DCL", "128"]["paper"] is None
    one = entries(capsys, "dcl/table2", "row=CIFAR-10", "col=DCL")[0]  # the same runs fill the cell of another table
    assert one["n"] == 3 and one["paper"] == 84.1


def test_every_format_shows_paper_ours_difference_and_what_is_missing(capsys: Output) -> None:
    for seed, top1 in enumerate((0.84, 0.86)):
        result(cell(), seed, {"knn/top1": top1})

    def shown(form: str) -> str:
        capsys.readouterr()
        assert show.main(["dcl/table1", f"row={ROW}", "col=*[56]*", f"--format={form}"]) == 0
        return capsys.readouterr().out

    line = "| CIFAR-10 DCL | 256 | 84.2 | 85.00 ± 1.41 (2) | +0.80 |"
    assert line in shown("md")
    assert "CIFAR-10 DCL & 256 & 84.2 & 85.00 $\\pm$ 1.41 (2) & +0.80 \\\\" in shown("tex")
    rich = " ".join(shown("rich").split())
    assert "85.00 ± 1.41 (2) +0.80" in rich
    (first,) = [row for row in csv.DictReader(io.StringIO(shown("csv"))) if row["column"] == "256"]
    assert (first["paper"], first["n"]) == ("84.2", "2") and float(first["mean"]) == pytest.approx(85.0)
    assert show.main(["dcl/table1", f"row={ROW}", "--format", "md"]) == 0
    printed = capsys.readouterr().out
    commands = [shlex.split(x) for x in printed.splitlines() if x.strip().startswith("ssl-bench train")]
    assert len(commands) == 4 and "batch_size=b256" not in " ".join(" ".join(c) for c in commands)
    assert commands[0][:3] == ["ssl-bench", "train", "-m"] and commands[0][-1] == "seed=0,1,2,3,4"
    assert commands[0][3:-1] == list(cell(column="32").overrides)
    assert show.main(["eqco/table8", "--format", "md"]) == 0
    assert "needs detection" in capsys.readouterr().out


def test_reduced_and_smoke_runs_never_fill_a_cell(capsys: Output) -> None:
    result(cell(), 0, {"knn/top1": 0.5}, "scale=smoke")
    result(cell(), 0, {"knn/top1": 0.6}, "epochs=20")  # full scale by name, but another configuration
    for seed, top1 in enumerate((0.7, 0.72)):
        result(cell(), seed, {"knn/top1": top1}, "epochs=20", "scale=reduced")
    result(cell(), 0, {"knn/top1": 0.65}, "epochs=5", "scale=reduced")  # the longer ones are shown
    mine = next(c for c in entries(capsys, "dcl/table1") if (c["row"], c["column"]) == (ROW, COLUMN))
    assert mine["mean"] is None and mine["n"] == 0
    assert show.main(["dcl/table1", f"row={ROW}", "--format", "md"]) == 0
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("| CIFAR-10 DCL")]
    assert [x for x in lines if "20 epochs" in x] == [
        "| CIFAR-10 DCL | 256 | 84.2 |  |  | 71.00 ± 1.41 (2), 20 epochs |"
    ]


def test_a_metric_of_the_training_is_read_from_the_journal(capsys: Output) -> None:
    curve = cell("dcl/fig4", "CIFAR-10 DCL", "40")
    folder = result(curve, 0, {"knn/top1": 0.9})
    rows = [{"epoch": e, "knn/top1": e / 100} for e in (20, 40, 60)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"epo')
    found = {c["column"]: c["mean"] for c in entries(capsys, "dcl/fig4", "row=CIFAR-10 DCL")}
    assert found["20"] == pytest.approx(20) and found["40"] == pytest.approx(40) and found["80"] is None


def test_a_figure_is_drawn_over_the_paper(capsys: Output) -> None:
    result(cell("dcl/fig3a", "DCL", "256"), 0, {"linear_opensel/layer4_top1": 0.66})
    assert figure.main(["dcl/fig3", "--out", "fig.png"]) == 0
    assert Path("fig.png").read_bytes()[1:4] == b"PNG"
    panels = [(t, show.fill(t, t.cells, runs.finished(Path("outputs")))) for t in tables.find("dcl/fig3")]
    left, right = figure.draw(panels).axes
    assert left.get_xlabel() == "batch size (images)" and left.get_ylabel() == "top-1 accuracy (%)"
    legend = left.get_legend()
    assert legend is not None
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["SimCLR (paper)", "DCL (paper)", "DCL"] and right.get_xscale() == "log"
    assert figure.main(["dcl/table1"]) == 2 and "dcl/table1 is no figure" in capsys.readouterr().err
    assert figure.main(["dcl/fig3", "--out", "fig.doc"]) == 2
    assert figure.main(["less/fig1a", "--out", "empty.pdf"]) == 0  # no numbers at all


@pytest.mark.parametrize("command", [show.main, reproduce.main, figure.main])
def test_wrong_names_are_refused_with_a_suggestion(command: Callable[..., int], capsys: Output) -> None:
    wrong = [
        (["dcl/tabel1"], "(did you mean dcl/table1?)"),
        (["dcl/table1", "row=CIFAR-10 DLC"], "(did you mean CIFAR-10 DCL?)"),
        (["dcl"], "name one, or add --all"),
        (["dcl/table1", "--dryrun"], "there is no --dryrun"),
        ([], ""),
    ]
    for arguments, message in wrong:
        assert command(arguments) == 2
        assert message in "".join(capsys.readouterr())
    assert command(["--help"]) == 0


def test_a_dry_run_prints_the_commands_of_what_is_missing(capsys: Output) -> None:
    for seed in range(5):
        result(cell(column="32"), seed, {"knn/top1": 0.8})
    result(cell(column="64"), 1, {"knn/top1": 0.8})
    arguments = ["dcl/table1", f"row={ROW}", "col=[36][24]", "devices=8", "--dry-run"]
    assert reproduce.main(arguments) == 0
    out = capsys.readouterr().out
    assert "      done  dcl/table1 CIFAR-10 DCL | 32" in out and "1/5 seeds  dcl/table1 CIFAR-10 DCL | 64" in out
    assert "4 runs to go in 1 cells, about 0.4 h of pre-training on 8 V100" in out
    (line,) = [x for x in out.splitlines() if x.startswith("ssl-bench")]
    assert shlex.split(line)[3:] == [*cell(column="64").overrides, "devices=8", "seed=0,2,3,4"]
    assert reproduce.main([*arguments, "epochs=20", "seed=0"]) == 0
    out = capsys.readouterr().out
    assert "count as scale=reduced" in out and "epochs=20 " in out and "epochs=200" not in out
    assert "scale=reduced seed=0" in out
    assert reproduce.main(["dcl/table1", "optimiser.lr=1", "--dry-run"]) == 2
    assert "there is no key optimiser" in capsys.readouterr().err


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A paper of three cells on scattered digits, one on a dataset that there is not, one that needs a method."""
    common = ["dataset=scattered_digits", "max_steps=2", "evaluate.baselines=[]"]
    common += [o for o in SMALL if not o.startswith("evaluate")] + ["evaluate=[knn]"]
    rows: dict[str, Any] = {
        "digits": {"values": [50.0, 60.0]},
        "other": {"set": ["dataset=nowhere"]},
        "npid": {"missing": "npid"},
    }
    table: dict[str, Any] = {"title": "t", "metric": "knn/top1", "set": common, "seeds": [0, 1]}
    table |= {"columns": {"infonce": ["loss=infonce"], "dcl": ["loss=dcl"]}, "rows": rows}
    paper = {"paper": "tiny", "title": "t", "cite": "nobody", "tables": {"table1": table}}
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "tiny.yaml").write_text(yaml.safe_dump(paper, sort_keys=False))
    monkeypatch.setenv("SSL_BENCH_PAPERS", str(tmp_path / "papers"))


def test_an_interrupted_reproduction_goes_on_with_what_is_missing(tiny: None, capsys: Output) -> None:
    assert reproduce.main(["tiny/table1", "col=infonce", "seed=0"]) == 0
    out = capsys.readouterr().out
    assert "not available: needs npid" in out and "not available: dataset=nowhere: there is no such option" in out
    assert "1 runs to go in 1 cells" in out and "1 trained, 0 done before, 0 failed" in out
    trained = {path: path.stat().st_mtime_ns for path in Path("outputs").glob("tiny/*/results.json")}
    assert len(trained) == 1
    assert reproduce.main(["tiny/table1", "col=infonce"]) == 0
    out = capsys.readouterr().out
    assert "1/2 seeds  tiny/table1 digits | infonce" in out and "1 trained, 0 done before, 0 failed" in out
    assert all(path.stat().st_mtime_ns == when for path, when in trained.items())
    assert reproduce.main(["tiny/table1", "col=infonce"]) == 0
    assert "0 runs to go in 0 cells" in capsys.readouterr().out
    filled = entries(capsys, "tiny/table1", "row=digits")
    assert [c["n"] for c in filled] == [2, 0] and 0 < filled[0]["mean"] < 100 and filled[0]["paper"] == 50.0


def test_a_signal_stops_the_whole_reproduction() -> None:
    command = [sys.executable, "-m", "ssl_bench", "reproduce", "eqco/table9", "row=MI 2 *"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as started:
        assert started.stdout is not None
        for line in started.stdout:
            if line.startswith("run "):  # the first of eight
                break
        time.sleep(0.5)
        started.send_signal(signal.SIGINT)
        printed = started.stdout.read()
        # Where the signal met code that Python runs from a string, Python ends by it: for a shell 130 as well.
        assert started.wait(60) in (130, -signal.SIGINT), printed
        assert "interrupted" in printed and "run " not in printed, printed


def test_cells_are_carried_out_at_once_by_a_launcher(tiny: None, capfd: pytest.CaptureFixture[str]) -> None:
    assert reproduce.main(["tiny/table1", "seed=0", "hydra/launcher=local"]) == 0
    out = capfd.readouterr().out
    assert "runs count as scale=reduced" not in out and out.count("1 cells: 1 trained") == 2
    assert len(list(Path("outputs").glob("*/*/results.json"))) == 2
    assert reproduce.main(["tiny/table1", "seed=0", "hydra/launcher=local"]) == 0
    assert "0 runs to go in 0 cells" in capfd.readouterr().out
    assert reproduce.main(["tiny/table1", "scale=smoke", "hydra/launcher=local"]) == 2
    assert "leave hydra/launcher out" in capfd.readouterr().err


def test_smoke_trains_on_generated_images_and_leaves_none(capsys: Output) -> None:
    beside = Path("results/smoke/another/checkpoints")  # of another process
    beside.mkdir(parents=True)
    arguments = ["intriguing/fig7_mnist", "col=5", "row=*0.05", "scale=smoke", "paths.outputs=results"]
    assert reproduce.main(arguments) == 0
    out = capsys.readouterr().out
    assert "1 runs to go" in out and "1 trained, 0 done before, 0 failed" in out and " h of pre-training" not in out
    (path,) = Path("results").glob("smoke/*/results.json")
    config = json.loads(path.read_text())["config"]
    assert config["scale"] == "smoke" and config["max_steps"] == 2 and not Path("results/.smoke").exists()
    assert beside.exists()
    assert not (path.parent / "checkpoints").exists()
    assert all(c["n"] == 0 for c in entries(capsys, "intriguing/fig7_mnist", "paths.outputs=results"))

    Path("results/.smoke").mkdir()
    with open("results/.smoke/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # as a smoke run of another process does
        assert reproduce.main([*arguments[:-1], "paths.outputs=results"]) == 0
        assert "0 runs to go" in capsys.readouterr().out and Path("results/.smoke").exists()


@pytest.mark.parametrize("dataset", ["stl10", "imagenet100", "digit_on_imagenet", "multi_digits", "randbit_imagenet"])
def test_generated_images_are_in_the_layout_that_the_dataset_reads(dataset: str, tmp_path: Path) -> None:
    from ssl_bench import parts as assemble

    small = smoke.overrides(runs.compose([f"dataset={dataset}"]), tmp_path)
    config = runs.compose([f"dataset={dataset}", *small])
    smoke.write(config, tmp_path)
    made = assemble.dataset(config)
    assert made.check() >= config["batch_size"]["size"]
    (probe, *_) = made.probes().values()
    assert len(probe.train) > 5 and len(probe.test) > 5


def test_a_table_is_kept_in_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr("ssl_bench.record.wandb.log_table", lambda *arguments: kept.append(arguments))
    assert show.main(["dcl/table4", "--format", "csv", "--wandb"]) == 0
    ((name, headings, rows, record),) = kept
    assert name == "dcl/table4" and len(headings) == len(rows[0]) and len(record["cells"]) == len(rows) == 8
