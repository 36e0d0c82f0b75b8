"""Chunks of a batch, a second rank and an interruption do not change a training.

Every framework of conf/ with its usual objective, SimCLR with every loss, and InfoNCE with every kind of negatives are
trained for three steps of a very small network in double precision. A new option is covered as soon as it is there.
"""

import copy
import functools
import itertools
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from ssl_bench.config.build import find_target
from ssl_bench.data.batch import Batch
from ssl_bench.distributed import global_mean
from ssl_bench.methods.base import Method
from ssl_bench.training import build
from ssl_bench.training.build import OBJECTIVE
from tests.methods.test_contrastive import SIZE, OneLayer, combinations, configuration, option, with_objective
from tests.methods.training import local_batches, options, train, train_in_chunks
from tests.ranks import on_ranks, on_two_ranks

IMAGES, PROGRESS = 8, [0.0, 1 / 3, 2 / 3]
FRAMEWORKS = [f"framework={name}" for name in options("framework") if name != "frozen"]  # which trains nothing
LOSSES = [f"loss={name}" for name in options("loss")]
# Settings of the negatives that their options do not have: k around half of the candidates, beyond a batch, scheduled.
NEGATIVES: dict[str, dict[str, Any]] = {
    **{f"negatives={name}": {} for name in options("negatives") if name != "none"},
    "negatives=random_k marked": {"k": 9},
    "negatives=random_k shared": {"k": 3, "views": "cross", "shared": True},
    "negatives=random_k scheduled": {"k": 2, "final": 11, "schedule": "linear"},
    "negatives=queue short": {"k": 5},
    "negatives=queue scheduled": {"k": 37, "final": 3, "schedule": "cosine"},
    "negatives=memory_bank drawn": {"k": 7},
}
SUBJECTS = [*FRAMEWORKS, *LOSSES, *NEGATIVES, "positives=nearest"]


@functools.cache
def subject(name: str) -> dict[str, Any]:
    """The configuration of a subject, with global batch statistics."""
    group, _, chosen = name.partition(" ")[0].partition("=")
    if group == "framework":
        config = configuration(chosen)
        return config if config["negatives"] is None else with_small_negatives(config)
    simclr, loss = configuration("simclr"), chosen if group == "loss" else "infonce"
    negatives = chosen if group == "negatives" else negatives_for(loss)
    positives = chosen if group == "positives" else ""
    return with_objective(simclr, negatives, "macl_a", loss, positives, **NEGATIVES.get(name, {}))


def with_small_negatives(config: dict[str, Any]) -> dict[str, Any]:
    return config | {"negatives": option("negatives", config["choices"]["negatives"])}


def negatives_for(loss: str) -> str:
    """Negatives that a loss can use."""
    needs = find_target(option("loss", loss), "loss").needs
    if "negatives" not in needs:
        return "none"
    return "cross_view" if "aligned" in needs else "own_view" if "own_view" in needs else "in_batch"


def method_of(config: dict[str, Any]) -> Method:
    torch.manual_seed(0)
    with patch("ssl_bench.networks.backbones.DigitsResNet", OneLayer):
        return build.method(build.build(config)).double()


def without_norms(module: Any) -> Any:
    """The method without batch statistics, which are those of a chunk."""
    for name, child in module.named_children():
        is_norm = isinstance(child, nn.modules.batchnorm._BatchNorm)
        setattr(module, name, nn.Identity() if is_norm else without_norms(child))
    return module


def steps(method: Method) -> list[Batch]:
    """This rank's share of three steps of 8 images, of which some are seen again, with labels that some lack."""
    generator, count = torch.Generator().manual_seed(1), len(PROGRESS) * IMAGES
    views = torch.rand(3, count, 1, SIZE, SIZE, generator=generator, dtype=torch.float64)
    views[1:] += views[0]
    ids = torch.cat([torch.randperm(2 * IMAGES, generator=generator)[:IMAGES] for _ in PROGRESS]) * 7
    images = Batch([*views[: max(2, method.views)]], ids, torch.arange(count) % 6 - 1)
    return local_batches(images, len(PROGRESS))


def assert_equal(found: Tensor, expected: Tensor, name: str, limit: float = 1e-12) -> None:
    # A mean of unit vectors may be 0 up to rounding, as of a predictor's input after batch norm.
    assert float((found - expected).norm()) <= limit * max(float(expected.norm()), 1e-9), name


