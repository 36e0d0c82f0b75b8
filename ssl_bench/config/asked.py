"""Read the overrides of a command: do they ask for a run or a grid, in which way, and where is it carried out?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig

from ssl_bench.config import guard, hydra_errors, values, with_hydra
from ssl_bench.errors import ConfigError


@dataclass(frozen=True)
class Asked:
    """The task that the overrides of a command describe.

    Attributes:
        given: its overrides, as Hydra takes them.
        folder: with further options, of ``--config-dir``.
        cfg: composed with the overrides that have one value; Hydra's own part is its key ``hydra``.
        many: it is a grid.
        where, launcher: ``basic``, ``local`` or ``slurm``, with its settings.
        space: the overrides of the runs by their keys, with those of an experiment's ``hydra.sweeper.params``.
    """

    given: list[str]
    folder: Path | None
    cfg: DictConfig
    many: bool
    where: str
    launcher: dict[str, Any]
    space: dict[str, Override]

    @classmethod
    def of(cls, overrides: Sequence[str], folder: Path | None, multirun: bool) -> "Asked":
        """Read the overrides of a command; an experiment can ask for a grid, too.

        Raises:
            ConfigError: an override cannot be used, or has several values and is not of a grid.
        """
        given = with_hydra.as_hydra_takes(overrides, folder)
        with hydra_errors.in_sentences(given):
            hydra_errors.check_overrides(given, grid=True)
            parsed = values.parsed(given)
            fixed = [str(override.input_line) for override in parsed if not override.is_sweep_override()]
            for override in parsed:
                if override.is_hydra_override() and override.is_sweep_override():
                    raise ConfigError(f"{override.input_line}: set one value: it is that of all runs")
            cfg = with_hydra.composed(fixed, folder)
            many = multirun or cfg.hydra.mode is RunMode.MULTIRUN
            if not many:
                hydra_errors.check_overrides(given)
            where, launcher = guard.launcher(cfg.hydra)
            params = values.parsed(f"{key}={text}" for key, text in guard.values_of_grid(cfg.hydra).items())
        if where != "basic" and not many:
            raise ConfigError(f"hydra/launcher={where} is for the runs of a grid: add -m, or leave it out")
        runs = [*params, *(override for override in parsed if not override.is_hydra_override())]
        space = {override.get_key_element(): override for override in runs}  # of a key, the last one counts
        return cls(given, folder, cfg, many, where, launcher, space)

    @property
    def overrides(self) -> tuple[str, ...]:
        """The overrides of a single run, as they were given."""
        return tuple(override for override in self.given if not override.lstrip("+~").startswith(("hydra.", "hydra/")))

    @property
    def swept(self) -> list[str]:
        """The keys with several values."""
        return [key for key, override in self.space.items() if override.is_sweep_override()]
