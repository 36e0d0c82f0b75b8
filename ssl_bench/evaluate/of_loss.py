"""Evaluators of a loss and its temperature alone: they read no image and use no network of the run."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ssl_bench.config.build import build, has_argument
from ssl_bench.distributed import alone
from ssl_bench.errors import ConfigError
from ssl_bench.evaluate.target import Evaluator, Target
from ssl_bench.objective.loss import Loss
from ssl_bench.objective.temperature import Temperature


@dataclass(frozen=True)
class Objective:
    """The part of a run that an evaluator of a loss depends on: the keys ``identity.READ_BY_LOSS``.

    Attributes:
        loss, temperature: their nodes of the configuration.
        batch_size: images, or pairs, of a step.
    """

    loss: Any
    temperature: Any
    batch_size: int


class OfLoss(Evaluator):
    """Base of the evaluators of a loss, as it is before a training. Each rank computes all of it, on the CPU.

    Args:
        objective: of the run.

    Attributes:
        gives: what the evaluator has of what a loss may need (:class:`ssl_bench.objective.loss.Loss`).

    Raises:
        ConfigError: the loss or the temperature is null, or the loss needs more.
    """

    reads_images = False
    gives: ClassVar[frozenset[str]]

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self.built()

    def run(self, target: Target) -> Iterator[tuple[str, float]]:
        with alone():  # a loss would count the negatives of all ranks
            metrics = self.measure(target)
        yield from metrics.items()

    @abstractmethod
    def measure(self, target: Target) -> dict[str, float]:
        """The metrics of the loss."""
        raise NotImplementedError

    def built(self) -> tuple[Loss, Temperature]:
        """Build the loss and the temperature anew."""
        node = self._objective.loss
        missing = {"instances"} if node and has_argument(node, "loss", "instances") else set[str]()
        loss = build(node, "loss", **dict.fromkeys(missing, 1))
        if missing := missing | (loss.needs - self.gives):
            name = f"{type(self).__name__} has no {' and no '.join(sorted(missing))} for {type(loss).__name__}"
            raise ConfigError(f"{name}: set loss to one that needs negatives alone, such as infonce")
        return loss, build(self._objective.temperature, "temperature")
