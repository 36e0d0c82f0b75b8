"""The configuration: every option composes and builds, and a run writes its own."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssl_bench.config.build import directory
from ssl_bench.config.command import Command
from ssl_bench.config.compose import load
from ssl_bench.config.identity import run_id
from ssl_bench.config.schema import check
from ssl_bench.launch.slurm import script
from ssl_bench.training.parts import Parts

Train = Callable[..., tuple[int, str]]


# Those of these groups are composed where each is trained: methods/test_contrastive.py and test_base.py.
TRAINED = {"loss", "negatives", "temperature", "positives", "framework"}
ALL = {path.parent.name for path in directory().glob("*/*.yaml")} - {"experiment", "local"}
GROUPS = sorted(ALL - {"evaluate"} - TRAINED)


def options(group: str) -> list[str]:
    own = {"arrays", "folder", "hf"}  # which need images: tests/data/test_own.py
    return sorted({path.stem for path in directory().glob(f"{group}/*.yaml")} - own)


@pytest.mark.parametrize("chosen", [*itertools.zip_longest(*map(options, GROUPS))], ids=str)
def test_every_option_of_a_group_composes_and_builds(chosen: tuple[str | None, ...]) -> None:
    """Each composition has an option of every group that has so many."""
    choices = {group: option for group, option in zip(GROUPS, chosen, strict=True) if option}
    config = load([f"{group}={option}" for group, option in choices.items()])
    check(config)
    parts = Parts(config)
    assert parts.views and parts.recipe and parts.dataset
    assert choices.items() <= config["choices"].items()


def test_every_evaluator_composes_and_builds(tmp_path: Path) -> None:
    images = [f"evaluate.local_features.images={tmp_path}", "evaluate.local_features.annotations=null"]
    objective = ["framework=frozen", "loss=infonce", "temperature=fixed"]  # which some of them measure
    config = load([f"evaluate=[{','.join(options('evaluate'))}]", *images, *objective])
    check(config)
    nodes = [name for name, node in config["evaluate"].items() if isinstance(node, dict)]
    assert list(Parts(config).evaluators) == nodes
    assert {*options("evaluate")} - {"auto", "protocols"} <= {*nodes}


def test_a_dataset_selects_other_options_and_the_command_line_overrides_them() -> None:
    chosen = load(["dataset=cifar10", "augment=moco_v2"])
    assert chosen["choices"]["backbone"] == "resnet18_cifar"
    assert chosen["choices"]["augment"] == "moco_v2"
    assert chosen["augment"]["size"] == 32 and chosen["evaluate"]["knn"]["k"] == 200
    assert chosen["batch_size"]["size"] == 256 and chosen["epochs"] == 200


@pytest.mark.parametrize(("typed", "gpus", "cpus"), [([], 8, 64), (["launcher.nodes=2"], 4, 32)])
def test_slurm_is_asked_for_the_gpus_of_a_node_and_eight_cores_for_each(
    typed: list[str], gpus: int, cpus: int, tmp_path: Path
) -> None:
    settings = Command.of(["launcher=slurm", "devices=8", *typed]).settings
    sbatch, srun = script(settings, tmp_path, 1).split("# command\n")
    assert f"#SBATCH --gpus-per-node={gpus}\n" in sbatch and f"#SBATCH --cpus-per-task={cpus}\n" in sbatch
    assert f" --cpus-per-task={cpus} " in srun  # which does not know it from sbatch


def test_the_written_configuration_is_that_of_the_run(train: Train) -> None:
    assert train("max_steps=1")[0] == 0
    (path,) = Path("outputs").glob("*/*/config.yaml")
    written: dict[str, Any] = yaml.safe_load(path.read_text())
    assert run_id(written) == path.parent.name
    assert json.loads((path.parent / "results.json").read_text())["config"] == written
