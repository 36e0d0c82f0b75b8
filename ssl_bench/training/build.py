"""Build what a configuration describes: data, views and optimiser as a :class:`Run`, its networks and its evaluators.

Networks are apart since their weights are drawn from the global generator (:func:`method`), and evaluators since a run
can be read without them (:func:`evaluators`).
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ssl_bench import files
from ssl_bench.config import identity, plugins
from ssl_bench.config.build import build as make
from ssl_bench.config.build import find_target, has_argument, open_dataset
from ssl_bench.config.identity import SOURCE, name_of_labels, untrained
from ssl_bench.config.labelled import with_labels
from ssl_bench.data.dataset import Dataset, Probe
from ssl_bench.data.pixels import EvalView
from ssl_bench.data.views import Views
from ssl_bench.errors import ConfigError, RunError, require
from ssl_bench.evaluate.few_labels import FewLabels
from ssl_bench.evaluate.target import Evaluator, Target
from ssl_bench.methods.base import Framework, Method
from ssl_bench.methods.contrastive import Contrastive, MissingNeed
from ssl_bench.networks.encoder import freeze
from ssl_bench.networks.trial import try_backbone
from ssl_bench.objective.positives import OtherView
from ssl_bench.record import checkpoint
from ssl_bench.training.precision import Precision

OBJECTIVE = ("negatives", "temperature", "loss")
NETWORKS = ("backbone", "head", "framework", "init", "dataset", "paths", "plugins")  # what the networks depend on
MOST_VIEWS = 64  # of one kind
TILED = {"auto": None, "dense": False, "tiled": True}  # by the key ``cosines``
Config = dict[str, Any]
Evaluators = dict[str, Evaluator]  # by the name that begins their metrics


class InitialWeights(ConfigError):
    """The weights that a run began with are not there any more."""


class Shared:
    """What runs of a grid have in common is built once for all; runs that differ in the seed only count as equal."""

    def __init__(self) -> None:
        self._made: dict[str, dict[str, Any]] = {}

    def once(self, part: str, config: Config, keys: Sequence[str], build: Callable[[], Any]) -> Any:
        """Call ``build``, or repeat the result or the error that it had for equal nodes at these keys.

        Modules take memory: only the last one of a part is kept.
        """
        results, nodes = self._made.setdefault(part, {}), text_without_seed(config, keys)
        if nodes not in results:
            try:
                made = build()
            except ConfigError as error:
                made = error
            if isinstance(made, nn.Module):
                results.clear()
            results[nodes] = made
        if isinstance(results[nodes], ConfigError):
            raise results[nodes].with_traceback(None)
        return results[nodes]


@dataclass(frozen=True)
class Run:
    """What a configuration describes, but for networks and evaluators.

    Attributes:
        dataset: whose files are opened when images are asked for.
        evaluated: the datasets that networks are evaluated on: node of ``evaluate.on``, name and dataset of each.
        views: how each view of an image is made, the global crops first.
        recipe: of the optimiser, a :class:`ssl_bench.training.optim.Recipe`.
    """

    config: Config
    dataset: Dataset
    evaluated: list[tuple[Any, str, Dataset]]
    views: list[Views]
    recipe: Any
    shared: Shared


def build(config: Config, shared: Shared | None = None) -> Run:
    """Build what a configuration describes, but for networks and evaluators.

    Raises:
        ConfigError: naming the key and what to set.
    """
    shared = shared or Shared()
    images, nodes = dataset(config, shared), identity.datasets_of(config["evaluate"])
    evaluated = [(node, node["dataset"] if node else "", _evaluated(config, images, node)) for node in nodes]
    recipe = make(config["optimizer"], "optimizer")
    return Run(config, images, evaluated, views(config), recipe, shared)


def text_without_seed(config: Config, keys: Sequence[str]) -> str:
    """Nodes of a configuration as JSON, without the run's seed."""

    def seedless(node: Any) -> Any:
        if not isinstance(node, Mapping):
            return node
        return {key: seedless(value) for key, value in node.items() if (key, value) != ("seed", config["seed"])}

    return json.dumps([seedless(config.get(key)) for key in keys], sort_keys=True, default=str)


# ---- data and views


def dataset(config: Config, shared: Shared | None = None) -> Dataset:
    """The dataset that is trained on."""
    plugins.versions(config.get("plugins", {}), config)  # their code may have changed since
    node, root = config["dataset"], config["paths"]["data"]
    made: Dataset = (shared or Shared()).once("dataset", config, ("dataset", "paths"), lambda: open_dataset(node, root))
    return made


def _evaluated(config: Config, trained: Dataset, on: Mapping[str, Any] | None) -> Dataset:
    """The dataset of a node of ``evaluate.on``; None: that of the training."""
    if on is None:
        return trained
    node = {key: value for key, value in on.items() if key != "dataset"}
    other: Dataset = open_dataset(node, config["paths"]["data"], "evaluate.on")
    remedy = f"a dataset of images with {trained.channels} channels, as the training has"
    require(other.channels == trained.channels, "evaluate.on", on["dataset"], remedy)
    remedy = f"a dataset of {trained.dtype}, as the training has: this one is of {other.dtype}"
    require(other.dtype == trained.dtype, "evaluate.on", on["dataset"], remedy)
    # Images are resized to the size of the training; of photos the same share of the short side is cut out.
    size, short = trained.size, other.eval_view.get("resize", other.size)
    if other.eval_view or size != other.size:
        other.eval_view |= {"resize": round(short * size / other.size), "size": size}
    return other


