"""The files of scripts/examples/, each run as a user runs it, in this process."""

import json
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from pandas import DataFrame

import ssl_bench
from tests.conftest import SMALL, only_run

EXAMPLES = Path(ssl_bench.__file__).parents[1] / "scripts" / "examples"
pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="an installed package has no examples")


@pytest.fixture
def example(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., list[str]]:
    """Function that runs an example in an empty folder and returns the lines that it printed."""

    def run(name: str, *arguments: str) -> list[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        capfd.readouterr()
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capfd.readouterr().out.splitlines()

    return run


def test_a_queue_with_eqco(example: Callable[..., list[str]]) -> None:
    (line,) = example("queue_eqco", "1")
    assert line.startswith("epoch 0: ") and len(re.findall(r"-?\d+\.\d+", line)) == 2
    state = torch.load("queue_eqco.pt", weights_only=True)["loss"]
    assert state["negatives.keys"].shape == (1024, 64) and int(state["negatives.place"]) == 1797 % 1024


@pytest.mark.slow
def test_swav_in_a_run(train: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("SSL_BENCH_PLUGINS", "swav")
    crops = ["augment=multicrop_cifar", "augment.small.size=6", "augment.large.size=8", "framework.prototypes=20"]
    words = ["framework=swav", "plugins=[swav]", "--config-dir", str(EXAMPLES), "epochs=2", *crops]
    code, printed = train(*words)
    sys.modules.pop("swav", None)
    assert code == 0, printed
    metrics = [json.loads(line) for line in (only_run() / "metrics.jsonl").read_text().splitlines()]
    used = [row["train/prototypes"] for row in metrics if "train/prototypes" in row]
    assert used and all(10 < count <= 20 for count in used)
    loss = [row["loss"] for row in metrics if "loss" in row]
    assert loss[-1] < loss[0]


@pytest.mark.slow
def test_a_search_has_the_mean_over_seeds_as_its_value_and_goes_on(example: Callable[..., list[str]]) -> None:
    optuna = pytest.importorskip("optuna")
    words = [*SMALL, "epochs=1", "evaluate.baselines=[]", "evaluate.watch=0"]

    def study() -> Any:
        backend = optuna.storages.journal.JournalFileBackend("search.journal")
        return optuna.load_study(study_name="search", storage=optuna.storages.JournalStorage(backend))

    def means() -> dict[float, float]:
        """Of the runs on the disk, by their learning rate."""
        values = dict[float, list[float]]()
        for path in Path("outputs/search").glob("*/results.json"):
            content = json.loads(path.read_text())
            values.setdefault(content["config"]["optimizer"]["lr"], []).append(content["metrics"]["knn_val/top1"])
        assert all(len(of_seeds) == 3 for of_seeds in values.values())
        return {rate: fmean(of_seeds) for rate, of_seeds in values.items()}

    (*_, last) = example("search", "2", *words)
    first = study().trials
    values = {trial.params["optimizer.lr"]: trial.value for trial in first}
    assert len(first) == 2 and values == pytest.approx(means())
    assert last.startswith(f"trial {study().best_trial.number}: {max(values.values()):.4f} with ")
    assert example("search", "2", *words) == [last] and len(means()) == 2  # nothing is left to do
    stopped = study().ask(dict(first[0].distributions))
    example("search", "3", *words)  # the trial that was stopped, again
    again = study().trials
    assert [trial.state.name for trial in again] == ["COMPLETE"] * 2 + ["FAIL", "COMPLETE"]
    assert again[3].params == stopped.params and again[3].value == pytest.approx(
        means()[again[3].params["optimizer.lr"]]
    )


@pytest.mark.slow
def test_the_page_of_a_grid(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Its commands, for fewer settings and one step, on noise in place of photos."""
    monkeypatch.delenv("SSL_BENCH_DATA", raising=False)
    Path("data/cifar10").mkdir(parents=True)
    drawn = np.random.default_rng(0)
    for split, count in {"train": 2200, "test": 40}.items():
        np.save(f"data/cifar10/{split}_images.npy", drawn.integers(0, 256, (count, 32, 32, 3), np.uint8))
        np.save(f"data/cifar10/{split}_labels.npy", np.arange(count) % 10)
    page = (EXAMPLES / "grid.md").read_text()
    printed = {}
    for line in "".join(re.findall(r"```bash\n(.*?)```", page, re.DOTALL)).replace("\\\n", " ").splitlines():
        program, name, *words = shlex.split(line, comments=True)
        assert program == "ssl-bench"
        if name == "train":
            words = [word for word in words if not word.startswith("launcher")]
            words += ["max_steps=1", "negatives.k=2,126", "batch_size.size=32,64", "seed=0,1"]
            words += ["tracking=off"]
        capfd.readouterr()
        assert import_module(f"ssl_bench.commands.{name}").main(words) == 0, capfd.readouterr()
        printed[line] = capfd.readouterr().out

    runs = ssl_bench.runs("outputs/k_batch")
    assert len(runs) == 12 and set(runs["state"]) == {"finished"}  # 126 negatives need a batch of 64
    assert Path("heat.pdf").read_bytes()[:4] == b"%PDF" and Path("report.html").stat().st_size > 6e5
    means = 100 * runs.groupby(["loss", "negatives.k", "batch_size"])["knn/top1"].mean()
    (table,) = (text for line, text in printed.items() if " table " in line)
    assert all(f"{mean:.2f}" in table for mean in means)
    names = dict[str, object]()
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), names)
    assert isinstance(names["means"], DataFrame) and Path("heat-2.pdf").is_file()


def test_results_are_read(example: Callable[..., list[str]], grid: list[Path]) -> None:
    lines = example("read_results")
    assert [(line.split()[0], line.split()[3]) for line in lines[2:4]] == [("dcl", "2"), ("infonce", "2")]
    assert lines[-2].split()[1] == "3" and re.fullmatch(r"parameters: [\d,]+", lines[-1])
    for run in grid[1:]:
        shutil.rmtree(run)
    assert example("read_results")[2].split()[2:] == ["NaN", "1"]  # of one run, in which nothing varies
