"""ViTs trained at another size, and files with the names of DINOv2, MAE and CLIP: their features are those of timm."""

from typing import Any

import pytest
import timm
import torch
from timm.models.swin_transformer import checkpoint_filter_fn
from torch import Tensor

from ssl_bench.config.compose import load
from ssl_bench.errors import ConfigError
from ssl_bench.networks.backbones import timm_backbone
from ssl_bench.networks.weights import footnotes, load_weights
from ssl_bench.training.parts import Parts

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
REGISTERS: dict[str, Any] = {"reg_tokens": 4, "no_embed_class": True, "init_values": 1.0}
RESAMPLED = "position embeddings resampled from "


def vit(size: int, **args: Any) -> Any:
    """timm's test_vit with patches of 8 x 8 pixels and no tensor as it is drawn."""
    torch.manual_seed(0)
    network = timm.create_model("test_vit", num_classes=0, img_size=size, **{"patch_size": 8, **args}).eval()
    with torch.no_grad():
        for value in network.parameters():
            value.add_(torch.randn_like(value), alpha=0.1)
    return network


def features(network: Any) -> Tensor:
    with torch.no_grad():
        return network(IMAGES)  # type: ignore[no-any-return]


def loaded_by_timm(weights: dict[str, Tensor], **args: Any) -> Any:
    """timm's network for images of 32 x 32 pixels, which timm loads from a file of weights."""
    torch.save(weights, "file.pth")
    overlay = {"file": "file.pth", "custom_load": False}
    options = {"num_classes": 0, "img_size": 32, "patch_size": 8, **args}
    return timm.create_model("test_vit", pretrained=True, pretrained_cfg_overlay=overlay, **options).eval()


@pytest.mark.parametrize(
    "args",
    [{}, {"reg_tokens": 4}, REGISTERS, {"class_token": False, "global_pool": "avg"}],
    ids=["class", "embedded registers", "registers", "patches"],
)
def test_position_embeddings_are_resampled_as_timm_does(args: dict[str, Any]) -> None:
    weights = vit(96, **args).state_dict()
    network = timm_backbone("test_vit", 3, size=32, args={"patch_size": 8, **args}).eval()
    line = load_weights(network, {f"module.{name}": value for name, value in weights.items()}, "x")
    assert line.startswith(f"{len(weights)} tensors under module ")
    assert [note.startswith(RESAMPLED) for note in footnotes(line)] == [True]
    expected = features(loaded_by_timm(weights, **args))
    torch.testing.assert_close(features(network), expected, rtol=0, atol=1e-6)
    unlike = vit(32, **args)
    unlike.load_state_dict(weights | {"pos_embed": unlike.state_dict()["pos_embed"]})
    assert (features(unlike) - expected).abs().max() > 0.01  # so the positions matter
    same = load_weights(vit(96, **args), weights, "x")
    assert footnotes(same) == [] and "resampled" not in same


def test_other_shapes_are_refused_by_name() -> None:
    weights, network = vit(96).state_dict(), vit(32)
    before = network.state_dict()["pos_embed"].clone()
    positions = weights["pos_embed"]
    for other in (positions[:, :99], positions[:, :, :32].contiguous(), positions[0]):
        with pytest.raises(ConfigError, match=r"^init=x: pos_embed .*\[1, 17, 64\]"):
            load_weights(network, weights | {"pos_embed": other}, "x")
    with pytest.raises(ConfigError, match=r"^init=x: patch_embed\.proj\.weight .*\[64, 3, 8, 8\]"):
        load_weights(network, vit(64, patch_size=16).state_dict(), "x")
    large = {"cls_token": torch.ones(10**5, 1, 1), "pos_embed": torch.ones(1, 2, 10**5)}  # their sum takes 40 GB
    with pytest.raises(ConfigError, match=r"^init=x: .*cls_token"):
        load_weights(network, weights | large | {"mask_token": large["cls_token"], "register_tokens": positions}, "x")
    assert torch.equal(network.state_dict()["pos_embed"], before)


