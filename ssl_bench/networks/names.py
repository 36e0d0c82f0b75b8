"""Names that other libraries give to tensors, and what transformers says of a network beside its tensors."""

import re
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any, TypedDict, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssl_bench import files
from ssl_bench.errors import ConfigError, printable

Change = str | Callable[[re.Match[str]], str]


def _numbered(form: str) -> Callable[[re.Match[str]], str]:
    """The ``form`` of a match with its last number raised by one: transformers counts from 0."""
    return lambda match: form.format(*match.groups()[:-1], int(match.groups()[-1]) + 1)


OF_TRANSFORMERS = "names of transformers are those of timm here"
# For each library, the sentence that is said of it, and how its names become those of timm and torchvision.
NAMES: dict[str, list[tuple[str, Change]]] = {
    "shortcut is downsample here": [(r"\bshortcut\b", "downsample")],  # SupContrast and pytorch-cifar
    "names of DINOv2 are those of timm here": [
        (r"\bregister_tokens$", "reg_token"),
        (r"\bmlp\.w12\.", "mlp.fc1."),
        (r"\bmlp\.w3\.", "mlp.fc2."),
    ],
    OF_TRANSFORMERS: [
        (r"\bembeddings\.cls_token$", "cls_token"),
        (r"\bembeddings\.register_tokens$", "reg_token"),
        (r"\bembeddings\.position_embeddings$", "pos_embed"),
        (r"\bembeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
        (r"\bencoder\.stages\.(\d+)\.layers\.", _numbered("layer{}.")),
        (r"(^|\.)(?:encoder\.layer|layers)\.(\d+)\.", r"\1blocks.\2."),
        (r"(\bblocks\.\d+)\.attention\.(?:attention\.)?", r"\1.attn."),
        (r"(\bblocks\.\d+\.attn)\.(?:output\.dense|o_proj)\.", r"\1.proj."),
        (r"(\bblocks\.\d+\.attn)\.q_proj\.", r"\1.query."),
        (r"(\bblocks\.\d+\.attn)\.k_proj\.", r"\1.key."),
        (r"(\bblocks\.\d+\.attn)\.v_proj\.", r"\1.value."),
        (r"(\bblocks\.\d+)\.(?:norm1|layernorm_before)\.", r"\1.norm1."),
        (r"(\bblocks\.\d+)\.(?:norm2|layernorm_after)\.", r"\1.norm2."),
        (r"(\bblocks\.\d+)\.(?:intermediate\.dense|mlp\.weights_in)\.", r"\1.mlp.fc1."),
        (r"(\bblocks\.\d+)\.(?:output\.dense|mlp\.weights_out)\.", r"\1.mlp.fc2."),
        (r"(\bblocks\.\d+)\.layer_scale([12])\.lambda1$", r"\1.ls\2.gamma"),
        (r"(^|\.)layernorm\.", r"\1norm."),
        (r"\bembedder\.embedder\.convolution\.", "conv1."),
        (r"\bembedder\.embedder\.normalization\.", "bn1."),
        (r"\b(layer\d+\.\d+)\.layer\.(\d+)\.convolution\.", _numbered("{}.conv{}.")),
        (r"\b(layer\d+\.\d+)\.layer\.(\d+)\.normalization\.", _numbered("{}.bn{}.")),
        (r"\b(layer\d+\.\d+)\.shortcut\.convolution\.", r"\1.downsample.0."),
        (r"\b(layer\d+\.\d+)\.shortcut\.normalization\.", r"\1.downsample.1."),
    ],
}


def renamed(name: str, changes: list[tuple[str, Change]]) -> str:
    """The name of a tensor here."""
    for pattern, change in changes:
        name = re.sub(pattern, change, name)
    return name


class Described(TypedDict, total=False):
    """The keys of transformers' ``config.json`` that are read."""

    hidden_act: str
    num_attention_heads: int
    layer_norm_eps: float
    use_swiglu_ffn: bool
    downsample_in_first_stage: bool
    downsample_in_bottleneck: bool


# Settings that the shapes of tensors do not show: where a network of timm has each, and the key that sets it there.
SETTINGS = {
    "num_attention_heads": ("blocks.0.attn.num_heads", "backbone.args.num_heads"),
    "layer_norm_eps": ("blocks.0.norm1.eps", "backbone.args.layer_norm_eps"),
}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}
PLACES_OF_ACTIVATIONS = ("blocks.0.mlp.act", "layer1.0.act1", "layer1.0.relu")


def described(weights: Path) -> Described | None:
    """The ``config.json`` that transformers has written beside a file of weights; None if there is none of it.

    Raises:
        ConfigError: it is damaged.
    """
    content = files.read_json(weights.with_name("config.json"), named=False)
    if not isinstance(content, dict) or "model_type" not in content:
        return None
    if wrong := files.misfit(content, Described):
        raise ConfigError(f"init={weights}: config.json beside it is damaged ({wrong}): save the network again")
    return cast(Described, content)


def differences(network: nn.Module, of_file: Described) -> list[str]:
    """Sentences on how a network of timm or torchvision differs from that of a file whose tensors fit it."""
    sentences = list[str]()
    for key, (path, remedy) in SETTINGS.items():
        here, there = _at(network, path), of_file.get(key)
        if here is not None and there is not None and here != there:
            sentences.append(f"{key} is {there} in config.json and {here} here ({remedy})")
    act = next((act for path in PLACES_OF_ACTIVATIONS if (act := _at(network, path)) is not None), None)
    there, points = "silu" if of_file.get("use_swiglu_ffn") else of_file.get("hidden_act"), torch.linspace(-3, 3, 25)
    if act is not None and there is not None:
        wanted = ACTIVATIONS.get(there)
        if wanted is None or not torch.allclose(act(points.clone()), wanted(points)):
            sentences.append(
                f"hidden_act is {printable(there)} in config.json and {act} here (backbone.args.act_layer)"
            )
    for key in ("downsample_in_first_stage", "downsample_in_bottleneck"):
        if of_file.get(key):
            sentences.append(f"{key} is true in config.json, which no network here has")
    return sentences


def _at(network: nn.Module, path: str) -> Any:
    """The attribute of a network at a path, such as ``blocks.0.mlp.act``; None if there is none."""
    try:
        return attrgetter(path)(network)
    except AttributeError:
        return None
