"""Every option of ``conf/framework``: objectives that train or are refused, groups, and numbers of views."""

import functools
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from omegaconf import OmegaConf
from torch import Tensor, nn

from ssl_bench.config.build import build, directory, has_argument
from ssl_bench.config.compose import load
from ssl_bench.config.with_hydra import composed
from ssl_bench.data.views import Views
from ssl_bench.errors import ConfigError, InvalidValue
from ssl_bench.methods.contrastive import NEEDS
from ssl_bench.methods.siamese import Siamese
from ssl_bench.networks.backbones import Backbone
from ssl_bench.training import build as of_run
from ssl_bench.training.build import OBJECTIVE
from tests.door.door import refused
from tests.methods.training import has_own_objective, options

IMAGES, SIZE = 8, 12
FRAMEWORKS = [name for name in options("framework") if not has_own_objective(name)]
SMALL = {"predictor": 8, "clusters": 3}  # of framework


@functools.cache
def configuration(framework: str) -> dict[str, Any]:
    """A small network with global batch statistics."""
    sizes = ["backbone.width=8", "head.out=6", "batch_size.size=8", f"dataset.size={SIZE}", "seed=1"]
    config = load([f"framework={framework}", *sizes])
    config["head"] |= {"layers": 2, "hidden": 8} if config["head"]["hidden"] is not None else {}
    node = config["framework"]
    node |= {key: size for key, size in SMALL.items() if node.get(key)} | {"norm": "sync"}
    return config


def option(group: str, name: str) -> Any:
    """The node of an option, with a small size if it has one."""
    return nodes()[group][name]


@functools.cache
def nodes() -> dict[str, dict[str, Any]]:
    """Every option of the objective's groups, put into one configuration: Hydra would take seconds for all."""
    small = {"queue": {"k": 24}, "random_k": {"k": 3}, "memory_bank": {"k": 9}, "nearest": {"k": 24}}
    root = composed(["head.out=6", "epochs=3"])
    by_group: dict[str, dict[str, Any]] = {}
    for group in (*OBJECTIVE, "positives"):
        by_group[group] = {}
        for name in options(group):
            root[group] = OmegaConf.load(directory() / group / f"{name}.yaml")
            node: Any = OmegaConf.to_container(root[group], resolve=True)
            by_group[group][name] = node | small.get(name, {})
    return by_group


# ---- the product


class Rule(NamedTuple):
    """Requirements of an option on the others, and requirements of others that it meets."""

    needs: frozenset[str] = frozenset()
    gives: frozenset[str] = frozenset()


@functools.cache
def rule_of(group: str, name: str) -> Rule:
    if group == "framework":
        framework: Any = of_run.method(of_run.build(load([f"framework={name}"])))
        return Rule(gives=framework.framework.gives)
    node = option(group, name)
    part = build(node, group, **({"instances": 100} if has_argument(node, group, "instances") else {}))
    gives = getattr(part, "gives", frozenset()) | ({"tau"} if getattr(part, "uses_tau", False) else set())
    gives |= {"several"} if group == "loss" and "labels" in part.needs else set()
    return Rule(part.needs - {"cosine"}, gives)


LACKS = {"npid_cld": {"own_view", "aligned"}, "moco_cld": {"own_view", "aligned"}}  # the term of groups


def missing_need(rules: dict[str, Rule], framework: str = "") -> str | None:
    """The first need that a combination lacks; None: it can be trained."""
    gives = frozenset().union(*(each.gives for each in rules.values()))
    order = [group for group in ("loss", "negatives", "temperature", "positives") if group in rules]
    needs = [rules[group].needs - gives for group in order]
    needs[0] |= rules["loss"].needs & LACKS.get(framework, frozenset())
    return next((need for lacks in needs for need in NEEDS if need in lacks), None)


def positives_of(loss: str) -> str:
    """The positives that a loss is made for."""
    return "label" if loss in ("supcon", "sincere") else "view"


REFUSALS = {need: f"needs {what}: set " for need, (what, remedy) in NEEDS.items()}


