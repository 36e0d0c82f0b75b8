"""Evaluators of a loss and its temperature alone: they read no image and use no network of the run."""

from dataclasses import dataclass
from typing import Any, ClassVar

from ssl_bench.config.build import build, has_argument
from ssl_bench.errors import ConfigError
from ssl_bench.evaluate.target import Evaluator
from ssl_bench.objective.loss import Loss
from ssl_bench.objective.temperature import Temperature


@dataclass(frozen=True)
class Objective:
    """What an evaluator of a loss is told of the run, beside its own settings: as ``identity.READ_BY_LOSS``.

    Attributes:
        loss, temperature: their nodes of the configuration.
        batch_size: of the run.
    """

    loss: Any
    temperature: Any
    batch_size: int


class OfLoss(Evaluator):
    """Base of the evaluators of a loss, as it is before a training.

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

    def built(self) -> tuple[Loss, Temperature]:
        """Build the loss and the temperature anew."""
        node = self._objective.loss
        missing = {"instances"} if node and has_argument(node, "loss", "instances") else set[str]()
        loss = build(node, "loss", **dict.fromkeys(missing, 1))
        if missing := missing | (loss.needs - self.gives):
            name = f"{type(self).__name__} has no {' and no '.join(sorted(missing))} for {type(loss).__name__}"
            raise ConfigError(f"{name}: set loss to one that needs negatives alone, such as infonce")
        return loss, build(self._objective.temperature, "temperature")
