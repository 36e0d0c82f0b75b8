"""ViTs trained at another size, and files with the names of DINOv2 and transformers: their features are those of timm.

With transformers' own networks: test_transformers.py.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import ssl_bench
from ssl_bench.commands.evaluate import main
from ssl_bench.commands.export import export
from ssl_bench.config.compose import load
from ssl_bench.errors import ConfigError
from ssl_bench.networks.backbones import timm_backbone
from ssl_bench.networks.export import load as load_export
from ssl_bench.networks.weights import footnotes, load_weights
from ssl_bench.training.parts import Parts
from tests.conftest import only_run

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
REGISTERS: dict[str, Any] = {"reg_tokens": 4, "no_embed_class": True, "init_values": 1.0}
RESAMPLED = "position embeddings resampled from 12x12 to 4x4 patches as timm does"


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
    assert footnotes(line) == [RESAMPLED]
    expected = features(loaded_by_timm(weights, **args))
    torch.testing.assert_close(features(network), expected, rtol=0, atol=1e-6)
    unlike = vit(32, **args)
    unlike.load_state_dict(weights | {"pos_embed": unlike.state_dict()["pos_embed"]})
    assert (features(unlike) - expected).abs().max() > 0.01  # so the positions matter
    same = load_weights(vit(96, **args), weights, "x")
    assert footnotes(same) == [] and "resampled" not in same


def test_other_grids_are_refused_by_name() -> None:
    weights, network = vit(96).state_dict(), vit(32)
    before = network.state_dict()["pos_embed"].clone()
    positions = weights["pos_embed"]
    for other, says in (
        (positions[:, :99], r"\[1, 99, 64\].*\[1, 17, 64\]"),
        (positions[:, :, :32].contiguous(), r"\[1, 145, 32\].*\[1, 17, 64\]"),
        (positions[0], r"\[145, 64\]"),
        (positions[:, :1].expand(1, 10**12 + 1, 64), r"\[1, 1000000000001, 64\]"),
        (positions.int(), r"\[1, 145, 64\]"),
    ):
        with pytest.raises(ConfigError, match=rf"^init=x: pos_embed .*{says}"):
            load_weights(network, weights | {"pos_embed": other}, "x")
    assert torch.equal(network.state_dict()["pos_embed"], before)
    with pytest.raises(ConfigError, match=r"pos_embed .*\[1, 145, 64\].*\[1, 9, 64\]"):
        load_weights(vit((32, 16)), weights, "x")  # type: ignore[arg-type]
    swin: dict[str, Any] = {"num_classes": 0, "embed_dim": 12, "depths": (2, 2), "num_heads": (2, 2)}
    given, network = (
        timm.create_model("swin_tiny_patch4_window7_224", img_size=size, window_size=size // 8, **swin)
        for size in (64, 32)
    )
    with pytest.raises(ConfigError, match=r"relative_position_bias_table .*\[225, 2\].*\[49, 2\]"):
        load_weights(network, given.state_dict(), "x")


def test_registers_of_dinov2_are_those_of_timm() -> None:
    """Its own files have a position for the class token, and w12 and w3 in SwiGLU."""
    own = vit(96, **REGISTERS | {"no_embed_class": False, "reg_tokens": 0}).state_dict()
    own |= {"register_tokens": torch.randn(1, 4, 64), "mask_token": torch.zeros(1, 64)}
    network = timm_backbone("test_vit", 3, size=32, args={"patch_size": 8, **REGISTERS}).eval()
    line = load_weights(network, own, "x")
    assert line.startswith(f"{len(own) - 1} ") and "mask_token (1)" in line and RESAMPLED in line and "DINOv2" in line
    torch.testing.assert_close(features(network), features(loaded_by_timm(own, **REGISTERS)), rtol=0, atol=1e-6)


def of_transformers(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a ViT with the names of transformers."""
    named = dict[str, Tensor]()
    for name, value in weights.items():
        for here, there in (
            ("cls_token", "embeddings.cls_token"),
            ("pos_embed", "embeddings.position_embeddings"),
            ("patch_embed.proj", "embeddings.patch_embeddings.projection"),
            ("attn.proj", "attention.output.dense"),
            ("blocks.", "encoder.layer."),
            (".norm1.", ".layernorm_before."),
            (".norm2.", ".layernorm_after."),
            ("mlp.fc1", "intermediate.dense"),
            ("mlp.fc2", "output.dense"),
        ):
            name = name.replace(here, there)
        name = f"layernorm.{name[5:]}" if name.startswith("norm.") else name
        if ".attn.qkv." in name:
            parts = zip(("query", "key", "value"), value.chunk(3), strict=True)
            named |= {f"vit.{name.replace('attn.qkv', f'attention.attention.{part}')}": v.clone() for part, v in parts}
        else:
            named[f"vit.{name}"] = value
    return named | {"vit.pooler.dense.weight": torch.ones(2, 2)}


