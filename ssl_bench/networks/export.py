"""``ssl-bench evaluate RUN_DIR export=timm``: the backbone of a run as a state dict that timm or torchvision loads.

timm's names of a ResNet's tensors are torchvision's, so the two exports differ only in what is checked. Loaded again by
:func:`load`, or without this package by the two lines in the JSON beside the file.
"""

import hashlib
import io
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.config.build import one_of
from ssl_bench.errors import ConfigError, RunError

LIBRARIES = ("timm", "torchvision")


def export(folder: Path, library: str) -> Path:
    """Writes ``RUN_DIR/export/backbone_<library>.pt`` and a JSON of what it is; gives the JSON's path.

    Raises:
        ConfigError: no run there, or a backbone that ``library`` does not have.
        RunError: no checkpoint that can be read.
    """
    import torch
    import yaml

    from ssl_bench import parts as assemble
    from ssl_bench.record import checkpoint

    one_of("export", library, LIBRARIES)
    if not (folder / "config.yaml").is_file():
        raise ConfigError(f"{folder} is no run directory: `ssl-bench status` lists them")
    config: dict[str, Any] = yaml.safe_load((folder / "config.yaml").read_text())
    node = config["backbone"]
    if node["_target_"] != "ssl_bench.networks.backbones.timm_backbone":
        chosen = config["choices"].get("backbone", node["_target_"])
        raise ConfigError(f"export={library}: backbone={chosen} is not timm's; a run with backbone=resnet18 would be")
    state = checkpoint.load(folder / "checkpoints", folder.resolve().name)
    if state is None:
        raise RunError(f"{folder} has no checkpoint yet: start its training")
    method = assemble.method(config)
    method.load_state_dict(state["method"])
    weights = method.encoder.get_submodule("backbone").state_dict()
    if library == "torchvision":
        _check_torchvision(node["name"], node["stem"], node["in_channels"], weights)
    buffer = io.BytesIO()
    torch.save(weights, buffer)
    path = folder / "export" / f"backbone_{library}.pt"
    path.parent.mkdir(exist_ok=True)
    files.write(path, lambda file: file.write(buffer.getbuffer()))
    files.write_json(
        path.with_suffix(".json"),
        {
            "run_id": state["run_id"],
            "step": state["step"],
            "library": library,
            "name": node["name"],
            "stem": node["stem"],
            "in_channels": node["in_channels"],
            "mean": config["dataset"]["mean"],
            "std": config["dataset"]["std"],
            "sha256": hashlib.sha256(buffer.getbuffer()).hexdigest(),
            "load": _how(library, node["name"], node["stem"], node["in_channels"], weights),
        },
    )
    return path.with_suffix(".json")


def load(path: Path) -> tuple[Any, dict[str, Any]]:
    """The exported backbone, every tensor of it from the file, and what its JSON ``path`` says.

    Raises:
        ConfigError: no export there, or one whose weights are not those that were written with it.
    """
    from ssl_bench.networks.backbones import timm_backbone

    facts, weights = read(path)
    backbone = timm_backbone(facts["name"], facts["in_channels"], facts["stem"])
    backbone.load_state_dict(weights)
    return backbone, facts


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What an export's JSON ``path`` says, and its weights by name; raises ConfigError as :func:`load` does."""
    import torch

    facts = files.read_json(path)
    if not isinstance(facts, dict) or "sha256" not in facts:
        raise ConfigError(f"{path} is no export: make one with `ssl-bench evaluate RUN_DIR export=torchvision`")
    weights = path.with_suffix(".pt")
    try:
        content = weights.read_bytes()
    except OSError as error:
        raise ConfigError(f"{weights}: {error.strerror}; export the run again") from error
    if hashlib.sha256(content).hexdigest() != facts["sha256"]:
        raise ConfigError(f"{weights} is not what {path} was written for: export the run again")
    return facts, torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def _check_torchvision(name: str, stem: str, channels: int, weights: dict[str, Any]) -> None:
    """Raises ConfigError unless torchvision has a network with the same names and, the stem aside, shapes."""
    import torch
    import torchvision

    if name not in torchvision.models.list_models(torchvision.models):
        raise ConfigError(f"export=torchvision: torchvision has no {name}; set export=timm")
    with torch.device("meta"):
        theirs = torchvision.models.get_model(name, weights=None).state_dict()
    changed = {"conv1.weight"} if stem == "cifar" or channels != 3 else set()
    known = {k: None if k in changed else v.shape for k, v in theirs.items() if not k.startswith(("fc.", "classifier"))}
    if {k: None if k in changed else v.shape for k, v in weights.items()} != known:
        raise ConfigError(f"export=torchvision: timm's {name} is not torchvision's; set export=timm")


def _how(library: str, name: str, stem: str, channels: int, weights: dict[str, Any]) -> list[str]:
    """Lines of Python that make the network which the weights are loaded into, strictly."""
    if library == "timm":
        lines = ["import timm, torch", f"model = timm.create_model({name!r}, num_classes=0, in_chans={channels})"]
    else:
        lines = ["import torch, torchvision", f"model = torchvision.models.get_model({name!r}, weights=None)"]
        lines += ["model.fc = torch.nn.Identity()"]
    if stem == "cifar" or (library == "torchvision" and channels != 3):
        geometry = "3, 1, 1" if stem == "cifar" else "7, 2, 3"
        width = weights["conv1.weight"].shape[0]
        lines += [f"model.conv1 = torch.nn.Conv2d({channels}, {width}, {geometry}, bias=False)"]
    if stem == "cifar":
        lines += ["model.maxpool = torch.nn.Identity()"]
    return [*lines, f"model.load_state_dict(torch.load('backbone_{library}.pt', weights_only=True))"]