@pytest.mark.filterwarnings("ignore:Using a non-tuple", "ignore:.*searchsorted")
def test_relative_positions_of_swin_are_resampled() -> None:
    swin: dict[str, Any] = {"num_classes": 0, "embed_dim": 12, "depths": (2, 2), "num_heads": (2, 2)}
    given, network, expected = (
        timm.create_model("swin_tiny_patch4_window7_224", img_size=size, window_size=size // 8, **swin).eval()
        for size in (64, 32, 32)
    )
    assert footnotes(load_weights(network, given.state_dict(), "x"))
    expected.load_state_dict(checkpoint_filter_fn(given.state_dict(), expected))
    assert torch.equal(features(network), features(expected))


def test_registers_of_dinov2_are_those_of_timm() -> None:
    """Its own files have a position for the class token, and w12 and w3 in SwiGLU."""
    own = vit(96, **REGISTERS | {"no_embed_class": False, "reg_tokens": 0}).state_dict()
    own |= {"register_tokens": torch.randn(1, 4, 64), "mask_token": torch.zeros(1, 64)}
    network = timm_backbone("test_vit", 3, size=32, args={"patch_size": 8, **REGISTERS}).eval()
    line = load_weights(network, own, "x")
    assert line.startswith(f"{len(own) - 1} ") and "mask_token (1)" in line and RESAMPLED in line
    torch.testing.assert_close(features(network), features(loaded_by_timm(own, **REGISTERS)), rtol=0, atol=1e-6)


def test_mae_with_its_decoder_and_with_fc_norm() -> None:
    """As facebookresearch/mae saves them: with the decoder after the pre-training, with fc_norm after fine-tuning."""
    given, network = vit(32), timm_backbone("test_vit", 3, size=32, args={"patch_size": 8}).eval()
    own = given.state_dict() | {"mask_token": torch.zeros(1, 1, 64), "decoder_embed.weight": torch.zeros(8, 64)}
    load_weights(network, own, "x")
    assert torch.equal(features(network), features(given))
    tuned, pooled = (
        {name.replace("norm.", "fc_norm.") if name.startswith("norm.") else name: v for name, v in own.items()},
        {
            "patch_size": 8,
            "global_pool": "avg",
        },
    )
    with pytest.raises(ConfigError, match=r"backbone\.args\.global_pool=avg"):
        load_weights(network, tuned, "x")
    network = timm_backbone("test_vit", 3, size=32, args=pooled).eval()
    load_weights(network, tuned, "x")
    with torch.no_grad():
        patches = given.blocks(given.patch_drop(given._pos_embed(given.patch_embed(IMAGES))))[:, 1:]
        torch.testing.assert_close(features(network), given.norm(patches.mean(1)), rtol=0, atol=1e-6)
    with pytest.raises(ConfigError, match=r"backbone\.args\.fc_norm=false"):
        load_weights(network, own, "x")


CLIP = {
    "norm_pre": "ln_pre",
    "norm1": "ln_1",
    "norm2": "ln_2",
    "norm.": "ln_post.",
    "qkv.": "in_proj_",
    "attn.proj": "attn.out_proj",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "blocks.": "transformer.resblocks.",
    "patch_embed.proj": "conv1",
    "pos_embed": "positional_embedding",
    "cls_token": "class_embedding",
}


def test_names_of_clip_are_those_of_timm() -> None:
    args: dict[str, Any] = {"patch_size": 8, "pre_norm": True}
    given, network = vit(32, **args), timm_backbone("test_vit", 3, size=32, args=args).eval()
    own = dict[str, Tensor]()
    for name, value in given.state_dict().items():
        for here, there in CLIP.items():
            name = name.replace(here, there)
        own[f"state_dict.visual.{name}"] = value.flatten(0, -2).squeeze(0) if name.endswith("embedding") else value
    own |= {"state_dict.visual.proj": torch.ones(64, 8), "state_dict.logit_scale": torch.ones(())}
    assert load_weights(network, own, "x").startswith(f"{len(own) - 2} ")
    torch.testing.assert_close(features(network), features(given), rtol=0, atol=0)
    with pytest.raises(ConfigError, match=r"backbone\.name=vit_base_patch16_clip_224\.openai"):
        load_weights(vit(32), own, "x")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("blocks.", "blocks.0."), "block_chunks"),
        (("patch_embed.proj", "vit.embeddings.patch_embeddings.projection"), "timm:NAME"),
    ],
)
def test_names_that_timm_does_not_take_are_refused_with_what_to_write(change: tuple[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=rf"^init=x: .*{says}"):
        load_weights(vit(32), {name.replace(*change): value for name, value in vit(32).state_dict().items()}, "x")


def test_a_configuration_of_another_size_takes_no_memory() -> None:
    """``config.json`` of a folder asks for what it likes: 51 GB, or a million layers."""
    torch.save(vit(32).state_dict(), "file.pth")
    words = ["framework=frozen", "init=file.pth", "backbone=timm", "backbone.name=test_vit", "dataset=cifar10"]
    for args, says in (
        ({"embed_dim": 9_984, "patch_size": 8}, r"9984\]"),
        ({"depth": 1_000_000}, "below"),
    ):
        with pytest.raises(ConfigError, match=says):
            _ = Parts(load([*words, *(f"backbone.args.{key}={value}" for key, value in args.items())])).backbone
