"""Build the parts of a run from its configuration.

:func:`build` makes data, views and optimiser; :func:`method` makes networks and objective, whose weights are drawn from
the global generator; :func:`evaluators` makes the evaluators, without which a run can be read.
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
NETWORKS = ("backbone", "head", "framework", "init", "dataset", "paths", "plugins")  # keys that the networks depend on
MOST_VIEWS = 64  # of one kind, such as augment.large
TILED = {"auto": None, "dense": False, "tiled": True}  # by the key ``cosines``
Config = dict[str, Any]
Evaluators = dict[str, Evaluator]  # by the name that begins their metrics


class InitialWeights(ConfigError):
    """The weights of ``init``, with which a run began, are gone or were replaced."""


class Shared:
    """Builds each part once for all runs of a grid that have the same settings of it, whatever their seeds are."""

    def __init__(self) -> None:
        self._made: dict[str, dict[str, Any]] = {}

    def once(self, part: str, config: Config, keys: Sequence[str], build: Callable[[], Any]) -> Any:
        """Call ``build``; after an earlier call with equal settings return its result, or raise its ConfigError again.

        Networks take memory: of each part only the last network is remembered.

        Args:
            part: name under which the result is remembered.
            keys: the settings that the result depends on, at the top of the configuration.
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
    """Data, views and optimiser of a run.

    Attributes:
        dataset: the dataset of the training; its files are opened when images are read.
        evaluated: for each dataset of the evaluation its node of ``evaluate.on``, its name, and the dataset. The
            node of the training's own dataset is None and its name is empty.
        views: how each view of an image is made, the global crops first.
        recipe: optimiser and learning rates, a :class:`ssl_bench.training.optim.Recipe`.
        shared: where :func:`method` remembers networks for other runs of the grid.
    """

    config: Config
    dataset: Dataset
    evaluated: list[tuple[Any, str, Dataset]]
    views: list[Views]
    recipe: Any
    shared: Shared


def build(config: Config, shared: Shared | None = None) -> Run:
    """Build data, views and optimiser of a run.

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
    """Open the dataset of a node of ``evaluate.on``; the node None stands for the dataset of the training."""
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
        ConfigError: there are too few or too many views, or none of a kind that the framework needs.
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
    takes_no_more = issubclass(framework, Method) and framework.trains and not framework.more_views
    if takes_no_more and len(made) > framework.views:
        takes = f"framework={name} takes {framework.views}"
        raise ConfigError(f"{chosen} makes {len(made)} views of an image, {takes}: choose another augment")
    for kind, option in framework.needs_views.items():
        if not any(isinstance(view, kind) for view in made):
            needs = f"framework={name} needs views of {kind.__name__}"
            raise ConfigError(f"{needs}: set augment={option} ({chosen} makes none)")
    return made


# ---- networks and objective


def method(run: Run) -> Method:
    """Build networks and objective. The weights are drawn from the global generator: seed it first.

    Raises:
        ConfigError: two parts do not fit together.
    """
    config, shared, choices = run.config, run.shared, run.config["choices"]
    networks = shared.once("networks", config, NETWORKS, lambda: _networks(run))
    chosen = f"framework={choices.get('framework')}"
    if isinstance(networks, Method):  # it has an objective of its own
        evaluated = identity.READ_BY_LOSS if _evaluators_of_loss(config) else ()
        unused = {g: choices.get(g) for g in OBJECTIVE if config[g] is not None and g not in evaluated}
        unused |= {"similarity": config["similarity"]} if config["similarity"] != "cosine" else {}
        if find_target(config["positives"], "positives") is not OtherView:
            unused["positives"] = choices.get("positives")
        for group, option in unused.items():
            raise ConfigError(f"{group}={option}: {chosen} has no {group}: leave {group} out")
        return networks
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
        return Contrastive(networks, negatives, temperature, loss, *settings, positives)
    except MissingNeed as need:
        raise ConfigError(f"{need.group}={choices.get(need.group)} {need}") from need


def part(run: Run, group: str) -> Any:
    """Build the option of a group of the objective, such as ``negatives``."""
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
    """Build the backbone with the weights of ``init``, and freeze it under ``backbone.freeze``.

    Its attribute ``initial_weights`` is a sentence about the weights that were read from the file of ``init``.
    """
    node, init = config["backbone"], config.get("init")
    require(type(node.get("freeze", False)) is bool, "backbone.freeze", node.get("freeze"), "true or false")
    if init:
        from ssl_bench.networks.weights import check_images, load_weights  # only where it is used

        if untrained(config):
            check_images(Path(init["path"]), config["dataset"])
        weights = initial_weights(init), init["path"], init.get("which")
        load_weights(try_backbone(node, config["dataset"]["channels"], {}), *weights)  # refused before it takes memory
    made = make({k: v for k, v in node.items() if k != "freeze"}, "backbone")
    if init:
        made.initial_weights = load_weights(made, *weights)
    if node.get("freeze"):
        freeze(made)
    return made


def initial_weights(init: Mapping[str, str]) -> dict[str, Tensor]:
    """Read the weights of ``init``, with which a run begins.

    Raises:
        InitialWeights: they are gone, or their hash is not ``init.weights``.
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
    """Whether a run has no weights but those of ``init``: it trains nothing, and no checkpoint was written."""
    return bool(config["init"]) and untrained(config) and not (folder / checkpoint.FILE).exists()


# ---- evaluators, and the networks and images that they evaluate


def _evaluators_of_loss(config: Config) -> list[str]:
    """The names of the evaluators that measure the run's loss."""
    nodes = identity.evaluators(config["evaluate"])
    return [name for name, node in nodes.items() if has_argument(node, f"evaluate.{name}", "objective")]


def evaluators(config: Config, on: Any = None, labels: Any = 1.0) -> Evaluators:
    """Build the evaluators for one dataset (a node of ``evaluate.on``) and one value of ``evaluate.labels``."""
    of_loss, made = _evaluators_of_loss(config), Evaluators()
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
    """Yield for each dataset and each number of labels its key, its evaluators and what they evaluate.

    The key is a node of ``evaluate.on`` with a value of ``evaluate.labels``. There is a target for each network and
    each task of the dataset, with the middle of the names of its metrics, as in ``knn_init/top1``; the targets of one
    dataset share the features of one pass over its images.

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
    """A network and the images of a dataset that it is evaluated on, with the labels of ``probe``."""
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