def views(config: Config) -> list[Views]:
    """How each view of an image is made, the global crops first.

    ``augment`` is either one node, used for every view that the framework takes, or several named ones with a
    ``count`` each.

    Raises:
        ConfigError: they are too few, or not those that the framework needs.
    """
    framework, name = find_target(config["framework"], "framework"), config["choices"].get("framework")
    node, made, chosen = config["augment"], list[Views](), f"augment={config['choices'].get('augment')}"
    if "_target_" in node:
        made = [make(node, "augment")] * framework.views
    else:
        for kind, crop in node.items():
            times: Any = crop.get("count") if isinstance(crop, dict) else None
            valid = isinstance(times, int) and 1 <= times <= MOST_VIEWS
            require(valid, f"augment.{kind}.count", times, f"a number of views from 1 to {MOST_VIEWS}")
            made += [make({k: v for k, v in crop.items() if k != "count"}, f"augment.{kind}")] * times
    if len(made) < framework.views:
        missing = f"{len(made)} of the {framework.views} views that framework={name} takes"
        raise ConfigError(f"augment makes {missing}: raise the counts")
    exact = issubclass(framework, Method) and framework.trains and not framework.more_views
    if exact and len(made) > framework.views:
        takes = f"framework={name} takes {framework.views}"
        raise ConfigError(f"{chosen} makes {len(made)} views of an image, {takes}: choose another augment")
    for kind, option in framework.needs_views.items():
        if not any(isinstance(view, kind) for view in made):
            needs = f"framework={name} needs views of {kind.__name__}"
            raise ConfigError(f"{needs}: set augment={option} ({chosen} makes none)")
    return made


# ---- networks and objective


def method(run: Run) -> Method:
    """Networks and objective. The weights are drawn from the global generator: seed it first.

    Raises:
        ConfigError: parts that do not fit together.
    """
    config, shared, choices = run.config, run.shared, run.config["choices"]
    made = shared.once("networks", config, NETWORKS, lambda: _networks(run))
    chosen = f"framework={choices.get('framework')}"
    if isinstance(made, Method):  # it has an objective of its own
        read = identity.READ_BY_LOSS if _of_loss(config) else ()
        unused = {g: choices.get(g) for g in OBJECTIVE if config[g] is not None and g not in read}
        unused |= {"similarity": config["similarity"]} if config["similarity"] != "cosine" else {}
        if find_target(config["positives"], "positives") is not OtherView:
            unused["positives"] = choices.get("positives")
        for group, option in unused.items():
            raise ConfigError(f"{group}={option}: {chosen} has no {group}: leave {group} out")
        return made
    for group in OBJECTIVE:
        if config[group] is None:
            raise ConfigError(f"{group}=null: {chosen} needs one: set {group} to an option")
    negatives, temperature, loss, positives = (part(run, group) for group in (*OBJECTIVE, "positives"))
    if "labels" in positives.gives and not (run.dataset.num_classes and run.dataset.one_label):
        needs = f"positives={choices.get('positives')} needs one label for each image"
        has = "several" if run.dataset.num_classes else "none"
        raise ConfigError(f"{needs}: dataset={choices.get('dataset')} has {has}: set positives=view")
    settings = config["reduction"], TILED[config["cosines"]], len(run.views), config["similarity"]
    try:
        return Contrastive(made, negatives, temperature, loss, *settings, positives)
    except MissingNeed as need:
        raise ConfigError(f"{need.group}={choices.get(need.group)} {need}") from need


def part(run: Run, group: str) -> Any:
    """The part of the objective that a group names."""
    return run.shared.once(group, run.config, (group, "dataset", "paths"), lambda: _with_images(run, group))


def _networks(run: Run) -> Framework | Method:
    network, node, choices = backbone(run.config), run.config["head"], run.config["choices"]
    if has_argument(run.config["framework"], "framework", "head") != (node is not None):
        has = "has none" if node else "needs one"
        raise ConfigError(f"head={choices.get('head')}: framework={choices.get('framework')} {has}")
    head = {"head": make(node, "head", inputs=network.num_features)} if node else {}
    made: Framework | Method = _with_images(run, "framework", backbone=network, **head)
    return made


def _with_images(run: Run, group: str, **extra: Any) -> Any:
    """Build the node of a group; one with an argument ``instances`` is given the number of training images."""
    if has_argument(run.config[group], group, "instances"):
        extra["instances"] = run.dataset.check()
    return make(run.config[group], group, **extra)


