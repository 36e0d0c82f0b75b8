"""A run is its content: what its result depends on, as a name and as a directory."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# These say where and how a run is carried out. They are left out of its identity, so that it can be moved and resumed.
VOLATILE = {"name", "choices", "devices", "runs_per_gpu", "images_on", "cosines", "log_every", "timeout"}
VOLATILE |= {"checkpoint", "paths", "tracking"}
VOLATILE_IN = {"dataset": {"workers"}, "framework": {"sharded"}}  # keys of a group


def run_id(config: Mapping[str, Any]) -> str:
    """The identity of a run: ten hexadecimal digits of the SHA-256 of everything that its result depends on."""
    content = {k: v for k, v in config.items() if k not in VOLATILE}
    for group, keys in VOLATILE_IN.items():
        if isinstance(content.get(group), Mapping):
            content[group] = {k: v for k, v in content[group].items() if k not in keys}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


def run_dir(config: Mapping[str, Any]) -> Path:
    return Path(config["paths"]["outputs"]) / config["name"] / run_id(config)
