"""Weights to start from: layouts of other libraries, ViTs of another size; complete and finite, in the identity."""

import argparse
import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
import yaml
from safetensors.torch import save_file
from timm.models.swin_transformer import checkpoint_filter_fn
from torch import Tensor, nn

import ssl_bench
from ssl_bench.commands.export import export
from ssl_bench.config.compose import load
from ssl_bench.config.identity import run_id
from ssl_bench.networks.backbones import DigitsResNet, timm_backbone
from ssl_bench.networks.weights import footnotes, load_weights, read_weights
from ssl_bench.record import checkpoint
from ssl_bench.training import build
from tests.conftest import SMALL, only_run
from tests.door.door import refused

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
Weights = dict[str, Tensor]


@functools.cache
def made_once() -> Any:
    """torchvision's ResNet-18, whose weights take longer to draw than to copy."""
    return torchvision.models.resnet18()


def resnet18() -> Any:
    return copy.deepcopy(made_once())


def drawn(network: Any, seed: int = 0) -> Any:
    """The network in evaluation mode, with no tensor as it was made."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for value in [*network.parameters(), *network.buffers()]:
            if value.is_floating_point():
                value.add_(torch.rand_like(value), alpha=0.1)
    return network.eval()


def features(network: Any) -> Tensor:
    with torch.no_grad():
        return network(IMAGES)  # type: ignore[no-any-return]


# ---- layouts of files


def under(prefix: str, weights: Weights) -> Weights:
    return {f"{prefix}{name}": value for name, value in weights.items()}


def renamed(weights: Weights, **names: str) -> Weights:
    for old, new in names.items():
        weights = {name.replace(old, new): value for name, value in weights.items()}
    return weights


def numbered(weights: Weights, skipped: tuple[type, ...] = ()) -> Weights:
    """The names of the layers in nn.Sequential(*resnet.children()), which some people make without the max-pool."""
    layers = [name for name, child in resnet18().named_children() if not isinstance(child, skipped)]
    parts = {name: name.partition(".") for name in weights}
    return {f"{layers.index(parts[name][0])}.{parts[name][2]}": value for name, value in weights.items()}


LAYOUTS = yaml.safe_load(Path(__file__).with_name("layouts.yaml").read_text())
NAMES: dict[str, Callable[[Weights], Weights]] = {
    "lightly": numbered,
    "supcontrast": lambda weights: renamed(weights, downsample="shortcut"),
    "nn.Sequential": lambda weights: numbered(weights, (nn.MaxPool2d,)),
    "without counters of batches": lambda weights: {k: v for k, v in weights.items() if "num_batches" not in k},
}


of_seed = functools.cache(lambda seed: resnet(drawn(resnet18(), seed)))


def put(content: dict[str, Any], prefix: str, weights: Weights) -> None:
    *groups, prefix = prefix.split("/")
    for group in groups:
        content = content.setdefault(group, {})
    content |= under(prefix, weights)


def resnet(network: Any) -> Weights:
    return {name: value for name, value in network.state_dict().items() if not name.startswith("fc.")}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_network_has_the_weights_of_the_file(layout: str) -> None:
    prefix, other, left_out = LAYOUTS[layout]
    one, two = of_seed(0), of_seed(1)
    names, content = NAMES.get(layout, dict), dict[str, Any](args=argparse.Namespace(arch="x"), best=np.float64(0.5))
    put(content, prefix, names(one))
    if other is not None:
        put(content, other, names(two))
    for each in left_out.split():
        put(content, each, {"": torch.ones(2, 2)})
    torch.save(content, "file.pth")
    mine = resnet18()
    fc = mine.fc.weight.clone()
    line = ssl_bench.load_weights(mine, "file.pth", "trained" if layout == "timm" else None)
    assert (prefix.replace("/", ".").strip(".") or "no prefix") in line
    assert all(f"{each.replace('/', '.').removesuffix('.w')} (1)" in line for each in left_out.split()), line
    assert (layout == "supcontrast") == ("shortcut" in line and "downsample" in line)
    assert torch.equal(mine.fc.weight, fc) and all(
        torch.equal(value, one[name]) for name, value in resnet(mine).items() if "num_batches" not in name
    )
    if other is None:
        with refused("init.which=momentum file.pth"):
            ssl_bench.load_weights(mine, "file.pth", "momentum")
    elif layout != "dino":
        assert "(120)" in line and "which=momentum" in line
        assert "which=trained" in ssl_bench.load_weights(mine, "file.pth", "momentum")
        assert all(torch.equal(resnet(mine)[name], two[name]) for name in two)


def test_weights_of_other_formats_are_converted_and_grey_images_take_the_sum_over_colours() -> None:
    given = drawn(resnet18()).state_dict()
    for convert in (Tensor.half, Tensor.bfloat16, Tensor.double):
        mine = resnet18()
        load_weights(mine, {name: convert(value) for name, value in given.items()}, "")
        for name, value in mine.state_dict().items():
            assert value.dtype == given[name].dtype and torch.allclose(value, given[name], rtol=2**-7, atol=1e-4), name
    grey = timm.create_model("resnet18", in_chans=1, num_classes=0)
    assert "conv1.weight" in load_weights(grey, given, "")
    torch.testing.assert_close(grey.state_dict()["conv1.weight"], given["conv1.weight"].sum(1, keepdim=True))
    with refused("conv1.weight [64, 3, 3, 3] [64, 3, 7, 7] backbone.stem=cifar"):
        load_weights(resnet18(), timm_backbone("resnet18", 3, "cifar").state_dict(), "")


NETWORK = drawn(DigitsResNet(4, 1)).state_dict()
FIRST = "stem.0.weight"


def changed(change: Callable[[Tensor], Tensor], name: str = FIRST) -> Weights:
    return under("backbone.", NETWORK | {name: change(NETWORK[name])})


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (under("a.b.", {k: v for k, v in NETWORK.items() if k != FIRST}), f"a.b {FIRST}"),
        (changed(lambda v: v[:2]), f"backbone {FIRST} [2, 1, 3, 3] [4, 1, 3, 3]"),
        (under("m.", NETWORK | {"stages.3.body.0.weight": torch.ones(3)}), "m stages.3.body.0.weight"),
        (changed(lambda v: v * torch.nan), f"{FIRST} finite"),
        (changed(lambda v: v / 0, "stem.1.running_var"), "stem.1.running_var finite"),
        (changed(lambda v: v.double() * 1e300), f"{FIRST} finite"),
        (changed(Tensor.int), f"{FIRST} int32"),
        (changed(Tensor.to_sparse), FIRST),
        ({"state_dict": NETWORK, "state_dict_ema": NETWORK | {FIRST: -NETWORK[FIRST]}}, "state_dict state_dict_ema"),
        ({"epoch": 3}, "init"),
    ],
)
def test_weights_that_are_not_complete_and_finite_are_refused(content: Any, names: str) -> None:
    torch.save(content, "file.pt")
    backbone = DigitsResNet(4, 1)
    before = copy.deepcopy(backbone.state_dict())
    with refused(f"init=file.pt {names}"):
        load_weights(backbone, read_weights(Path("file.pt")), "file.pt")
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


# ---- runs that start from them

VIT = ["dataset=cifar10", "backbone=timm", "backbone.name=test_vit", "backbone.args.patch_size=8"]


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_a_network_of_timm_starts_from_a_file(ending: str, tmp_path: Path) -> None:
    def save(path: Path, **options: Any) -> Weights:
        given: Weights = timm.create_model("test_vit", **{"img_size": 32, "patch_size": 8, **options}).state_dict()
        save_file(given, path) if ending == "safetensors" else torch.save({"state_dict": under("module.", given)}, path)
        return given

    given = save(tmp_path / f"vit.{ending}")
    config = load([*VIT, f"init={tmp_path}/vit.{ending}"])
    backbone = build.method(build.build(config)).encoder.get_submodule("backbone").state_dict()
    assert backbone.keys() == {name for name in given if not name.startswith("head.")}
    assert all(torch.equal(value, given[name]) for name, value in backbone.items())
    moved = (tmp_path / f"vit.{ending}").rename(tmp_path / f"other.{ending}")
    assert run_id(load([*VIT, f"init={moved}"])) == run_id(config) != run_id(load(VIT))
    save(moved, patch_size=4)
    assert run_id(load([*VIT, f"init={moved}"])) != run_id(config)
    with refused(f"init={moved} patch_embed.proj.weight [64, 3, 4, 4] [64, 3, 8, 8]"):
        _ = build.method(build.build(load([*VIT, f"init={moved}"])))


def test_a_frozen_backbone_of_a_run_stays_as_it_was_and_its_head_is_trained(
    trained: Path, train: Callable[..., Any]
) -> None:
    def of(folder: Path) -> Weights:
        state = checkpoint.load(folder, folder.name)
        assert state is not None
        return {k.partition("encoder.")[2]: v for k, v in state["method"].items() if "encoder." in k}

    assert train("max_steps=3", f"init={trained}", "backbone.freeze=true", "paths.outputs=second", "seed=1")[0] == 0
    before, after = of(trained), of(only_run(Path("second")))
    backbone = [name for name in before if name.startswith("backbone.")]
    assert len(backbone) > 20 and all(torch.equal(before[name], after[name]) for name in backbone)
    assert [name for name in before if name.startswith("head.") and not torch.equal(before[name], after[name])]
    exports = export(trained).with_suffix(".safetensors"), export(trained, "card").parent
    for file in (trained / "checkpoints" / "last.pt", *exports):
        mine = DigitsResNet(4, 1)
        ssl_bench.load_weights(mine, file)
        assert all(torch.equal(value, before[f"backbone.{name}"]) for name, value in mine.state_dict().items())
    config = load([*SMALL, f"init={trained}"])
    assert config["init"]["weights"].startswith(f"{trained.name} after {config['epochs']} epochs #")


# ---- ViTs of another size, and names of other libraries

REGISTERS: dict[str, Any] = {"reg_tokens": 4, "no_embed_class": True, "init_values": 1.0}
RESAMPLED = "position embeddings resampled from "


def vit(size: int, **args: Any) -> Any:
    """timm's test_vit with patches of 8 x 8 pixels."""
    return drawn(timm.create_model("test_vit", num_classes=0, img_size=size, **{"patch_size": 8, **args}))


