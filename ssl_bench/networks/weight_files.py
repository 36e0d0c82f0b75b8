"""Read files of weights, from anywhere: tensors by name, and no code."""

import argparse
import pickle
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ssl_bench import files
from ssl_bench.errors import ConfigError, reason

# Types that files of other programs have beside tensors, and that run no code when they are read: the arguments of a
# command, and numbers of NumPy.
_SCALAR = cast(Any, np.float64(0).__reduce__())[0]
HARMLESS: list[Any] = [
    argparse.Namespace,
    np.dtype,
    *(type(np.dtype(kind)) for kind in ("f4", "f8", "i4", "i8", "bool")),
]
HARMLESS += [(_SCALAR, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a .safetensors file, or of one of ``torch.save``, by their paths in it.

    No code of the file runs, and the checksums of ``torch.save`` are compared.

    Raises:
        ConfigError: it cannot be read, or it has no tensors with names.
    """
    try:
        with files.open_regular(path) as file:
            if path.suffix.lower() == ".safetensors":
                from safetensors.torch import load_file

                content: Any = load_file(path)
            else:
                archive = file.read(4) == b"PK\x03\x04"  # else the format before torch 1.6, which has no checksums
                file.seek(0)
                if archive:
                    files.compare_checksums(file)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    with torch.serialization.safe_globals(HARMLESS):
                        content = torch.load(file, map_location="cpu", weights_only=True)
        tensors = dict(_tensors(content)) if isinstance(content, Mapping) else {}
    except Exception as error:  # torch, pickle, zipfile and safetensors raise many kinds of errors
        raise ConfigError(f"init={path}: no weights can be read ({_why(error)}): set init to a state dict") from error
    if not tensors:
        raise ConfigError(f"init={path}: it holds no state dict: set init to a file of weights by name")
    return tensors


def _tensors(content: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Each tensor in nested mappings with its path."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _tensors(value, f"{prefix}{key}.")
        elif isinstance(value, Tensor) and not value.is_nested:
            yield f"{prefix}{key}", value


def _why(error: Exception) -> str:
    """Say why a file could not be read, without torch's own message, which advises to run the file's code."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, pickle.UnpicklingError):
        name = re.search(r"GLOBAL (\S+)", str(error))
        needs = f"needs {name[1]}, and code is not run" if name else "is damaged, or has more than tensors"
        return f"it {needs}; torch.save(model.state_dict(), FILE) writes weights alone"
    return "it is empty or cut short" if isinstance(error, EOFError) else reason(error)
