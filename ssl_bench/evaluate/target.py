"""The target of an evaluator: a frozen network, or raw pixels, with a labelled train and test split.

An evaluator is a class whose constructor takes its settings and whose ``run(target)`` yields ``(name, value)`` pairs; a
value is a number, or an artifact (artifacts.py) if one number is not enough. It runs on all ranks together and gives
the same numbers on any number of ranks. The caller adds the prefix of a name, so one evaluator serves the trained
network, the network at initialisation and the raw pixels.

Its ``check(target)`` is called before the training and before ``run``. It opens no image, and raises InvalidValue about
an argument of the evaluator or ConfigError about another key; run.py adds the evaluator's name to the sentence.

Shapes: N images of a split, n images of a batch, C channels, D backbone width, P projection width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, dataclass_transform

import torch
from torch import Tensor, nn

from ssl_bench.config.ranges import in_range
from ssl_bench.data.batch import Reader
from ssl_bench.data.pixels import sizes, white
from ssl_bench.data.source import ImageBatch, Source
from ssl_bench.data.views import Views
from ssl_bench.distributed import all_sum, gather, rank, world
from ssl_bench.errors import ConfigError, InvalidValue, RunError
from ssl_bench.evaluate.artifacts import Artifact
from ssl_bench.evaluate.metric import ACCURACIES, Declared
from ssl_bench.signals import stop_if_asked

SplitName = Literal["train", "test", "choose"]


@dataclass_transform(eq_default=False, field_specifiers=(field,))
class Evaluator(ABC):
    """Base of the evaluators, described above.

    A subclass without a constructor is a dataclass of its settings: its annotated attributes are those of its
    constructor, in their order, or keywords only after ``kw_only=True`` in its bases. Every constructor checks the
    ranges in its annotations.

    Attributes:
        needs_labels: whether it yields nothing for images without classes.
        needs_network: whether it is skipped for raw pixels.
        reads_images: whether it yields nothing without images.
        needs_projection: whether it yields nothing, or less than its settings request, for a network without a head.
        takes_labels: whether it is run for each of ``evaluate.labels``; other evaluators are run once, on all labels.
        metrics: the meaning of its numbers, by name, in which ``*`` is any text. Of a number without an entry, neither
            a higher nor a lower value is better. The meanings are recorded with the numbers.
    """

    needs_labels: ClassVar[bool] = False
    needs_network: ClassVar[bool] = False
    reads_images: ClassVar[bool] = True
    takes_labels: ClassVar[bool] = False
    needs_projection: bool = False  # of some, their settings decide
    metrics: ClassVar[Declared] = ACCURACIES

    def __init_subclass__(cls, kw_only: bool = False) -> None:
        if "__init__" not in vars(cls):
            dataclass(eq=False, kw_only=kw_only)(cls)
        in_range(cls)

    @abstractmethod
    def run(self, target: "Target") -> Iterator[tuple[str, float | Artifact]]:
        """Evaluate a network; yield names and values."""

    def check(self, target: "Target") -> None:
        """Refuse a target that the evaluator cannot work with, such as one without the labels that it needs."""
        if self.needs_labels:
            target.labels("train"), target.labels("test")

    def warnings(self, target: "Target") -> Iterator[str]:
        """Yield sentences about settings that are allowed but not suitable for a target."""
        return iter(())


@contextmanager
def frozen(network: nn.Module) -> Iterator[None]:
    """Put the network into evaluation mode without gradient; afterwards every module has its previous mode."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        with torch.no_grad():  # not inference_mode: a classifier may be trained on the outputs
            yield
    finally:
        for module, training in modes:
            module.training = training


def submodules(backbone: nn.Module, layers: Sequence[str]) -> list[nn.Module]:
    """The modules of a backbone by their names. Raises InvalidValue if there is none of a name."""
    try:
        return [backbone.get_submodule(layer) for layer in layers]
    except AttributeError as error:
        children = ", ".join(name for name, _ in backbone.named_children())
        raise InvalidValue("layers", list(layers), f"modules of the backbone, such as {children}: {error}") from error


