"""Many composed configurations, whose seeds are still open. Hydra is imported when the first one is composed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ssl_bench.config.identity import run_id
from ssl_bench.errors import ConfigError

if TYPE_CHECKING:
    from ssl_bench.config.compose import Composer

SEED = 907_340_511  # stands for the seed until one is chosen

Request = tuple[str, tuple[str, ...]]  # the command's configuration, such as "train", and overrides without the seed
Progress = Callable[[Iterable[Any], int], Iterable[Any]]


@dataclass(frozen=True)
class Composition:
    """A composed configuration whose seed is still open.

    Args:
        text: the configuration as JSON, with ``SEED`` as the seed.
    """

    text: str

    def config(self, seed: int) -> dict[str, Any]:
        """The configuration with a seed."""
        config: dict[str, Any] = json.loads(self.text.replace(str(SEED), str(seed)))
        return config

    def run_ids(self, seeds: Iterable[int]) -> dict[int, str]:
        """The run_id of each seed."""
        return {seed: run_id(self.config(seed)) for seed in seeds}


def compositions(requests: Iterable[Request], progress: Progress = lambda each, count: each) -> dict[Request, Any]:
    """Compose each request: a :class:`Composition`, or the ConfigError that says why there is none.

    Args:
        progress: iterates over the configurations, of which there are ``count``.
    """
    different = dict.fromkeys(requests)
    return {request: _compose(request) for request in progress(different, len(different))}


@cache
def _composer() -> Composer:
    """The composer of this process."""
    from ssl_bench.config.compose import Composer

    return Composer()


def _compose(request: Request) -> Composition | ConfigError:
    primary, overrides = request
    try:
        return Composition(json.dumps(_composer().load([*overrides, f"seed={SEED}"], primary)))
    except ConfigError as error:
        return error
