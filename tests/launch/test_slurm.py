"""Grids as array jobs on a Slurm cluster: a run that gets a signal saves its state, is requeued and resumes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ssl_bench import files
from tests.conftest import SMALL
from tests.launch import slurm

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing()),
    pytest.mark.xdist_group("slurm"),  # one cluster
    pytest.mark.timeout(500),
]
GRID = ["optimizer.lr=0.1,0.3", "seed=0,1", "epochs=12"]  # 252 steps
LAUNCHER = ["hydra/launcher=slurm", "hydra.launcher.timeout_min=30", "hydra.launcher.signal_delay_s=30"]
LAUNCHER += [f"hydra.launcher.{o}" for o in ("gpus_per_node=null", "cpus_per_task=1", "array_parallelism=2")]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with slurm.cluster(cpus=2):
        yield


def rows(run: Path) -> list[dict[str, float]]:
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_stopped_run_of_a_grid_is_requeued_and_resumes_with_the_same_bits() -> None:
    command = [sys.executable, "-m", "ssl_bench", "train", "-m", *SMALL, *LAUNCHER, *GRID]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as grid:
        try:
            grids = Path("outputs/.sweeps")
            slurm.wait_until(lambda: list(grids.glob("*/jobs/1.json")), 120)
            (record,) = grids.glob("*/jobs/1.json")
            run = Path(files.read_json(record)["folder"])
            slurm.wait_until(lambda: len(rows(run)) > 20, 120)
            (job,) = [j for j in slurm.output("squeue", "-h", "-r", "-o", "%i").split() if j.endswith("_1")]
            # scancel would repeat the signal to the requeued job, so it is killed as soon as the job has restarted.
            with subprocess.Popen(["scancel", "--signal=USR2", job], stderr=subprocess.DEVNULL) as scancel:
                slurm.wait_until(lambda: "Restarts=1 " in slurm.output("scontrol", "show", "job", job), 60)
                scancel.kill()
            printed, _ = grid.communicate(timeout=240)
        finally:
            grid.kill()
    assert grid.returncode == 0, printed
    assert "4 runs: 4 trained, 0 done before, 0 failed" in printed
    assert "Restarts=1 " in slurm.output("scontrol", "show", "job", job)
    runs = [path.parent for path in Path("outputs/default").glob("*/results.json")]
    assert len(runs) == 4
    for each in runs:
        assert [row["step"] for row in rows(each) if "loss" in row] == list(range(1, 253))
    resumed = {each for each in runs if "resuming at step" in (each / "train.log").read_text()}
    assert resumed == {run}
    # The resumed run has the same losses as a run that was never stopped.
    config = yaml.safe_load((run / "config.yaml").read_text())
    alone = [f"optimizer.lr={config['optimizer']['lr']}", f"seed={config['seed']}", "epochs=12", "paths.outputs=alone"]
    once = [sys.executable, "-m", "ssl_bench", "train", *SMALL, *alone]
    subprocess.run(once, check=True, capture_output=True, timeout=120)
    (uninterrupted,) = [path.parent for path in Path("alone").glob("*/*/results.json")]
    expected = [row["loss"] for row in rows(uninterrupted) if "loss" in row]
    assert [row["loss"] for row in rows(run) if "loss" in row] == expected


def test_the_slurm_task_of_a_run_starts_its_ranks() -> None:
    grid = ["-m", *SMALL, *LAUNCHER, "hydra.launcher.cpus_per_task=2", "devices=2", "precision=fp64", "max_steps=3"]
    done = subprocess.run(
        [sys.executable, "-m", "ssl_bench", "train", *grid], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0 and "1 run: 1 trained" in done.stdout, done.stdout + done.stderr
    (results,) = Path("outputs").glob("*/*/results.json")
    assert files.read_json(results)["facts"]["ranks"] == 2
    assert os.path.exists(results.parent / "checkpoints" / "last.pt")


def test_the_batch_script_saves_and_requeues_a_run_under_torchrun() -> None:
    script = Path(__file__).parents[2] / "scripts" / "slurm_torchrun.sh"
    options = ["--parsable", "--gpus-per-node=0", "--cpus-per-task=2", "--output=slurm.out", "--time=60"]
    environment = os.environ | {"RANKS_PER_NODE": "2", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["sbatch", *options, str(script), *SMALL, "precision=fp64", "epochs=12"]
    job = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()
    outputs = Path("outputs")
    slurm.wait_until(lambda: any(len(rows(path.parent)) > 20 for path in outputs.glob("*/*/metrics.jsonl")), 120)
    slurm.output("scancel", "--batch", "--signal=USR2", job)
    slurm.wait_until(lambda: "Restarts=1 " in slurm.output("scontrol", "show", "job", job), 60)
    slurm.wait_until(lambda: "JobState=COMPLETED" in slurm.output("scontrol", "show", "job", job), 200)
    (results,) = outputs.glob("*/*/results.json")
    assert files.read_json(results)["facts"]["ranks"] == 2
    assert [row["step"] for row in rows(results.parent) if "loss" in row] == list(range(1, 253))
    assert "resuming at step" in (results.parent / "train.log").read_text()
