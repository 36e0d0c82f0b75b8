"""Evaluations of baselines, ``<outputs>/.baselines/<digits>.json``: runs that have the same ones compute them once.

A baseline is evaluated on the raw pixels or on the network at initialisation. Its numbers depend on the evaluator, the
weights, the dataset and the seed, not on how the run is trained.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ssl_bench import files
from ssl_bench.config.identity import text

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


def results_folder(run: Path, name: str) -> Path:
    """The results folder that a run's directory is in now, whatever folder the run was written to.

    That is the directory itself where neither the name of the experiment nor shared baselines are beside it.
    """
    run, names = run.resolve(), Path(name).parts
    outputs = run.parents[min(len(names), len(run.parents) - 1)]
    return outputs if run.parent.parts[-len(names) :] == names or (outputs / FOLDER).is_dir() else run


def write(path: Path, metrics: Mapping[str, float]) -> None:
    """Write the metrics as JSON."""
    path.parent.mkdir(exist_ok=True)
    files.write_json(path, metrics)