def mine(**args: Any) -> Any:
    return timm_backbone("test_vit", 3, size=32, args={"patch_size": 8, **args}).eval()


def loaded_by_timm(weights: Weights, **args: Any) -> Any:
    """timm's network for images of 32 x 32 pixels, which timm loads from a file of weights."""
    torch.save(weights, "file.pth")
    overlay = {"file": "file.pth", "custom_load": False}
    options = {"num_classes": 0, "img_size": 32, "patch_size": 8, **args}
    return timm.create_model("test_vit", pretrained=True, pretrained_cfg_overlay=overlay, **options).eval()


def of_dinov2() -> Weights:
    """Its own files have a position for the class token beside registers."""
    own: Weights = vit(96, **REGISTERS | {"no_embed_class": False, "reg_tokens": 0}).state_dict()
    return own | {"register_tokens": torch.randn(1, 4, 64), "mask_token": torch.zeros(1, 64)}


@pytest.mark.parametrize(
    ("args", "weights"),
    [
        ({}, None),
        ({"reg_tokens": 4}, None),
        (REGISTERS, None),
        (REGISTERS, of_dinov2),
        ({"class_token": False, "global_pool": "avg"}, None),
    ],
    ids=["class", "embedded registers", "registers", "DINOv2", "patches"],
)
def test_position_embeddings_are_resampled_as_timm_does(args: dict[str, Any], weights: Any) -> None:
    given = weights() if weights else vit(96, **args).state_dict()
    network, expected = mine(**args), features(loaded_by_timm(given, **args))
    line = load_weights(network, given, "x")
    assert [note.startswith(RESAMPLED) for note in footnotes(line)] == [True] and ("mask_token" in line) == bool(
        weights
    )
    torch.testing.assert_close(features(network), expected, rtol=0, atol=1e-6)
    unlike = vit(32, **args)
    kept = {name: value for name, value in given.items() if name in unlike.state_dict() and name != "pos_embed"}
    unlike.load_state_dict(kept, strict=False)
    assert (features(unlike) - expected).abs().max() > 0.01  # so the positions matter
    assert weights or footnotes(load_weights(vit(96, **args), given, "x")) == []


