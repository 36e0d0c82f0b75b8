"""Find the runs of a grid that cannot be, before the first one starts.

Each run is checked as it will be at its start. What several of them have in common is built once: the network of a
run takes up to ten seconds, and a grid has hundreds of runs. A seed changes no verdict.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from ssl_bench.config import schema
from ssl_bench.data.dataset import Dataset
from ssl_bench.errors import ConfigError, InvalidValue
from ssl_bench.methods.base import Framework, Method
from ssl_bench.training.parts import Parts

NETWORKS = ("backbone", "head", "framework", "init", "dataset", "paths", "plugins")


class _Checked(Parts):
    """Parts of a run that is only checked.

    Args:
        config: resolved.
        known: what was made for the runs before, by the part of a run and its nodes; of modules, which take memory,
            the latest only.
    """

    def __init__(self, config: dict[str, Any], known: dict[str, dict[str, Any]]) -> None:
        super().__init__(config)
        self.known = known

    @cached_property
    def dataset(self) -> Dataset:
        parts: Any = super()
        made: Dataset = self._once("dataset", ("dataset", "paths"), lambda: parts.dataset)
        return made

    @cached_property
    def framework(self) -> Framework | Method:
        parts: Any = super()
        made: Framework | Method = self._once("networks", NETWORKS, lambda: parts.framework, forget=True)
        return made

    def _built(self, group: str, **extra: Any) -> Any:
        build = super()._built
        if extra:  # the framework, by the networks that it is given
            return build(group, **extra)
        return self._once(group, (group, "dataset", "paths"), lambda: build(group), forget=True)

    def _check_backbone(self) -> None:
        self._once("backbone", (*NETWORKS, "evaluate", "augment"), super()._check_backbone)

    def _check_evaluators(self) -> None:
        self._once("evaluate", (*NETWORKS, "evaluate", "augment"), super()._check_evaluators)

    def _once(self, part: str, keys: Sequence[str], make: Callable[[], Any], forget: bool = False) -> Any:
        """Call ``make``, or return or raise again what it gave for equal nodes at these keys of a configuration.

        Args:
            forget: what other nodes have given, before it is made.
        """
        known, nodes = self.known.setdefault(part, {}), identical(self.config, keys)
        if nodes not in known:
            if forget:
                known.clear()
            try:
                known[nodes] = make()
            except ConfigError as error:
                known[nodes] = error
        if isinstance(known[nodes], ConfigError):
            raise known[nodes].with_traceback(None)
        return known[nodes]


def identical(config: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Nodes of a configuration as a text that is the same for every seed of the run."""

    def seedless(node: Any) -> Any:
        if not isinstance(node, Mapping):
            return node
        return {key: seedless(value) for key, value in node.items() if (key, value) != ("seed", config["seed"])}

    return json.dumps([seedless(config.get(key)) for key in keys], sort_keys=True, default=str)


def refusals(
    configs: Sequence[dict[str, Any]],
    here: bool,
    ranks: Callable[[dict[str, Any]], int] = lambda config: config["devices"],
) -> list[ConfigError | None]:
    """Why each of some runs cannot be; None for one that can.

    Args:
        here: this machine carries them out.
        ranks: how many of a run's processes it has then.
    """
    known: dict[str, dict[str, Any]] = {}
    found: list[ConfigError | None] = [None] * len(configs)
    texts = [identical(config, (*NETWORKS, "negatives", "positives")) for config in configs]
    for number in sorted(range(len(configs)), key=lambda number: texts[number]):
        config = configs[number]
        try:
            schema.check(config)
            _Checked(config, known).validate(ranks(config) if here else None)
        except ConfigError as error:
            found[number] = _alone(error)
    return found


def _alone(error: ConfigError) -> ConfigError:
    """The same refusal as a new error: this one keeps the networks in its traceback and its causes."""
    if isinstance(error, InvalidValue):
        return InvalidValue(error.key, error.value, error.remedy)
    return ConfigError(str(error))
