"""Composition, identity and refusals: what a user types, and the sentence that comes back."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssl_bench.config import compose as configuration
from ssl_bench.config.build import build
from ssl_bench.config.identity import run_id
from ssl_bench.errors import ConfigError

Train = Callable[..., tuple[int, str]]


def test_every_option_of_every_group_composes_and_builds(tmp_path: Path) -> None:
    from ssl_bench import parts as assemble

    for folder in configuration.directory().iterdir():
        if not folder.is_dir() or folder.name in ("experiment", "local", "hydra"):
            continue
        for option in folder.glob("*.yaml"):
            needed = {"local_features": [f"evaluate.local_features.images={tmp_path}"]}
            needed["local_features"].append("evaluate.local_features.annotations=null")
            config = configuration.load([f"{folder.name}={option.stem}", *needed.get(option.stem, [])])
            configuration.check(config)
            assemble.views(config), assemble.recipe(config), assemble.evaluators(config), assemble.dataset(config)
            assert config["choices"][folder.name] == option.stem or folder.name == "evaluate"


def test_a_dataset_brings_what_goes_with_it_and_the_command_line_wins() -> None:
    chosen = configuration.load(["dataset=cifar10", "augment=moco_v2"])
    assert chosen["choices"]["backbone"] == "resnet18_cifar"
    assert chosen["choices"]["augment"] == "moco_v2"
    assert chosen["augment"]["size"] == 32 and chosen["evaluate"]["knn"]["k"] == 200
    assert chosen["batch_size"]["size"] == 256 and chosen["epochs"] == 200


def test_identity_is_what_the_result_depends_on() -> None:
    base = run_id(configuration.load())
    for same in (
        ["devices=2"],
        ["paths.outputs=/elsewhere"],
        ["tracking=off"],
        ["checkpoint.every=1"],
        ["log_every=3"],
        ["name=other"],
        ["images_on=host"],
        ["timeout=5"],
        ["temperature=fixed"],
        ["batch_size.size=64"],
    ):
        assert run_id(configuration.load(same)) == base, same
    photos = [run_id(configuration.load(["dataset=imagenet", f"dataset.workers={n}"])) for n in (1, 2)]
    assert photos[0] == photos[1] != run_id(configuration.load(["dataset=imagenet", "dataset.packed=true"]))
    others = [["seed=1"], ["epochs=41"], ["temperature.tau=0.3"], ["batch_size=b32"], ["evaluate.knn.k=5"]]
    identities = {run_id(configuration.load(other)) for other in others}
    assert len(identities | {base}) == len(others) + 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["seeed=1"], "there is no key seeed (did you mean seed?)"),
        (["temperature.tua=1"], "there is no key temperature.tua (did you mean temperature.tau?)"),
        (["loss=infonec"], "loss=infonec: there is no such option (did you mean infonce?); set loss to one of"),
        (["seed=abc"], "seed=abc: value 'abc' of type 'str' could not be converted to an integer"),
        (["temperature.tau=abc"], "temperature.tau=abc: set temperature.tau to a number"),
        (["temperature.tau=-1"], "temperature.tau=-1.0 must be positive"),
        (["batch_size.size=0"], "batch_size.size=0: set batch_size.size to 2 or more"),
        (["batch_size.size=3", "devices=2"], "batch_size.size=3 cannot be split over devices=2"),
        (["devices=99"], "devices=99: there is no GPU"),
        (["batch_size=b4096"], "batch_size.size=4096 is more than the 1347 images of scattered_digits"),
        (["dataset=cifar10", "paths.data=nowhere"], "`ssl-bench prepare dataset=cifar10 paths.data=nowhere`"),
        (["precision=fp8"], "precision=fp8: set precision to one of auto, fp32, fp16, bf16, fp64"),
        (["precision=fp16"], "precision=fp16 needs a GPU: set precision to fp32 or bf16"),
        (
            ["optimizer.schedule=cosin"],
            "set optimizer.schedule to one of cosine, linear, step, constant (did you mean cosine?)",
        ),
        (["+loss.alpha=2"], "loss.alpha: InfoNCE has no such argument"),
        (["loss._target_=os.system"], "loss._target_=os.system: set it to a class under ssl_bench"),
        (["backbone=timm", "backbone.name=resnet19"], "timm has no such network (did you mean resnet18?)"),
        (["augment.scale=[2,3]"], "augment.scale must be"),
        (["-m", "experiment=a,b"], "experiment=a,b: each experiment has its own grid"),
        (["seed=["], "seed=[: cannot be read"),
        (["evaluate.every=x"], "evaluate.every=x: set a number of epochs, or 0"),
        (["name=../up"], "name='../up': set name to a folder name"),
        (
            ["evaluate.knn.k=2000"],
            "evaluate.knn.k must be in [1, 1347], the number of bank entries, not 2000: set such",
        ),
        (["evaluate.knn.k=0"], "evaluate.knn.k must be in [1, 1347], the number of bank entries, not 0"),
        (
            ["evaluate=npc", "evaluate.npc.batch_sizes=[32,2048]"],
            "evaluate.npc.batch_sizes must be at most 1347, the images of the train split, not 2048: leave",
        ),
        (
            ["evaluate=linear_opensel"],
            "evaluate.linear_opensel.layers: the backbone has no layer1; set layers to some of stem, stages",
        ),
        (["dataset=bits", "evaluate=knn"], "evaluate.knn: train labels must lie in [0, 0), found -1 to -1: unlabelled"),
        (["dataset=bits", "evaluate=geometry"], "evaluate.geometry: test labels must lie in [0, 0)"),
        (["paths.outputs=/proc/nowhere"], "set paths.outputs to a folder that can be written"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(train: Train, arguments: list[str], sentence: str) -> None:
    import torch

    if torch.cuda.is_available() and "GPU" in sentence:
        pytest.skip("says this on a machine without a GPU")
    code, printed = train(*arguments, small=False)
    assert code == 2
    assert sentence in printed and printed.startswith("ssl-bench: ") and printed.count("\n") == 1
    assert not Path("outputs").exists() or arguments[0] == "-m"


def test_build_checks_what_it_is_given() -> None:
    node = {"_target_": "ssl_bench.objective.temperature.Fixed"}
    assert float(build({**node, "tau": 1}, "temperature").tau) == 1.0  # an integer where a number is meant
    with pytest.raises(ConfigError, match=r"temperature\.tau is missing: set temperature\.tau"):
        build(node, "temperature")
    with pytest.raises(ConfigError, match=r"set temperature\.tau to a number"):
        build({**node, "tau": True}, "temperature")
    with pytest.raises(ConfigError, match="there is no such class"):
        build({"_target_": "ssl_bench.objective.temperature.Fixd"}, "temperature")


def test_a_base_class_is_checked_too() -> None:
    node = configuration.load()["optimizer"]
    with pytest.raises(ConfigError, match=r"optimizer\.rule=cubic: set optimizer\.rule to one of linear, sqrt, none"):
        build({**node, "rule": "cubic"}, "optimizer")
    with pytest.raises(ConfigError, match=r"optimizer\.betas: SGD has no such argument"):
        build({**node, "betas": [0.9, 0.99]}, "optimizer")


def test_the_written_configuration_is_the_run(train: Train) -> None:
    assert train("max_steps=1")[0] == 0
    (path,) = Path("outputs").glob("*/*/config.yaml")
    written: dict[str, Any] = yaml.safe_load(path.read_text())
    assert run_id(written) == path.parent.name
    assert json.loads((path.parent / "results.json").read_text())["config"] == written
