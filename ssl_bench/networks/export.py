"""Export the backbone of a run: as a state dict that timm loads, or as a folder to share; and load an export.

torchvision's ResNets have the same names and load the same file. A network that timm does not have becomes safetensors
with its part of the configuration, for this package. Any export is loaded by :func:`load`, or without this package by
the lines of Python in the JSON beside the file. A folder to share has the layout of timm's models on the Hugging Face
hub: ``timm.create_model("local-dir:FOLDER", pretrained=True)`` builds the network and loads the weights, unless its
stem was replaced; timm then refuses the weights because their shapes differ.
"""

import hashlib
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from ssl_bench import files
from ssl_bench.config.build import build
from ssl_bench.errors import ConfigError
from ssl_bench.networks.backbones import moco_v3_vit, timm_backbone
from ssl_bench.networks.weights import images_of

LARGEST = 2**36  # bytes of an export
OF_OTHER_WEIGHTS = ("tag", "license", "description", "origin_url", "paper_name", "paper_ids", "notes")
TIMM = ("name", "in_channels", "stem", "size", "args")  # what timm's network is built from


def is_of_timm(config: Mapping[str, Any]) -> bool:
    """Whether timm can make the backbone of a run. The path of the module may have changed since the run."""
    node = config["backbone"]
    return str(node["_target_"]).rpartition(".")[2] in (timm_backbone.__name__, moco_v3_vit.__name__)


def check_exportable(form: str, config: Mapping[str, Any]) -> None:
    """Refuse an impossible export before the weights are read; ``form`` is ``timm``, ``ssl_bench`` or ``card``.

    Raises:
        ConfigError: timm does not have the backbone.
    """
    if form == "timm" and not is_of_timm(config):
        name = config["choices"].get("backbone", config["backbone"]["_target_"])
        remedy = "leave --format out, or set it to card or ssl_bench: the file is then loaded with this package"
        raise ConfigError(f"--format {form}: backbone={name} is no network of timm: {remedy}")


def export(
    library: str, config: Mapping[str, Any], weights: Mapping[str, Tensor], run_id: str, step: int
) -> dict[str, bytes]:
    """The files of an export by their names: ``backbone_<library>`` with the weights, and a JSON that describes it.

    Args:
        library: ``timm``, or ``ssl_bench``, whose weights are safetensors.
        config: resolved configuration of a run that :func:`check_exportable` accepts.
        weights: state dict of the backbone, float32.
        run_id, step: the run and the optimiser step that the weights are from.
    """
    node, ours = config["backbone"], library == "ssl_bench"
    path = Path(f"backbone_{library}.{'safetensors' if ours else 'pt'}")
    if ours:
        content, lines = packed(weights), lines_to_load(path.with_suffix(".json").name)
        network = our_config(config)
    else:
        buffer = io.BytesIO()
        torch.save(weights, buffer)
        content = buffer.getvalue()
        loading = f"model.load_state_dict(torch.load({path.name!r}, weights_only=True))"
        lines = ["import torch", *lines_to_build(node, weights), loading]
        network = {key: node.get(key) for key in TIMM}
        network |= images_of(config["dataset"])
    description = {"run_id": run_id, "step": step, "library": library, **network}
    description |= {"weights": path.name, "load": lines}
    return {path.name: content, path.with_suffix(".json").name: files.as_json(description).encode()}


def our_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings from which :func:`load` builds a network of this package: the backbone's and those of its images."""
    node = {key: value for key, value in config["backbone"].items() if key != "freeze"}
    images = {key: config["dataset"][key] for key in ("channels", "size")} | images_of(config["dataset"])
    return {"library": "ssl_bench", "backbone": node, **images}


def lines_to_load(name: str) -> list[str]:
    """Lines of Python that load an export of a network of this package, whose JSON has that name."""
    imports = ["from pathlib import Path", "from ssl_bench.networks.export import load"]
    return [*imports, f"model = load(Path({name!r}))[0].eval()"]


def packed(weights: Mapping[str, Tensor]) -> bytes:
    """The .safetensors file of a state dict."""
    return safetensors.torch.save({name: value.contiguous() for name, value in weights.items()})


