"""``ssl-bench verify``: forged runs are found, each by the question that it must fail, and honest ones pass.

A run is forged as another one: with that one's configuration and settings of the optimiser, under its run_id.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from ssl_bench.check.answer import Verdict
from ssl_bench.check.verify import answers
from ssl_bench.commands import evaluate, verify
from ssl_bench.commands.train import main as train
from ssl_bench.config.identity import run_id
from ssl_bench.record import checkpoint
from ssl_bench.training.engine import Training
from tests.conftest import SMALL, no_pictures, only_run
from tests.door.door import enter, files, refuses

SHORT = [*SMALL, "threads=1", "epochs=40", "max_steps=24", "evaluate=[knn]"]
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
Change = Callable[[dict[str, Any]], None]


class Runs:
    """Honest runs, each trained once; a test is given copies."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.trained, self.copies = folder, dict[str, Path](), itertools.count()

    def __call__(self, typed: str = "") -> Path:
        """A copy of the run with some overrides, in the working directory."""
        if typed not in self.trained:
            place = self.folder / str(len(self.trained))
            with no_pictures():
                assert train([*SHORT, *typed.split(), f"paths.outputs={place}"]) == 0
            self.trained[typed] = only_run(place)
        run, copy = self.trained[typed], Path("outputs", str(next(self.copies)), self.trained[typed].name)
        shutil.copytree(run, copy)
        return copy


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


# ---- forging


def edit(path: Path, change: Change) -> None:
    """Change the content of a file of a run."""
    if path.suffix == ".pt":
        state = checkpoint.read(path)
        change(state)
        torch.save(state, path)
    elif path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            change(row)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows if row))
    else:
        content = yaml.safe_load(path.read_text())
        change(content)
        path.write_text(json.dumps(content))


def everywhere(run: Path, change: Change) -> None:
    for path in (run / "config.yaml", run / "results.json", *run.glob("checkpoints/*")):
        edit(path, change)


def named(run: Path, config: dict[str, Any]) -> Path:
    """Give a run the name that a configuration has."""
    name = run_id(config)
    everywhere(run, lambda content: content.update({"run_id": name} if "run_id" in content else {}))
    return run.rename(run.parent / name)


def presented(run: Path, other: Path) -> Path:
    """Present a run as another one."""
    shutil.copy(other / "config.yaml", run / "config.yaml")
    theirs = json.loads((other / "results.json").read_text())
    claims = {key: theirs[key] for key in ("config", "facts")}
    edit(run / "results.json", lambda content: content.update(claims))
    for path in run.glob("checkpoints/*"):
        groups = checkpoint.read(other / "checkpoints" / path.name)["optimizer"]["param_groups"]
        edit(path, lambda state, groups=groups: state["optimizer"].update(param_groups=groups))  # type: ignore[misc]
    return named(run, theirs["config"])


def with_last(run: Path, method: dict[str, Any]) -> Path:
    edit(run / "checkpoints" / "last.pt", lambda state: state.update(method=method))
    return run


def state_of(run: Path, name: str = "last.pt") -> dict[str, Any]:
    return checkpoint.read(run / "checkpoints" / name)


def initial(run: Path) -> dict[str, Any]:
    config = yaml.safe_load((run / "config.yaml").read_text())
    state: dict[str, Any] = Training(config, run.name, run, torch.device("cpu")).state.method.state_dict()
    return state


def better(run: Path, by: float = 0.04, **changes: str) -> Path:
    """Raise an accuracy wherever it stands, and leave its images out; ``changes`` of its evaluation."""

    def change(content: dict[str, Any]) -> None:
        for entry in content["evaluations"]:
            entry.pop("hits", None)
            entry["metrics"]["knn/top1"] += by
            entry.update(changes)
        content["metrics"]["knn/top1"] += by

    edit(run / "results.json", change)
    return run


def other_images(run: Path) -> Path:
    """Swap right and wrong images of an accuracy."""
    (path,) = run.glob("hits/knn-top1*")
    path.write_bytes(bytes(255 - byte for byte in path.read_bytes()))
    return run


def lower(run: Path, first: int, last: int) -> Path:
    """Lower the recorded losses of some steps by 3%."""

    def change(row: dict[str, Any]) -> None:
        if "loss" in row and first <= row["step"] <= last:
            row["loss"] *= 0.97

    edit(run / "metrics.jsonl", change)
    return run


