"""Read files of weights, from anywhere: tensors by name, and no code."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ssl_bench import files
from ssl_bench.errors import ConfigError, printable, reason
from ssl_bench.networks import torch_files
from ssl_bench.networks.pickles import LONGEST

REPEATED = 100_000  # entries of mappings that a file has in several places
REMEDY = "torch.save(model.state_dict(), FILE) writes weights alone"


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a .safetensors file, or of one of ``torch.save``, by their paths in it.

    No code of the file runs, whatever objects it has beside tensors, and the checksums of ``torch.save`` are compared.

    Raises:
        ConfigError: it cannot be read, or it has no tensors with names.
    """
    try:
        with files.open_regular(path) as file:
            if path.suffix.lower() == ".safetensors":
                from safetensors.torch import load_file

                content: Any = load_file(path)
                names = list[str]()
            else:
                content, names = torch_files.read(file)
        tensors = _tensors(content) if isinstance(content, Mapping) else {}
    except Exception as error:  # torch, pickle, zipfile and safetensors raise many kinds of errors
        raise ConfigError(f"init={path}: no weights can be read ({_why(error)}): set init to a state dict") from error
    if not tensors and names:
        needs = f"it needs {printable(names[0])}, and code is not run; {REMEDY}"
        raise ConfigError(f"init={path}: no weights can be read ({needs}): set init to a state dict")
    if not tensors:
        raise ConfigError(f"init={path}: it holds no state dict: set init to a file of weights by name")
    return tensors


def _tensors(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """Each tensor in nested mappings by its path.

    Raises:
        ValueError: a path is too long, or one mapping stands in too many places.
    """
    tensors, walked, again = dict[str, Tensor](), set[int](), 0

    def walk(mapping: Mapping[str, Any], prefix: str) -> None:
        nonlocal again
        again += len(mapping) + 1 if id(mapping) in walked else 0
        walked.add(id(mapping))
        if again > REPEATED:
            raise ValueError(f"its mappings repeat more than {REPEATED} entries")
        for key, value in mapping.items():
            if isinstance(value, Mapping | Tensor):
                if len(prefix) + len(key) > LONGEST:
                    raise ValueError(f"a name in it has more than {LONGEST} characters")
                if isinstance(value, Tensor):
                    tensors[f"{prefix}{key}"] = value
                else:
                    walk(value, f"{prefix}{key}.")

    walk(content, "")
    return tensors


def _why(error: Exception) -> str:
    """Say why a file could not be read."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, pickle.UnpicklingError):
        return f"it is damaged, or no file of torch.save; {REMEDY}"
    return "it is empty or cut short" if isinstance(error, EOFError) else reason(error)
