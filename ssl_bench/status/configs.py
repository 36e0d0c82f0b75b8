"""Configurations of many runs, stored once: runs that differ only in their seed share one.

A configuration is a list of settings, and a setting is a path of keys with its value as JSON. Settings are numbered and
shared too. So what distinguishes thousands of configurations is found by comparing numbers.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from functools import cache, cached_property
from typing import Any

SEED = ""  # instead of the JSON of a value that is the run's seed
_PLACE = "\0the run's seed"

Setting = tuple[tuple[str, ...], str]  # path of keys, value as JSON or SEED


class SharedConfig:
    """A configuration without its seed.

    Args:
        pool: the configurations that it belongs to.
        key: its number there.
        text: JSON of the numbers of its settings.
    """

    __slots__ = ("__dict__", "key", "pool", "text")

    def __init__(self, pool: "Configs", key: int, text: str) -> None:
        self.pool, self.key, self.text = pool, key, text

    @property
    def numbers(self) -> list[int]:
        """The numbers of its settings, in the order of the configuration."""
        numbers: list[int] = json.loads(self.text)
        return numbers

    @cached_property
    def seedless(self) -> Mapping[str, Any]:
        """The configuration with null instead of the seed."""
        return self.with_seed(None)

    def with_seed(self, seed: str | None) -> dict[str, Any]:
        """The whole configuration of a run; ``seed`` is as :meth:`Configs.add` returned it."""
        config: dict[str, Any] = {}
        for number in self.numbers:
            path, value = self.pool.settings[number]
            node = config
            for key in path[:-1]:
                node = node.setdefault(key, {})
            node[path[-1]] = _value(seed or "null" if value == SEED else value)
        return config


class Configs:
    """The configurations of many runs.

    Args:
        settings: those that are known already, as they were in ``settings``.
        texts: ``text`` of each configuration that is known already.
    """

    def __init__(self, settings: Iterable[Setting] = (), texts: Iterable[str] = ()) -> None:
        self.settings = list(settings)
        self._numbers = {setting: number for number, setting in enumerate(self.settings)}
        self.known = [SharedConfig(self, key, text) for key, text in enumerate(texts)]
        self._by_text = {config.text: config for config in self.known}
        self._by_json: dict[str, SharedConfig] = {}  # those that were added by this process

    def add(self, config: Mapping[str, Any]) -> tuple[SharedConfig, str | None]:
        """Return the shared configuration, and the seed as JSON; None if there is none."""
        seed = _json(config["seed"]) if "seed" in config else None
        seedless = _without_seed(config, seed) if seed is not None else config
        whole = _json(seedless)
        if whole not in self._by_json:
            text = _json([self._number(setting) for setting in _settings(seedless)])
            if text not in self._by_text:
                self._by_text[text] = SharedConfig(self, len(self.known), text)
                self.known.append(self._by_text[text])
            self._by_json[whole] = self._by_text[text]
        return self._by_json[whole], seed

    def _number(self, setting: Setting) -> int:
        number = self._numbers.setdefault(setting, len(self.settings))
        if number == len(self.settings):
            self.settings.append(setting)
        return number


def varying(configs: Collection[SharedConfig]) -> list[dict[tuple[str, ...], str]]:
    """The settings of each configuration that are not common to all, and those whose value is the seed.

    Args:
        configs: of one pool.
    """
    common, union = set[int](), set[int]()
    for place, config in enumerate(configs):
        numbers = config.numbers
        union.update(numbers)
        common.intersection_update(numbers) if place else common.update(numbers)
    settings = next(iter(configs)).pool.settings if configs else []
    differing = {n: settings[n] for n in union if n not in common or settings[n][1] == SEED}
    return [dict(differing[n] for n in config.numbers if n in differing) for config in configs]


def _without_seed(node: Mapping[str, Any], seed: str) -> dict[str, Any]:
    """``node`` with a placeholder for each value under a key ``seed`` whose JSON is ``seed``."""
    replaced = dict[str, Any]()
    for key, value in node.items():
        if isinstance(value, dict):
            replaced[key] = _without_seed(value, seed)
        else:
            replaced[key] = _PLACE if key == "seed" and _json(value) == seed else value
    return replaced


def _settings(node: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterable[Setting]:
    """Every setting; an empty mapping and a list are values."""
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from _settings(value, (*path, str(key)))
        else:
            yield (*path, str(key)), SEED if key == "seed" and value == _PLACE else _json(value)


@cache
def _value(text: str) -> Any:
    return json.loads(text)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=str)
