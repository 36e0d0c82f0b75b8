"""Weights to start from: of a file or a run, with the same names and shapes, in the identity; frozen backbones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

from ssl_bench.config.compose import load
from ssl_bench.config.identity import run_id
from ssl_bench.errors import ConfigError
from ssl_bench.record import checkpoint
from ssl_bench.training.parts import Parts
from tests.conftest import SMALL, only_run

VIT = ["dataset=cifar10", "backbone=timm", "backbone.name=test_vit", "backbone.args.patch_size=8"]


def vit(path: Path, **arguments: Any) -> Any:
    """Save timm's network with its classifier and random weights; return it."""
    model = timm.create_model("test_vit", **{"img_size": 32, "patch_size": 8, **arguments})
    if path.suffix == ".safetensors":
        save_file(model.state_dict(), path)
    else:
        torch.save({"state_dict": {f"module.{name}": value for name, value in model.state_dict().items()}}, path)
    return model


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_a_network_of_timm_starts_from_a_file(ending: str, tmp_path: Path) -> None:
    given = vit(tmp_path / f"vit.{ending}").state_dict()
    config = load([*VIT, f"init={tmp_path}/vit.{ending}"])
    backbone = Parts(config).method.encoder.get_submodule("backbone").state_dict()
    assert backbone.keys() == {name for name in given if not name.startswith("head.")}
    assert all(torch.equal(value, given[name]) for name, value in backbone.items())
    moved = (tmp_path / f"vit.{ending}").rename(tmp_path / f"other.{ending}")
    assert run_id(load([*VIT, f"init={moved}"])) == run_id(config) != run_id(load(VIT))
    vit(moved)
    assert run_id(load([*VIT, f"init={moved}"])) != run_id(config)


def test_weights_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    vit(tmp_path / "vit.pt", patch_size=4)
    (tmp_path / "code.pt").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    torch.save([torch.ones(1)], tmp_path / "list.pt")
    (tmp_path / "text.safetensors").write_text("no weights")
    remedy = "set init to weights of this network, or backbone to the network of these weights"
    shapes = "pos_embed has the shape [1, 65, 64], not [1, 17, 64], patch_embed.proj.weight has the shape [64, 3, 4, 4]"
    shapes = f"under state_dict.module, {shapes}"
    for file, overrides, sentence in (
        ("vit.pt", VIT, f"{shapes}, not [64, 3, 8, 8]: {remedy}"),
        ("vit.pt", [], "stem.0.weight is missing, stem.1.weight is missing, stem.1.bias is missing and "),
        ("code.pt", VIT, "no weights can be read ("),
        ("list.pt", VIT, "it holds no state dict: set init to a file of weights by name"),
        ("text.safetensors", VIT, "no weights can be read ("),
    ):
        with pytest.raises(ConfigError) as refusal:
            _ = Parts(load([*overrides, f"init={tmp_path / file}"])).method
        assert str(refusal.value).startswith(f"init={tmp_path / file}: {sentence}")
    for given in ("none.pt", "."):
        with pytest.raises(
            ConfigError, match=r"^init=.*: set init to the directory of a finished run, outputs/<name>/<r"
        ):
            load([f"init={tmp_path / given}"])


def test_arguments_reach_timm_and_a_vit_of_one_token_is_refused() -> None:
    assert Parts(load(VIT)).method.encoder.get_submodule("backbone.patch_embed").num_patches == 16
    for override, sentence in (
        (
            "backbone.args.patch_size=32",
            "backbone.args.patch_size=32: set backbone.args.patch_size to a divisor of 32 ",
        ),
        ("backbone.args.patchsize=8", "set backbone.args to arguments that timm's test_vit takes ("),
        ("backbone.args.pretrained=true", "backbone.args.pretrained=true: set backbone.args.pretrained to nothing: "),
    ):
        with pytest.raises(ConfigError) as refusal:
            _ = Parts(load([*VIT, override])).method
        assert sentence in str(refusal.value)


def test_the_defaults_of_the_new_keys_leave_the_identity_as_it_was() -> None:
    config = load(["dataset=cifar10", "backbone=timm"])
    former = {key: value for key, value in config.items() if key != "init"}
    former["backbone"] = {k: v for k, v in config["backbone"].items() if k not in ("freeze", "args")}
    assert run_id(former) == run_id(config)
    other = [["backbone.freeze=true"], ["backbone.args.drop_rate=0.1"]]
    assert len({run_id(config), *(run_id(load(["dataset=cifar10", "backbone=timm", *each])) for each in other)}) == 3


def backbone_of(folder: Path) -> dict[str, torch.Tensor]:
    state = checkpoint.load(folder / "checkpoints", folder.name)
    assert state is not None
    return {k.partition("encoder.")[2]: v for k, v in state["method"].items() if "encoder." in k}


def test_a_frozen_backbone_of_a_run_stays_as_it_was_and_its_head_is_trained(train: Callable[..., Any]) -> None:
    assert train("max_steps=2")[0] == 0
    first = only_run()
    assert train("max_steps=3", f"init={first}", "backbone.freeze=true", "paths.outputs=second", "seed=1")[0] == 0
    second = only_run(Path("second"))
    before, after = backbone_of(first), backbone_of(second)
    backbone = [name for name in before if name.startswith("backbone.")]
    assert len(backbone) > 20 and all(torch.equal(before[name], after[name]) for name in backbone)
    changed = [name for name in before if name.startswith("head.") and not torch.equal(before[name], after[name])]
    assert changed
    config = load([*SMALL, f"init={first}"])
    assert config["init"]["weights"].startswith(f"{first.name} after {config['epochs']} epochs #")


def test_a_run_that_starts_from_weights_calls_its_baseline_so(train: Callable[..., Any]) -> None:
    assert train("max_steps=1")[0] == 0
    code, text = train(
        "max_steps=1", f"init={only_run()}", "evaluate=knn", "evaluate.baselines=[init]", "paths.outputs=second"
    )
    assert code == 0 and "weights of init" in text and "random initialisation" not in text