def load(path: Path) -> tuple[nn.Module, dict[str, Any]]:
    """The backbone of an export, with its weights, by the path of its JSON; and the content of the JSON.

    Raises:
        ConfigError: the file is no export, or there are no weights beside it.
    """
    description = files.read_json(path, dict, named=False) or {}
    if "weights" not in description or not ("backbone" in description or set(TIMM) <= description.keys()):
        raise ConfigError(f"{path} is no export: make one with `ssl-bench export RUN_DIR`")
    weights = path.parent / description["weights"]
    try:
        content = files.read_bytes(weights, LARGEST)
    except OSError as error:
        raise ConfigError(f"{weights}: {error.strerror}; export the run again") from error
    backbone: nn.Module
    if "backbone" in description:
        backbone = build(description["backbone"], "backbone")
        backbone.load_state_dict(safetensors.torch.load(content))
        return backbone, description
    name, channels, stem, size, args = (description[key] for key in TIMM)
    backbone = timm_backbone(name, channels, stem, None, size, args)
    backbone.load_state_dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))
    return backbone, description


def lines_to_build(node: Mapping[str, Any], weights: Mapping[str, Tensor]) -> list[str]:
    """Lines of Python that build timm's network of a run's ``backbone`` as ``model``, without its ``weights``."""
    import timm  # heavy: only where it is used

    size, given = node.get("size"), node.get("args") or {}
    fixed = size is not None and getattr(timm.get_pretrained_cfg(node["name"]), "fixed_input_size", False)
    arguments = {"num_classes": 0, "in_chans": node["in_channels"]} | ({"img_size": size} if fixed else {}) | given
    further = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    lines = ["import timm", f"model = timm.create_model({node['name']!r}, {further})"]
    if node.get("stem") == "cifar":
        width = weights["conv1.weight"].shape[0]
        lines += [f"model.conv1 = torch.nn.Conv2d({node['in_channels']}, {width}, 3, 1, 1, bias=False)"]
        lines += ["model.maxpool = torch.nn.Identity()"]
    return lines


def timm_files(
    model: nn.Module, dataset: Mapping[str, Any], eval_view: Mapping[str, Any], args: dict[str, Any] | None
) -> dict[str, bytes]:
    """The two files of a network of timm, by their names.

    Args:
        model: without a classifier.
        dataset: the run's node.
        eval_view: ``resize`` and ``size`` of the view for evaluation, if it cuts out the centre of the images.
        args: of ``timm.create_model``.
    """
    import timm  # heavy: only where it is used

    channels: Any = model.in_chans
    mean, std = dataset["mean"] or [], dataset["std"] or []
    size, resize = dataset["size"], eval_view.get("resize", dataset["size"])
    crop = size / resize
    crop = crop if math.floor(size / crop) == resize else math.nextafter(crop, 0)  # the size that timm resizes to
    data = {
        "input_size": (channels, size, size),
        "mean": [*mean, *[0.0] * (channels - len(mean))],  # constants, such as added bits, are not normalised
        "std": [*std, *[1.0] * (channels - len(std))],
        "crop_pct": crop,
        "interpolation": eval_view.get("interpolation", "bilinear"),
    }
    with TemporaryDirectory(prefix="ssl-bench-") as folder:
        timm.models.save_for_hf(model, folder, model_args=args, safe_serialization=True, data_config=data)
        weights = Path(folder, "model.safetensors").read_bytes()
        config = json.loads(Path(folder, "config.json").read_text())
    for key in OF_OTHER_WEIGHTS:  # timm takes them from the weights that it publishes for this network
        config["pretrained_cfg"].pop(key, None)
    return {"model.safetensors": weights, "config.json": files.as_json(config | images_of(dataset)).encode()}


def package_files(model: nn.Module, config: dict[str, Any]) -> dict[str, bytes]:
    """The two files of a network of this package; :func:`ssl_bench.networks.export.load` reads ``config.json``."""
    weights = packed(model.state_dict())
    named = {"weights": "model.safetensors", "sha256": hashlib.sha256(weights).hexdigest()}
    return {"model.safetensors": weights, "config.json": files.as_json(config | named).encode()}
