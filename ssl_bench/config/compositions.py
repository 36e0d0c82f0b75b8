"""Many composed configurations, kept in the user's cache folder. Hydra is imported only if one is not there yet."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssl_bench import files
from ssl_bench.config.identity import RUN_ID_DIGITS, canonical
from ssl_bench.config.schema import directory
from ssl_bench.errors import ConfigError
from ssl_bench.hardware import available_cores

if TYPE_CHECKING:
    from ssl_bench.config.compose import Composer

SEED = 907_340_511  # stands for the seed until one is chosen
LARGEST = 2**25  # bytes of the cache; a configuration takes about 4 kB
PARALLEL = 16  # combinations of groups for which starting other processes pays
PROCESSES = 4  # each takes about 70 MB

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
        start, rest = self._hashed
        ids = {}
        for seed in seeds:
            digest = start.copy()
            digest.update(str(seed).join(rest).encode())
            ids[seed] = digest.hexdigest()[:RUN_ID_DIGITS]
        return ids

    @cached_property
    def _hashed(self) -> tuple[Any, list[str]]:
        """The hash of everything before the first seed, and the parts of the text around the seeds."""
        first, *rest = canonical(json.loads(self.text)).split(str(SEED))
        return hashlib.sha256(first.encode()), ["", *rest]


def compositions(requests: Iterable[Request], progress: Progress = lambda each, count: each) -> dict[Request, Any]:
    """Compose each request: a :class:`Composition`, or the ConfigError that says why there is none.

    Configurations are kept in the user's cache folder, as long as the files that they are made of do not change. Many
    new ones are composed by several processes.

    Args:
        progress: iterates over the new configurations, of which there are ``count``.
    """
    inputs = _inputs()
    cached = _read_cache(inputs)
    wanted = dict.fromkeys(requests)
    new = [request for request in wanted if request not in cached]
    composed: dict[Request, Any] = dict(progress(_composed(new, inputs), len(new))) if new else {}
    made = {request: result for request, result in composed.items() if isinstance(result, Composition)}
    cached |= made
    # The version of a plugin, which is part of the configuration, may change at any time.
    _add_to_cache(inputs, {request: each for request, each in made.items() if '"plugins": {' not in each.text})
    return {request: cached.get(request) or composed[request] for request in wanted}


def _composed(requests: Sequence[Request], inputs: str) -> Iterator[tuple[Request, Any]]:
    """Compose requests, those with the same groups in the same process."""
    composer = _composer(inputs)
    by_groups: dict[Request, list[Request]] = {}
    for primary, overrides in requests:
        try:
            groups = composer.split(overrides)[0]
        except ValueError:
            groups = overrides
        by_groups.setdefault((primary, groups), []).append((primary, overrides))
    processes = min(available_cores(), PROCESSES, len(by_groups) // PARALLEL)
    if processes < 2:
        yield from ((request, _compose(composer, request)) for request in requests)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for group, results in zip(by_groups.values(), pool.map(_compose_all, by_groups.values()), strict=True):
            yield from zip(group, results, strict=True)


def _compose_all(requests: Sequence[Request]) -> list[Any]:
    return [_compose(_composer(""), request) for request in requests]


@cache
def _composer(inputs: str) -> Composer:
    """The composer of this process, as long as the inputs are the same."""
    from ssl_bench.config.compose import Composer  # imports Hydra

    return Composer()


def _compose(composer: Composer, request: Request) -> Composition | ConfigError:
    primary, overrides = request
    try:
        return Composition(json.dumps(composer.load([*overrides, f"seed={SEED}"], primary)))
    except ConfigError as error:
        return error


# ---- the cache: a line [inputs, command, overrides, text] for each configuration


def _cache_path() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ssl_bench" / "compositions.jsonl"


@cache
def _read_cache(inputs: str) -> dict[Request, Composition]:
    """The kept configurations that were made of these inputs."""
    kept: dict[Request, Composition] = {}
    for line in files.read_json_lines(_cache_path(), start=json.dumps([inputs]).removesuffix("]").encode()):
        match line:
            case [str(made_of), str(command), list(overrides), str(text)] if made_of == inputs:
                kept[command, tuple(overrides)] = Composition(text)
    return kept


def _add_to_cache(inputs: str, made: Mapping[Request, Composition]) -> None:
    """Add lines at the end, where several processes can do it at once; a file that is too large begins again."""
    lines = "".join(json.dumps([inputs, *request, each.text]) + "\n" for request, each in made.items())
    path = _cache_path()
    if not lines:
        return
    with contextlib.suppress(OSError):  # the home directory may be read-only
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > LARGEST:
            files.write_text(path, lines)
        else:
            files.append(path, lines)


def _inputs() -> str:
    """Hash of everything that a configuration depends on apart from the overrides."""
    sources, variables = _sources()
    return hashlib.sha256(repr((sources, [os.environ.get(name) for name in variables])).encode()).hexdigest()


@cache
def _sources() -> tuple[str, list[str]]:
    """Hash of the YAML files, of this room and of Hydra's version; and the environment variables that they read."""
    read = [*sorted(directory().rglob("*.yaml")), *sorted(Path(__file__).parent.glob("*.py"))]
    texts = [(path.name, path.read_text()) for path in read]
    names = {name for _, text in texts for name in re.findall(r"oc\.env:(\w+)", text)}
    content = repr((texts, version("hydra-core"), version("omegaconf")))
    return hashlib.sha256(content.encode()).hexdigest(), sorted(names)
