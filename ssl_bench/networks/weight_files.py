"""Read files of weights, from anywhere: tensors by name, and no code."""

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ssl_bench import files
from ssl_bench.errors import ConfigError, printable, reason
from ssl_bench.networks import torch_files

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
        tensors = dict(_tensors(content)) if isinstance(content, Mapping) else {}
    except Exception as error:  # torch, pickle, zipfile and safetensors raise many kinds of errors
        raise ConfigError(f"init={path}: no weights can be read ({_why(error)}): set init to a state dict") from error
    if not tensors and names:
        needs = f"it needs {printable(names[0])}, and code is not run; {REMEDY}"
        raise ConfigError(f"init={path}: no weights can be read ({needs}): set init to a state dict")
    if not tensors:
        raise ConfigError(f"init={path}: it holds no state dict: set init to a file of weights by name")
    return tensors


def _tensors(content: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Each tensor in nested mappings with its path."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _tensors(value, f"{prefix}{key}.")
        elif isinstance(value, Tensor):
            yield f"{prefix}{key}", value


def _why(error: Exception) -> str:
    """Say why a file could not be read."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, pickle.UnpicklingError):
        return f"it is damaged, or no file of torch.save; {REMEDY}"
    return "it is empty or cut short" if isinstance(error, EOFError) else reason(error)
