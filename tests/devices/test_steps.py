"""Steps on a GPU that is not there: no wait for it, nothing on another device, no half precision where it would hurt.

Every combination of framework, negatives and loss that can be trained makes a step as the training does it: autocast,
forward, objective, diagnostics, backward, loss scaling, optimiser, memories, meter.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from ssl_bench.data.batch import Batch
from ssl_bench.evaluate.knn import nearest, rank_classes
from ssl_bench.evaluate.linear import fit_linear
from tests.composed import load
from tests.devices.fake import MEANT, FakeTraining, Fault, Watch, fake_gpu
from tests.methods.training import has_own_objective, options
from tests.objective.test_combinations import SIZE, OneLayer, missing_need, option, rule_of

IMAGES = 8
PRECISIONS = ("bf16", "fp16", "fp32")


@pytest.fixture(autouse=True)
def small_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssl_bench.networks.backbones.DigitsResNet", OneLayer)


@functools.cache
def base(framework: str, *overrides: str) -> dict[str, Any]:
    """The configuration of a small training."""
    typed = [f"framework={framework}", "backbone.width=8", "head.out=6", "batch_size.size=8", "evaluate.baselines=[]"]
    config = load([*typed, *overrides])
    if config["head"]["hidden"] is not None:
        config["head"] |= {"layers": 2, "hidden": 8}
    if config["framework"].get("predictor"):
        config["framework"]["predictor"] = 8
    for key, small in {"clusters": 3, "noise": 5, "size": SIZE}.items():
        if config["framework"].get(key):
            config["framework"][key] = small
    return config


def combinations(framework: str) -> list[dict[str, Any]]:
    """Configurations of every negatives x loss that a framework can be trained with.

    The temperature and the precision change from one to the next, so that each comes with each of the others.
    """
    temperatures, found = options("temperature"), list[dict[str, Any]]()
    for negatives, loss in itertools.product(options("negatives"), options("loss")):
        for shift in range(len(temperatures)):
            temperature = temperatures[(len(found) + shift) % len(temperatures)]
            chosen = {"negatives": negatives, "temperature": temperature, "loss": loss}
            if missing_need({g: rule_of(g, n) for g, n in (chosen | {"framework": framework}).items()}) is None:
                precision = PRECISIONS[len(found) // len(temperatures) % len(PRECISIONS)]
                config = base(framework) | {group: option(group, name) for group, name in chosen.items()}
                found.append(config | {"choices": config["choices"] | chosen, "precision": precision})
                break
    return found


def faults(config: dict[str, Any], steps: Sequence[bool] = (False, True)) -> list[Fault]:
    """The faults of steps without and with diagnostics; the views are not made."""
    with fake_gpu(), Watch() as watch:
        training = FakeTraining(config, 100, watch)
        watch.faults.clear()
        ids = torch.zeros(IMAGES, dtype=torch.int64, device="cuda")
        views = [torch.empty(IMAGES, 1, SIZE, SIZE, device="cuda") for _ in training.parts.views]

        def batch(rows: slice = slice(None)) -> Batch:
            return Batch([view[rows] for view in views], ids[rows], ids[rows])

        images: Any = SimpleNamespace(ids=ids, batch=batch)
        for diagnostics in steps:
            training.step(diagnostics, images)
        assert watch.counts["backward"] > 10 and watch.counts["optimiser"] >= 2
        return watch.faults


def found_in(configs: list[dict[str, Any]], steps: Sequence[bool] = (False, True)) -> dict[str, list[Fault]]:
    """The faults by configuration, without those that have none."""
    each = {f"{config['choices']} {config['precision']}": faults(config, steps) for config in configs}
    return {name: found for name, found in each.items() if found}


SAMPLE = [
    ["framework=simclr", "precision=bf16"],
    ["framework=moco_v2", "loss=macl", "temperature=macl_a", "precision=fp16"],
    ["framework=relic", "negatives=random_k", "negatives.k=3", "negatives.views=cross", "precision=bf16"],
]


@pytest.mark.parametrize("sample", SAMPLE, ids=" ".join)
def test_some_combinations_make_clean_steps(sample: list[str]) -> None:
    framework, *overrides = sample
    assert faults(base(framework.removeprefix("framework="), *overrides)) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("framework", [f for f in options("framework") if not has_own_objective(f)])
def test_every_combination_makes_clean_steps(framework: str) -> None:
    every = combinations(framework)
    pairs = {(config["choices"]["temperature"], config["precision"]) for config in every}
    assert len(pairs) == len(options("temperature")) * len(PRECISIONS)
    assert found_in(every, steps=[True]) == {}  # which does all that a normal step does


OWN = [f for f in options("framework") if has_own_objective(f)]


@pytest.mark.parametrize("framework", [pytest.param(f, marks=[pytest.mark.slow] if f != "npid" else []) for f in OWN])
def test_frameworks_with_an_objective_of_their_own_make_clean_steps(framework: str) -> None:
    assert found_in([base(framework) | {"precision": precision} for precision in PRECISIONS]) == {}


@pytest.mark.parametrize("overrides", [["loss=macl"], ["loss=dual_temperature", "negatives=random_k", "negatives.k=3"]])
def test_tiled_cosines_make_clean_steps(overrides: list[str]) -> None:
    assert faults(base("simclr", "cosines=tiled", "precision=bf16", *overrides)) == []


@pytest.mark.parametrize("framework", ["simclr", pytest.param("moco_v2", marks=pytest.mark.slow)])
def test_chunks_make_clean_steps(framework: str) -> None:
    assert faults(base(framework, "batch_size.chunk=4", "precision=bf16")) == []


@pytest.fixture
def two_ranks() -> Iterator[None]:
    """Rank 0 of two that do not exist: collectives have the right shapes and no values."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


