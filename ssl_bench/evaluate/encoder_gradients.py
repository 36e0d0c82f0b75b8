"""The encoder's gradients at given weights: signal-to-noise ratio over the number of negatives ("Less can be more in
contrastive learning", figure 4), and losses whose gradients are DCL's.

Shapes: N images of a batch, M negatives of an anchor, W weights of the network.
"""

import copy
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ssl_bench.data.pixels import sizes
from ssl_bench.errors import require
from ssl_bench.evaluate.artifacts import Artifact, Curve
from ssl_bench.evaluate.target import Evaluator, Target
from ssl_bench.networks.encoder import unit
from ssl_bench.objective.contrast import Bank, Contrast, Embedded
from ssl_bench.objective.losses import DCL, MACL, FlatNCE, InfoNCE
from ssl_bench.seeding import stream


class EncoderGradients(Evaluator):
    """SimCLR's gradient over many batches at fixed weights, with M of the 2N - 2 negatives of a batch.

    The network is in evaluation mode. A batch is N different images in two training views; each
    anchor draws its negatives without replacement, and those of a smaller M are among those of a larger one.

    Yields for each M, with mean m and variance v of a weight's gradient over the batches:

    * ``m<M>_snr``: mean of |m| / sqrt(v) over all weights, as in the paper. Without any signal it would be about
      sqrt(2 / (pi batches)).
    * ``m<M>_pooled``: sqrt(sum m^2 / sum v) over all weights, m^2 less the v / batches that chance adds to it.
    * ``m<M>_pooled_theory``: the same if 1 / ratio^2 = A + C / M: batches have a noise of their own, and drawing few
      negatives adds one of 1 / M. A and C are those of the smallest and the largest M.

    Yields also the difference of one batch's gradient from DCL's, relative to its norm, with all negatives and in
    double precision: ``difference_flatnce``, ``difference_macl``, and ``difference_infonce`` with InfoNCE of each
    anchor divided by its multiplier q_B. Yields nothing for raw pixels, which have no projection.

    Args:
        ms: M, two or more, each from 1 to 2N - 2.
        tau: temperature, for any temperature of the training.
        batch_size: N, from 2 to the size of the train split.
        batches: 2 or more.
    """

    needs_projection = True

    def __init__(
        self, ms: Sequence[int] = (1, 5, 10, 50, 126), tau: float = 0.2, batch_size: int = 64, batches: int = 100
    ) -> None:
        require(batch_size >= 2, "batch_size", batch_size, "2 or more")
        most = 2 * batch_size - 2
        valid = len(set(ms)) >= 2 and min(ms) >= 1 and max(ms) <= most
        require(valid, "ms", list(ms), f"two or more numbers of negatives, each from 1 to {most}")
        require(tau > 0, "tau", tau, "a positive number")
        require(batches >= 2, "batches", batches, "2 or more")
        self.ms, self.tau, self.batch_size, self.batches = sorted(set(ms)), tau, batch_size, batches

    def check(self, target: Target) -> None:
        count = len(target.train)
        remedy = f"{count} or less, the number of images in the train split"
        require(self.batch_size <= count, "batch_size", self.batch_size, remedy)

    def run(self, target: Target) -> Iterator[tuple[str, float | Artifact]]:
        if target.network is None:
            return
        self.check(target)
        network = copy.deepcopy(target.network).eval()
        weights = [weight for weight in network.parameters() if weight.requires_grad]
        size = sum(weight.numel() for weight in weights)
        sums = torch.zeros(2, len(self.ms), size, dtype=torch.float64, device=target.device)  # of g and g^2
        tau = torch.tensor(self.tau, device=target.device)
        for batch in range(self.batches):
            generator = torch.Generator().manual_seed(stream("encoder_gradients", target.seed, batch))
            with torch.enable_grad():
                contrast = self._contrast(target, network, generator)
                index = other_views(self.batch_size, generator).to(target.device)
                losses = [InfoNCE()(contrast.pick(index[..., :m]), tau).mean() for m in self.ms]
            for i, loss in enumerate(losses):
                g = gradient(loss, weights).double()
                sums[:, i] += torch.stack([g, g.square()])
        mean = sums[0] / self.batches
        variance = (sums[1] - self.batches * mean.square()) / (self.batches - 1)  # [M, W]
        snr = torch.where(variance > 0, mean.abs() * variance.clamp(min=1e-300).rsqrt(), 0.0).mean(1).tolist()
        signal = (mean.square() - variance / self.batches).sum(1).clamp(min=0)
        pooled = (signal / variance.sum(1)).sqrt().tolist()
        theory = self._theory(pooled)
        for m, *values in zip(self.ms, snr, pooled, theory, strict=True):
            yield from zip((f"m{m}_{name}" for name in ("snr", "pooled", "pooled_theory")), values, strict=True)
        lines = {"mean ratio of a weight": snr, "pooled ratio": pooled, "pooled ratio, A + C / M": theory}
        yield "by_negatives", Curve([float(m) for m in self.ms], lines, "negatives M", doubling=True)
        generator = torch.Generator().manual_seed(stream("encoder_gradients", target.seed))
        network, tau = network.double(), tau.double()
        with torch.enable_grad():
            contrast = self._contrast(target, network, generator)
            weighted = InfoNCE()(contrast, tau) / contrast.log_odds(tau).sigmoid().detach()
            dcl = gradient(DCL()(contrast, tau).mean(), weights)
            others = {"flatnce": FlatNCE()(contrast, tau), "macl": MACL()(contrast, tau), "infonce": weighted}
        for name, values in others.items():
            yield f"difference_{name}", float((gradient(values.mean(), weights) - dcl).norm() / dcl.norm())

    def _contrast(self, target: Target, network: torch.nn.Module, generator: torch.Generator) -> Contrast:
        """The contrast of a random batch, with gradient."""
        ids = torch.randperm(len(target.train), generator=generator)[: self.batch_size]
        images = target.load(target.train, ids)
        draws = [augment.uniform(len(ids), generator).to(target.device) for augment in target.augment[:2]]
        pairs = zip(target.augment, draws, strict=False)
        views = torch.cat([augment.apply(images, augment.parameters(u, *sizes(images))) for augment, u in pairs])
        q = unit(network(views.to(next(network.parameters()).dtype))["projection"]).unflatten(0, (2, len(ids)))
        e = Embedded(q, q.flip(0), q, ids.to(q.device))
        return Contrast.of(e, Bank(q.flatten(0, 1), e.ids.repeat(2)))

    def _theory(self, ratios: Sequence[float]) -> list[float]:
        """The ratios by 1 / ratio^2 = A + C / M through the first and the last; 0 where one of these is 0."""
        if not ratios[0] * ratios[-1]:
            return [0.0] * len(self.ms)
        noise, inverse = [1 / r**2 for r in (ratios[0], ratios[-1])], [1 / self.ms[0], 1 / self.ms[-1]]
        c = (noise[0] - noise[1]) / (inverse[0] - inverse[1])
        return [1 / math.sqrt(noise[0] + c * (1 / m - inverse[0])) for m in self.ms]


def gradient(loss: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """The gradient of a loss at the weights as one vector [W]; the graph stays."""
    parts = torch.autograd.grad(loss, weights, retain_graph=True, materialize_grads=True)
    return torch.cat([part.flatten() for part in parts])


def other_views(size: int, generator: torch.Generator) -> Tensor:
    """Indices of the 2N - 2 views of other images in random order for each anchor: int64 [2, N, 2N - 2]."""
    order = torch.rand(2, size, 2 * size - 2, generator=generator).argsort(-1)
    image = torch.arange(size)[:, None]
    order = order + (order >= image)  # skip the image's own first view
    return order + (order >= image + size)
