"""The backbone of a run as a state dict that timm or torchvision loads, and the way back.

timm and torchvision use the same names for the tensors of a ResNet, so the two exports differ only in what is checked.
A network that timm does not have becomes safetensors with its part of the configuration, for this package. Any
export is loaded by :func:`load`, or without this package by the lines of Python in the JSON beside the file.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import safetensors.torch
import torch
from torch import Tensor, nn

from ssl_bench import files
from ssl_bench.config.build import build
from ssl_bench.errors import ConfigError
from ssl_bench.networks.backbones import timm_backbone

LARGEST = 2**36  # bytes of an export


class Export(TypedDict):
    """Content of an export's JSON: the node of a network of this package, or the arguments of timm."""

    library: str
    weights: NotRequired[str]
    backbone: NotRequired[dict[str, Any]]
    name: NotRequired[str]
    stem: NotRequired[str]
    in_channels: NotRequired[int]
    size: NotRequired[int | None]
    args: NotRequired[dict[str, Any] | None]


def is_of_timm(config: Mapping[str, Any]) -> bool:
    """Whether the backbone of a run is a network of timm. The path of the module may have changed since the run."""
    return str(config["backbone"]["_target_"]).rpartition(".")[2] == timm_backbone.__name__


def check_exportable(form: str, config: Mapping[str, Any]) -> None:
    """Refuse an export that cannot work, before the weights are read.

    Args:
        form: ``timm``, ``torchvision``, ``ssl_bench`` or ``card``.
        config: resolved configuration of the run.

    Raises:
        ConfigError: the library does not have the backbone.
    """
    if form in ("timm", "torchvision") and not is_of_timm(config):
        name = config["choices"].get("backbone", config["backbone"]["_target_"])
        remedy = "leave --format out, or set it to card or ssl_bench: the file is then loaded with this package"
        raise ConfigError(f"--format {form}: backbone={name} is no network of timm: {remedy}")


def export(
    library: str, config: Mapping[str, Any], weights: Mapping[str, Tensor], run_id: str, step: int
) -> dict[str, bytes]:
    """The files of an export by their names: ``backbone_<library>`` with the weights, and a JSON that describes it.

    Args:
        library: ``timm`` or ``torchvision``, or ``ssl_bench``, whose weights are safetensors.
        config: resolved configuration of a run that :func:`check_exportable` accepts.
        weights: state dict of the backbone, float32.
        run_id, step: the run and the optimiser step that the weights are from.

    Raises:
        ConfigError: torchvision has no such network.
    """
    node, ours = config["backbone"], library == "ssl_bench"
    if library == "torchvision":
        _check_torchvision(node["name"], node["stem"], node["in_channels"], weights)
    path = Path(f"backbone_{library}.{'safetensors' if ours else 'pt'}")
    if ours:
        content, lines = safetensors.torch.save(contiguous(weights)), lines_to_load(path.with_suffix(".json").name)
        network = our_config(config)
    else:
        buffer = io.BytesIO()
        torch.save(weights, buffer)
        content = buffer.getvalue()
        loading = f"model.load_state_dict(torch.load({path.name!r}, weights_only=True))"
        lines = ["import torch", *lines_to_build(library, node, weights), loading]
        keys = {"name", "stem", "in_channels", "size", "args"}
        network = {"size": None, "args": None} | {key: value for key, value in node.items() if key in keys}
        network |= {key: config["dataset"][key] for key in ("mean", "std")}
    description = {"run_id": run_id, "step": step, "library": library, **network}
    description |= {"weights": path.name, "load": lines}
    return {path.name: content, path.with_suffix(".json").name: files.as_json(description).encode()}


def our_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings from which :func:`load` builds a network of this package: the backbone's and those of its images."""
    node = {key: value for key, value in config["backbone"].items() if key != "freeze"}
    images = {key: config["dataset"][key] for key in ("channels", "size", "mean", "std")}
    return {"library": "ssl_bench", "backbone": node, **images}


def lines_to_load(name: str) -> list[str]:
    """Lines of Python that load an export of a network of this package, whose JSON has that name."""
    return [
        "from pathlib import Path",
        "from ssl_bench.networks.export import load",
        f"model = load(Path({name!r}))[0].eval()",
    ]