@pytest.mark.filterwarnings("ignore:Using a non-tuple", "ignore:.*searchsorted")
def test_relative_positions_of_swin_are_resampled_and_buffers_that_it_computes_left_out() -> None:
    swin: dict[str, Any] = {"num_classes": 0, "embed_dim": 12, "depths": (2, 2), "num_heads": (2, 2)}
    given, network, expected = (
        drawn(timm.create_model("swin_tiny_patch4_window7_224", img_size=size, window_size=size // 8, **swin))
        for size in (64, 32, 32)
    )
    weights = given.state_dict() | dict(given.named_buffers())  # timm saved them once
    assert len(weights) > len(given.state_dict()) and footnotes(load_weights(network, weights, "x"))
    expected.load_state_dict(checkpoint_filter_fn(given.state_dict(), expected))
    assert torch.equal(features(network), features(expected))


def test_mae_with_its_decoder_and_with_fc_norm() -> None:
    """As facebookresearch/mae saves them: with the decoder after the pre-training, with fc_norm after fine-tuning."""
    given, network = vit(32), mine()
    own = given.state_dict() | {"mask_token": torch.zeros(1, 1, 64), "decoder_embed.weight": torch.zeros(8, 64)}
    load_weights(network, own, "x")
    assert torch.equal(features(network), features(given))
    tuned = {f"fc_{name}" if name.startswith("norm.") else name: value for name, value in own.items()}
    with refused("backbone.args.global_pool=avg"):
        load_weights(network, tuned, "x")
    network = mine(global_pool="avg")
    load_weights(network, tuned, "x")
    with torch.no_grad():
        patches = given.blocks(given.patch_drop(given._pos_embed(given.patch_embed(IMAGES))))[:, 1:]
        torch.testing.assert_close(features(network), given.norm(patches.mean(1)), rtol=0, atol=1e-6)
    with refused("backbone.args.fc_norm=false"):
        load_weights(network, own, "x")


CLIP = {"norm_pre": "ln_pre", "norm1": "ln_1", "norm2": "ln_2", "norm.": "ln_post.", "qkv.": "in_proj_"}
CLIP |= {"attn.proj": "attn.out_proj", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj"}
CLIP |= {"blocks.": "transformer.resblocks.", "patch_embed.proj": "conv1"}
CLIP |= {"pos_embed": "positional_embedding", "cls_token": "class_embedding"}


def test_names_of_clip_are_those_of_timm() -> None:
    given, network = vit(32, pre_norm=True), mine(pre_norm=True)
    own = {
        f"state_dict.visual.{name}": value.flatten(0, -2).squeeze(0) if name.endswith("embedding") else value
        for name, value in renamed(given.state_dict(), **CLIP).items()
    }
    own |= {"state_dict.visual.proj": torch.ones(64, 8), "state_dict.logit_scale": torch.ones(())}
    assert load_weights(network, own, "x").startswith(f"{len(own) - 2} ")
    assert torch.equal(features(network), features(given))
    with refused("init=x backbone.name=vit_base_patch16_clip_224.openai"):
        load_weights(vit(32), own, "x")


def test_other_shapes_and_names_are_refused_by_name() -> None:
    weights, network = vit(96).state_dict(), vit(32)
    before, positions = network.state_dict()["pos_embed"].clone(), weights["pos_embed"]
    large = {"cls_token": torch.ones(10**5, 1, 1), "pos_embed": torch.ones(1, 2, 10**5)}  # their sum takes 40 GB
    large |= {"mask_token": large["cls_token"], "register_tokens": positions}
    for given, names in (
        (weights | {"pos_embed": positions[:, :99]}, "pos_embed [1, 17, 64]"),
        (weights | {"pos_embed": positions[:, :, :32].contiguous()}, "pos_embed [1, 17, 64]"),
        (weights | {"pos_embed": positions[0]}, "pos_embed [1, 17, 64]"),
        (vit(64, patch_size=16).state_dict(), "patch_embed.proj.weight [64, 3, 8, 8]"),
        (weights | large, "cls_token"),
        (renamed(weights, **{"blocks.": "blocks.0."}), "block_chunks"),
        (renamed(weights, **{"patch_embed.proj": "vit.embeddings.patch_embeddings.projection"}), "timm:NAME"),
    ):
        with refused(f"init=x {names}"):
            load_weights(network, given, "x")
    assert torch.equal(network.state_dict()["pos_embed"], before)


def test_a_configuration_of_another_size_takes_no_memory() -> None:
    """``config.json`` of a folder asks for what it likes: 51 GB, or a million layers."""
    torch.save(vit(32).state_dict(), "file.pth")
    words = ["framework=frozen", "init=file.pth", "backbone=timm", "backbone.name=test_vit", "dataset=cifar10"]
    for args, names in (({"embed_dim": 9_984, "patch_size": 8}, "9984"), ({"depth": 1_000_000}, "below")):
        with refused(names):
            _ = build.backbone(load([*words, *(f"backbone.args.{key}={value}" for key, value in args.items())]))
