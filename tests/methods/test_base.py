"""Every option of ``conf/framework``: groups on ranks, numbers of views, refusals of objectives.

A new option needs an entry of SETTINGS or VIEWS only if the small network or two views do not fit it.
"""

import copy
import functools
from typing import Any

import pytest
import torch

from ssl_bench.config.compose import load
from ssl_bench.data.batch import Batch
from ssl_bench.distributed import global_mean
from ssl_bench.errors import ConfigError, InvalidValue
from ssl_bench.methods.base import Method
from ssl_bench.training.parts import OBJECTIVE, Parts
from tests.door.door import refused
from tests.methods.training import has_own_objective, local_batches, options, train
from tests.ranks import on_ranks

FRAMEWORKS = [name for name in options("framework") if name != "frozen"]  # which trains nothing
OWN_OBJECTIVE = [name for name in FRAMEWORKS if has_own_objective(name)]
SETTINGS: dict[str, list[str]] = {
    "densecl": ["negatives.k=11"],
    "npid": ["loss=nce", "negatives.k=9"],
    "npid_cld": ["framework.clusters=3", "negatives.k=9"],
    "moco_cld": ["framework.clusters=3", "negatives.k=11"],
}
VIEWS = {"npid": 1, "moco_cld": 3}  # the others take two


@functools.cache
def configuration(framework: str) -> dict[str, Any]:
    """A very small network with global batch statistics."""
    settings = ["backbone.width=2", "head.out=6", "batch_size.size=8", *SETTINGS.get(framework, [])]
    config = load([f"framework={framework}", *settings])
    if config["head"]["hidden"] is not None:
        config["head"] |= {"layers": 2, "hidden": 8}
    if config["framework"].get("predictor"):
        config["framework"]["predictor"] = 8
    config["framework"]["norm"] = "sync"
    return config


def method_of(config: dict[str, Any]) -> Method:
    """The method in double precision."""
    torch.manual_seed(0)
    return Parts(config).method.double()


def steps() -> list[Batch]:
    """This rank's share of three steps with three views of 8 images."""
    views = torch.rand(3, 24, 1, 20, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    views[1:] += views[0]
    return local_batches(Batch([*views], torch.arange(24) * 7, torch.arange(24) % 6), 3)


def _grouped(configurations: dict[str, dict[str, Any]], rank: int | None = None) -> dict[str, Any]:
    """Weights and running averages after three steps, and the loss of a fourth, for each framework."""
    found = {}
    for name, config in configurations.items():
        method = method_of(config)
        weights = train(method, steps())
        running = {key: value.clone() for key, value in method.state_dict().items() if "running_" in key}
        loss = method(steps()[0], 0.0).loss.detach()
        found[name] = {"weights": weights, "loss": global_mean(loss[None])} | running
    return found


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.exhaustive), 4])
def test_groups_on_ranks_train_as_on_one_process(ranks: int) -> None:
    """Four groups of two images, in every framework; shuffled where the framework has a momentum network."""
    configurations = {}
    for name in FRAMEWORKS:
        config = copy.deepcopy(configuration(name))
        config["framework"] |= {"norm": "shuffle" if config["framework"].get("momentum") else "local", "groups": 4}
        configurations[name] = config
    alone, whole = (
        _grouped(configurations),
        {name: train(method_of(configuration(name)), steps()) for name in FRAMEWORKS},
    )
    for name, found in alone.items():  # the groups matter
        assert not torch.allclose(found["weights"], whole[name], rtol=1e-4), name
    for found in on_ranks(functools.partial(_grouped, configurations), ranks):
        for name, values in found.items():
            assert values.keys() == alone[name].keys() and len(values) > 2
            for key, value in values.items():
                expected = alone[name][key]
                limit = 1e-9 if name == "simsiam" else 1e-12  # its head has four norms, each over two images
                assert float((value - expected).norm()) <= limit * float(expected.norm()) + 1e-15, f"{name} {key}"


@pytest.mark.parametrize(
    ("norm", "groups", "devices", "images", "names"),
    [
        ("local", 0, 1, 8, "1"),
        ("sync", 2, 2, 8, "1 framework.norm local shuffle"),
        ("local", 2, 4, 8, "1 devices=4"),
        ("shuffle", 3, 3, 8, "divisor 8 2"),
        ("local", 8, 8, 8, "divisor 8 2"),
    ],
)
def test_groups_that_do_not_fit_are_refused(norm: str, groups: int, devices: int, images: int, names: str) -> None:
    config = copy.deepcopy(configuration("moco_v2"))
    config["framework"] |= {"norm": norm, "groups": groups}
    method = method_of(config)
    with refused(f"framework.groups={groups} {names}", InvalidValue):
        method.check_groups(devices, images)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_as_many_views_are_made_as_a_framework_takes(framework: str) -> None:
    views = VIEWS.get(framework, 2)
    assert len(Parts(load([f"framework={framework}"])).views) == views
    multicrop = load([f"framework={framework}", "augment=multicrop_cifar"])
    if framework in OWN_OBJECTIVE and framework != "frozen":
        with pytest.raises(ConfigError, match=f"augment=multicrop_cifar .* 8 .*framework={framework} .* {views}:"):
            _ = Parts(multicrop).views
    else:
        assert len(Parts(multicrop).views) == 8
    if views > 1:
        multicrop["augment"] = {"large": multicrop["augment"]["large"] | {"count": 1}}
        with pytest.raises(ConfigError, match=f"augment.* 1 .* {views} .*framework={framework} "):
            _ = Parts(multicrop).views


@pytest.mark.parametrize("framework", OWN_OBJECTIVE)
def test_a_framework_with_its_own_objective_refuses_another(framework: str) -> None:
    for choice in ("loss=infonce", "negatives=in_batch", "temperature=fixed"):
        group = choice.split("=")[0]
        assert group in OBJECTIVE
        with pytest.raises(ConfigError, match=f"{choice}.*framework={framework} "):
            _ = Parts(load([f"framework={framework}", choice])).method
    with pytest.raises(ConfigError, match=f"similarity=student.*framework={framework} "):
        _ = Parts(load([f"framework={framework}", "similarity=student"])).method
