"""Commands in the environment of a user: variables of torchrun, Slurm, W&B and notebooks, homes, permissions."""

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

import ssl_bench
from ssl_bench.config.compose import load
from ssl_bench.launch.processes import nodes
from tests.conftest import SMALL, only_run
from tests.door.door import enter

Capture = pytest.CaptureFixture[str]
Train = Callable[..., tuple[int, str]]
FOLDER = ["dataset=folder", "dataset.size=32", "dataset.test_share=0.5", "batch_size.size=4", "max_steps=1"]
FOLDER += ["backbone=resnet_digits", "augment=none", "evaluate=knn", "evaluate.knn.k=1", "evaluate.watch=0"]


@pytest.mark.parametrize("variable", ["SUBMITIT_EXECUTOR=slurm", "SLURM_JOB_NUM_NODES=2", "SLURM_RESTART_COUNT="])
def test_a_variable_of_slurm_alone_is_no_job_of_slurm(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*variable.split("="))
    assert nodes() == (1, 0, "")


def of_two_classes(root: str) -> None:
    for name in (b"a", b"\xe4"):
        folder = os.path.join(os.fsencode(root), name)
        os.makedirs(folder)
        for i in range(6):
            Image.new("RGB", (32, 32), (40 * i, 0, 0)).save(os.fsdecode(os.path.join(folder, b"%d.png" % i)))


def test_a_home_folder_is_known_in_every_path(
    train: Train, capfd: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("SSL_BENCH_DATA", "~/data")
    of_two_classes(str(home / "my photos"))
    words = [*FOLDER, "dataset.root=~/my photos", "paths.outputs=~/runs"]
    assert train(*words)[0] == 0
    (run,) = (home / "runs" / "default").iterdir()
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["dataset"]["root"] == str(home / "my photos")
    assert config["paths"] == {"data": str(home / "data"), "outputs": str(home / "runs")}
    assert train("-m", *words, "seed=0")[0] == 0 and len([*(home / "runs").glob("default/grid-*.json")]) == 1
    assert load([*words, f"init=~/runs/default/{run.name}"])["init"]["path"] == str(run)
    for command in ("status '~/runs'", f"evaluate '~/runs/default/{run.name}'", "report --out='~/x.html' '~/runs'"):
        assert enter(command, capfd).code == 0
    assert list(ssl_bench.runs("~/runs")["seed"]) == [0] and not Path("~").exists()


@pytest.mark.slow
def test_names_that_are_no_utf8(train: Train, capfd: Capture) -> None:
    """A file system of Linux has them, from old archives."""
    outputs, root = os.fsdecode(b"o\xe9"), os.fsdecode(b"caf\xe9")
    of_two_classes(root)
    arguments = [*FOLDER, f"dataset.root={root}", f"paths.outputs={outputs}", "tracking=offline"]
    typed = enter(shlex.join(["train", f"dataset.root={root}[1"]), capfd).err.rpartition("as in ")[2]
    assert subprocess.check_output(["bash", "-c", f"printf %s {typed}"]) == b'dataset.root="caf\xe9[1"'
    code, printed = train(*arguments)
    assert code == 0 and "utf-8" in printed and "Traceback" not in printed, printed
    assert "already done" in train(*arguments)[1]
    (run,) = Path(outputs, "default").iterdir()
    assert b'dataset.root="caf\xe9"' in (run / "command.txt").read_bytes()
    again = [["evaluate", str(run), "evaluate=geometry"], ["export", "--format", "card", str(run)]]
    for words in (*again, ["report", outputs], ["status", "--csv", outputs]):
        answer = enter(shlex.join(words), capfd)
        assert answer.code == 0 and "Traceback" not in answer.err, answer
    assert list(map(str, ssl_bench.runs(outputs)["path"])) == [str(run)]


# ---- what a notebook, the processor and W&B have set


@pytest.mark.slow
def test_a_figure_is_drawn_whatever_a_notebook_has_set_and_slow_bf16_is_named(cli: Callable[..., Any]) -> None:
    """Both variables are read when a library is loaded, so this is a new process."""
    variables = {"MPLBACKEND": "inline", "ONEDNN_MAX_CPU_ISA": "AVX"}
    done = cli("train", *SMALL, "precision=bf16", "max_steps=2", "evaluate.watch=0", "evaluate=geometry", **variables)
    assert done.returncode == 0
    assert sum(line.startswith("precision=bf16 ") and "fp32" in line for line in done.stdout.splitlines()) == 1
    assert [*(only_run() / "figures").glob("*.png")]


@pytest.mark.parametrize(
    ("variables", "typed", "mode"),
    [
        ("WANDB_MODE=disabled", [], "off"),
        ("WANDB_MODE=online WANDB_DISABLED=true", [], "off"),
        ("WANDB_MODE=disabled", ["tracking=online"], "online"),
        ("WANDB_MODE=", [], "offline"),  # one of the others is set
    ],
)
def test_the_variables_of_wandb_are_defaults(
    variables: str, typed: list[str], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [*variables.split(), "WANDB_PROJECT=mine", "WANDB_ENTITY=me", "WANDB_TAGS=a, b"]:
        monkeypatch.setenv(*variable.split("="))
    rest = {"project": "mine", "entity": "me", "tags": ["a", "b"]}
    assert load(typed)["tracking"] == {"mode": mode, **rest}
    assert load([*typed, "tracking.project=other"])["tracking"] == {"mode": mode, **rest, "project": "other"}
