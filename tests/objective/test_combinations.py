"""The full product of the groups, two ranks against one process, and chunks against the whole batch."""

import contextlib
import copy
import functools
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from ssl_bench.config.build import build, has_argument
from ssl_bench.data.batch import Batch
from ssl_bench.distributed import average_gradients, parallel, rank, world
from ssl_bench.errors import ConfigError
from ssl_bench.methods.base import Method
from ssl_bench.methods.contrastive import NEEDS, Contrastive, MissingNeed
from ssl_bench.methods.siamese import Siamese
from ssl_bench.networks.backbones import Backbone
from ssl_bench.networks.heads import MLP
from ssl_bench.networks.norm import group_statistics
from ssl_bench.objective.temperature import Fixed, MACLa
from ssl_bench.training import chunked
from ssl_bench.training.parts import OBJECTIVE, Parts
from tests.composed import load
from tests.methods.training import has_own_objective, options, select
from tests.ranks import on_two_ranks

IMAGES, SIZE = 8, 8


def option(group: str, name: str) -> Any:
    """The node of an option, with a small size if it has one."""
    return nodes()[group][name]


@functools.cache
def nodes() -> dict[str, dict[str, Any]]:
    """Every option of the objective's groups; each composition has one of each group."""
    small = {"queue": ["negatives.k=24"], "random_k": ["negatives.k=3"], "memory_bank": ["negatives.k=9"]}
    small |= {"nearest": ["positives.k=24"]}
    groups = (*OBJECTIVE, "positives")
    found: dict[str, dict[str, Any]] = {group: {} for group in groups}
    for names in itertools.zip_longest(*map(options, groups)):
        chosen = {group: name for group, name in zip(groups, names, strict=True) if name}
        sizes = [size for name in chosen.values() for size in small.get(name, [])]
        config = load([*(f"{group}={name}" for group, name in chosen.items()), *sizes, "head.out=6", "epochs=3"])
        for group, name in chosen.items():
            found[group][name] = config[group]
    return found


# ---- the product


class Rule(NamedTuple):
    """Requirements of an option on the others, and requirements of others that it meets."""

    needs: frozenset[str] = frozenset()
    gives: frozenset[str] = frozenset()


def rule(needs: str = "", gives: str = "") -> Rule:
    return Rule(frozenset(needs.split()), frozenset(gives.split()))


# Written down independently of the classes. An option without an entry follows the attributes of its object.
RULES: dict[str, dict[str, Rule]] = {
    "loss": {
        **dict.fromkeys(["infonce", "eqco", "dcl", "dclw", "flatnce", "macl", "macl_w"], rule("negatives", "tau")),
        **dict.fromkeys(["dual_temperature", "decoupled_nt_xent"], rule("negatives", "tau")),
        **dict.fromkeys(["align_uniform", "kcl", "spectral"], rule("negatives")),
        "siglip": rule("negatives", "tau"),
        **dict.fromkeys(["nce", "invariant_spread"], rule("negatives", "tau")),
        **dict.fromkeys(["supcon", "sincere"], rule("negatives labels", "tau several")),
        "relic": rule("negatives aligned", "tau"),
        **dict.fromkeys(["swd", "vicreg", "barlow_twins", "sigreg"], rule("two_views")),
        "byol": rule(),
        "sogclr": rule("negatives", "tau"),
        "isogclr": rule("negatives"),
    },
    "negatives": {
        "in_batch": rule("both_views", "negatives labelled"),
        "random_k": rule("both_views", "negatives"),
        "cross_view": rule("", "negatives aligned labelled"),
        "queue": rule("", "negatives aligned"),
        "memory_bank": rule("", "negatives aligned"),
        "none": rule(),
    },
    "temperature": {**dict.fromkeys(["fixed", "linear", "cosine", "macl_a", "macl_b"], rule()), "learned": rule("tau")},
    "positives": {"view": rule(), "label": rule("labelled several", "labels")},
    "framework": {
        **dict.fromkeys(["simclr", "relic"], rule("", "both_views two_views")),
        **dict.fromkeys(["byol", "simsiam", "inv_spread", "npid", "npid_cld"], rule("", "both_views")),
        **dict.fromkeys(["moco_v1", "moco_v2", "simo", "moco_cld", "densecl"], rule()),
    },
}


