"""What an evaluator judges: a frozen network, or raw pixels, on a labelled train and test split.

An evaluator is a class whose constructor takes its settings and whose ``run(target)`` yields ``(name, value)`` pairs;
a value is a number, or an artifact where one number does not say it. It runs on every rank together and gives the same
numbers on any number of ranks. The caller adds the prefix, so one evaluator serves the trained network, the randomly
initialised one and the raw pixels. It may also have a ``check(target)``, which looks at no image and raises ValueError
where it could not run, so that this is told before the training; the sentence begins with the setting that is wrong.

Shapes: N images of a split, n images of a batch, C channels, D backbone width, P projection width.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, pairwise
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from ssl_bench.data.arrays import Source, Taken
from ssl_bench.data.pixels import sizes
from ssl_bench.data.views import Views
from ssl_bench.distributed import gather, rank, world
from ssl_bench.errors import RunError
from ssl_bench.evaluate.artifacts import Artifact

SplitName = Literal["train", "test"]


class Evaluator(Protocol):
    def run(self, target: "Target") -> Iterator[tuple[str, float | Artifact]]: ...


@contextmanager
def frozen(network: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradient; afterwards every module has its own mode back.

    Raises RuntimeError if a parameter or buffer was written meanwhile: tensors count their in-place writes, so the
    check costs neither a copy nor a synchronisation.
    """
    modes = [(module, module.training) for module in network.modules()]
    before = {name: (tensor, tensor._version) for name, tensor in _state(network)}
    network.eval()
    try:
        with torch.no_grad():  # not inference_mode: a classifier may be trained on what comes out
            yield
    finally:
        for module, training in modes:
            module.training = training
    after = {name: (tensor, tensor._version) for name, tensor in _state(network)}
    for name in before.keys() | after.keys():
        (old, version), (new, now) = before.get(name, (None, 0)), after.get(name, (None, 0))
        if old is not new or version != now:
            raise RuntimeError(f"evaluation must leave the network as it was, but {name} was written during forward")


