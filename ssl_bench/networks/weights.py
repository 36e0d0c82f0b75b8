"""Weights of a backbone to start from, read from a file: the same names and shapes, or nothing is loaded."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ssl_bench.errors import ConfigError

CONTAINERS = ("state_dict", "model", "model_state_dict")  # where common checkpoints have the weights
FEW = 3


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict from a .safetensors file, or from one of ``torch.save``, which runs no code of the file.

    Raises:
        ConfigError: the file holds none.
    """
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch, pickle and safetensors raise many kinds of errors
        reason = "it has more than tensors" if isinstance(error, pickle.UnpicklingError) else str(error).splitlines()[0]
        raise ConfigError(f"init={path}: no weights can be read ({reason}): set init to a state dict") from error
    content = next((content[key] for key in CONTAINERS if isinstance(content, dict) and key in content), content)
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ConfigError(f"init={path}: it holds no state dict: set init to a file of weights by name")
    return {str(name).removeprefix("module."): value for name, value in content.items()}


def load_weights(backbone: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Load weights into a backbone. Those of timm's classifier, which the backbone does not have, are left out.

    Raises:
        ConfigError: other names or shapes than the backbone's; the sentence names the first few.
    """
    given = getattr(backbone, "pretrained_cfg", {}).get("classifier") or ()
    classifiers = tuple(f"{name}." for name in ([given] if isinstance(given, str) else given))
    own = backbone.state_dict()
    weights = {name: value for name, value in weights.items() if name in own or not name.startswith(classifiers)}
    wrong = [f"{name} is missing" for name in own if name not in weights]
    wrong += [f"{name} is unknown" for name in weights if name not in own]
    wrong += [
        f"{name} has the shape {list(weights[name].shape)}, not {list(value.shape)}"
        for name, value in own.items()
        if name in weights and weights[name].shape != value.shape
    ]
    if wrong:
        more = f" and {len(wrong) - FEW} more" if len(wrong) > FEW else ""
        remedy = "set init to weights of this network, or backbone to the network of these weights"
        raise ConfigError(f"init={source}: {', '.join(wrong[:FEW])}{more}: {remedy}")
    backbone.load_state_dict(dict(weights))


def freeze(backbone: nn.Module) -> None:
    """Keep all weights and running statistics of a backbone as they are."""
    backbone.requires_grad_(False)
    backbone.frozen = True  # type: ignore[assignment]  # read by Encoder, and kept by a copy of the network
