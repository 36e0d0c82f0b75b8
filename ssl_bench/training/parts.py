"""The parts of a run, each built once from its configuration."""

import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ssl_bench import files
from ssl_bench.config import plugins
from ssl_bench.config.build import build, find_target, has_argument, open_dataset
from ssl_bench.config.identity import READ_BY_LOSS, SOURCE, datasets_of, evaluators, name_of_labels, text, untrained
from ssl_bench.config.labelled import with_labels
from ssl_bench.data.dataset import Dataset, Probe
from ssl_bench.data.pixels import EvalView
from ssl_bench.data.splits import copies
from ssl_bench.data.views import Views
from ssl_bench.errors import ConfigError, RunError, require
from ssl_bench.evaluate.few_labels import FewLabels
from ssl_bench.evaluate.of_loss import Objective
from ssl_bench.evaluate.target import Evaluator, Target
from ssl_bench.methods.base import Framework, Method
from ssl_bench.methods.contrastive import Contrastive, MissingNeed
from ssl_bench.networks.encoder import freeze
from ssl_bench.networks.trial import try_on_meta
from ssl_bench.networks.weights import check_images, load_weights, read_weights
from ssl_bench.objective.positives import OtherView
from ssl_bench.record import checkpoint
from ssl_bench.training.precision import Precision

log = logging.getLogger("ssl_bench")
OBJECTIVE = ("negatives", "temperature", "loss")
NETWORKS = ("backbone", "head", "framework", "init", "dataset", "paths", "plugins")  # what the networks depend on
MOST_VIEWS = 64  # of one kind
Networks = Mapping[str, nn.Module | None]


class InitialWeights(ConfigError):
    """The weights that a run began with are not there any more."""


def has_no_checkpoint(config: Mapping[str, Any], folder: Path) -> bool:
    """Whether the network of a run is that of its key ``init``, which nothing has trained and nothing has copied."""
    return bool(config["init"]) and untrained(config) and not (folder / checkpoint.FILE).exists()


def initial_weights(init: Mapping[str, str]) -> dict[str, Tensor]:
    """The weights that a run begins with.

    Raises:
        InitialWeights: they are gone, or are not those that ``init.weights`` says.
        ConfigError: the file holds no weights.
    """
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