class OneLayer(nn.Sequential, Backbone):
    """A backbone in place of the default one, which would take most of the time."""

    def __init__(self, width: int, in_channels: int) -> None:
        super().__init__(nn.Conv2d(in_channels, width, 4, 4, bias=False), nn.BatchNorm2d(width), nn.Tanh())
        self.num_features = width

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Tensor) -> Tensor:
        return super().forward(x)

    def forward_head(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def test_what_cannot_be_trained_is_refused_by_the_first_need_that_is_lacking() -> None:
    """One in ten of negatives x temperature x loss with SimCLR, whose code the others share.

    ``test_invariances`` trains the others.
    """
    base, counts = configuration("simclr"), Counter[str | None]()
    every = list(itertools.product(*(options(group) for group in OBJECTIVE)))
    for names in random.Random(0).sample(every, len(every) // 10):
        config = with_objective(base, *names)
        rules = {group: rule_of(group, config["choices"][group]) for group in (*OBJECTIVE, "positives", "framework")}
        expected, said = missing_need(rules, "simclr"), ""
        try:
            _ = of_run.method(of_run.build(config))
        except ConfigError as refusal:
            said = str(refusal)
        assert [need for need, sentence in REFUSALS.items() if sentence in said] == [expected] * (expected is not None)
        assert (said == "") == (expected is None), (names, said)
        counts[expected] += 1
    assert counts[None] > sum(counts.values()) / 4


def combinations() -> Iterator[tuple[str, ...]]:
    """Names of framework, negatives, temperature and loss of all that can be trained."""
    for names in itertools.product(FRAMEWORKS, *(options(group) for group in OBJECTIVE)):
        chosen = dict(zip(("framework", *OBJECTIVE), names, strict=True))
        chosen["positives"] = positives_of(chosen["loss"])
        if missing_need({group: rule_of(group, name) for group, name in chosen.items()}, names[0]) is None:
            yield names


def with_objective(
    base: dict[str, Any], negatives: str, temperature: str, loss: str, positives: str = "", **settings: Any
) -> dict[str, Any]:
    chosen = dict(zip(OBJECTIVE, (negatives, temperature, loss), strict=True))
    chosen["positives"] = positives or positives_of(loss)
    nodes = {group: option(group, name) for group, name in chosen.items()}
    return base | nodes | {"negatives": nodes["negatives"] | settings, "choices": base["choices"] | chosen}


def test_cosines_are_stored_or_computed_in_panels_as_their_key_says() -> None:
    for value, tiled in (("auto", None), ("dense", False), ("tiled", True)):
        method: Any = of_run.method(of_run.build(configuration("simclr") | {"cosines": value}))
        assert method.tiled is tiled


# ---- what a framework takes

VIEWS = {"npid": 1, "moco_cld": 3}  # the others take two
EVERY = [name for name in options("framework") if name != "frozen"]  # which trains nothing
OWN_OBJECTIVE = sorted({*EVERY} - {*FRAMEWORKS})


@pytest.mark.parametrize(
    ("norm", "groups", "devices", "names"),
    [
        ("local", 0, 1, "1"),
        ("sync", 2, 2, "1 framework.norm local shuffle"),
        ("local", 2, 4, "1 devices=4"),
        ("shuffle", 3, 3, "divisor 8 2"),
        ("local", 8, 8, "divisor 8 2"),
    ],
)
def test_groups_that_do_not_fit_are_refused(norm: str, groups: int, devices: int, names: str) -> None:
    config = configuration("moco_v2")
    method = of_run.method(of_run.build(config | {"framework": config["framework"] | {"norm": norm, "groups": groups}}))
    with refused(f"framework.groups={groups} {names}", InvalidValue):
        method.check_groups(devices, IMAGES)


@functools.cache
def multicrop_cifar() -> dict[str, Any]:
    return {"augment": load(["augment=multicrop_cifar"])["augment"]}


@pytest.mark.parametrize("framework", EVERY)
def test_as_many_views_are_made_as_a_framework_takes(framework: str) -> None:
    views = VIEWS.get(framework, 2)
    assert len(of_run.views(load([f"framework={framework}"]))) == views
    multicrop = load([f"framework={framework}"]) | multicrop_cifar()
    multicrop["choices"] |= {"augment": "multicrop_cifar"}
    if framework in OWN_OBJECTIVE:
        with refused(f"augment=multicrop_cifar 8 framework={framework} {views}"):
            _ = of_run.views(multicrop)
    else:
        assert len(of_run.views(multicrop)) == 8
    if views > 1:
        multicrop["augment"] = {"large": multicrop["augment"]["large"] | {"count": 1}}
        with refused(f"augment 1 {views} framework={framework}"):
            _ = of_run.views(multicrop)


class Jigsaw(Views):
    """Views that a framework may need."""


def test_a_framework_is_refused_without_the_views_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Siamese, "needs_views", {Jigsaw: "jigsaw"})
    config = load(["augment=digits"])
    with refused("framework=simclr Jigsaw augment=jigsaw augment=digits"):
        _ = of_run.views(config)
    monkeypatch.setattr(Siamese, "needs_views", {Views: "digits"})
    assert len(of_run.views(config)) == 2


@pytest.mark.parametrize("framework", OWN_OBJECTIVE)
def test_a_framework_with_its_own_objective_refuses_another(framework: str) -> None:
    for choice in ("loss=infonce", "negatives=in_batch", "temperature=fixed", "similarity=student"):
        with refused(f"{choice} framework={framework}"):
            _ = of_run.method(of_run.build(load([f"framework={framework}", choice])))
