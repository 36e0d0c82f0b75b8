"""Base classes: a method is networks and an objective on their outputs, the one module that is trained.

Shapes: V anchor views; B images on this rank; D width; F features of the backbone.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from torch import Tensor, nn

from ssl_bench.errors import require
from ssl_bench.networks.norm import average_running_statistics, count_steps
from ssl_bench.objective.contrast import Bank, Embedded
from ssl_bench.objective.sampling import StepGenerator
from ssl_bench.objective.schedule import Progress
from ssl_bench.objective.temperature import Temperature

if TYPE_CHECKING:  # they read images: a loss needs torch alone
    from ssl_bench.data.batch import Batch
    from ssl_bench.data.views import Views

Norm = Literal["sync", "shuffle", "local"]
Outputs = dict[str, Tensor]  # each [V, B, ...], so that those of several chunks of a batch can be joined


class StepResult(NamedTuple):
    """The result of a forward pass."""

    loss: Tensor  # [], the mean over this rank
    diagnostics: dict[str, Tensor]
    for_update: Any = None  # what update needs of this batch, detached: a dataclass, which DDP leaves unchanged


class WithNetworks(nn.Module, ABC):
    """The networks of a method or of a framework.

    Attributes:
        encoder: maps views [B, channels, H, W] to ``{"backbone": [B, F], "projection": [B, D]}``; it is evaluated.
        norm: ``sync``: batch statistics are over the global batch; ``local``: over each of ``groups`` equal slices of
            it; ``shuffle``: as ``local``, with other images in a group for the momentum network.
        groups: G, 1 for ``sync``. It does not depend on the number of ranks, which must divide it unless it is 1.
        views: number of views of an image that a method takes, the smallest number that a framework takes.
        more_views: whether a method takes more than ``views``; one that does not is refused with more.
        needs_views: classes of which at least one of an image's views must be, each with the option of ``augment`` that
            makes it.
        trains: whether there are steps; without, the network is evaluated as it is, and the option sets ``epochs: 0``.
        projects: whether the encoder has a ``projection``; evaluators that need one are refused without.
    """

    encoder: nn.Module
    norm: Norm
    groups: int = 1
    views: int = 2
    more_views: ClassVar[bool] = False
    needs_views: ClassVar[Mapping[type["Views"], str]] = MappingProxyType({})
    trains: ClassVar[bool] = True
    projects: ClassVar[bool] = True

    @abstractmethod
    def trained_outputs(self, batch: "Batch") -> Outputs:
        """Outputs of the trained networks for a batch, with gradient."""

    def momentum_outputs(self, batch: "Batch") -> Outputs:
        """Outputs of the momentum network, and other constants made of the views: without gradient."""
        return {}


class Method(WithNetworks):
    """Networks and the objective on their outputs.

    Forward and objective are separate, so that a batch can be processed in chunks: the networks see some images at a
    time, and the objective sees their outputs for all images.
    """

    def networks(self) -> list[nn.Module]:
        """The networks, which may be compiled."""
        return [self.encoder]

    @abstractmethod
    def objective(self, outputs: Outputs, batch: "Batch", progress: Progress, diagnostics: bool) -> StepResult:
        """Compute the loss and, with ``diagnostics``, all diagnostics; ``batch`` may come without its views."""

    def forward(self, batch: "Batch", progress: Progress, diagnostics: bool = False) -> StepResult:
        """Run the networks and the objective at ``progress`` in [0, 1] of the training."""
        outputs = self.trained_outputs(batch) | self.momentum_outputs(batch)
        return self.objective(outputs, batch, progress, diagnostics)

    def update(self, for_update: Any, progress: float) -> None:
        """Update what gradients do not train: queues, memories, momentum networks, counters.

        Called once after each optimiser step, also one that fp16 skips, and never recorded in a CUDA graph. A subclass
        calls this method of its base class last.

        Args:
            for_update: the field of this name in the step's StepResult.
            progress: progress of the training in [0, 1], as for the forward.
        """
        for module in self.modules():
            if isinstance(module, StepGenerator):
                module.step += 1
        count_steps(self)
        average_running_statistics(self, self.groups)

    def check_groups(self, devices: int, images: int) -> None:
        """Refuse groups of batch statistics that do not fit the ranks, or the images that are processed at once.

        Args:
            devices: number of ranks.
            images: number of images of the global batch, or of a chunk of it.

        Raises:
            InvalidValue: naming framework.groups.
        """
        key, groups = "framework.groups", self.groups
        require(groups >= 1, key, groups, "1 or more")
        require(groups == 1 or self.norm != "sync", key, groups, "1, or framework.norm to local or shuffle")
        require(groups == 1 or groups % devices == 0, key, groups, f"1 or a multiple of devices={devices}")
        fits = groups == 1 or (images % groups == 0 and images >= 2 * groups)
        remedy = f"a divisor of {images}, the images of a batch or chunk, with 2 images or more in a group"
        require(fits, key, groups, remedy)

    def facts(self, images: int) -> dict[str, Any]:
        """Facts about a run at a global batch of ``images``, for its record.

        Raises:
            InvalidValue: the method cannot work at that batch.
        """
        return {}


@dataclass(frozen=True)
class Term:
    """One contrast of a framework's objective, on which loss, negatives and temperature act.

    Attributes:
        e: its anchors and their positives.
        name: a key of the framework's ``further``; empty for the first term.
        weight: weight of the term in the loss.
        bank: candidates of its own; None: those of the option ``negatives``.
        temperature: one of its own; None: that of the option ``temperature``.
        cells: anchors of an image in a view: V is as many times the number of views.
    """

    e: Embedded
    name: str = ""
    weight: float = 1.0
    bank: Bank | None = None
    temperature: Temperature | None = None
    cells: int = 1


class Framework(WithNetworks):
    """The networks of a contrastive method, and the choice of their outputs as anchors and positives.

    Attributes:
        gives: requirements of negatives and losses that it meets: ``both_views`` (keys of both views), ``two_views``
            (the anchors of the two views are each other's positives).
        lacks: requirements that one of its terms never meets, whatever the negatives, each with the remedy.
        further: names of the terms after the first; true for those that have the option ``negatives``.
        needs: requirements on the backbone, ``map``, a feature map
            (:class:`ssl_bench.networks.backbones.Backbone`), and on the images, ``uint8``.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    gives: frozenset[str] = frozenset()
    lacks: Mapping[str, str] = MappingProxyType({})
    further: Mapping[str, bool] = MappingProxyType({})

    @abstractmethod
    def embed(self, outputs: Outputs, ids: Tensor) -> list[Term]:
        """The terms of a batch, from the outputs for it: the first one, and those of ``further``."""

    def update(self, e: Embedded, progress: float) -> None:
        """Update momentum network and memory, without gradient; called as the method's :meth:`Method.update`.

        Args:
            e: anchors and positives of the first term.
            progress: progress of the training in [0, 1], as for the forward.
        """

    def check(self, images: int) -> None:
        """Refuse a global batch of ``images`` that it cannot work with.

        Raises:
            InvalidValue: naming the key.
        """
