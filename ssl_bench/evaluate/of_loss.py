"""Evaluators of a loss and its temperature alone: they read no image and use no network of the run.

* The weight of the positive in the gradient of a loss, at given cosines (Huang et al., MACL, arXiv 2207.07874):
  W = -tau dL / ds for the cosine s of the positive and K negatives of equal cosine. For InfoNCE it is 1 minus the
  positive's probability, the factor of the gradient that vanishes at small tau (figure 3).
* An estimate of a known mutual information (Zhu et al., EqCo, arXiv 2010.01929, appendix C). Two networks f and g are
  trained so that the score f(x) . g(y) distinguishes y from the other y of a batch. The loss L then gives a lower bound
  on I(X; Y): log(1 + K) - L for InfoNCE with K negatives, log(1 + alpha) - L for EqCo. Scores take the place of
  cosines.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from msgspec import Meta
from torch import Tensor, nn

from ssl_bench.config.build import build, has_argument
from ssl_bench.config.ranges import Count, Positive
from ssl_bench.data.constructed import Pairs
from ssl_bench.distributed import alone
from ssl_bench.errors import ConfigError
from ssl_bench.evaluate.metric import Declared, Metric
from ssl_bench.evaluate.target import Evaluator, Target
from ssl_bench.objective.contrast import Contrast, Embedded
from ssl_bench.objective.loss import Loss
from ssl_bench.objective.negatives import CrossView
from ssl_bench.objective.temperature import Temperature
from ssl_bench.signals import stop_if_asked


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
        gives: the ``needs`` of a :class:`ssl_bench.objective.loss.Loss` that the evaluator meets.

    Raises:
        ConfigError: the loss or the temperature is null, or the loss has other needs.
    """

    reads_images = False
    gives: ClassVar[frozenset[str]]
    objective: Objective

    def __post_init__(self) -> None:
        self.built()

    def run(self, target: Target) -> Iterator[tuple[str, float]]:
        with alone():  # a loss would count the negatives of all ranks
            metrics = self.measure(target)
        yield from metrics.items()

    @abstractmethod
    def measure(self, target: Target) -> dict[str, float]:
        """The metrics of the loss."""

    def built(self) -> tuple[Loss, Temperature]:
        """Build a new loss and a new temperature."""
        node = self.objective.loss
        missing = {"instances"} if node and has_argument(node, "loss", "instances") else set[str]()
        loss = build(node, "loss", **dict.fromkeys(missing, 1))
        if missing := missing | (loss.needs - self.gives):
            name = f"{type(self).__name__} has no {' and no '.join(sorted(missing))} for {type(loss).__name__}"
            raise ConfigError(f"{name}: set loss to one that needs negatives alone, such as infonce")
        return loss, build(self.objective.temperature, "temperature")


class GradientWeight(OfLoss):
    """Yields ``weight``, computed in float64.

    Args:
        objective: as for the base.
        positive: cosine of the positive.
        negative: cosine of each negative.
        k: number of negatives.
    """

    gives = frozenset({"negatives", "cosine"})
    metrics: ClassVar[Declared] = {"weight": Metric(better="high")}

    positive: Annotated[float, Meta(ge=-1, le=1)] = 1.0
    negative: Annotated[float, Meta(ge=-1, le=1)] = -1.0
    k: Count = 256

    def measure(self, target: Target) -> dict[str, float]:
        loss, temperature = self.built()
        positive = torch.full((1, 1), self.positive, dtype=torch.float64, requires_grad=True)
        contrast = Contrast.dense(positive, torch.full((1, 1, self.k), self.negative, dtype=torch.float64))
        tau = temperature(0.0, contrast).double()
        (slope,) = torch.autograd.grad(loss(contrast, tau).sum(), positive)
        return {"weight": -float(tau * slope)}


class MutualInformation(OfLoss):
    """Train f and g on pairs of Gaussian vectors, then average the bound over new batches.

    Yields ``estimate`` and ``true``, in nats.

    Args:
        objective: as for the base; ``batch_size`` is the number of pairs of a step. The positive of x is its y, the
            negatives are the y of the other pairs.
        hidden: width of the hidden layer of f and of g.
        outputs: width of their outputs.
        steps: of the training.
        evaluations: batches after the training.
        lr: Adam's rate.
    """

    gives = frozenset({"negatives", "aligned"})
    metrics: ClassVar[Declared] = {"estimate": Metric(better="high")}  # a lower bound

    hidden: Count = 256
    outputs: Count = 32
    steps: Count = 5000
    evaluations: Count = 1000
    lr: Positive = 0.0005

    def check(self, target: Target) -> None:
        if not isinstance(target.train, Pairs):
            raise ConfigError("there are no pairs whose mutual information is known: set dataset to gaussians")

    def measure(self, target: Target) -> dict[str, float]:
        self.check(target)
        assert isinstance(target.train, Pairs)
        loss, temperature = self.built()
        estimate = self._estimate(target.train, loss, temperature, target.seed)
        return {"estimate": estimate, "true": target.train.information}

    def _estimate(self, source: Pairs, loss: Loss, temperature: Temperature, seed: int) -> float:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            f, g = self._network(source.dimensions), self._network(source.dimensions)
        optimizer = torch.optim.Adam([*f.parameters(), *g.parameters(), *loss.parameters()], self.lr, fused=True)
        generator, ids = torch.Generator().manual_seed(seed), torch.arange(self.objective.batch_size)
        negatives = CrossView()

        def batch(progress: float) -> tuple[Contrast, Tensor]:
            stop_if_asked()
            x, y = source.draw(self.objective.batch_size, generator)
            q, key = f(x)[None], g(y)[None]  # [1, pairs, outputs]
            embedded = Embedded(q, key, q, ids)
            contrast = Contrast.of(embedded, negatives.bank(embedded))
            return contrast, temperature(progress, contrast)

        for step in range(self.steps):
            optimizer.zero_grad()
            loss(*batch(step / self.steps)).mean().backward()
            optimizer.step()
        with torch.no_grad():
            bounds = [loss.information(*batch(1.0)).mean() for _ in range(self.evaluations)]
        return float(torch.stack(bounds).mean())

    def _network(self, inputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, self.hidden), nn.ReLU(), nn.Linear(self.hidden, self.outputs))
