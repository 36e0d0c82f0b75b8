"""Networks of Hugging Face's transformers, saved by its own code: their features here are those there."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from timm.layers import SwiGLUPacked
from torch import Tensor

import ssl_bench

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

VIT: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 2,
    "patch_size": 8,
    "initializer_range": 0.2,
}
DINO: dict[str, Any] = {**VIT, "mlp_ratio": 3, "layerscale_value": 0.5}
PACKED: dict[str, Any] = {"mlp_ratio": 4, "mlp_layer": SwiGLUPacked, "act_layer": "silu", "init_values": 1.0}
REGISTERS: dict[str, Any] = {"reg_tokens": 4, "no_embed_class": True, "init_values": 1.0}
RESNET: dict[str, Any] = {"embedding_size": 64, "depths": [2, 2, 2, 2]}


def vit(**args: Any) -> Any:
    return transformers.ViTModel(transformers.ViTConfig(**{**VIT, "image_size": 32, "intermediate_size": 192, **args}))


def dino(size: int, **args: Any) -> Any:
    return transformers.Dinov2Model(transformers.Dinov2Config(image_size=size, **{**DINO, **args}))


def registers(size: int) -> Any:
    config = transformers.Dinov2WithRegistersConfig(image_size=size, num_register_tokens=4, **DINO)
    return transformers.Dinov2WithRegistersModel(config)


def resnet(kind: str, sizes: list[int], **args: Any) -> Any:
    return transformers.ResNetModel(transformers.ResNetConfig(layer_type=kind, hidden_sizes=sizes, **RESNET, **args))


def here(name: str, **args: Any) -> Any:
    return timm.create_model(name, num_classes=0, **args).eval()


def small(**args: Any) -> Any:
    return here("test_vit", img_size=32, patch_size=8, **args)


# A network there, and one here.
NETWORKS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "ViT": (lambda: vit(layer_norm_eps=1e-6), small),
    "ViT, activation and heads": (
        lambda: vit(layer_norm_eps=1e-6, hidden_act="relu", num_attention_heads=4),
        lambda: small(act_layer="relu", num_heads=4),
    ),
    "DINOv2": (lambda: dino(32), lambda: small(init_values=1.0)),
    "DINOv2, SwiGLU": (lambda: dino(32, use_swiglu_ffn=True), lambda: small(**PACKED)),
    "DINOv2, registers": (lambda: registers(32), lambda: small(**REGISTERS)),
    "DINOv2, registers, 96 pixels": (lambda: registers(96), lambda: small(**REGISTERS)),
    "ResNet, basic": (lambda: resnet("basic", [64, 128, 256, 512]), lambda: here("resnet18")),
    "ResNet, bottleneck": (
        lambda: resnet("bottleneck", [256, 512, 1024, 2048]),
        lambda: here("resnet50", layers=(2, 2, 2, 2)),
    ),
}
IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def drawn(network: Any) -> Any:
    """The network with no tensor as it begins."""
    with torch.no_grad():
        for name, value in network.state_dict().items():
            if value.is_floating_point():
                value.add_(0.1 * torch.randn_like(value).abs() if "var" in name else 0.1 * torch.randn_like(value))
    return network.eval()


def features(network: Any) -> Tensor:
    with torch.no_grad():
        found = network(IMAGES)
    if isinstance(found, Tensor):
        return found
    return found.last_hidden_state[:, 0] if found.last_hidden_state.ndim == 3 else found.pooler_output.flatten(1)


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_network_has_the_features_of_transformers(kind: str) -> None:
    torch.manual_seed(0)
    there, mine = (make() for make in NETWORKS[kind])
    drawn(there).save_pretrained("folder")
    line = ssl_bench.load_weights(mine, "folder")
    assert "names of transformers are those of timm here" in line and "no config.json" not in line
    assert ("resampled from 12x12 to 4x4" in line) == ("96" in kind)
    expected = features(there)
    torch.testing.assert_close(features(mine), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    if "SwiGLU" not in kind:  # in memory, transformers 5 has its two halves apart
        torch.save({"model": there.state_dict()}, "file.pth")
        again = NETWORKS[kind][1]()
        assert ssl_bench.load_weights(again, "file.pth").endswith("its heads, activation and layer_norm_eps")
        assert torch.equal(features(again), features(mine))