def backbone(config: Config) -> Any:
    """The backbone with the weights of ``init``, frozen if it is to be.

    Its attribute ``initial_weights`` says in a sentence which weights of the file it has.
    """
    node, init = config["backbone"], config.get("init")
    require(type(node.get("freeze", False)) is bool, "backbone.freeze", node.get("freeze"), "true or false")
    if init:
        from ssl_bench.networks.weights import check_images, load_weights  # only where it is used

        if untrained(config):
            check_images(Path(init["path"]), config["dataset"])
        of_init = initial_weights(init), init["path"], init.get("which")
        load_weights(try_backbone(node, config["dataset"]["channels"], {}), *of_init)  # before it takes memory
    made = make({k: v for k, v in node.items() if k != "freeze"}, "backbone")
    if init:
        made.initial_weights = load_weights(made, *of_init)
    if node.get("freeze"):
        freeze(made)
    return made


def initial_weights(init: Mapping[str, str]) -> dict[str, Tensor]:
    """The weights that a run begins with.

    Raises:
        InitialWeights: they are gone, or are not those that ``init.weights`` says.
        ConfigError: the file holds no weights.
    """
    from ssl_bench.networks.weights import read_weights  # only where it is used

    path, expected = Path(init["path"]), init["weights"]
    try:
        if path.is_dir():
            (weights, digest), expected = checkpoint.backbone(path), expected.partition(SOURCE)[2]
        else:
            with files.open_regular(path) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
            weights = read_weights(path) if digest == expected else {}
    except (OSError, RunError) as error:
        why = getattr(error, "strerror", None) or error
        raise InitialWeights(f"init={path}: {why}: bring back the weights that this run began with") from error
    if expected != digest:
        raise InitialWeights(
            f"init={path}: its weights are not those that this run began with any more: bring them back"
        )
    return weights


def has_no_checkpoint(config: Mapping[str, Any], folder: Path) -> bool:
    """Whether the network of a run is that of its key ``init``, which nothing has trained and nothing has copied."""
    return bool(config["init"]) and untrained(config) and not (folder / checkpoint.FILE).exists()


# ---- evaluators, and what they are run on


def _of_loss(config: Config) -> list[str]:
    """The names of the evaluators that measure the run's loss."""
    nodes = identity.evaluators(config["evaluate"])
    return [name for name, node in nodes.items() if has_argument(node, f"evaluate.{name}", "objective")]


def evaluators(config: Config, on: Any = None, labels: Any = 1.0) -> Evaluators:
    """The evaluators that are run on a node of ``evaluate.on`` with one of ``evaluate.labels``."""
    of_loss, made = _of_loss(config), Evaluators()
    for name in of_loss:
        remedy = f"frozen: evaluate.{name} measures the loss, and no network"
        require(untrained(config), "framework", config["choices"].get("framework"), remedy)
    for name, node in identity.evaluators(config["evaluate"]).items():
        settings, extra = with_labels(name, node, on, labels, config), dict[str, Any]()
        if name in of_loss:
            from ssl_bench.evaluate.of_loss import Objective  # only where it is used

            extra["objective"] = Objective(config["loss"], config["temperature"], config["batch_size"]["size"])
        evaluator = make(settings, f"evaluate.{name}", **extra)
        if evaluator.takes_labels or not name_of_labels(labels):
            made[name] = evaluator
    return made


def cells(
    run: Run, networks: Mapping[str, nn.Module | None], device: torch.device, precision: Precision
) -> Iterator[tuple[tuple[Any, Any], Evaluators, list[tuple[str, Target]]]]:
    """Each node of ``evaluate.on`` with each of ``evaluate.labels``, its evaluators, and networks with their images.

    The targets of one dataset share the features of one pass over its images.

    Args:
        networks: the trained network and baselines by the suffix of their metrics; None stands for raw pixels.
    """
    for on, name, images in run.evaluated:
        whole = [
            ("/".join([suffix, *filter(None, (name, task))]), target(run, network, probe, device, precision, images))
            for task, probe in images.probes().items()
            for suffix, network in networks.items()
        ]
        for labels in run.config["evaluate"].get("labels", [1.0]):
            few = f"/{of}/" if (of := name_of_labels(labels)) else "/"
            targets = [(infix + few, FewLabels.of(one, labels)) for infix, one in whole]
            yield (on, labels), evaluators(run.config, on, labels), targets


def target(
    run: Run, network: nn.Module | None, probe: Probe, device: torch.device, precision: Precision, images: Dataset
) -> Target:
    """A network with a probe of a dataset."""
    mean, std = run.config["dataset"]["mean"], run.config["dataset"]["std"]
    plain: dict[str, Any] = {"mean": [0] * len(mean), "std": [1] * len(mean)}
    return Target(
        network,
        probe.train,
        probe.test,
        num_classes=probe.num_classes,
        view=partial(EvalView(mean=mean, std=std, **images.eval_view), dtype=precision.weights),
        pixels=None if images.has_pixels or not images.eval_view else EvalView(**plain, **images.eval_view),
        device=device,
        seed=run.config["seed"],
        autocast=precision.autocast,
        augment=(run.views * 2)[:2],  # two views, even where training takes one
        choose=probe.choose,
        class_names=images.class_names(),
    )