def contiguous(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights as safetensors stores them."""
    return {name: value.contiguous() for name, value in weights.items()}


def load(path: Path) -> tuple[nn.Module, dict[str, Any]]:
    """Build the exported backbone with the weights of the file.

    Args:
        path: the JSON of the export.

    Returns:
        The backbone, and the content of the JSON.

    Raises:
        ConfigError: no export there, or no weights beside it.
    """
    description: Any = files.read_json(path, Export, named=False)
    if description is None or not ("backbone" in description or {"name", "stem", "in_channels"} <= description.keys()):
        raise ConfigError(f"{path} is no export: make one with `ssl-bench export RUN_DIR`")
    weights = path.parent / description.get("weights", path.with_suffix(".pt").name)  # older exports name no file
    try:
        content = files.read_bytes(weights, LARGEST)
    except OSError as error:
        raise ConfigError(f"{weights}: {error.strerror}; export the run again") from error
    backbone: nn.Module
    if "backbone" in description:
        backbone = build(description["backbone"], "backbone")
        backbone.load_state_dict(safetensors.torch.load(content))
        return backbone, description
    size, args = description.get("size"), description.get("args")  # older exports have none
    backbone = timm_backbone(description["name"], description["in_channels"], description["stem"], None, size, args)
    backbone.load_state_dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))
    return backbone, description


def _check_torchvision(name: str, stem: str, channels: int, weights: Mapping[str, Tensor]) -> None:
    """Raise ConfigError unless torchvision has a network with the same names and shapes; the stem may differ."""
    import torchvision  # heavy: only where it is used

    if name not in torchvision.models.list_models(torchvision.models):
        raise ConfigError(f"--format torchvision: torchvision has no {name}: use --format timm")
    with torch.device("meta"):
        tensors = torchvision.models.get_model(name, weights=None).state_dict()
    changed = {"conv1.weight"} if stem == "cifar" or channels != 3 else set()
    expected = {k: v.shape for k, v in tensors.items() if not k.startswith(("fc.", "classifier"))}
    shapes = {k: expected.get(k) if k in changed else v.shape for k, v in weights.items()}
    if shapes != expected:
        layers = f"torchvision's {name} has other layers than the run's"
        raise ConfigError(f"--format torchvision: {layers}: use --format timm")


def lines_to_build(library: str, node: Mapping[str, Any], weights: Mapping[str, Tensor]) -> list[str]:
    """Lines of Python that build the network of ``library`` as ``model``, before its weights are loaded.

    Args:
        node: the run's ``backbone``.
        weights: state dict of the backbone.
    """
    stem, channels = node["stem"], node["in_channels"]
    if library == "timm":
        lines = ["import timm", f"model = timm.create_model({timm_arguments(node)})"]
    else:
        lines = ["import torchvision", f"model = torchvision.models.get_model({node['name']!r}, weights=None)"]
        lines += ["model.fc = torch.nn.Identity()"]
    if stem == "cifar" or (library == "torchvision" and channels != 3):
        geometry = "3, 1, 1" if stem == "cifar" else "7, 2, 3"
        width = weights["conv1.weight"].shape[0]
        lines += [f"model.conv1 = torch.nn.Conv2d({channels}, {width}, {geometry}, bias=False)"]
    if stem == "cifar":
        lines += ["model.maxpool = torch.nn.Identity()"]
    return lines


def timm_arguments(node: Mapping[str, Any]) -> str:
    """Arguments of ``timm.create_model``, as Python, for a run's ``backbone``; its stem may need more."""
    import timm  # heavy: only where it is used

    size, given = node.get("size"), node.get("args") or {}
    fixed = size is not None and getattr(timm.get_pretrained_cfg(node["name"]), "fixed_input_size", False)
    arguments = ({"img_size": size} if fixed else {}) | given
    further = [f"{key}={value!r}" for key, value in arguments.items()]
    return ", ".join([repr(node["name"]), "num_classes=0", f"in_chans={node['in_channels']}", *further])
