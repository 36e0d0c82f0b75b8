"""The weights that a run begins with, from its key ``init``: a file, or the checkpoint of another run."""

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ssl_bench import files
from ssl_bench.config.identity import SOURCE, untrained
from ssl_bench.errors import ConfigError, RunError
from ssl_bench.networks.weight_files import read_weights
from ssl_bench.record import checkpoint

log = logging.getLogger("ssl_bench")


class InitialWeights(ConfigError):
    """The weights that a run began with are not there any more."""


def has_no_checkpoint(config: Mapping[str, Any], folder: Path) -> bool:
    """Whether the network of a run is that of its key ``init``, which nothing has trained and nothing has copied."""
    return bool(config["init"]) and untrained(config) and not (folder / checkpoint.FILE).exists()


def initial_weights(init: Mapping[str, str]) -> dict[str, Tensor]:
    """The weights that a run begins with.

    Raises:
        InitialWeights: they are gone, or are not those that ``init.weights`` says.
        ConfigError: the file holds no weights.
    """
    path, expected = Path(init["path"]), init["weights"]
    try:
        if path.is_dir():
            (weights, digest), expected = checkpoint.backbone(path), expected.partition(SOURCE)[2]
        else:
            with files.open_regular(path) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
            weights = read_weights(path) if digest == expected else {}
    except OSError as error:
        raise InitialWeights(
            f"init={path}: {error.strerror}: bring back the weights that this run began with"
        ) from error
    except RunError as error:
        raise InitialWeights(f"init={path}: {error}") from error
    if expected != digest:
        raise InitialWeights(
            f"init={path}: its weights are not those that this run began with any more: bring them back"
        )
    return weights