@pytest.mark.parametrize("name", SUBJECTS)
def test_chunks_give_the_state_of_whole_batches(name: str) -> None:
    in_chunks, whole = (without_norms(method_of(subject(name))) for _ in range(2))
    train_in_chunks(in_chunks, steps(in_chunks), 2, PROGRESS)
    train(whole, steps(whole), None, PROGRESS)
    expected = whole.state_dict()
    for key, value in in_chunks.state_dict().items():
        if isinstance(value, Tensor) and value.is_floating_point():
            assert_equal(value, expected[key], f"{name} {key}", 1e-11)


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_resumed_training_is_the_same_to_the_bit(name: str) -> None:
    config = subject(name)
    method, first, again = (method_of(config) for _ in range(3))
    batches, optimizer = steps(method), dict[str, Any]()
    expected = train(method, batches, None, PROGRESS)
    train(first, batches[:1], optimizer, PROGRESS[:1])
    again.load_state_dict(copy.deepcopy(first.state_dict()))
    assert torch.equal(train(again, batches[1:], optimizer, PROGRESS[1:]), expected)


def trained(configs: dict[str, dict[str, Any]], chunk: int | None, rank: int | None = None) -> dict[str, Tensor]:
    """The weights after three steps, and the method's own state."""
    found = {}
    for name, config in configs.items():
        method = method_of(config)
        if chunk is None:
            train(method, steps(method), None, PROGRESS)
        else:
            train_in_chunks(method, steps(method), chunk if rank is None else chunk // 2, PROGRESS)
        state = [v for v in method.state_dict().values() if isinstance(v, Tensor) and v.is_floating_point()]
        found[name] = torch.cat([value.flatten() for value in state])
    return found


def check_ranks(configs: dict[str, dict[str, Any]], chunk: int | None = None) -> None:
    """Train on two ranks, in one fork, and here."""
    alone = trained(configs, chunk)
    for found in on_two_ranks(functools.partial(trained, configs, chunk)):
        for name, weights in found.items():
            assert_equal(weights, alone[name], name)


@pytest.mark.parametrize("kind", [FRAMEWORKS, LOSSES, [*NEGATIVES, "positives=nearest"]], ids=lambda kind: kind[0])
def test_two_ranks_train_as_one(kind: list[str]) -> None:
    check_ranks({name: subject(name) for name in kind})


def test_two_ranks_train_in_chunks_as_one() -> None:
    """The batch statistics are those of the same chunks."""
    check_ranks({name: subject(name) for name in ("framework=simclr", "framework=byol", "loss=dclw")}, 4)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_ranks_train_as_one_with_combinations_of_all_options() -> None:
    """With every framework beside every kind of negatives, and every loss and temperature."""
    everything, seen, chosen = list(combinations()), set[Any](), []
    order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(0)).tolist()
    for names in (everything[number] for number in order):
        framework, negatives, temperature, loss = names
        new = {(framework, negatives), temperature, loss, (negatives, temperature)} - seen
        if new:
            seen |= new
            chosen.append(names)
    assert {*itertools.chain(*chosen)} >= {name for group in OBJECTIVE for name in options(group)}
    check_ranks({" ".join(names): with_objective(configuration(names[0]), *names[1:]) for names in chosen})


def in_groups(configs: dict[str, dict[str, Any]], rank: int | None = None) -> dict[str, dict[str, Tensor]]:
    """The weights and running averages after three steps, and the loss of a fourth."""
    found = {}
    for name, config in configs.items():
        method = method_of(config)
        weights = train(method, steps(method), None, PROGRESS)
        running = {key: value.clone() for key, value in method.state_dict().items() if "running_" in key}
        loss = method(steps(method)[0], 0.0).loss.detach()
        found[name] = {"weights": weights, "loss": global_mean(loss[None])} | running
    return found


@pytest.mark.slow
def test_groups_on_four_ranks_train_as_on_one_process() -> None:
    """Four groups of two images, in every framework; shuffled where the framework has a momentum network."""
    configs = {}
    for name in FRAMEWORKS:
        node = subject(name)["framework"]
        groups = {"norm": "shuffle" if node.get("momentum") else "local", "groups": 4}
        configs[name] = subject(name) | {"framework": node | groups}
    alone = in_groups(configs)
    for name, whole in in_groups({name: subject(name) for name in FRAMEWORKS}).items():  # the groups matter
        assert not torch.allclose(alone[name]["weights"], whole["weights"], rtol=1e-4), name
    for found in on_ranks(functools.partial(in_groups, configs), 4):
        for name, values in found.items():
            assert values.keys() == alone[name].keys() and len(values) > 2
            for key, value in values.items():
                assert_equal(
                    value, alone[name][key], f"{name} {key}", 1e-6
                )  # norms over two images enlarge what rounding makes