def test_a_folder_of_transformers_is_read_and_compared() -> None:
    given, network = vit(32), vit(32)
    Path("folder").mkdir()
    save_file(of_transformers(given.state_dict()), "folder/model.safetensors")
    assert len(of_transformers(given.state_dict())) == 78 + 24 + 1
    with torch.no_grad():
        for value in network.parameters():
            value.zero_()
    line = ssl_bench.load_weights(network, "folder")
    says = "names of transformers are those of timm here; no config.json beside the file says its heads, activation and"
    assert line == f"78 tensors under vit are taken; left out: vit.pooler (1); {says} layer_norm_eps"
    assert torch.equal(features(network), features(given)) and features(given).abs().max() > 0.1
    described: dict[str, Any] = {
        "model_type": "vit",
        "num_attention_heads": 2,
        "layer_norm_eps": 1e-6,
        "hidden_act": "gelu",
    }
    for key, value, says in (
        (
            "num_attention_heads",
            4,
            r"num_attention_heads is 4 in config\.json and 2 here \(backbone\.args\.num_heads\)",
        ),
        (
            "layer_norm_eps",
            1e-12,
            r"layer_norm_eps is 1e-12 in config\.json and 1e-06 here \(backbone\.args\.layer_norm",
        ),
        ("hidden_act", "gelu_new", r"hidden_act is gelu_new in config\.json and GELU\(approximate='none'\) here"),
        ("hidden_act", "a\nb", r"hidden_act is a\\nb in config\.json and GELU"),
        ("use_swiglu_ffn", True, r"hidden_act is silu in config\.json"),
        (
            "layer_norm_eps",
            "small",
            r"config\.json beside it is damaged \(.*layer_norm_eps.*\): save the network again",
        ),
    ):
        Path("folder/config.json").write_text(json.dumps(described | {key: value}))
        with pytest.raises(ConfigError, match=rf"^init=folder/model\.safetensors: {says}"):
            ssl_bench.load_weights(network, "folder")
    Path("folder/config.json").write_text(json.dumps(described))
    assert "no config.json" not in ssl_bench.load_weights(network, "folder")


def test_queries_keys_and_values_that_do_not_fit_are_refused() -> None:
    network, weights = vit(32), of_transformers(vit(32).state_dict())
    of_first = [f"vit.encoder.layer.0.attention.attention.{part}.weight" for part in ("query", "key", "value")]
    name = r"blocks\.0\.attn\.qkv\.weight"
    for value, says in (
        (torch.ones(32, 64), rf"{name} has the shape \[96, 64\], not \[192, 64\]: set init to weights"),
        (torch.ones(()), f"{name} is missing, blocks.0.attn.query.weight is unknown, "),
        (torch.ones(1, 1).expand(10**12, 64), f"{name} is missing, blocks.0.attn"),
        (torch.ones(64, 64).int(), f"{name} is missing, blocks.0.attn"),
        (torch.ones(64, 64).to_sparse(), f"{name} is missing, blocks.0.attn"),
        (torch.full((64, 64), float("nan")), f"{name} has values that are NaN or infinite"),
    ):
        with pytest.raises(ConfigError, match=rf"^init=x: (under vit, )?{says}"):
            load_weights(network, weights | dict.fromkeys(of_first, value), "x")
    with pytest.raises(ConfigError, match=rf"{name} is missing, blocks.0.attn"):
        load_weights(network, {key: value for key, value in weights.items() if key != of_first[1]}, "x")


def test_a_folder_is_evaluated_with_the_eps_that_it_says(capfd: pytest.CaptureFixture[str]) -> None:
    weights = vit(96).state_dict()
    Path("folder").mkdir()
    save_file(of_transformers(weights), "folder/model.safetensors")
    Path("folder/config.json").write_text(json.dumps({"model_type": "vit", "layer_norm_eps": 1e-3}))
    Path("data/cifar10").mkdir(parents=True)
    for split in ("train", "test"):
        pixels = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), np.uint8)
        np.save(f"data/cifar10/{split}_images.npy", pixels)
        np.save(f"data/cifar10/{split}_labels.npy", np.arange(20) % 10)
    words = ["dataset=cifar10", "paths.data=data", "tracking=off", "evaluate=knn", "evaluate.knn.k=2"]
    words += ["backbone=timm", "backbone.name=test_vit", "backbone.args.patch_size=8"]
    assert main(["--weights", "folder", *words]) == 0
    assert "folder: as in its training, backbone.args.layer_norm_eps=0.001" in capfd.readouterr().out
    results = json.loads((only_run() / "results.json").read_text())
    assert results["config"]["backbone"]["args"] == {"patch_size": 8, "layer_norm_eps": 0.001}
    assert results["warnings"] == [RESAMPLED]
    expected = features(loaded_by_timm(weights, norm_layer=partial(nn.LayerNorm, eps=1e-3)))
    torch.testing.assert_close(features(ssl_bench.load(only_run())), expected, rtol=0, atol=1e-6)
    assert (features(loaded_by_timm(weights)) - expected).abs().max() > 1e-4
    with pytest.raises(ConfigError, match=r"--format timm: backbone=timm is no network of timm"):
        export(only_run(), "timm")
    torch.testing.assert_close(features(load_export(export(only_run()))[0].eval()), expected, rtol=0, atol=1e-6)
    with pytest.raises(ConfigError, match=r"layer_norm_eps is 0\.001 in config\.json and 1e-06 here \("):
        _ = Parts(load(["init=folder", *words])).backbone
    words[-1] = "backbone.args={patch_size: 8, layer_norm_eps: small}"
    with pytest.raises(ConfigError, match=r"^backbone\.args\.layer_norm_eps=small: set backbone\.args\.layer_norm"):
        _ = Parts(load(["init=folder", *words])).backbone
