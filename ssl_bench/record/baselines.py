"""Evaluations of baselines, ``<outputs>/.baselines/<digits>.json``: runs that have the same ones compute them once.

A baseline is evaluated on the raw pixels or on the network at initialisation. Its numbers depend on the evaluator, the
weights, the dataset and the seed, not on how the run is trained.
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ssl_bench import files
from ssl_bench.config.identity import text
from ssl_bench.record.results import is_number

FOLDER = ".baselines"
# Groups and keys that an evaluation of a baseline depends on.
READ = ("dataset", "augment", "backbone", "head", "seed", "tf32", "plugins")


def digest(network: nn.Module | None) -> str:
    """A hash of the weights and buffers of a network; of raw pixels, None, it is empty."""
    if network is None:
        return ""
    content = hashlib.sha256()
    for tensor in network.state_dict().values():
        content.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return content.hexdigest()


def place(config: Mapping[str, Any], evaluation: str, weights: str, formats: str) -> Path:
    """The file of a baseline.

    Args:
        config: of the run.
        evaluation: identity of the evaluator and its settings.
        weights: digest of the network.
        formats: of numbers, and the kind of device.
    """
    read = {key: config[key] for key in READ if key in config}
    content = text([evaluation, read, weights, formats])
    return Path(config["paths"]["outputs"]) / FOLDER / f"{hashlib.sha256(content.encode()).hexdigest()[:20]}.json"


def read(path: Path) -> dict[str, float] | None:
    """The metrics; None if there are none yet, or a damaged file."""
    metrics: Any = files.read_json(path)
    return metrics if isinstance(metrics, dict) and all(map(is_number, metrics.values())) else None


def write(path: Path, metrics: Mapping[str, float]) -> None:
    """Write the metrics; a folder that cannot be written gets none."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        files.write_text(path, json.dumps(metrics))