# The kernels of synchronised batch norm, and the route of shuffled images, have no form without values.
RANKS = [
    ["simclr", "framework.norm=local", "framework.groups=2"],
    ["moco_v2", "framework.norm=local", "framework.groups=2", "loss=macl"],
    ["simclr", "framework.norm=local", "framework.groups=2", "negatives=random_k", "negatives.k=3"],
]


@pytest.mark.parametrize("sample", RANKS, ids=" ".join)
def test_a_rank_of_two_makes_clean_steps(sample: list[str], two_ranks: None) -> None:
    framework, *overrides = sample
    assert faults(base(framework, "precision=bf16", *overrides)) == []


@functools.cache
def photos(*overrides: str) -> dict[str, Any]:
    """The configuration of a training on CIFAR's images, with their views."""
    return load(["dataset=cifar10", "batch_size.size=8", "precision=bf16", "evaluate.baselines=[]", *overrides])


def faults_with_views(*overrides: str) -> list[Fault]:
    """The faults of the second step with its views."""
    with fake_gpu(), Watch() as watch:
        training = FakeTraining(photos(*overrides), 100, watch)
        training.step()
        watch.faults.clear()
        training.step()
        return watch.faults


BYOL = ["framework=byol", "negatives=none", "loss=byol", "augment=byol"]  # blur and solarisation too


def test_a_step_with_its_views_is_clean() -> None:
    assert faults_with_views(*BYOL, "backbone=conv_n") == []


@pytest.mark.slow
def test_every_exception_is_met() -> None:
    """Of the exceptions that the detectors make, none is out of date."""
    excused: set[str] = set()
    for overrides in ([*BYOL], ["temperature=macl_a"], ["framework=vae"]):
        with fake_gpu(), Watch() as watch:
            FakeTraining(photos(*overrides), 100, watch).step()
            excused |= watch.excused
    assert excused == {name for names in MEANT.values() for name in names}


@pytest.mark.exhaustive
@pytest.mark.parametrize("augment", options("augment"))
def test_every_recipe_of_views_is_clean(augment: str) -> None:
    loss = ["loss=dclw"] if "multicrop" in augment else []
    assert faults_with_views(f"augment={augment}", *loss) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("optimizer", options("optimizer"))
def test_every_optimiser_is_clean(optimizer: str, precision: str) -> None:
    assert faults_with_views(f"optimizer={optimizer}", f"precision={precision}") == []


def test_gradient_moments_are_clean() -> None:
    assert faults(base("simclr", "diagnostics.gradient_snr=0.9")) == []


def test_the_search_of_neighbours_is_clean() -> None:
    with fake_gpu(), Watch() as watch:
        bank, queries = torch.empty(1000, 16, device="cuda"), torch.empty(64, 16, device="cuda")
        labels = torch.zeros(1000, dtype=torch.int64, device="cuda")
        keys = nearest(queries, bank, 20, (32, 512))
        watch_votes = len(watch.faults)
        assert rank_classes(keys, labels, 20, 0.1, 10).is_cuda
    assert watch_votes == 0 and {fault.kind for fault in watch.faults} <= {"float64"}  # votes are summed in float64


def test_the_linear_probe_stays_on_the_device() -> None:
    """It waits once an epoch, for the order of the images."""
    with fake_gpu(), Watch() as watch:
        features = torch.empty(64, 16, device="cuda")
        labels = torch.zeros(64, dtype=torch.int64, device="cuda")
        generator = torch.Generator()
        options: dict[str, Any] = {"num_classes": 4, "epochs": 2, "batch_size": 16, "momentum": 0.9}
        weight, bias = fit_linear(features, labels, [0.1, 0.2], weight_decay=0.1, generator=generator, **options)
        assert weight.is_cuda and weight.shape == (2, 4, 16) and bias.is_cuda
    assert {fault.kind for fault in watch.faults} == {"sync"}
