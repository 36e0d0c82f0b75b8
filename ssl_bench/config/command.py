"""A command as its overrides describe it: one run or a grid, its launcher, and the values of each key."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from ssl_bench.config import schema, with_hydra
from ssl_bench.errors import ConfigError

MOST_RUNS = 100_000  # of a grid


@dataclass(frozen=True)
class Command:
    """One run or a grid.

    Attributes:
        given: the overrides, as Hydra takes them.
        folder: the folder of ``--config-dir``, with further options.
        cfg: composed from the overrides that have one value; Hydra's own part is its key ``hydra``.
        many: whether it is a grid.
        launcher, settings: ``here``, ``local`` or ``slurm``, with the values of its keys.
        space: the overrides of the runs by their keys, with those of an experiment's ``hydra.sweeper.params``, and
            without those of the launcher.
    """

    given: list[str]
    folder: Path | None
    cfg: DictConfig
    many: bool
    launcher: str
    settings: dict[str, Any]
    space: dict[str, Override]

    @classmethod
    def of(cls, overrides: Sequence[str], folder: Path | None = None, multirun: bool = False) -> "Command":
        """Read the overrides of a command; the file of an experiment can make it a grid, too.

        Raises:
            ConfigError: an override cannot be used, or has several values and the command is no grid.
        """
        given = with_hydra.as_hydra_takes(overrides)
        with with_hydra.in_sentences(given):
            with_hydra.check_overrides(given, grid=True)
            parsed = with_hydra.parsed(given)
            cfg = with_hydra.composed([str(one.input_line) for one in parsed if not one.is_sweep_override()], folder)
            many = multirun or cfg.hydra.mode is RunMode.MULTIRUN
            if not many:
                with_hydra.check_overrides(given)
            params: Any = OmegaConf.to_container(cfg.hydra.sweeper, resolve=True)
            parsed = with_hydra.parsed(f"{key}={text}" for key, text in (params["params"] or {}).items()) + parsed
            settings: Any = OmegaConf.to_container(cfg.launcher, resolve=True, throw_on_missing=True)
        space = dict[str, Override]()
        for override in parsed:  # of a key, the last one counts
            if not _is_of_launcher(key := override.get_key_element()):
                space[key] = override
            elif override.is_sweep_override():
                raise ConfigError(f"{override.input_line}: set one value: it is that of all runs")
        launcher = cfg.hydra.runtime.choices.launcher
        schema.check_launcher(launcher, settings)
        return cls(given, folder, cfg, many, launcher, settings, space)

    @property
    def overrides(self) -> tuple[str, ...]:
        """The overrides of a single run, as they were typed, without those of the launcher."""
        return tuple(override for override in self.given if not _is_of_launcher(override.partition("=")[0]))

    @property
    def swept(self) -> list[str]:
        """The keys with several values."""
        return [key for key, override in self.space.items() if override.is_sweep_override()]

    def combinations(self) -> list[tuple[str, ...]]:
        """The overrides of each run of a grid: every combination of the values of the keys, each once.

        Raises:
            ConfigError: a key has no value, too many values, or an interval.
        """
        values = [self._values(key, override) for key, override in self.space.items()]
        return list(dict.fromkeys(itertools.product(*values)))

    def _values(self, key: str, override: Override) -> list[str]:
        """Split an override into overrides with one value each."""
        line, value = override.input_line, override.value()
        try:
            if not override.is_sweep_override():
                texts = [override.get_value_element_as_str()]
            elif isinstance(value, Glob):
                texts = value.filter(with_hydra.options(str(override.key_or_group), self.folder))
            else:
                texts = list(itertools.islice(override.sweep_string_iterator(), MOST_RUNS + 1))
        except (HydraException, ValueError, ArithmeticError):  # an interval, or a range of step 0
            texts = []
        if not 0 < len(texts) <= MOST_RUNS:
            remedy = f"write 1 to {MOST_RUNS:,} values, such as seed=0,1, or range(start,stop,step)"
            raise ConfigError(f"{line}: {remedy}; scripts/examples/search.py draws from intervals")
        # Of names of options, such as FILE.py:CLASS, Hydra escapes the colon.
        return [f"{key}={text.replace(chr(92), '') if key in with_hydra.groups() else text}" for text in texts]


def _is_of_launcher(key: str) -> bool:
    return key.lstrip("+~").partition(".")[0] == "launcher"