def text_without_seed(config: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Nodes of a configuration as JSON, without the run's seed."""

    def seedless(node: Any) -> Any:
        if not isinstance(node, Mapping):
            return node
        return {key: seedless(value) for key, value in node.items() if (key, value) != ("seed", config["seed"])}

    return json.dumps([seedless(config.get(key)) for key in keys], sort_keys=True, default=str)


class Parts:
    """The parts of a run. Each is built when it is first used, and then kept.

    Args:
        made: what the parts of other runs have built that are only checked, as a grid is before it starts, and what
            these build; runs that differ in the seed count as equal.
    """

    def __init__(self, config: dict[str, Any], made: dict[str, dict[str, Any]] | None = None) -> None:
        plugins.versions(config.get("plugins", {}))  # the code may have changed since the configuration was composed
        self.config, self.choices = config, config["choices"]
        self.taken = ""  # a sentence about the weights of init that the backbone has, once it is built
        self._made = {} if made is None else made
        self._evaluators: dict[str, Evaluator] = {}  # those that are built, by name and settings

    def once(self, part: str, keys: Sequence[str], make: Callable[[], Any], forget: bool = False) -> Any:
        """Call ``make``, or repeat the result or the error that it had for equal nodes at these keys.

        Args:
            forget: drop the results for other nodes first: modules take memory.
        """
        results, nodes = self._made.setdefault(part, {}), text_without_seed(self.config, keys)
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

    @cached_property
    def dataset(self) -> Dataset:
        """The dataset; its files are opened when images are asked for."""
        node, data = self.config["dataset"], self.config["paths"]["data"]
        made: Dataset = self.once("dataset", ("dataset", "paths"), lambda: open_dataset(node, data))
        return made

    @cached_property
    def evaluated(self) -> list[tuple[Any, str, Dataset]]:
        """The datasets that networks are evaluated on: node of ``evaluate.on``, name and dataset of each."""
        return [(on, on["dataset"] if on else "", self._evaluated(on)) for on in datasets_of(self.config["evaluate"])]

    @cached_property
    def copied(self) -> list[str]:
        """Sentences on the test images of ``evaluate.on`` that are copies of images to train on.

        Files are compared with files, and prepared arrays with such.

        Raises:
            ConfigError: all of the test images of a data set are.
        """
        sentences = list[str]()
        for on, name, data in self.evaluated if not untrained(self.config) else ():
            trained, tested = (self.dataset.originals("train"), data.originals("test")) if on else (None, None)
            if trained is None or tested is None or not (pairs := copies(tested, trained)):
                continue
            (first, original), count = next(iter(pairs.items())), len(tested.marks)
            which = f"test images are copies of images to train on ({tested.name(first)} is {trained.name(original)})"
            if len(pairs) == count:
                remedy = "set evaluate.on to a data set with other test images, or to null"
                raise ConfigError(f"evaluate.on={name}: all {count} {which}: {remedy}")
            sentences.append(f"{name}: {len(pairs)} of {count} {which}")
        return sentences

    def _evaluated(self, on: Mapping[str, Any] | None) -> Dataset:
        if on is None:
            return self.dataset
        node = {key: value for key, value in on.items() if key != "dataset"}
        other: Dataset = open_dataset(node, self.config["paths"]["data"], "evaluate.on")
        remedy = f"a dataset of images with {self.dataset.channels} channels, as the training has"
        require(other.channels == self.dataset.channels, "evaluate.on", on["dataset"], remedy)
        remedy = f"a dataset of {self.dataset.dtype}, as the training has: this one is of {other.dtype}"
        require(other.dtype == self.dataset.dtype, "evaluate.on", on["dataset"], remedy)
        # Images are resized to the size of the training; of photos the same share of the short side is cut out.
        size, short = self.dataset.size, other.eval_view.get("resize", other.size)
        if other.eval_view or size != other.size:
            other.eval_view |= {"resize": round(short * size / other.size), "size": size}
        return other

    @cached_property
    def views(self) -> list[Views]:
        """How each view of an image is made, the global crops first.

        ``augment`` is either one node, used for every view that the framework takes, or several named ones with a
        ``count`` each.

        Raises:
            ConfigError: they are too few, or not those that the framework needs.
        """
        framework, name = find_target(self.config["framework"], "framework"), self.choices.get("framework")
        made = self._made_views(framework.views)
        if len(made) < framework.views:
            missing = f"{len(made)} of the {framework.views} views that framework={name} takes"
            raise ConfigError(f"augment makes {missing}: raise the counts")
        exact = issubclass(framework, Method) and framework.trains and not framework.more_views
        if exact and len(made) > framework.views:
            chosen = f"augment={self.choices.get('augment')} makes {len(made)} views of an image"
            raise ConfigError(f"{chosen}, framework={name} takes {framework.views}: choose another augment")
        for kind, option in framework.needs_views.items():
            if not any(isinstance(views, kind) for views in made):
                chosen = f"augment={self.choices.get('augment')} makes none"
                raise ConfigError(f"framework={name} needs views of {kind.__name__}: set augment={option} ({chosen})")
        return made

    def _made_views(self, count: int) -> list[Views]:
        """The views of ``augment``; ``count`` of them if it does not say how many."""
        node, made = self.config["augment"], list[Views]()
        if "_target_" in node:
            return [build(node, "augment")] * count
        for name, crop in node.items():
            times: Any = crop.get("count") if isinstance(crop, dict) else None
            valid = isinstance(times, int) and 1 <= times <= MOST_VIEWS
            require(valid, f"augment.{name}.count", times, f"a number of views from 1 to {MOST_VIEWS}")
            made += [build({k: v for k, v in crop.items() if k != "count"}, f"augment.{name}")] * times
        return made

    @cached_property
    def recipe(self) -> Any:
        """The optimiser's recipe, a :class:`ssl_bench.training.optim.Recipe`."""
        return build(self.config["optimizer"], "optimizer")

    @cached_property
    def framework(self) -> Framework | Method:
        """The networks. Their weights are drawn from the global generator: seed it first."""
        made: Framework | Method = self.once("networks", NETWORKS, self._networks, forget=True)
        return made

    def _networks(self) -> Any:
        backbone, node, framework = self.backbone, self.config["head"], f"framework={self.choices.get('framework')}"
        if has_argument(self.config["framework"], "framework", "head") != (node is not None):
            raise ConfigError(f"head={self.choices.get('head')}: {framework} {'has none' if node else 'needs one'}")
        head = {"head": build(node, "head", inputs=backbone.num_features)} if node else {}
        return self._built("framework", backbone=backbone, **head)

    @cached_property
    def method(self) -> Method:
        """Networks and objective. The weights are drawn from the global generator: seed it first.

        Raises:
            ConfigError: parts that do not fit together.
        """
        config, framework_name = self.config, self.choices.get("framework")
        framework = self.framework
        if isinstance(framework, Method):  # it has an objective of its own
            read = READ_BY_LOSS if self._of_loss else ()
            unused = {g: self.choices.get(g) for g in OBJECTIVE if config[g] is not None and g not in read}
            unused |= {"similarity": config["similarity"]} if config["similarity"] != "cosine" else {}
            if find_target(config["positives"], "positives") is not OtherView:
                unused["positives"] = self.choices.get("positives")
            for group, option in unused.items():
                raise ConfigError(f"{group}={option}: framework={framework_name} has no {group}: leave {group} out")
            return framework
        for group in OBJECTIVE:
            if config[group] is None:
                raise ConfigError(f"{group}=null: framework={framework_name} needs one: set {group} to an option")
        negatives, temperature, loss, positives = (self.part(group) for group in (*OBJECTIVE, "positives"))
        if "labels" in positives.gives and not (self.dataset.num_classes and self.dataset.one_label):
            chosen = f"positives={self.choices.get('positives')} needs one label for each image"
            has = "several" if self.dataset.num_classes else "none"
            raise ConfigError(f"{chosen}: dataset={self.choices.get('dataset')} has {has}: set positives=view")
        tiled = {"auto": None, "dense": False, "tiled": True}[config["cosines"]]
        reduction, views = config["reduction"], len(self.views)
        try:
            similarity = config["similarity"]
            return Contrastive(framework, negatives, temperature, loss, reduction, tiled, views, similarity, positives)
        except MissingNeed as need:
            raise ConfigError(f"{need.group}={self.choices.get(need.group)} {need}") from need

    @cached_property
    def _of_loss(self) -> list[str]:
        """The names of the evaluators that measure the run's loss."""
        nodes = evaluators(self.config["evaluate"])
        return [name for name, node in nodes.items() if has_argument(node, f"evaluate.{name}", "objective")]

    @cached_property
    def backbone(self) -> nn.Module:
        """The backbone with the weights of ``init``, frozen if it is to be."""
        node, init = self.config["backbone"], self.config.get("init")
        require(type(node.get("freeze", False)) is bool, "backbone.freeze", node.get("freeze"), "true or false")
        if init and untrained(self.config):
            check_images(Path(init["path"]), self.config["dataset"])
        if init:
            of_init = initial_weights(init), init["path"], init.get("which")
            load_weights(try_on_meta(node, self.config["dataset"]["channels"], {}), *of_init)  # before it takes memory
        backbone: nn.Module = build({k: v for k, v in node.items() if k != "freeze"}, "backbone")
        if init:
            self.taken = load_weights(backbone, *of_init)
        if node.get("freeze"):
            freeze(backbone)
        return backbone

    def part(self, group: str) -> Any:
        """The part of the objective that a group names."""
        return self.once(group, (group, "dataset", "paths"), lambda: self._built(group), forget=True)

    def _built(self, group: str, **extra: Any) -> Any:
        """Build the node of a group; one with an argument ``instances`` is given the number of training images."""
        node = self.config[group]
        if has_argument(node, group, "instances"):
            extra["instances"] = self.dataset.check()
        return build(node, group, **extra)

    @cached_property
    def evaluators(self) -> dict[str, Evaluator]:
        """The evaluators by the name that begins their metrics."""
        for name in self._of_loss:
            remedy = f"frozen: evaluate.{name} measures the loss, and no network"
            require(untrained(self.config), "framework", self.choices.get("framework"), remedy)
        return {name: self._evaluator(name, node) for name, node in evaluators(self.config["evaluate"]).items()}

    def evaluators_for(self, on: Any, labels: Any) -> dict[str, Evaluator]:
        """The evaluators that are run on a node of ``evaluate.on`` with one of ``evaluate.labels``, as both ask."""
        return {
            name: self._evaluator(name, with_labels(name, node, on, labels, self.config))
            for name, node in evaluators(self.config["evaluate"]).items()
            if self.evaluators[name].takes_labels or not name_of_labels(labels)
        }

    def _evaluator(self, name: str, node: Mapping[str, Any]) -> Evaluator:
        config, extra = self.config, dict[str, Any]()
        settings = {key: value for key, value in node.items() if key != "hold_out" or value is not None}
        key = text([name, settings])
        if key not in self._evaluators:
            if name in self._of_loss:
                extra["objective"] = Objective(config["loss"], config["temperature"], config["batch_size"]["size"])
            self._evaluators[key] = build(settings, f"evaluate.{name}", **extra)
        return self._evaluators[key]

    def networks(self, trained: nn.Module, initial: nn.Module | None) -> Networks:
        """The trained network and the baselines of ``evaluate.baselines`` by suffix; None stands for raw pixels."""
        networks: dict[str, nn.Module | None] = {"": trained}
        if initial is not None:
            networks["_init"] = initial
        if "raw" in self.config["evaluate"]["baselines"]:
            networks["_raw"] = None
        return networks

    def targets(self, networks: Networks, device: torch.device, precision: Precision) -> Iterator[tuple[str, Target]]:
        """Every network with every probe of the datasets, for :func:`ssl_bench.evaluate.run.run_evaluators`."""
        for _, targets in self.targets_by_data(networks, device, precision):
            yield from targets

    def targets_by_data(
        self, networks: Networks, device: torch.device, precision: Precision
    ) -> Iterator[tuple[tuple[Any, Any], list[tuple[str, Target]]]]:
        """The targets of each node of ``evaluate.on`` with each of ``evaluate.labels``.

        The targets of one dataset share the features of one pass over its images.
        """
        for on, name, dataset in self.evaluated:
            whole = [
                (
                    "/".join([suffix, *filter(None, (name, probe_name))]),
                    self.target(n, probe, device, precision, dataset),
                )
                for (probe_name, probe), (suffix, n) in itertools.product(dataset.probes().items(), networks.items())
            ]
            for labels in self.config["evaluate"].get("labels", [1.0]):
                few = f"/{name}/" if (name := name_of_labels(labels)) else "/"
                yield (on, labels), [(infix + few, FewLabels.of(target, labels)) for infix, target in whole]

    def target(
        self,
        network: nn.Module | None,
        probe: Probe,
        device: torch.device,
        precision: Precision,
        dataset: Dataset | None = None,
    ) -> Target:
        """A network with a probe of a dataset, by default of the training's dataset."""
        node, images = self.config["dataset"], dataset or self.dataset
        view = EvalView(mean=node["mean"], std=node["std"], **images.eval_view)
        plain: dict[str, Any] = {"mean": [0] * len(node["mean"]), "std": [1] * len(node["mean"])}
        return Target(
            network,
            probe.train,
            probe.test,
            num_classes=probe.num_classes,
            view=partial(view, dtype=precision.weights),
            pixels=None if images.has_pixels or not images.eval_view else EvalView(**plain, **images.eval_view),
            device=device,
            seed=self.config["seed"],
            autocast=precision.autocast,
            augment=(self.views * 2)[:2],  # two views, even where training takes one
            choose=probe.choose,
            class_names=images.class_names(),
        )
