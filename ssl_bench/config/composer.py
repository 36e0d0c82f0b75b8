"""Compose the configurations of many runs, of the YAML files as they are at the beginning."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from ssl_bench.config.compose import load, resolve
from ssl_bench.config.with_hydra import as_hydra_takes, forget_changed, parted, with_values


class Composer:
    """Composes configurations.

    Args:
        folder: with further options, of ``--config-dir``.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        forget_changed(folder)

    def load(self, overrides: Sequence[str]) -> dict[str, Any]:
        """Compose as :func:`load` does.

        Raises:
            ConfigError: an override names a key or an option that does not exist, or a value of the wrong type.
        """
        try:
            cfg, choices = parted(with_values(as_hydra_takes(overrides, self._folder), self._folder))
            return resolve(cfg, choices, self._folder)
        except (HydraException, OmegaConfBaseException, ValueError):
            return load(overrides, self._folder)  # for anything unusual, and for Hydra's own error


@cache
def composer(folder: Path | None) -> Composer:
    """The composer of this process, with the options of a folder."""
    return Composer(folder)
