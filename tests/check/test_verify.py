"""``ssl-bench verify``: forged runs are found, each by the question that it must fail, and honest ones pass."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ssl_bench.check.answer import Verdict
from ssl_bench.check.verify import answers
from ssl_bench.commands import evaluate, verify
from ssl_bench.commands.train import main as train
from ssl_bench.errors import ConfigError
from tests.check.edited import Runs
from tests.check.forged import FORGED, REFUSED, UNSEEN
from tests.conftest import SMALL, no_pictures, only_run
from tests.door.door import enter, files, refuses

AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


def cases(names: Sequence[str], quick: Sequence[str], usual: Sequence[str]) -> list[Any]:
    """Those that every run of the tests has, that the slower one has, and that only the one of everything has."""
    slower = {name: [pytest.mark.slow if name in usual else pytest.mark.exhaustive] for name in {*names} - {*quick}}
    return [pytest.param(name, marks=slower.get(name, [])) for name in names]


def verdicts(run: Path) -> dict[str, Verdict]:
    return {answer.name: answer.verdict for answer in answers(run, {})}


# ---- forged runs

LATE = "a setting that no evaluation has"  # is refused when everything else is compared
OF_FILES = [name for name, (_, question) in FORGED.items() if question in ("identity", REFUSED) and name != LATE]
QUICK = (*OF_FILES, "a result by two images of 450")
USUAL = ("weights of three steps to start from, of a run with few rows", "a count of steps, and a result with it")


@pytest.mark.parametrize("name", cases([*FORGED], QUICK, USUAL))
def test_a_forged_run_is_refused_or_not_verified(name: str, runs: Runs) -> None:
    make, question = FORGED[name]
    run = make(runs)
    if question == REFUSED:
        with pytest.raises(ConfigError):
            list(answers(run, {}))
    elif question == "identity":
        assert next(answers(run, {})).verdict is Verdict.WRONG
    else:
        given = verdicts(run)
        assert given[question] is not Verdict.GOOD and given["identity"] is Verdict.GOOD, given


@pytest.mark.parametrize("name", cases([*UNSEEN], (), ("the middle of the training",)))
def test_what_verify_says_that_it_cannot_see_it_does_not_see(name: str, runs: Runs) -> None:
    assert {*verdicts(UNSEEN[name](runs)).values()} == {Verdict.GOOD}


# ---- honest runs

HONEST = {
    "dcl": "loss=dcl temperature=cosine temperature.final=0.5",
    "macl": "loss=macl temperature=macl_a",
    "vicreg": "loss=vicreg negatives=none",
    "sogclr": "loss=sogclr",
    "learned temperature": "temperature=learned",
    "moco": "framework=moco_v2 negatives.k=192",
    "byol": "framework=byol framework.predictor=32 head.hidden=32",
    "moco_v3": "framework=moco_v3 framework.predictor=32 head.hidden=32",
    "supervised": "framework=supervised",
    "npid": "framework=npid loss=nce negatives.k=32",
    "adamw": "optimizer=adamw optimizer.lr=0.01",
    "lars": "optimizer=lars",
    "chunks": "batch_size.chunk=16 loss=flatnce",
    "double precision": "precision=fp64",
    "bf16": "precision=bf16",
    "two threads": "threads=2",
    "few rows": "log_every=7",
    "one row": "log_every=1000",
    "one step": "max_steps=1",
    "three steps": "max_steps=3",
    "baselines": "evaluate=[knn,linear,geometry] evaluate.linear.epochs=3 evaluate.baselines=[init,raw]",
    "few labels": "evaluate=[linear] evaluate.linear.epochs=3 evaluate.labels=[1.0,0.1]",
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


def to_the_last_bit(words: dict[str, str]) -> None:
    assert "the same bits" in words["start"] and "to the last bit" in words["results"], words
    assert "the same bits" in words["end"] or words["end"] == "there are no steps but those of start", words


@pytest.mark.parametrize("name", cases([*HONEST], ("three steps",), ("two ranks",)))
def test_an_honest_run_is_verified_to_the_last_bit(name: str, runs: Runs) -> None:
    to_the_last_bit(figures(runs(HONEST[name])))


@pytest.mark.exhaustive
def test_honest_runs_on_own_images_and_from_weights_are_verified_to_the_last_bit(runs: Runs) -> None:
    to_the_last_bit(figures(runs.own(0)))
    to_the_last_bit(figures(runs(f"init={runs().absolute()} log_every=12")))


@pytest.mark.exhaustive
def test_a_run_that_was_halted_resumed_grown_and_evaluated_again(runs: Runs) -> None:
    def go_on(*overrides: str) -> None:
        with no_pictures():
            assert train([*SMALL, "threads=1", "optimizer.schedule=constant", "evaluate=[knn]", *overrides]) == 0

    go_on("epochs=2", "halt_at=1", "log_every=4", "evaluate.every=1")
    run = only_run()
    assert verify.main([str(run)]) == 2  # it has not ended
    go_on("epochs=2", "log_every=5")  # rows of 4, 8 ... 20, 25 ... 40, 42
    assert evaluate.main([str(run), "evaluate=[knn]", "evaluate.knn.k=5"]) == 0
    to_the_last_bit(figures(run))
    go_on("epochs=3", "log_every=3")
    *others, results = answers(run, {})
    assert {answer.verdict for answer in others} == {Verdict.GOOD} and results.verdict is Verdict.SKIPPED, results
    assert "evaluations are of other epochs, whose weights are gone" in results.figure


@pytest.mark.exhaustive
def test_honest_runs_are_verified_with_other_instructions_and_numbers_of_threads_and_ranks(runs: Runs) -> None:
    names = ("dcl", "moco", "byol", "adamw", "few rows", "one row", "baselines", "few labels")
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
    answer = enter(f"verify {run} --json", capfd)
    assert answer.code == 1 and answer.err.splitlines()[-1] == "not verified: end, results"
    assert "skipped end      last.pt" in answer.err
    record = json.loads(answer.out)
    verdicts = {name: of_question["verdict"] for name, of_question in record["answers"].items()}
    assert not record["verified"] and verdicts == dict.fromkeys(("identity", "start"), "good") | dict.fromkeys(
        ("end", "results"), "skipped"
    )
    (run / "metrics.jsonl").unlink()
    assert "skipped start    steps 1 to 3: no row of metrics.jsonl is of them" in enter(f"verify {run}", capfd).out
    refuses("verify nowhere", "nowhere: no run below outputs has this name", capfd)
    refuses(f"verify {run} seed=1", "seed=1: leave it out: device, devices, threads, paths.data", capfd)
    refuses(f"verify {run} devices=999", "devices=999", capfd)
    (run / "results.json").unlink()
    refuses(f"verify {run}", "has no results: only a training that has ended", capfd)
