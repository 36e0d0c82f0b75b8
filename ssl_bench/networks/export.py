"""Write the backbone of a run as a state dict that timm or torchvision loads, and read such exports again.

timm and torchvision use the same names for the tensors of a ResNet, so the two exports differ only in what is checked.
An export is loaded by :func:`load`, or without this package by the lines of Python in the JSON beside the file.
"""

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ssl_bench import files
from ssl_bench.errors import ConfigError
from ssl_bench.networks.backbones import timm_backbone

LARGEST = 2**36  # bytes of an export


def check_exportable(form: str, config: Mapping[str, Any]) -> None:
    """Refuse an export that cannot work, before the weights are read.

    Args:
        form: ``timm``, ``torchvision`` or ``card``.
        config: resolved configuration of the run.

    Raises:
        ConfigError: the backbone is none of timm's.
    """
    target: str = config["backbone"]["_target_"]
    if target.rpartition(".")[2] != timm_backbone.__name__:  # the module's path may have changed since the run
        name = config["choices"].get("backbone", target)
        others = "such as backbone=resnet18_cifar, or any with backbone=timm backbone.name=NAME"
        remedy = f"export a run with one, {others}; ssl_bench.training.parts.load_run opens this run in Python"
        raise ConfigError(f"--format {form}: backbone={name} is no network of timm: {remedy}")


def export(
    out: Path, library: str, config: Mapping[str, Any], weights: Mapping[str, Tensor], run_id: str, step: int
) -> Path:
    """Write ``out/backbone_<library>.pt`` and a JSON that describes it; return the path of the JSON.

    Args:
        out: folder to write to, which is made.
        library: ``timm`` or ``torchvision``.
        config: resolved configuration of a run that :func:`check_exportable` accepts.
        weights: state dict of the backbone, float32.
        run_id, step: the run and the optimiser step that the weights are from.

    Raises:
        ConfigError: torchvision has no such network.
    """
    node, dataset = config["backbone"], config["dataset"]
    if library == "torchvision":
        _check_torchvision(node["name"], node["stem"], node["in_channels"], weights)
    buffer = io.BytesIO()
    torch.save(weights, buffer)
    path = out / f"backbone_{library}.pt"
    out.mkdir(parents=True, exist_ok=True)
    files.write(path, lambda file: file.write(buffer.getbuffer()))
    loading = f"model.load_state_dict(torch.load({path.name!r}, weights_only=True))"
    description = {
        "run_id": run_id,
        "step": step,
        "library": library,
        "name": node["name"],
        "stem": node["stem"],
        "in_channels": node["in_channels"],
        "size": node.get("size"),
        "mean": dataset["mean"],
        "std": dataset["std"],
        "sha256": hashlib.sha256(buffer.getbuffer()).hexdigest(),
        "load": ["import torch", *building(library, node, weights), loading],
    }
    files.write_json(path.with_suffix(".json"), description)
    return path.with_suffix(".json")


def load(path: Path) -> tuple[nn.Module, dict[str, Any]]:
    """Build the exported backbone with the weights of the file.

    Args:
        path: the JSON of the export.

    Returns:
        The backbone, and the content of the JSON.

    Raises:
        ConfigError: no export there, or weights that do not belong to the JSON.
    """
    description = files.read_json(path)
    if not isinstance(description, dict) or "sha256" not in description:
        raise ConfigError(f"{path} is no export: make one with `ssl-bench export RUN_DIR`")
    weights = path.with_suffix(".pt")
    try:
        content = files.read_bytes(weights, LARGEST)
    except OSError as error:
        raise ConfigError(f"{weights}: {error.strerror}; export the run again") from error
    if hashlib.sha256(content).hexdigest() != description["sha256"]:
        raise ConfigError(f"{weights} does not belong to {path}: export the run again")
    size = description.get("size")  # older exports have none
    backbone = timm_backbone(description["name"], description["in_channels"], description["stem"], size=size)
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


def building(library: str, node: Mapping[str, Any], weights: Mapping[str, Tensor]) -> list[str]:
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

    size = node.get("size")
    fixed = size is not None and getattr(timm.get_pretrained_cfg(node["name"]), "fixed_input_size", False)
    arguments = [repr(node["name"]), "num_classes=0", f"in_chans={node['in_channels']}"]
    return ", ".join([*arguments, *([f"img_size={size}"] if fixed else [])])
