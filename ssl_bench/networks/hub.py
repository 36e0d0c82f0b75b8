"""Networks of timm in the layout of timm's models on the Hugging Face hub: config.json, model.safetensors.

``timm.create_model("local-dir:FOLDER", pretrained=True)`` builds the network and loads the weights, unless its stem was
replaced; timm then refuses the weights because their shapes differ.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import safetensors.torch
from torch import nn

from ssl_bench import files
from ssl_bench.networks.export import contiguous
from ssl_bench.networks.trained_on import images_of

OF_OTHER_WEIGHTS = ("tag", "license", "description", "origin_url", "paper_name", "paper_ids", "notes")


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
    size, resize = dataset["size"], eval_view.get("resize", dataset["size"])
    data = {
        "input_size": (channels, size, size),
        "mean": _padded(dataset["mean"], channels, 0.0),
        "std": _padded(dataset["std"], channels, 1.0),
        "crop_pct": size / resize,
        "interpolation": eval_view.get("interpolation", "bilinear"),
    }
    with TemporaryDirectory(prefix="ssl-bench-") as folder:
        timm.models.save_for_hf(model, folder, model_args=args, safe_serialization=True, data_config=data)
        weights = Path(folder, "model.safetensors").read_bytes()
        config = json.loads(Path(folder, "config.json").read_text())
    for key in OF_OTHER_WEIGHTS:  # timm takes them from the weights that it publishes for this network
        config["pretrained_cfg"].pop(key, None)
    return _files(weights, config | images_of(dataset))


def package_files(model: nn.Module, config: dict[str, Any]) -> dict[str, bytes]:
    """The two files of a network of this package; :func:`ssl_bench.networks.export.load` reads ``config.json``."""
    weights = safetensors.torch.save(contiguous(model.state_dict()))
    named = {"weights": "model.safetensors", "sha256": hashlib.sha256(weights).hexdigest()}
    return _files(weights, config | named)


def _files(weights: bytes, config: dict[str, Any]) -> dict[str, bytes]:
    return {"model.safetensors": weights, "config.json": files.as_json(config).encode()}


def _padded(values: list[float] | None, channels: int, neutral: float) -> list[float]:
    """One value for each channel; channels of constants, such as added bits, are not normalised."""
    values = values or []
    return [*values, *[neutral] * (channels - len(values))]