def _state(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return chain(network.named_parameters(), network.named_buffers())


def parts(backbone: nn.Module, layers: Sequence[str]) -> list[nn.Module]:
    """The modules of those names. Raises ValueError if there is none."""
    modules = dict(backbone.named_modules(remove_duplicate=False))
    for layer in layers:
        if layer not in modules:
            have = ", ".join(name for name, _ in backbone.named_children())
            raise ValueError(f"layers: the backbone has no {layer}; set layers to some of {have}")
    return [modules[layer] for layer in layers]


@contextmanager
def tapped(
    backbone: nn.Module, layers: Sequence[str], keep: Callable[[Any], Any] = lambda output: output
) -> Iterator[dict[str, Any]]:
    """``keep`` of what the named modules give in the forward passes meanwhile, which are not compiled.

    A network that was compiled before would not call hooks that are added now.
    """
    seen: dict[str, Any] = {}

    def hook(layer: str, _: nn.Module, __: object, output: Any) -> None:
        seen[layer] = keep(output)

    modules = zip(layers, parts(backbone, layers), strict=True)
    handles = [module.register_forward_hook(partial(hook, layer)) for layer, module in modules]
    try:
        with torch.compiler.set_stance("force_eager"):
            yield seen
    finally:
        for handle in handles:
            handle.remove()


class Target:
    """A network (or raw pixels) with the two splits it is judged on.

    Args:
        network: module on ``device`` that maps a batch of views to ``{"backbone": [n, D], "projection": [n, P]}``,
            unnormalised; None judges the raw pixels, whose only features are "backbone": pixels / 255, flattened.
        train, test: the labelled splits. Nothing is ever chosen on ``test``.
        num_classes: labels lie in [0, num_classes).
        view: the test-time transform, images on ``device`` -> float [n, C, h, w]. Raw pixels skip it.
        device: where features are computed and kept.
        seed: what evaluators seed their generators with.
        batch_size: images per forward of one rank.
        autocast: type for mixed precision of the forward; None computes as the network is.
        augment: how each view of an image was made in training, the global crops first; empty: not known.
        pretrain: opens the images that the network was trained on; None: not known.
    """

    def __init__(
        self,
        network: nn.Module | None,
        train: Source,
        test: Source,
        *,
        num_classes: int,
        view: Callable[[Any], Tensor],
        device: torch.device | str,
        seed: int,
        batch_size: int = 512,
        autocast: torch.dtype | None = None,
        augment: Sequence[Views] = (),
        pretrain: Callable[[], Source] | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        self.network, self.view = network, view
        self.train, self.test = train, test
        self.num_classes, self.seed, self.batch_size, self.autocast = num_classes, seed, batch_size, autocast
        self.device, self.augment, self.pretrain = torch.device(device), augment, pretrain
        self._features: dict[SplitName, dict[str, Tensor]] = {}

    def split(self, name: SplitName) -> Source:
        return {"train": self.train, "test": self.test}[name]

    def labels(self, name: SplitName) -> Tensor:
        """Labels [N] on the device. Raises ValueError if one is outside [0, num_classes)."""
        labels = self.split(name).labels
        if labels.min() < 0 or labels.max() >= self.num_classes:
            raise ValueError(
                f"{name} labels must lie in [0, {self.num_classes}), found {int(labels.min())} to {int(labels.max())}: "
                "unlabelled images (-1) cannot be judged on, set dataset to one with labels"
            )
        return labels.to(self.device)

    def features(self, name: SplitName) -> dict[str, Tensor]:
        """Features of a split in its order, float32 on the device: "backbone" [N, D] and "projection" [N, P].

        Every image goes through the network once, on one rank, however often this is called.
        """
        if name not in self._features:
            self._features[name] = self._extract(self.split(name))
        return self._features[name]

    def load(self, source: Source, ids: Tensor) -> Taken:
        """Images of a split on the device; from pinned memory, so that a GPU is not waited for."""
        taken = source.take(ids)
        return self._load(taken) if isinstance(taken, Tensor) else [self._load(image) for image in taken]

    def _load(self, images: Tensor) -> Tensor:
        if self.device.type == "cuda" and images.device.type == "cpu":
            images = images.contiguous().pin_memory()
        return images.to(self.device, non_blocking=True)

    def embed(self, views: Tensor) -> dict[str, Tensor]:
        """The frozen network's float32 outputs for float views [n, C, h, w], without gradient."""
        if self.network is None:
            return {"backbone": views.flatten(1)}
        mixed = torch.autocast(self.device.type, self.autocast, enabled=self.autocast is not None)
        with frozen(self.network), mixed:
            views = views.to(next(self.network.parameters(), views).dtype)
            return {name: output.float() for name, output in self.network(views).items()}

    def positives(self, name: SplitName, ids: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """Two random training views of the images ``ids`` [n] of a split, float32: [2, n, D] and [2, n, P] as above.

        Every rank sends its share through the network and has all of them; what is drawn from ``generator``, which is
        on the CPU, does not depend on the number of ranks. For networks whose ``augment`` is known.
        """

        def views(augment: Views, uniform: Tensor, rows: Tensor) -> Tensor:
            images = self.load(self.split(name), ids[rows])
            uniform = uniform[rows].to(self.device, non_blocking=True)
            return augment.apply(images, augment.parameters(uniform, *sizes(images)))

        made = [partial(views, augment, augment.uniform(len(ids), generator)) for augment in self.augment[:2]]
        both = [self._sharded(len(ids), view) for view in made]
        return {output: torch.stack([each[output] for each in both]) for output in both[0]}

    def _extract(self, images: Source) -> dict[str, Tensor]:
        def views(rows: Tensor) -> Tensor:
            batch = self.load(images, rows)
            return self._raw(batch) if self.network is None else self.view(batch)

        return self._sharded(len(images), views)

    def _sharded(self, count: int, views: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """The outputs for ``views(rows)`` of the rows 0 .. count - 1, in that order, each computed on one rank."""
        ends = [count * r // world() for r in range(world() + 1)]  # shard sizes differ by at most one
        first, last = ends[rank()], max(ends[rank() + 1], ends[rank()] + 1)  # an empty shard still learns the widths
        rows = -(-count // world())
        shard: dict[str, Tensor] = {}
        for start in range(first, last, self.batch_size):
            seen = torch.arange(start, min(start + self.batch_size, last))
            for name, output in self.embed(views(seen)).items():
                if name not in shard:
                    shard[name] = output.new_zeros(rows, output.shape[1])
                shard[name][start - first : start - first + len(output)] = output
        return {name: self._join(padded, ends) for name, padded in shard.items()}

    @staticmethod
    def _raw(images: Taken) -> Tensor:
        if not isinstance(images, Tensor):
            raise RunError("images of many sizes have no raw pixels to compare: set evaluate.baselines=[init]")
        return images.float() / 255

    @staticmethod
    def _join(padded: Tensor, ends: list[int]) -> Tensor:
        """The ranks' shards, padded to equal length, as one tensor in the split's order."""
        rows, joined = len(padded), gather(padded)
        for r, (first, last) in enumerate(pairwise(ends)):
            if first < r * rows:  # moved up in place: a second copy of all can be more than there is memory for
                joined[first:last] = joined[r * rows :][: last - first].clone()
        return joined[: ends[-1]]
