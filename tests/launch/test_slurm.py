"""Runs on a Slurm cluster: after a signal or the failure of a node a run is requeued and resumes, bit for bit."""

import contextlib
import json
import os
import pickle
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ssl_bench import files
from ssl_bench.launch.processes import State
from ssl_bench.record.runs import LEASE
from tests.conftest import SMALL, only_run
from tests.launch import slurm
from tests.results.folders import claim_elsewhere

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.exhaustive,
    pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing()),
    pytest.mark.timeout(600),
]
COMMAND = [sys.executable, "-m", "ssl_bench", "train"]
LAUNCHER = ["launcher=slurm", "launcher.timeout_min=30", "launcher.signal_delay_s=30"]
LAUNCHER += [f"launcher.{o}" for o in ("gpus_per_node=null", "cpus_per_task=1", "jobs=2")]
TWO_RANKS = [*SMALL, "epochs=8", "devices=2", "launcher.cpus_per_task=2"]  # of which each needs a core
RUN = [*SMALL, "precision=fp64", "checkpoint.every=1", "epochs=3"]  # on two ranks; 63 steps, 21 an epoch
SCRIPT = Path(__file__).parents[2] / "scripts" / "slurm_torchrun.sh"


@pytest.fixture(scope="module", autouse=True)
def nodes() -> Iterator[list[slurm.Node]]:
    with slurm.cluster(nodes=2, cpus=2) as started:
        yield started


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``RUN`` on two ranks of one machine, without Slurm and uninterrupted."""
    outputs = tmp_path_factory.mktemp("reference")
    command = [*COMMAND, *RUN, "devices=2", f"paths.outputs={outputs}"]
    subprocess.run(command, check=True, capture_output=True, timeout=280)
    return only_run(outputs)


def rows(run: Path) -> list[dict[str, float]]:
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def losses(run: Path) -> list[tuple[float, float]]:
    """Step and loss of every row, in the order of the file."""
    return [(row["step"], row["loss"]) for row in rows(run) if "loss" in row]


def weights(run: Path) -> dict[str, Any]:
    return torch.load(run / "checkpoints" / "last.pt", weights_only=True)["method"]  # type: ignore[no-any-return]


def assert_resumed_with_the_same_bits(run: Path, reference: Path) -> None:
    assert run.name == reference.name
    assert re.search(r"resuming at step \d+ of 63", (run / "train.log").read_text())
    assert files.read_json(run / "results.json")["facts"]["ranks"] == 2
    assert losses(run) == losses(reference) and [step for step, _ in losses(run)] == list(range(1, 64))
    got, expected = weights(run), weights(reference)
    assert got.keys() == expected.keys() and all(torch.equal(got[name], expected[name]) for name in expected)


@contextlib.contextmanager
def grid(*arguments: str) -> "Iterator[subprocess.Popen[str]]":
    """A grid that runs; it is stopped at the end of the block."""
    command = [*COMMAND, "-m", *LAUNCHER, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def after_steps(count: int) -> Path:
    """Wait until the only run has made ``count`` steps; return its folder."""
    outputs = Path("outputs")
    slurm.wait_until(lambda: any(len(rows(path.parent)) >= count for path in outputs.glob("*/*/metrics.jsonl")), 120)
    return only_run(outputs)


def preempt() -> None:
    """Submit an urgent job that takes the whole cluster."""
    urgent = ["sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true"]
    subprocess.run(urgent, check=True, capture_output=True)


def assert_resumed_once(run: Path) -> None:
    """Of a run of 8 epochs."""
    log = (run / "train.log").read_text()
    assert len(re.findall(r"resuming at step \d+ of 168", log)) == 1, log
    assert [step for step, _ in losses(run)] == list(range(1, 169))


def job_is(text: str, job: str) -> bool:
    return f"{text} " in slurm.output("scontrol", "show", "job", job).replace("\n", " ")


def mark_down(node: slurm.Node) -> None:
    """Tell Slurm that a node has failed. Slurm itself would notice it after minutes."""
    subprocess.run(["scontrol", "update", f"nodename={node.name}", "state=down", "reason=test"], check=True)


def test_a_stopped_run_of_a_grid_is_requeued_and_resumes_with_the_same_bits(
    train: Callable[..., tuple[int, str]],
) -> None:
    with grid(*SMALL, "seed=0,1,2", "epochs=4") as process:
        outputs = Path("outputs")
        slurm.wait_until(lambda: sum(len(rows(p.parent)) > 5 for p in outputs.glob("*/*/metrics.jsonl")) == 2, 120)
        (job,) = [j for j in slurm.output("squeue", "-h", "-r", "-o", "%i").split() if j.endswith("_1")]
        # scancel would repeat the signal to the requeued job, so it is killed as soon as the job has restarted.
        with subprocess.Popen(["scancel", "--signal=USR2", job], stderr=subprocess.DEVNULL) as scancel:
            slurm.wait_until(lambda: job_is("Restarts=1", job), 60)
            scancel.kill()
        printed, _ = process.communicate(timeout=200)
    assert process.returncode == 0, printed
    assert "3 runs: 3 trained" in printed
    assert job_is("Restarts=1", job)
    runs = [path.parent for path in Path("outputs/default").glob("*/results.json")]
    assert len(runs) == 3
    for each in runs:
        assert [step for step, _ in losses(each)] == list(range(1, 85))
    (run,) = [each for each in runs if "resuming at step" in (each / "train.log").read_text()]
    # The resumed run has the same losses as a run that was never stopped.
    seed = files.read_json(run / "results.json")["config"]["seed"]
    assert train(f"seed={seed}", "epochs=4", "paths.outputs=alone")[0] == 0
    assert losses(run) == losses(only_run(Path("alone")))


@pytest.mark.parametrize("partition", ["all", "patient"])
def test_a_preempted_run_is_requeued_and_resumes_while_its_grid_waits(partition: str) -> None:
    """Slurm requeues it at once, or would leave it time to end."""
    with grid(*TWO_RANKS, f"launcher.partition={partition}") as process:
        run = after_steps(5)
        preempt()
        printed, _ = process.communicate(timeout=200)
    assert process.returncode == 0 and "1 run: 1 trained" in printed, printed
    assert_resumed_once(run)


def test_a_cancelled_run_ends_its_grid() -> None:
    with grid(*TWO_RANKS) as process:
        after_steps(5)
        slurm.output("scancel", *slurm.output("squeue", "-h", "-o", "%i").split())
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 143 and "1 interrupted" in printed, printed


def test_a_run_on_two_nodes_resumes_after_its_first_node_has_failed(nodes: list[slurm.Node], reference: Path) -> None:
    with grid(*RUN, "launcher.nodes=2", "devices=2") as process:
        run = after_steps(22)
        (log,) = Path("outputs/.slurm").glob("*_0_log.out")
        job = log.name.partition("_")[0]
        results = [log.with_name(f"{job}_{task}_result.pkl") for task in (0, 1)]
        nodes[0].kill()
        slurm.wait_until(results[1].exists, 60)  # the other node has lost it, and its process ends
        mark_down(nodes[0])
        claim_elsewhere(run, "node1", silent=0)  # as if the job now got other nodes
        nodes[0].start()
        slurm.wait_until(lambda: "is being trained by node1" in log.read_text(), 60)
        slurm.wait_until(lambda: not results[1].exists(), 20)
        (run / LEASE).unlink()  # without this, it would expire after 90 seconds
        printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and "1 run: 1 trained" in printed, printed
    assert job_is("Restarts=1", job)
    assert_resumed_with_the_same_bits(run, reference)
    ends = [pickle.loads(path.read_bytes()) for path in results]
    assert [(how, of[0].state) for how, of in ends] == [("success", State.DONE)] * 2


def test_the_batch_script_saves_and_requeues_a_run_under_torchrun(reference: Path) -> None:
    """A run on two ranks."""
    variables = {"RANKS_PER_NODE": "2", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    options = ["--parsable", "--gpus-per-node=0", "--output=slurm.out", "--time=60", "--nodes=1", "--cpus-per-task=2"]
    command = ["sbatch", *options, str(SCRIPT), *RUN]
    job = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | variables).stdout.strip()
    run = after_steps(5)
    slurm.output("scancel", "--batch", "--signal=USR2", job)
    slurm.wait_until(lambda: job_is("Restarts=1", job), 60)
    slurm.wait_until(lambda: job_is("JobState=COMPLETED", job), 120)
    assert_resumed_with_the_same_bits(run, reference)


def test_the_jobs_of_an_array_divide_a_grid_and_each_run_is_trained_once() -> None:
    """As launch/README.md has it for whole nodes."""
    words = ["srun", *COMMAND, "-m", *SMALL, "launcher=local", "seed=0,1,2,3", "epochs=4"]
    options = ["--array=0-1", "--nodes=1", "--exclusive", "--signal=USR2@120", "--output=slurm.%a.out"]
    subprocess.run(["sbatch", "--wait", *options, "--wrap", shlex.join(words)], check=True, capture_output=True)
    printed = [Path(f"slurm.{job}.out").read_text() for job in range(2)]
    assert [int(text.split("4 runs: ")[1][0]) for text in printed] == [2, 2], printed  # trained by each
    runs = [path.parent for path in Path("outputs").glob("*/*/results.json")]
    assert len(runs) == 4 and all([step for step, _ in losses(run)] == list(range(1, 85)) for run in runs)
