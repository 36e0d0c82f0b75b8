"""The configuration: every option composes and builds, and wrong input is refused in one sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hydra import compose, initialize_config_dir

from ssl_bench.config.compose import VERSION_BASE, Composer, directory, load
from ssl_bench.config.identity import run_id
from ssl_bench.config.schema import check
from ssl_bench.hardware import available_cores
from ssl_bench.training.parts import Parts

Train = Callable[..., tuple[int, str]]


GROUPS = sorted({path.parent.name for path in directory().glob("*/*.yaml")} - {"experiment", "local"})


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_every_option_of_a_group_composes_and_builds(group: str, tmp_path: Path) -> None:
    composer = Composer()
    needed = {"local_features": [f"evaluate.local_features.images={tmp_path}"]}
    needed["local_features"].append("evaluate.local_features.annotations=null")
    for option in (path.stem for path in directory().glob(f"{group}/*.yaml")):
        config = composer.load([f"{group}={option}", *needed.get(option, [])])
        check(config)
        parts = Parts(config)
        assert parts.views and parts.recipe and parts.dataset
        nodes = [name for name, node in config["evaluate"].items() if isinstance(node, dict)]
        assert list(parts.evaluators) == nodes
        assert config["choices"][group] == option or group == "evaluate"


def test_a_dataset_selects_other_options_and_the_command_line_overrides_them() -> None:
    chosen = load(["dataset=cifar10", "augment=moco_v2"])
    assert chosen["choices"]["backbone"] == "resnet18_cifar"
    assert chosen["choices"]["augment"] == "moco_v2"
    assert chosen["augment"]["size"] == 32 and chosen["evaluate"]["knn"]["k"] == 200
    assert chosen["batch_size"]["size"] == 256 and chosen["epochs"] == 200


@pytest.mark.parametrize(("typed", "gpus", "cpus"), [([], 8, 64), (["hydra.launcher.nodes=2"], 4, 32)])
def test_slurm_is_asked_for_the_gpus_of_a_node_and_eight_cores_for_each(typed: list[str], gpus: int, cpus: int) -> None:
    with initialize_config_dir(str(directory()), **VERSION_BASE):
        composed = compose("train", ["hydra/launcher=slurm", "devices=8", *typed], return_hydra_config=True)
    assert composed.hydra.launcher.gpus_per_node == gpus and composed.hydra.launcher.cpus_per_task == cpus


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["seeed=1"], "there is no key seeed (did you mean seed?)"),
        (["temperature.tua=1"], "there is no key temperature.tua (did you mean temperature.tau?)"),
        (["loss=infonec"], "loss=infonec: there is no such option (did you mean infonce?); set loss to one of"),
        (["seed=abc"], "seed=abc: value 'abc' of type 'str' could not be converted to an integer"),
        (["temperature.tau=abc"], "temperature.tau=abc: set temperature.tau to a number"),
        (["temperature.tau=-1"], "temperature.tau=-1.0: set temperature.tau to a positive number"),
        (["batch_size.size=0"], "batch_size.size=0: set batch_size.size to 2 or more"),
        pytest.param(
            ["batch_size.size=3", "devices=2"],
            "batch_size.size=3: set batch_size.size to a multiple of devices=2, such as 4",
            marks=pytest.mark.skipif(available_cores() < 2, reason="two ranks need two cores"),
        ),
        (["devices=99"], f"devices=99: set devices to {available_cores()} or less: there is no GPU"),
        (
            ["batch_size=b4096"],
            "batch_size.size=4096: set batch_size.size to 1347 or less, the images of scattered_digits",
        ),
        (["dataset=cifar10", "paths.data=nowhere"], "`ssl-bench prepare dataset=cifar10 paths.data=nowhere`"),
        (["precision=fp8"], "precision=fp8: set precision to one of auto, fp32, fp16, bf16, fp64"),
        (["precision=fp16"], "precision=fp16: set precision to fp32 or bf16: fp16 needs a GPU"),
        (
            ["optimizer.schedule=cosin"],
            "set optimizer.schedule to one of cosine, linear, step, constant (did you mean cosine?)",
        ),
        (["+loss.alpha=2"], "loss.alpha: InfoNCE has no such argument"),
        (["loss._target_=os.system"], "loss._target_=os.system: set it to a Loss of ssl_bench"),
        (
            ["backbone=timm", "backbone.name=resnet19"],
            "backbone.name=resnet19: set backbone.name to a network in timm.list_models() (did you mean resnet18?)",
        ),
        (["augment.scale=[2,3]"], "augment.scale=[2.0,3.0]: set augment.scale to [low,high] with 0 < low <= high <= 1"),
        (["-m", "experiment=a,b"], "experiment=a,b: each experiment has a grid of its own"),
        (["seed=["], "seed=[: cannot be read"),
        (["evaluate.every=x"], "evaluate.every=x: set evaluate.every to a number of epochs, or 0"),
        (["name=../up"], "name=../up: set name to a folder name"),
        (
            ["evaluate.knn.k=2000"],
            "evaluate.knn.k=2000: set evaluate.knn.k to a number from 1 to 1347, the number of",
        ),
        (["evaluate.knn.k=0"], "evaluate.knn.k=0: set evaluate.knn.k to a number from 1 to 1347"),
        (
            ["evaluate=npc", "evaluate.npc.batch_sizes=[32,2048]"],
            "evaluate.npc.batch_sizes=[32,2048]: set evaluate.npc.batch_sizes to sizes up to 1347, the number of",
        ),
        (
            ["evaluate=linear_opensel"],
            "set evaluate.linear_opensel.layers to modules of the backbone, such as stem, stages: it has no layer1",
        ),
        (["dataset=bits", "evaluate=knn"], "evaluate.knn: train labels are -1 to -1, not in [0, 0): set dataset to"),
        (["dataset=bits", "evaluate=geometry"], "evaluate.geometry: test labels are -1 to -1, not in [0, 0)"),
        (["paths.outputs=/proc/nowhere"], "set paths.outputs to a folder that can be written"),
    ],
)
def test_wrong_input_is_refused_in_one_sentence_with_code_2(train: Train, arguments: list[str], sentence: str) -> None:
    if torch.cuda.is_available() and "GPU" in sentence:
        pytest.skip("the sentence for a machine without a GPU")
    code, printed = train(*arguments, small=False)
    assert code == 2
    assert sentence in printed and printed.startswith("ssl-bench: ") and printed.count("\n") == 1
    assert not Path("outputs").exists() or arguments[0] == "-m"


def test_the_written_configuration_is_that_of_the_run(train: Train) -> None:
    assert train("max_steps=1")[0] == 0
    (path,) = Path("outputs").glob("*/*/config.yaml")
    written: dict[str, Any] = yaml.safe_load(path.read_text())
    assert run_id(written) == path.parent.name
    assert json.loads((path.parent / "results.json").read_text())["config"] == written
