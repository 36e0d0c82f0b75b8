"""A grid as an array job on a real Slurm cluster: a cell that is told to stop goes on from where it was."""

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


def test_a_cell_that_is_stopped_in_the_middle_is_requeued_and_goes_on() -> None:
    command = [sys.executable, "-m", "ssl_bench", "train", "-m", *SMALL, *LAUNCHER, *GRID]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as grid:
        try:
            cell = Path("outputs/.sweeps")
            slurm.until(lambda: list(cell.glob("*/cells/1.json")), 120)
            (record,) = cell.glob("*/cells/1.json")
            run = Path(files.read_json(record)["folder"])
            slurm.until(lambda: len(rows(run)) > 20, 120)
            (job,) = [j for j in slurm.told("squeue", "-h", "-r", "-o", "%i").split() if j.endswith("_1")]
            # It would signal again what goes back into the queue while it asks.
            with subprocess.Popen(["scancel", "--signal=USR2", job], stderr=subprocess.DEVNULL) as told:
                slurm.until(lambda: "Restarts=1 " in slurm.told("scontrol", "show", "job", job), 60)
                told.kill()
            printed, _ = grid.communicate(timeout=240)
        finally:
            grid.kill()
    assert grid.returncode == 0, printed
    assert "4 cells: 4 trained, 0 done before, 0 failed" in printed
    assert "Restarts=1 " in slurm.told("scontrol", "show", "job", job)
    runs = [path.parent for path in Path("outputs/default").glob("*/results.json")]
    assert len(runs) == 4
    for each in runs:
        assert [row["step"] for row in rows(each) if "loss" in row] == list(range(1, 253))
    resumed = {each for each in runs if "resuming at step" in (each / "train.log").read_text()}
    assert resumed == {run}
    # What was stopped and resumed ends in the same bits as a run that was not.
    config = yaml.safe_load((run / "config.yaml").read_text())
    alone = [f"optimizer.lr={config['optimizer']['lr']}", f"seed={config['seed']}", "epochs=12", "paths.outputs=alone"]
    once = [sys.executable, "-m", "ssl_bench", "train", *SMALL, *alone]
    subprocess.run(once, check=True, capture_output=True, timeout=120)
    ((undisturbed),) = [path.parent for path in Path("alone").glob("*/*/results.json")]
    assert [row["loss"] for row in rows(undisturbed) if "loss" in row] == [
        row["loss"] for row in rows(run) if "loss" in row
    ]


def test_cells_of_several_ranks_are_started_by_their_task() -> None:
    several = ["-m", *SMALL, *LAUNCHER, "hydra.launcher.cpus_per_task=2", "devices=2", "precision=fp64", "max_steps=3"]
    done = subprocess.run(
        [sys.executable, "-m", "ssl_bench", "train", *several], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0 and "1 cells: 1 trained" in done.stdout, done.stdout + done.stderr
    (results,) = Path("outputs").glob("*/*/results.json")
    assert files.read_json(results)["facts"]["ranks"] == 2
    assert os.path.exists(results.parent / "checkpoints" / "last.pt")


def test_the_batch_script_saves_and_requeues_a_run_of_torchruns_ranks() -> None:
    script = Path(__file__).parents[2] / "scripts" / "slurm_torchrun.sh"
    options = ["--parsable", "--gpus-per-node=0", "--cpus-per-task=2", "--output=slurm.out", "--time=60"]
    environment = os.environ | {"RANKS_PER_NODE": "2", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["sbatch", *options, str(script), *SMALL, "precision=fp64", "epochs=12"]
    job = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()
    outputs = Path("outputs")
    slurm.until(lambda: any(len(rows(path.parent)) > 20 for path in outputs.glob("*/*/metrics.jsonl")), 120)
    slurm.told("scancel", "--batch", "--signal=USR2", job)
    slurm.until(lambda: "Restarts=1 " in slurm.told("scontrol", "show", "job", job), 60)
    slurm.until(lambda: "JobState=COMPLETED" in slurm.told("scontrol", "show", "job", job), 200)
    (results,) = outputs.glob("*/*/results.json")
    assert files.read_json(results)["facts"]["ranks"] == 2
    assert [row["step"] for row in rows(results.parent) if "loss" in row] == list(range(1, 253))
    assert "resuming at step" in (results.parent / "train.log").read_text()
