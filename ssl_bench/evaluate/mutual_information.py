"""An estimate of a known mutual information by a contrastive loss (Zhu et al., EqCo, arXiv 2010.01929, appendix C).

Two networks f and g are trained so that the score f(x) . g(y) distinguishes y from the other y of a batch. The loss L
then gives a lower bound on I(X; Y): log(1 + K) - L for InfoNCE with K negatives, log(1 + alpha) - L for EqCo. Scores
take the place of cosines.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from ssl_bench.data.constructed import Pairs
from ssl_bench.errors import ConfigError, require
from ssl_bench.evaluate.metric import Declared, Metric
from ssl_bench.evaluate.of_loss import Objective, OfLoss
from ssl_bench.evaluate.target import Target
from ssl_bench.objective.contrast import Contrast, Embedded
from ssl_bench.objective.loss import Loss
from ssl_bench.objective.negatives import CrossView
from ssl_bench.objective.temperature import Temperature
from ssl_bench.signals import stop_if_asked


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

    def __init__(
        self,
        objective: Objective,
        hidden: int = 256,
        outputs: int = 32,
        steps: int = 5000,
        evaluations: int = 1000,
        lr: float = 0.0005,
    ) -> None:
        sizes = {"hidden": hidden, "outputs": outputs, "steps": steps, "evaluations": evaluations}
        for name, value in sizes.items():
            require(value >= 1, name, value, "1 or more")
        require(lr > 0, "lr", lr, "a positive number")
        self.pairs, self.hidden, self.outputs = objective.batch_size, hidden, outputs
        self.steps, self.evaluations, self.lr = steps, evaluations, lr
        super().__init__(objective)

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
        generator, ids, negatives = torch.Generator().manual_seed(seed), torch.arange(self.pairs), CrossView()

        def batch(progress: float) -> tuple[Contrast, Tensor]:
            stop_if_asked()
            x, y = source.draw(self.pairs, generator)
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
