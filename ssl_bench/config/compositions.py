"""Many composed configurations with a placeholder for the seed, stored in the user's cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.config.build import directory
from ssl_bench.errors import ConfigError

INPUTS = ""  # the key, in the cache file, of a hash of all that its configurations depend on
SEED = 907_340_511  # the placeholder for the seed
# Parts of a configuration that depend on files which may change at any time, and so are not cached.
FROM_DISK = ('"plugins": {', '"content": "', '"init": {')

Request = tuple[str, ...]  # overrides without the seed
Progress = Callable[[Iterable[Any], int], Iterable[Any]]


@dataclass(frozen=True)
class Composition:
    """A composed configuration as JSON, in ``text``, with ``SEED`` as the seed."""

    text: str

    def config(self, seed: int) -> dict[str, Any]:
        """The configuration with a seed."""
        config: dict[str, Any] = json.loads(self.text.replace(str(SEED), str(seed)))
        return config


def compositions(
    requests: Iterable[Request], progress: Progress = lambda requests, count: requests, folder: Path | None = None
) -> dict[Request, Any]:
    """Compose each request: a :class:`Composition`, or its ConfigError. With a folder nothing is cached.

    Args:
        progress: iterates over the new configurations, of which there are ``count``.
    """
    path, inputs = (_file() if folder is None else Path(os.devnull)), _inputs()
    texts = {request: json.dumps(request) for request in requests}
    cached: dict[str, str] = (files.read_json(path, dict[str, str], named=False) if texts else None) or {}
    cached = cached if cached.get(INPUTS) == inputs else {INPUTS: inputs}
    new = [request for request, text in texts.items() if text not in cached]
    made = {request: _compose(request, folder) for request in progress(new, len(new))}
    composed = [(texts[request], one.text) for request, one in made.items() if isinstance(one, Composition)]
    to_cache = {key: text for key, text in composed if folder is None and not any(part in text for part in FROM_DISK)}
    with contextlib.suppress(OSError):  # the home directory may be read-only
        if to_cache:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(path, cached | to_cache)
    return {request: Composition(cached[text]) if text in cached else made[request] for request, text in texts.items()}


def with_seeds(runs: Iterable[Request], folder: Path | None = None) -> dict[Request, dict[str, Any]]:
    """Configurations of runs, by their overrides, if three or more runs differ only in the seed.

    Such runs are composed once, and their seeds filled in; runs with other values that depend on it are left out.
    """
    from ssl_bench.config.compose import load

    seeds, configs = dict[Request, dict[Request, int]](), dict[Request, dict[str, Any]]()
    for run in runs:
        for word in (word for word in run if re.fullmatch(r"seed=(0|[1-9]\d*)", word)):
            seeds.setdefault(tuple(other for other in run if other != word), {})[run] = int(word[5:])
    several = {request: of_runs for request, of_runs in seeds.items() if len(of_runs) > 2}
    for request, one in compositions(several, folder=folder).items():
        made = {run: one.config(seed) for run, seed in several[request].items()} if isinstance(one, Composition) else {}
        configs |= made if all(made[run] == load(run, folder) for run in [*made][:1]) else {}
    return configs


def _inputs() -> str:
    """A hash of everything that a configuration depends on apart from the overrides."""
    sources = [*sorted(directory().rglob("*.yaml")), *sorted(Path(__file__).parent.glob("*.py"))]
    texts = [path.read_text() for path in sources]
    variables = sorted({name for text in texts for name in re.findall(r"oc\.env:(\w+)", text)})
    variables += sorted(name for name in os.environ if name.startswith("WANDB_"))
    of_user = [*map(os.environ.get, variables), os.path.exists(os.path.expanduser("~/.netrc"))]  # of W&B's mode
    inputs = texts, of_user, version("hydra-core"), version("omegaconf")
    return hashlib.sha256(repr(inputs).encode()).hexdigest()


def _file() -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # A user without a home has none.
    return Path(folder, "ssl_bench", "compositions.json") if os.path.isabs(folder) else Path(os.devnull)


def _compose(request: Request, folder: Path | None) -> Composition | ConfigError:
    from ssl_bench.config.compose import load

    try:
        return Composition(json.dumps(load([*request, f"seed={SEED}"], folder)))
    except ConfigError as error:
        return error
