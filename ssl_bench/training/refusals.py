"""Find the runs of a grid that cannot be carried out, before the first one starts.

Each run is checked as it will be at its start. A part that several runs have in common is built once: a network takes
up to ten seconds, and a grid has hundreds of runs. Runs that differ in the seed only count as equal.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from ssl_bench.config import schema
from ssl_bench.data.dataset import Dataset
from ssl_bench.errors import ConfigError, InvalidValue
from ssl_bench.methods.base import Framework, Method
from ssl_bench.training.checked import CheckedParts

NETWORKS = ("backbone", "head", "framework", "init", "dataset", "paths", "plugins")


class _PartsOfGrid(CheckedParts):
    """Parts of a run that is only checked.

    Args:
        made: results for earlier runs, by the name of a part of a run and its nodes; of modules, which take memory,
            only the latest.
    """

    def __init__(self, config: dict[str, Any], made: dict[str, dict[str, Any]]) -> None:
        super().__init__(config)
        self.made = made

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
        """Call ``make``, or repeat the result or the error that it had for equal nodes at these keys.

        Args:
            forget: drop the results for other nodes first.
        """
        results, nodes = self.made.setdefault(part, {}), text_without_seed(self.config, keys)
        if nodes not in results:
            if forget:
                results.clear()
            try:
                results[nodes] = make()
            except ConfigError as error:
                results[nodes] = error
        if isinstance(results[nodes], ConfigError):
            raise results[nodes].with_traceback(None)
        return results[nodes]


def text_without_seed(config: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Nodes of a configuration as JSON, without the run's seed."""

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
    """The reasons why runs cannot be carried out; None for each run that can.

    Args:
        here: whether this machine is to carry them out.
        ranks: the number of a run's processes on this machine, if so.
    """
    made: dict[str, dict[str, Any]] = {}
    reasons: list[ConfigError | None] = [None] * len(configs)
    texts = [text_without_seed(config, (*NETWORKS, "negatives", "positives")) for config in configs]
    for number in sorted(range(len(configs)), key=lambda number: texts[number]):
        config = configs[number]
        try:
            schema.check(config)
            _PartsOfGrid(config, made).validate(ranks(config) if here else None)
        except ConfigError as error:
            reasons[number] = _alone(error)
    return reasons


def _alone(error: ConfigError) -> ConfigError:
    """The same refusal as a new error: this one keeps the networks in its traceback and its causes."""
    if isinstance(error, InvalidValue):
        return InvalidValue(error.key, error.value, error.remedy)
    return ConfigError(str(error))
