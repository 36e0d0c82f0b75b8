"""The parts of a run are built from its configuration, and a run is opened again with the weights of its checkpoint."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ssl_bench.config import compose, schema
from ssl_bench.config.compose import load
from ssl_bench.errors import ConfigError, RunError
from ssl_bench.objective import losses
from ssl_bench.record import checkpoint
from ssl_bench.seeding import seed_everything
from ssl_bench.training import build
from ssl_bench.training.finished import load_run, read_config
from ssl_bench.training.validate import refusals, validate
from tests.conftest import SMALL
from tests.door.door import refused
from tests.evaluated import targets_of

CPU = torch.device("cpu")
Train = Callable[..., tuple[int, str]]


@pytest.mark.parametrize(
    ("framework", "objective"),
    [("simclr", ["negatives", "temperature", "loss", "positives"]), ("exemplar", ["positives"])],
)
def test_each_part_is_built_once(framework: str, objective: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Exemplar also asks for the number of training images while it is built."""
    config = load([*SMALL, f"framework={framework}", "evaluate=[knn,linear]", "evaluate.baselines=[init,raw]"])
    built, make = Counter[str](), build.make

    def counting(node: Any, key: str, /, **extra: Any) -> Any:
        built[key] += 1
        return make(node, key, **extra)

    monkeypatch.setattr(build, "make", counting)
    shared = build.Shared()
    for seed in (0, 1):
        validate(config | {"seed": seed}, 1, shared)
    networks = dict.fromkeys(["backbone", "head", "framework", *objective], 1)
    evaluators = {"evaluate.knn": 3, "evaluate.linear": 3}  # for each run, and with the labels of the data once
    assert built == networks | evaluators | {"augment": 2, "optimizer": 2}
    run, networks_by_name = build.build(config), {"": nn.Identity(), "_init": nn.Identity(), "_raw": None}
    targets = targets_of(run, networks_by_name)
    assert {name: target.network for name, target in targets.items()} == {
        f"{suffix}/": network for suffix, network in networks_by_name.items()
    }
    assert targets["/"].augment == run.views


def test_a_run_is_loaded_with_the_weights_of_its_checkpoint(trained: Path) -> None:
    folder = trained
    config = read_config(folder)
    run = load_run(folder, config, CPU)
    state = checkpoint.load(folder, folder.name)
    assert state is not None
    weights = run.method.state_dict()
    assert weights.keys() == state["method"].keys()
    tensors = [name for name, value in weights.items() if isinstance(value, torch.Tensor)]
    assert tensors and all(torch.equal(weights[name], state["method"][name]) for name in tensors)
    assert (run.folder, run.run_id, run.step) == (folder, folder.name, 3)
    assert run.initial is not None and run.precision.name == "fp32"
    seed_everything(config["seed"])
    fresh = build.method(build.build(config)).encoder.state_dict()
    before, after = run.initial.state_dict(), run.method.encoder.state_dict()
    assert all(torch.equal(before[name], fresh[name]) for name in fresh)
    assert not all(torch.equal(after[name], fresh[name]) for name in fresh)
    without = load_run(folder, config | {"evaluate": {"baselines": []}}, CPU)
    assert without.initial is None


def test_a_folder_without_a_run_or_a_checkpoint_is_refused(trained: Path) -> None:
    with refused("outputs ssl-bench status"):
        read_config(Path("outputs"))
    config = read_config(trained)
    moved = trained.rename(trained.with_name("0123456789"))
    with refused(f"last.pt {trained.name} 0123456789", RunError):
        load_run(moved, config, CPU)
    (moved / "checkpoints" / "last.pt").unlink()
    with refused(f"{moved} checkpoints/last.pt {moved}/results.json", RunError):
        load_run(moved, config, CPU)


def test_a_loss_of_an_earlier_version_is_told_the_new_name_of_its_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses.DCL, "fresh", None, raising=False)
    with refused("loss._target_ fresh for_update"):
        validate(load(["loss=dcl"]), 1)


# ---- the check of all runs of a grid, which builds what they have in common once: as each run is checked by itself

RUNS = [
    ["negatives=random_k", "negatives.k=16"],
    ["negatives=random_k", "negatives.k=64", "batch_size=b32"],
    ["negatives=queue", "negatives.k=64", "batch_size=b32"],
    ["loss=dhel"],
    ["loss=dhel", "negatives=own_view"],
    ["framework=npid", "batch_size=b2048"],
    ["backbone.width=-1"],
    ["evaluate.knn.k=2000"],
    ["dataset=bits", "evaluate=knn"],
]


def by_itself(config: dict[str, Any]) -> str | None:
    try:
        schema.check(config)
        validate(config, 1)
    except ConfigError as error:
        return str(error)
    return None


def test_each_run_is_refused_as_by_itself() -> None:
    configs = [load(run) for run in RUNS]
    again = [config | {"seed": 1} for config in configs[5:8]]
    found = [error and str(error) for error in refusals([*configs, *again], here=True)]
    alone = [by_itself(config) for config in configs]
    assert found == [*alone, *alone[5:8]]
    assert [number for number, error in enumerate(alone) if error is None] == [0, 2, 4]


@pytest.mark.parametrize("missing", [["dataset=cifar10"], ["dataset=imagenet"], ["devices=1024", "batch_size=b1024"]])
def test_what_another_machine_may_have_is_refused_on_this_one_only(missing: list[str]) -> None:
    config = compose.load([*missing, "paths.data=nowhere", "backbone=resnet_digits", "backbone.width=4"])
    assert refusals([config], here=False) == [None]
    (error,) = refusals([config], here=True)
    assert str(error).startswith(missing[0].partition("=")[0])