def skipped(run: Path, whole: Path) -> Path:
    """Let a run of 14 steps look like one of 24, with made-up rows for what it has skipped."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    early = [row for row in rows if "loss" in row]
    late = [{**row, "step": row["step"] + 10} for row in rows if row["step"] > 4]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (*early, *late)))
    for path in run.glob("checkpoints/*"):
        edit(path, lambda state: state.update(step=state["step"] + 10))
    return presented(run, whole)


def statistics(run: Path) -> Path:
    """Change the statistics of the batch norms in the last checkpoint."""
    method = state_of(run)["method"]
    return with_last(run, {n: 1.05 * v if n.endswith("running_var") else v for n, v in method.items()})


def from_weights(runs: Runs, typed: str = "") -> Path:
    """A run that did not begin where its seed says."""
    begun = runs()
    return presented(runs(f"init={begun.absolute()} {typed}"), runs(typed))


def other_results(run: Path, other: Path) -> Path:
    theirs = json.loads((other / "results.json").read_text())
    entries = [{**entry, "hits": {}} for entry in theirs["evaluations"]]
    edit(run / "results.json", lambda content: content.update(metrics=theirs["metrics"], evaluations=entries))
    return run


def with_seed(run: Path) -> Path:
    """Change the seed in config.yaml alone."""
    edit(run / "config.yaml", lambda content: content.update(seed=5))
    return run


FORGED: dict[str, tuple[Callable[[Runs], Path], str]] = {
    "config.yaml": (lambda runs: with_seed(runs()), "identity"),
    "seed": (lambda runs: presented(runs("seed=1"), runs()), "start"),
    "loss": (lambda runs: presented(runs("loss=dcl"), runs()), "start"),
    "temperature": (lambda runs: presented(runs("temperature.tau=0.22"), runs()), "start"),
    "number of negatives": (
        lambda runs: presented(runs("negatives=random_k negatives.k=64"), runs("negatives=random_k negatives.k=32")),
        "start",
    ),
    "views": (lambda runs: presented(runs("augment.scale=[0.9,1.0]"), runs()), "start"),
    "weights to start from": (from_weights, "start"),
    "weights to start from, of a run with one row": (lambda runs: from_weights(runs, "log_every=1000"), "start"),
    "the first losses": (lambda runs: lower(runs(), 1, 3), "start"),
    "a rate that is 20% higher": (lambda runs: presented(runs("optimizer.lr=0.36"), runs()), "end"),
    "weight decay": (lambda runs: presented(runs("optimizer.weight_decay=0.1"), runs()), "end"),
    "weights of another run": (lambda runs: with_last(runs(), state_of(runs("seed=1"))["method"]), "end"),
    "weights of the initialisation": (lambda runs: with_last(run := runs(), initial(run)), "end"),
    "weights of another step": (lambda runs: with_last(run := runs(), state_of(run, "previous.pt")["method"]), "end"),
    "statistics of batch norms": (lambda runs: statistics(runs()), "end"),
    "the last losses": (lambda runs: lower(runs(), 20, 24), "end"),
    "skipped epochs": (lambda runs: skipped(runs("max_steps=14"), runs()), "end"),
    "results of another run": (lambda runs: other_results(runs(), runs("seed=1")), "results"),
    "a result": (lambda runs: better(runs()), "results"),
    "a result by two images of 450": (lambda runs: better(runs(), 2 / 450), "results"),
    "a result of an evaluation that nobody can ask for": (lambda runs: better(runs(), id="0123456789"), "results"),
    "the images that were right": (lambda runs: other_images(runs()), "results"),
}
QUICK = ("weights of another step", "a result by two images of 450")
USUAL = ("weights to start from, of a run with one row", "skipped epochs")


def thorough(name: str, quick: tuple[str, ...], usual: tuple[str, ...]) -> Any:
    """A case that every run of the tests has, the slower one has, or only the one of everything."""
    marks = [] if name in quick else [pytest.mark.slow if name in usual else pytest.mark.exhaustive]
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [thorough(name, QUICK, USUAL) for name in FORGED])
def test_a_forged_run_is_found(name: str, runs: Runs) -> None:
    make, question = FORGED[name]
    verdicts = {answer.name: answer.verdict for answer in answers(make(runs), {})}
    assert verdicts[question] is Verdict.WRONG, verdicts


# ---- honest runs

HONEST = {
    "dcl": "loss=dcl temperature=cosine temperature.final=0.5",
    "macl": "loss=macl temperature=macl_a",
    "vicreg": "loss=vicreg negatives=none",
    "sogclr": "loss=sogclr",
    "learned temperature": "temperature=learned",
    "moco": "framework=moco_v2 negatives.k=192",
    "byol": "framework=byol framework.predictor=32 head.hidden=32",
    "supervised": "framework=supervised",
    "npid": "framework=npid loss=nce negatives.k=32",
    "adamw": "optimizer=adamw optimizer.lr=0.01",
    "lars": "optimizer=lars",
    "chunks": "batch_size.chunk=16 loss=flatnce",
    "double precision": "precision=fp64",
    "few rows": "log_every=7",
    "one row": "log_every=1000",
    "three steps": "max_steps=3",
    "baselines": "evaluate=[knn,linear,geometry] evaluate.linear.epochs=3 evaluate.baselines=[init,raw]",
    "on the way": "evaluate.every=1 max_steps=42",
    "two ranks": "devices=2",
}


def figures(run: Path) -> dict[str, str]:
    """The words of the answers about a verified run, of which no file may change."""
    before = files()
    given = list(answers(run, {}))
    assert {answer.verdict for answer in given} == {Verdict.GOOD}, given
    assert files() == before
    return {answer.name: answer.figure for answer in given}


@pytest.mark.parametrize("name", [thorough(name, ("three steps",), ("two ranks",)) for name in HONEST])
def test_an_honest_run_is_verified_to_the_last_bit(name: str, runs: Runs) -> None:
    words = figures(runs(HONEST[name]))
    assert "the same bits" in words["start"] and "to the last bit" in words["results"], words
    assert "the same bits" in words["end"] or words["end"] == "there are no steps but those of start", words


@pytest.mark.exhaustive
def test_a_run_that_was_halted_resumed_grown_and_evaluated_again(runs: Runs) -> None:
    def go_on(*overrides: str) -> None:
        with no_pictures():
            assert train([*SMALL, "threads=1", "optimizer.schedule=constant", "evaluate=[knn]", *overrides]) == 0

    go_on("epochs=2", "halt_at=1", "log_every=4", "evaluate.every=1")
    run = only_run()
    assert verify.main([str(run)]) == 2  # it has not ended
    go_on("epochs=2", "log_every=4")
    assert evaluate.main([str(run), "evaluate=[knn]", "evaluate.knn.k=5"]) == 0
    figures(run)
    go_on("epochs=3", "log_every=3")
    *others, results = answers(run, {})
    assert {answer.verdict for answer in others} == {Verdict.GOOD} and results.verdict is Verdict.SKIPPED, results
    assert "evaluations are of other epochs, whose weights are gone" in results.figure


@pytest.mark.exhaustive
def test_honest_runs_are_verified_with_other_instructions_and_numbers_of_threads_and_ranks(runs: Runs) -> None:
    names = ("moco", "adamw", "few rows", "baselines")
    elsewhere: list[tuple[str, dict[str, int]]] = [(str(runs(HONEST[name])), {}) for name in names]
    elsewhere += [(str(runs("optimizer.lr=3")), {"threads": 2}), (str(runs(HONEST["two ranks"])), {"devices": 1})]
    code = "from pathlib import Path; from ssl_bench.check.verify import answers\n"
    code += f"for run, changes in {elsewhere}:\n"
    code += "    for answer in answers(Path(run), changes): print(answer.verdict.value, answer.name, answer.figure)"
    environment = {**os.environ, **AVX2, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, env=environment)
    lines = done.stdout.splitlines()
    assert len(lines) == 4 * len(elsewhere) and all(line.startswith("good") for line in lines), done
    # Where a processor has AVX2 only, just those with other numbers of threads and ranks have other bits.
    other = torch.backends.cpu.get_cpu_capability() != "AVX2"
    assert sum("of their change apart" in line for line in lines) >= (4 if other else 1), lines


# ---- the command


def test_the_command_prints_four_answers_and_a_question_without_one_is_not_verified(
    runs: Runs, capfd: pytest.CaptureFixture[str]
) -> None:
    run = runs(HONEST["three steps"])
    answer = enter(f"verify {run}", capfd)
    lines = answer.out.splitlines()
    assert answer.code == 0 and [line.split()[0] for line in lines] == ["good"] * 4 + ["verified"], answer
    assert [line.split()[1] for line in lines[:-1]] == ["identity", "start", "end", "results"]
    assert lines[1].endswith("steps 1 to 3: 3 losses and all weights have the same bits")
    (run / "checkpoints" / "last.pt").unlink()
    answer = enter(f"verify {run}", capfd)
    assert answer.code == 1 and answer.out.splitlines()[-1] == "not verified: end, results"
    assert "skipped end      last.pt" in answer.out
    (run / "metrics.jsonl").unlink()
    assert "skipped start    steps 1 to 3: no row of metrics.jsonl is of them" in enter(f"verify {run}", capfd).out
    refuses("verify nowhere", "nowhere is no run directory", capfd)
    refuses(f"verify {run} seed=1", "seed=1: leave it out: device, devices, threads, paths.data", capfd)
    refuses(f"verify {run} devices=999", "devices=999", capfd)
    (run / "results.json").unlink()
    refuses(f"verify {run}", "has no results: only a training that has ended", capfd)