@functools.cache
def rule_of(group: str, name: str) -> Rule:
    if name in RULES[group]:
        return RULES[group][name]
    if group == "framework":
        framework: Any = Parts(load([f"framework={name}"])).method
        return Rule(gives=framework.framework.gives)
    node = option(group, name)
    part = build(node, group, **({"instances": 100} if has_argument(node, group, "instances") else {}))
    gives = getattr(part, "gives", frozenset()) | ({"tau"} if getattr(part, "uses_tau", False) else set())
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


REFUSALS = {need: f"needs {what}: set " for need, (what, remedy) in NEEDS.items()} | {"own objective": " has no "}


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


SHARES = [("vae", 1), ("simclr", 5)]  # other frameworks share their code
PRODUCTS = [pytest.param(*each, marks=pytest.mark.slow if each[1] > 1 else ()) for each in SHARES]
PRODUCTS += [pytest.param(f, 1, marks=pytest.mark.exhaustive) for f in options("framework") if f != "vae"]


@pytest.mark.parametrize(("framework", "share"), PRODUCTS)
def test_every_combination_trains_or_is_refused(framework: str, share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every negatives x temperature x loss, or one of ``share`` of them: two steps with gradients in every weight, or
    the expected refusal.
    """
    monkeypatch.setattr("ssl_bench.networks.backbones.DigitsResNet", OneLayer)
    base = load([f"framework={framework}", "backbone.width=8", "head.out=6", "batch_size.size=8", "seed=1"])
    if base["head"]["hidden"] is not None:
        base["head"] |= {"layers": 2, "hidden": 8}
    if base["framework"].get("predictor"):
        base["framework"]["predictor"] = 8
    own_objective = has_own_objective(framework)
    base["framework"] |= {"clusters": 3} if "clusters" in base["framework"] else {}
    images = [torch.randn(3, IMAGES, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(s)) for s in range(2)]
    counts: Counter[str | None] = Counter()
    every = list(itertools.product(*(options(group) for group in OBJECTIVE)))
    some = random.Random(0).sample(every, len(every) // share)
    assert all({*options(group)} == {*names} for group, names in zip(OBJECTIVE, zip(*some, strict=True), strict=True))
    for names in some:
        chosen = dict(zip(OBJECTIVE, names, strict=True))
        if not own_objective:
            chosen["positives"] = positives_of(chosen["loss"])
        config = base | {group: option(group, name) for group, name in chosen.items()}
        config["choices"] = base["choices"] | chosen
        rules = {} if own_objective else {group: rule_of(group, config["choices"][group]) for group in RULES}
        expected = "own objective" if own_objective else missing_need(rules, framework)
        counts[expected] += 1
        torch.manual_seed(0)
        if expected is not None:
            with pytest.raises(ConfigError) as refused:
                _ = Parts(config).method
            assert [need for need, sentence in REFUSALS.items() if sentence in str(refused.value)] == [expected], chosen
            continue
        method = Parts(config).method
        optimizer = torch.optim.SGD(method.parameters(), 0.01)
        for step, views in enumerate(images):
            batch = Batch([*views[: method.views]], torch.arange(IMAGES), torch.arange(IMAGES) % 3)
            loss, _, kept = method(batch, step / 2)
            optimizer.zero_grad()
            loss.backward()
            assert loss.isfinite(), chosen
            for name, p in method.named_parameters():
                if p.requires_grad:
                    assert p.grad is not None and p.grad.isfinite().all(), (chosen, name)
            assert any(p.grad.any() for p in method.parameters() if p.grad is not None), chosen
            optimizer.step()
            method.update(kept, step / 2)
    print(framework, dict(counts))
    assert own_objective or counts[None] > sum(counts.values()) / 4


# ---- two ranks against one process

POOLS: list[tuple[str, dict[str, Any]]] = [
    ("in_batch", {}),
    ("cross_view", {}),
    ("own_view", {}),
    ("random_k", {"k": 3}),
    ("random_k", {"k": 9}),  # marks the candidates that are left out instead of listing the chosen ones
    ("random_k", {"k": 3, "views": "cross", "shared": True}),
    ("queue", {"k": 5}),
    ("queue", {"k": 40}),
    ("random_k", {"k": 2, "final": 11, "schedule": "linear"}),
    ("queue", {"k": 37, "final": 3, "schedule": "cosine"}),
    ("memory_bank", {"instances": 100}),
    ("memory_bank", {"instances": 100, "k": 7}),
    ("none", {}),
]


def encoder(norm: bool = True) -> Siamese:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(9, 12), *([nn.BatchNorm1d(12)] if norm else []), nn.Tanh())
    return Siamese(backbone, MLP(12, 2, None, 6, norm=norm, final_norm="scale" if norm else "none"))


Nodes = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]


def nodes_of(loss: str, negatives: str, settings: dict[str, Any], positives: str = "") -> Nodes:
    """The nodes of the parts of an objective. The ranks get nodes, since composing takes longer than training."""
    node, chosen = option("loss", loss), option("positives", positives or positives_of(loss))
    instances = {"instances": 100} if has_argument(node, "loss", "instances") else {}
    return node | instances, option("negatives", negatives) | settings, chosen


def method_of(nodes: Nodes, norm: bool = True) -> Contrastive | None:
    """A small network with the temperature of MACL-a, in double precision; None if the parts do not fit."""
    objective, pool, positives = map(build, nodes, ("loss", "negatives", "positives"))
    try:
        return Contrastive(encoder(norm), pool, MACLa(0.2, 2.0), objective, positives=positives).double()
    except MissingNeed:
        return None


def batches(steps: int, images: int = IMAGES) -> Iterator[Batch]:
    """This rank's share of each step's images."""
    generator = torch.Generator().manual_seed(3)
    share = images // world()
    rows = slice(rank() * share, (rank() + 1) * share)
    for _ in range(steps):
        views = torch.randn(2, images, 1, 3, 3, generator=generator, dtype=torch.float64)
        views[1] += views[0]
        ids = torch.randperm(2 * images, generator=generator)[:images]  # some are seen again
        yield Batch([*views[:, rows]], ids[rows], ids[rows] % 4 - 1)


def weights(method: Method) -> Tensor:
    return torch.cat([p.detach().flatten() for p in method.parameters()])


def trained(method: Contrastive, steps: int = 6) -> Tensor:
    """All weights after some steps of SGD."""
    group_statistics(method, 1)
    network = parallel(method, torch.device("cpu"))
    optimizer = torch.optim.SGD(method.parameters(), 0.1, momentum=0.9)
    for step, batch in enumerate(batches(steps)):
        optimizer.zero_grad()
        loss, _, kept = network(batch, step / steps)
        loss.backward()
        optimizer.step()
        method.update(kept, step / steps)
    return weights(method)


def all_trained(combinations: dict[str, Nodes], rank: int | None = None) -> dict[str, Tensor]:
    """The weights by combination: after six steps with a queue, which is then full once, and after three without."""
    methods = {name: method_of(nodes) for name, nodes in combinations.items()}
    return {n: trained(method, 6 if "queue" in n else 3) for n, method in methods.items() if method is not None}


def named(combinations: list[tuple[Any, ...]]) -> dict[str, Nodes]:
    return {" ".join(map(str, each)): nodes_of(*each) for each in combinations}


EVERY = [(loss, *pool) for loss in options("loss") for pool in POOLS]
NEAREST = [
    (loss, *pool, "nearest") for loss, pool in zip(("dcl", "relic", "byol"), POOLS[:2] + POOLS[-1:], strict=True)
]


def errors(ranks: list[dict[str, Tensor]], alone: dict[str, Tensor]) -> dict[str, float]:
    return {
        name: max(float((found[name] - expected).norm() / expected.norm()) for found in ranks)
        for name, expected in alone.items()
    }


def fits(loss: str, negatives: str, settings: dict[str, Any]) -> bool:
    """Whether a loss can be trained with SimCLR and these negatives; the keys of one view are aligned."""
    pool = "cross_view" if settings.get("views") == "cross" else negatives
    if negatives == "random_k" and positives_of(loss) == "label":
        return False
    chosen = {"framework": "simclr", "temperature": "macl_a", "loss": loss, "negatives": pool}
    chosen["positives"] = positives_of(loss)
    return missing_need({group: rule_of(group, name) for group, name in chosen.items()}) is None


@pytest.mark.exhaustive
def test_two_ranks_train_as_one_with_every_loss_and_negatives() -> None:
    combinations = named(EVERY + NEAREST)
    alone = all_trained(combinations)
    found = errors(on_two_ranks(functools.partial(all_trained, combinations)), alone)
    print(f"{len(found)} combinations, largest relative difference {max(found.values()):.1e}")
    assert set(found) == set(named([each for each in EVERY if fits(*each)] + NEAREST))
    assert max(found.values()) < 1e-12, found


# ---- chunks against the whole batch


def _chunked(method: Contrastive, chunk: int) -> Tensor:
    optimizer = torch.optim.SGD(method.parameters(), 0.1, momentum=0.9)
    for step, batch in enumerate(batches(3)):
        optimizer.zero_grad()
        part = functools.partial(select, batch)
        chunks = chunked.backward(
            method, part, len(batch.ids), chunk, step / 3, True, contextlib.nullcontext, lambda loss: loss
        )
        average_gradients(method)
        optimizer.step()
        method.update(chunks.kept, step / 3)
    return weights(method)


def _chunked_on_a_rank(nodes: Nodes, norm: bool, rank: int) -> Tensor:
    method = method_of(nodes, norm)
    assert method is not None
    if norm:
        group_statistics(method, 1)
    return _chunked(method, 2)


@pytest.mark.parametrize("loss", options("loss"))
def test_chunks_give_the_gradient_of_the_batch(loss: str) -> None:
    """With InfoNCE of all pools, with each other loss of one of a kind."""
    pools = POOLS if loss == "infonce" else {name: (name, settings) for name, settings in reversed(POOLS)}.values()
    each_pool = [(loss, *pool) for pool in pools] + [each for each in NEAREST if each[0] == loss]
    for nodes in named(each_pool).values():
        pair = [method_of(nodes, norm=False) for _ in range(2)]
        if pair[0] is not None and pair[1] is not None:
            torch.testing.assert_close(_chunked(pair[0], 2), trained(pair[1], 3), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("norm", [False, True])
def test_chunks_on_two_ranks_give_the_gradient_of_one_process(norm: bool) -> None:
    """Without batch statistics that of the whole batch; with them, that of chunks of the same images."""
    nodes = nodes_of("dclw", "random_k", {"k": 3})
    method = method_of(nodes, norm)
    assert method is not None
    expected = _chunked(method, 4) if norm else trained(method, 3)
    for found in on_two_ranks(functools.partial(_chunked_on_a_rank, nodes, norm)):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def test_chunks_move_running_statistics_once_and_repeat_dropout() -> None:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(9, 12), nn.BatchNorm1d(12), nn.Dropout(0.5))
    framework = Siamese(backbone, MLP(12, 1, None, 6, final_norm="none"), momentum=0.9)
    negatives, loss = build(option("negatives", "in_batch"), "negatives"), build(option("loss", "infonce"), "loss")
    method = Contrastive(framework, negatives, Fixed(0.2), loss).double()
    (batch,) = batches(1)
    halves = [select(batch, rows) for rows in (slice(0, None, 2), slice(1, None, 2))]
    masks: list[Tensor] = []
    backbone[3].register_forward_hook(lambda module, inputs, output: masks.append(output.detach() != 0))
    linear, norm = backbone[1], backbone[2]
    once = copy.deepcopy(norm)
    for half in halves:
        once(linear(torch.cat(half.views).flatten(1)))
    part = functools.partial(select, batch)
    chunked.backward(method, part, 8, 4, 0.0, False, contextlib.nullcontext, lambda loss: loss)
    torch.testing.assert_close(norm.running_mean, once.running_mean)
    torch.testing.assert_close(norm.running_var, once.running_var)
    assert torch.equal(masks[0], masks[2]) and torch.equal(masks[1], masks[3]) and not torch.equal(masks[0], masks[1])