@contextmanager
def captured_outputs(
    backbone: nn.Module, layers: Sequence[str], transform: Callable[[str, Any], Any] = lambda _, output: output
) -> Iterator[dict[str, Any]]:
    """Collect ``transform(layer, output)`` of the named modules in the forward passes inside the block.

    These passes are not compiled, because a compiled network ignores hooks that are added after its compilation.
    """
    outputs: dict[str, Any] = {}

    def hook(layer: str, _: nn.Module, __: object, output: Any) -> None:
        outputs[layer] = transform(layer, output)

    modules = zip(layers, submodules(backbone, layers), strict=True)
    handles = [module.register_forward_hook(partial(hook, layer)) for layer, module in modules]
    try:
        with torch.compiler.set_stance("force_eager"):
            yield outputs
    finally:
        for handle in handles:
            handle.remove()


def make_views(views: Views, uniform: Tensor, images: ImageBatch, dtype: torch.dtype = torch.float32) -> Tensor:
    """Views of n images, on their device, from the random numbers [n, ...] of each."""
    uniform = uniform.to(images[0].device, non_blocking=True)
    return views.apply(images, views.parameters(uniform, *sizes(images)), dtype)


@dataclass(eq=False)
class Target:
    """A network (or raw pixels) with the two splits that it is evaluated on.

    Args:
        network: module on ``device`` that maps a batch of views to ``{"backbone": [n, D], "projection": [n, P]}``,
            unnormalised; None stands for raw pixels: their only features are "backbone", ``pixels``, flattened.
        train, test: the labelled splits. Nothing is ever chosen on ``test``.
        num_classes: labels lie in [0, num_classes).
        view: the test-time transform, images on ``device`` -> float [n, C, h, w].
        pixels: the same for raw pixels; None: images of one size, divided by 255 if they are uint8.
        device: device, or its name, on which features are computed and stored.
        seed: seed for the generators of the evaluators.
        batch_size: images per forward pass of one rank.
        autocast: type for mixed precision of the forward pass; None: the network's own type.
        augment: the transform of each training view, global crops first; empty for a network from elsewhere.
        choose: the split that settings are chosen by; None: a part of ``train``.
        class_names: in the order of the labels; empty: classes are named by their numbers.
        state_file: where a long evaluation saves its state, from which it resumes if the run is started again; None:
            the state is not saved.
    """

    network: nn.Module | None
    train: Source
    test: Source
    _: KW_ONLY
    num_classes: int
    view: Callable[[Any], Tensor]
    pixels: Callable[[Any], Tensor] | None = None
    device: Any
    seed: int
    batch_size: int = 512
    autocast: torch.dtype | None = None
    augment: Sequence[Views] = ()
    choose: Source | None = None
    class_names: Sequence[str] = ()
    state_file: Path | None = None

    def __post_init__(self) -> None:
        self.device, self._features = torch.device(self.device), dict[SplitName, dict[str, Tensor]]()

    def split(self, name: SplitName) -> Source:
        source: Source = getattr(self, name)
        return source

    def twins(self, name: SplitName) -> Tensor | None:
        """``twins`` of a split, as of a :class:`ssl_bench.data.source.Source`."""
        return self.split(name).twins

    def labels(self, name: SplitName) -> Tensor:
        """Labels [N] of a split, on the device.

        Raises:
            ConfigError: a label is outside [0, num_classes).
        """
        labels = self.split(name).labels
        if not self.num_classes:
            raise ConfigError("the images have no classes: set evaluate to evaluators that need none, such as geometry")
        if labels.min() < 0 or labels.max() >= self.num_classes:
            values = f"{int(labels.min())} to {int(labels.max())}, not in [0, {self.num_classes})"
            remedy = "set dataset to one without unlabelled images (-1), or evaluate to evaluators that need no labels"
            raise ConfigError(f"{name} labels are {values}: {remedy}")
        return labels.to(self.device)

    def unlabelled(self) -> list[str]:
        """The classes of test images that no labelled training image has; an empty list for images without classes."""
        train, test = self.train.labels.cpu(), self.test.labels.cpu()
        if not self.num_classes or train.ndim != 1 or test.ndim != 1:
            return []
        return self.names_of({*test.tolist()} - {*train.tolist(), -1})

    def names_of(self, classes: set[int]) -> list[str]:
        """The names of some classes, or their numbers, in the order of these."""
        names = self.class_names if len(self.class_names) == self.num_classes else range(self.num_classes)
        return [str(names[label]) for label in sorted(classes) if label < self.num_classes]

    def features(self, name: SplitName) -> dict[str, Tensor]:
        """Features of a split in its order, on every rank: "backbone" [N, D] and "projection" [N, P], float32.

        Every image passes through the network once, on one rank; later calls return the same tensors.
        """
        if name not in self._features:
            source = self.split(name)
            self._features[name] = self.outputs(source, torch.arange(len(source)))
        return self._features[name]

    def load(self, source: Source, ids: Tensor) -> ImageBatch:
        """Read the images ``ids`` [n] of a split and copy them to the device."""
        return Reader(source, self.device).take(ids).images

    def embed(self, views: Tensor) -> dict[str, Tensor]:
        """The frozen network's float32 outputs for float views [n, C, h, w], without gradient."""
        if self.network is None:
            return {"backbone": views.flatten(1)}
        mixed = torch.autocast(self.device.type, self.autocast, enabled=self.autocast is not None)
        with frozen(self.network), mixed:
            views = views.to(next(self.network.parameters(), views).dtype)
            return {name: output.float() for name, output in self.network(views).items()}

    def positives(self, name: SplitName, ids: Tensor, generator: torch.Generator, views: int = 2) -> dict[str, Tensor]:
        """Outputs for random training views of the images ``ids`` [n] of a split, float32: [views, n, D] and [.., P].

        Every rank computes a share of the outputs and returns all of them. What is drawn from ``generator``, which is
        on the CPU, does not depend on the number of ranks. The target must have a network and an ``augment``.
        """

        def of_rows(augment: Views, uniform: Tensor, rows: Tensor, images: ImageBatch) -> Tensor:
            return make_views(augment, uniform[rows], images)

        augments = [self.augment[view % 2] for view in range(views)]
        makers = [partial(of_rows, augment, augment.uniform(len(ids), generator)) for augment in augments]
        pair = [self._outputs(self.split(name), ids, maker) for maker in makers]
        return {output: torch.stack([outputs[output] for outputs in pair]) for output in pair[0]}

    def outputs(self, source: Source, ids: Tensor) -> dict[str, Tensor]:
        """The features of the images ``ids`` [n] of any source, in that order; ``ids`` is on the source's device."""
        view = self.view if self.network is not None else self.pixels or (lambda images: images.float() / white(images))
        return self._outputs(source, ids, lambda _, images: view(images))

    def _outputs(
        self, source: Source, ids: Tensor, make_views: Callable[[Tensor, ImageBatch], Tensor]
    ) -> dict[str, Tensor]:
        """Outputs for the images ``ids`` [n], in that order, each computed on one rank.

        ``make_views`` gets the rows of a batch in ``ids`` and its images, which threads read in advance.

        Raises:
            RunError: an output is not finite, or its length is not.
        """
        share = -(-len(ids) // world())
        first = min(share * rank(), len(ids) - 1)  # an empty share computes an image too, to find the widths
        last = max(first + 1, min(share * (rank() + 1), len(ids)))
        rows: dict[str, Tensor] = {}
        batches = torch.arange(first, last).split(self.batch_size)
        read = Reader(source, self.device).batches(ids[batch] for batch in batches)
        for batch, (_, images, _) in zip(batches, read, strict=True):
            stop_if_asked()
            start = int(batch[0]) - first
            for name, output in self.embed(make_views(batch, images)).items():
                if name not in rows:
                    rows[name] = output.new_zeros(share, output.shape[1])
                rows[name][start : start + len(output)] = output
        for name, output in rows.items():
            if all_sum((~output.norm(dim=1).isfinite()).sum()):
                raise RunError(f"outputs of the network ({name}) are not finite: a smaller optimizer.lr may help")
        return {name: gather(output)[: len(ids)] for name, output in rows.items()}
