"""Frameworks x losses x negatives x temperatures: how many train, and two ranks against one process.

``python -m tests.methods.test_axes`` prints how many of each framework's combinations can be trained.
"""

import functools
import itertools
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from ssl_bench.data.batch import Batch
from ssl_bench.training.parts import OBJECTIVE, Parts
from tests.composed import load
from tests.methods.training import has_own_objective, local_batches, options, train
from tests.objective.test_combinations import OneLayer, missing_need, option, positives_of, rule_of
from tests.ranks import on_two_ranks

FRAMEWORKS = [name for name in options("framework") if not has_own_objective(name)]
Names = tuple[str, ...]  # of framework, negatives, temperature and loss
SIZES = {"predictor": 8, "clusters": 3}


def combinations() -> Iterator[Names]:
    """All that can be trained."""
    for names in itertools.product(FRAMEWORKS, *(options(group) for group in OBJECTIVE)):
        chosen = dict(zip(("framework", *OBJECTIVE), names, strict=True))
        chosen["positives"] = positives_of(chosen["loss"])
        if missing_need({group: rule_of(group, name) for group, name in chosen.items()}, names[0]) is None:
            yield names


def sample() -> list[Names]:
    """Some of them, with every framework beside every kind of negatives, every loss and every temperature."""
    everything, seen, found = list(combinations()), set[Any](), []
    order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(0)).tolist()
    for names in (everything[number] for number in order):
        framework, negatives, temperature, loss = names
        new = {(framework, negatives), temperature, loss, (negatives, temperature)} - seen
        if new:
            seen |= new
            found.append(names)
    return found


@functools.cache
def configuration(framework: str) -> dict[str, Any]:
    config = load([f"framework={framework}", "backbone.width=8", "head.out=6", "batch_size.size=8", "seed=1"])
    config["head"] |= {"layers": 2, "hidden": 8} if config["head"]["hidden"] is not None else {}
    node = config["framework"]
    node |= {key: size for key, size in SIZES.items() if node.get(key)} | {"norm": "sync"}
    return config


def configurations(names: list[Names]) -> dict[str, dict[str, Any]]:
    """Composed here: the ranks get the nodes."""
    found = {}
    for framework, *objective in names:
        chosen = dict(zip(OBJECTIVE, objective, strict=True))
        chosen["positives"] = positives_of(chosen["loss"])
        nodes = {group: option(group, name) for group, name in chosen.items()}
        base = configuration(framework)
        found[" ".join([framework, *objective])] = base | nodes | {"choices": base["choices"] | chosen}
    return found


def trained(configs: dict[str, dict[str, Any]], rank: int | None = None) -> dict[str, Tensor]:
    """The weights after three steps, in double precision."""
    views = torch.rand(3, 24, 1, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    views[1:] += views[0]
    ids, found = torch.arange(24) % 16 * 7, {}  # some are seen again
    with patch("ssl_bench.networks.backbones.DigitsResNet", OneLayer):
        for name, config in configs.items():
            torch.manual_seed(0)
            method = Parts(config).method.double()
            images = Batch([*views[: max(2, method.views)]], ids, ids % 6)
            found[name] = train(method, local_batches(images, 3))
    return found


def check(names: list[Names]) -> None:
    configs = configurations(names)
    alone = trained(configs)
    worst = 0.0
    for found in on_two_ranks(functools.partial(trained, configs)):
        for name, weights in found.items():
            difference = float((weights - alone[name]).norm() / alone[name].norm())
            assert difference < 1e-12, (name, difference)
            worst = max(worst, difference)
    print(f"{len(configs)} combinations, largest relative difference {worst:.1e}")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_ranks_train_as_one_with_every_framework_loss_negatives_and_temperature() -> None:
    chosen = sample()
    assert {each for names in chosen for each in names} == {
        each for group in ("framework", *OBJECTIVE) for each in options(group)
    } - {name for name in options("framework") if has_own_objective(name)}
    check(chosen)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_ranks_train_as_one_with_every_combination(framework: str) -> None:
    check([names for names in combinations() if names[0] == framework])


if __name__ == "__main__":
    number = {name: sum(names[0] == name for names in combinations()) for name in FRAMEWORKS}
    print(number, sum(number.values()))
