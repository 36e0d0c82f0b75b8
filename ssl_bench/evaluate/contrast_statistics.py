"""Contrasts of one network at several numbers of negatives.

* Gradients and bounds of InfoNCE and EqCo (Zhu et al., EqCo, arXiv 2010.01929, figures 1 and 4).
* The negative-positive coupling multiplier (Yeh et al., Decoupled Contrastive Learning, figure 1).
* The encoder's gradients: signal-to-noise ratio over the number of negatives ("Less can be more in contrastive
  learning", figure 4), and losses whose gradients are DCL's.

Shapes: Q queries, N keys or images of a batch, K or M negatives of an anchor, P projection width, W weights of the
network.
"""

import copy
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor

from ssl_bench.config.ranges import Count, Positive, TwoOrMore
from ssl_bench.distributed import all_sum, rank, world
from ssl_bench.errors import require
from ssl_bench.evaluate.artifacts import Artifact, Curve, Histogram
from ssl_bench.evaluate.target import Evaluator, Target, make_views
from ssl_bench.networks.encoder import unit
from ssl_bench.objective.contrast import Bank, Contrast, Embedded
from ssl_bench.objective.loss import Loss
from ssl_bench.objective.losses import DCL, MACL, EqCo, FlatNCE, InfoNCE
from ssl_bench.seeding import stream

BLOCK = 32  # queries whose negatives are drawn together, whatever the number of ranks


class OfContrasts(Evaluator):
    """Base of the evaluators of random batches of the train split.

    Attributes:
        at_most_images: name of the setting, a number or a list, that must not be larger than the number of images.
    """

    needs_network = True
    needs_projection = True
    at_most_images: ClassVar[str]

    def check(self, target: Target) -> None:
        value, count = getattr(self, self.at_most_images), len(target.train)
        fits = (max(value) if isinstance(value, list) else value) <= count
        require(fits, self.at_most_images, value, f"{count} or less, the number of images in the train split")


class ContrastStatistics(OfContrasts):
    """Norm of dL/dq, probability of the positive and bound on the mutual information at several K, by loss.

    N images of the train split have a key each, from one training view. The first Q of them have a query, from another
    view; its positive is the key of its image. The K negatives are drawn independently and with replacement from the
    keys of the other images, as the theorems assume, so that K may be larger than N. All losses have the same draws.
    The network is in evaluation mode. The momentum network, the predictor and the queue of the framework are not used.

    Yields for each loss (``infonce``, ``eqco``) and K, with the prefix ``<loss>_k<K>_``:

    * ``gradient``, ``gradient_std``: mean and standard deviation of |dL/dq| over all queries and draws. L is the loss
      of one query, and dL/dq its gradient at the unit vector q, not projected on the sphere.
    * ``gradient_noise``: root mean square, over the queries, of the standard deviation of |dL/dq| over the draws.
    * ``positive``: mean probability of the positive, the first term of L's softmax; with EqCo the negatives of the
      softmax are weighted by alpha / K.
    * ``information``, ``information_std``: mean over all of :meth:`ssl_bench.objective.loss.Loss.information`, in nats,
      and the standard deviation over the draws of its mean over the queries.
    * ``positive_theory``, ``information_theory``: ``positive`` and ``information`` by the theory, :func:`expected`.
    * ``gradient_ratio``: the largest, over the queries, of the mean of |dL/dq| over the draws, divided by theorem 2's
      bound on it, 2 q / tau. The theorem says that it is at most 1.

    Standard deviations divide by the number of values. The mean and the standard deviation of the gradient over K are
    also a Curve (``by_negatives``). Yields nothing for raw pixels, which have no projection.

    Args:
        ks: K, each 1 or more.
        alpha: of EqCo.
        tau: temperature, for any temperature of the training.
        queries: Q, at most N.
        keys: N, from 2 to the size of the train split.
        draws: sets of negatives of a query at each K.
    """

    at_most_images = "keys"

    ks: Annotated[Sequence[Count], Meta(min_length=1)] = (16, 256, 1024, 4096, 65536)
    alpha: float = 65536.0
    tau: Positive = 0.2
    queries: Count = 1024
    keys: TwoOrMore = 16384
    draws: Count = 10

    def __post_init__(self) -> None:
        require(self.queries <= self.keys, "queries", self.queries, f"1 to {self.keys}, the number of keys")
        self.losses: dict[str, Loss] = {"infonce": InfoNCE(), "eqco": EqCo(self.alpha)}
        self.ks = sorted(set(self.ks))

    def run(self, target: Target) -> Iterator[tuple[str, float | Artifact]]:
        generator = torch.Generator().manual_seed(stream("contrast_statistics", target.seed))
        ids = torch.randperm(len(target.train), generator=generator)[: self.keys]
        views = unit(target.positives("train", ids, generator)["projection"].double())  # [2, N, P]
        moments = self._moments(views[0, : self.queries], views[1])
        lines: dict[str, list[float]] = {}
        for k in self.ks:
            values = self._values(views[0, : self.queries], views[1], k, target.seed)
            for name, (norm, positive, information) in zip(self.losses, values.cpu(), strict=True):
                alpha = getattr(self.losses[name], "alpha", float(k))  # InfoNCE is EqCo with alpha = K
                share, *theory = expected(*moments, alpha, k)
                metrics = {
                    "gradient": norm.mean(),
                    "gradient_std": norm.std(correction=0),
                    "gradient_noise": norm.var(0, correction=0).mean().sqrt(),
                    "positive": positive.mean(),
                    "information": information.mean(),
                    "information_std": information.mean(1).std(correction=0),
                    "positive_theory": theory[0].mean(),
                    "information_theory": theory[1].mean(),
                    "gradient_ratio": (norm.mean(0) * self.tau / (2 * share)).max(),
                }
                yield from ((f"{name}_k{k}_{metric}", float(value)) for metric, value in metrics.items())
                for what, metric in (("mean", "gradient"), ("standard deviation", "gradient_std")):
                    lines.setdefault(f"{name}: {what} of |dL/dq|", []).append(float(metrics[metric]))
        yield "by_negatives", Curve([float(k) for k in self.ks], lines, "negatives K", doubling=True)

    def _moments(self, q: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and squared coefficient of variation of each query's r over all keys of other images, on the CPU: [Q].

        r is exp(s_k / tau) of a negative over exp(s / tau) of the positive; ``q`` and ``keys`` as in :meth:`_values`.
        """
        means, variations = [], []
        for rows in torch.arange(len(q), device=q.device).split(BLOCK):
            r = ((q[rows] @ keys.T - (q[rows] * keys[rows]).sum(1, keepdim=True)) / self.tau).exp()
            others = r.scatter(1, rows[:, None], 0)
            mean = others.sum(1) / (len(keys) - 1)
            means.append(mean)
            variations.append(others.square().sum(1) / (len(keys) - 1) / mean.square() - 1)
        return torch.cat(means).cpu(), torch.cat(variations).cpu()

    def _values(self, q: Tensor, keys: Tensor, k: int, seed: int) -> Tensor:
        """Norms, probabilities and bounds of each loss, float64 [losses, 3, draws, Q], the same on every rank.

        Args:
            q: [Q, P] unit queries.
            keys: [N, P] unit keys; key i is the positive of query i.
        """
        values = q.new_zeros(len(self.losses), 3, self.draws, len(q))
        for start in range(rank() * BLOCK, len(q), world() * BLOCK):
            rows = slice(start, min(start + BLOCK, len(q)))
            for draw in range(self.draws):
                index = other_keys(rows, k, len(keys), stream("negatives", seed, k, draw, start)).to(q.device)
                values[:, :, draw, rows] = statistics(q[rows], keys[rows], keys, index, self.losses.values(), self.tau)
        return all_sum(values)


def expected(mean: Tensor, variation: Tensor, alpha: float, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The negatives' share q with infinitely many of them, and positive and bound with K, to first order in 1 / K: [Q].

    With m the mean of r and c^2 its ``variation``, q = alpha m / (1 + alpha m) and p = 1 - q: the mean over the draws
    of the probability of the positive is p + p q^2 c^2 / K, that of the bound log(1 + alpha) + log p + q^2 c^2 / (2 K),
    from the curvature of both in the mean of K values of r. Theorem 1 is the bound without its last term.
    """
    share = alpha * mean / (1 + alpha * mean)
    noise = share.square() * variation / k
    positive = 1 / (1 + alpha * mean)
    return share, positive * (1 + noise), math.log1p(alpha) + positive.log() + noise / 2


def other_keys(rows: slice, k: int, count: int, seed: int) -> Tensor:
    """Draw K of the keys 0 ... ``count`` - 1 for each query of ``rows``, never the query's own: int64 [rows, K]."""
    drawn = torch.randint(count - 1, (rows.stop - rows.start, k), generator=torch.Generator().manual_seed(seed))
    return drawn + (drawn >= torch.arange(rows.start, rows.stop)[:, None])


def statistics(q: Tensor, p: Tensor, keys: Tensor, index: Tensor, losses: Collection[Loss], tau: float) -> Tensor:
    """Compute |dL/dq|, the probability of the positive and the bound of each loss and query: [losses, 3, Q].

    Args:
        q, p: [Q, P] queries and their positives.
        keys: [N, P] of which ``index`` [Q, K] are the negatives of each query.
        tau: positive.
    """
    e = Embedded(q[None], p[None], q[None], torch.arange(len(q), device=q.device))
    leaves = Contrast.of(e, Bank(keys, None)).pick(index[None]).with_leaf_anchors()
    assert leaves is not None
    anchors, contrast = leaves
    temperature, by_loss = q.new_tensor(tau), []
    with torch.enable_grad():
        values = [loss(contrast, temperature) for loss in losses]  # each [1, Q]
    for loss, value in zip(losses, values, strict=True):
        (gradient,) = torch.autograd.grad(value.sum(), anchors, retain_graph=True)
        information = loss.information(contrast, temperature).detach()
        by_loss.append(torch.stack([gradient.norm(dim=-1), (-value).exp().detach(), information])[:, 0])
    return torch.stack(by_loss)


class NPC(OfContrasts):
    """q_B = sigmoid(u), the negatives' share of InfoNCE's denominator, over random batches of the train split.

    A batch is N different images in two training views, and each anchor has the 2N - 2 views of the other images as
    negatives. The network is in evaluation mode, so that batch statistics play no role. The momentum network, the
    predictor and the queue of the framework are not used.

    Yields for each batch size n{N}_mean and n{N}_cv = standard deviation / mean over all anchors of all its batches,
    both as a Curve (``by_batch_size``; figure 1a), and the distribution as a Histogram (``multiplier``; figure 1b).
    Yields nothing for raw pixels, which have no projection.

    Args:
        batch_sizes: N, each at least 2 and at most the size of the train split.
        batches: number of batches of each size.
        tau: temperature; 0.1 in the paper, for any temperature of the training.
        bins: number of bins of the histogram, which divide [0, 1].
    """

    at_most_images = "batch_sizes"

    batch_sizes: Annotated[Sequence[TwoOrMore], Meta(min_length=1)] = (32, 64, 128, 256, 512, 1024)
    batches: Count = 10
    tau: Positive = 0.1
    bins: Annotated[int, Meta(ge=1, le=100_000)] = 20

    def __post_init__(self) -> None:
        self.batch_sizes = sorted(set(self.batch_sizes))

    def run(self, target: Target) -> Iterator[tuple[str, float | Artifact]]:
        means, cvs, counts = [], [], {}
        for size in self.batch_sizes:
            q = torch.cat([self._multipliers(target, size, i) for i in range(self.batches)]).cpu()
            means.append(float(q.mean()))
            cvs.append(float(q.std(correction=0)) / means[-1] if means[-1] else 0.0)
            counts[str(size)] = q.histc(self.bins, 0, 1).long().tolist()
            yield f"n{size}_mean", means[-1]
            yield f"n{size}_cv", cvs[-1]
        label = f"NPC multiplier at temperature {self.tau:g}"
        edges = [i / self.bins for i in range(self.bins + 1)]
        yield "multiplier", Histogram(counts, edges, label, "anchors", "batch size")
        lines = {"mean NPC multiplier": means, "standard deviation / mean": cvs}
        yield "by_batch_size", Curve([float(n) for n in self.batch_sizes], lines, "batch size (images)", doubling=True)

    def _multipliers(self, target: Target, size: int, index: int) -> Tensor:
        """The multipliers of one batch, [2 N] float64, the same on every rank."""
        generator = torch.Generator().manual_seed(stream("npc", target.seed, size, index))
        ids = torch.randperm(len(target.train), generator=generator)[:size]
        projections = target.positives("train", ids, generator)["projection"].double()  # [2, N, P]
        return multipliers(projections, ids.to(projections.device), self.tau).flatten()


def multipliers(projections: Tensor, ids: Tensor, tau: float) -> Tensor:
    """Compute sigmoid(u) of every anchor, [2, N], from projections [2, N, P] of two views of the images ``ids`` [N]."""
    unit = F.normalize(projections, dim=2)
    contrast = contrast_of(unit, projections, unit.flip(0), ids)
    return contrast.log_odds(torch.tensor(tau, dtype=unit.dtype, device=unit.device)).sigmoid()


def contrast_of(q: Tensor, raw: Tensor, keys: Tensor, ids: Tensor) -> Contrast:
    """The contrast of two views [2, N, P] of the images ``ids`` [N] with all views of the others, in the order of keys.

    The same candidates as InBatch, which cannot be used: it would gather, but here every rank has the whole batch.
    """
    return Contrast.of(Embedded(q, q.flip(0), raw, ids), Bank(keys.flatten(0, 1), ids.repeat(2)))


class EncoderGradients(OfContrasts):
    """SimCLR's gradient over many batches at fixed weights, with M of the 2N - 2 negatives of a batch.

    The network is in evaluation mode. A batch is N different images in two training views; each
    anchor draws its negatives without replacement, and those of a smaller M are among those of a larger one.

    Yields for each M, with mean m and variance v of a weight's gradient over the batches:

    * ``m<M>_snr``: mean of |m| / sqrt(v) over all weights, as in the paper. Without any signal it would be about
      sqrt(2 / (pi batches)).
    * ``m<M>_pooled``: sqrt(sum m^2 / sum v) over all weights, m^2 less the v / batches that chance adds to it.
    * ``m<M>_pooled_theory``: the same if 1 / ratio^2 = A + C / M, where A is the noise between batches, and C / M that
      of drawing M negatives. A and C are computed from the smallest and the largest M.

    Yields also the difference of one batch's gradient from DCL's, relative to its norm, with all negatives and in
    double precision: ``difference_flatnce``, ``difference_macl``, and ``difference_infonce`` with InfoNCE of each
    anchor divided by its multiplier q_B. Yields nothing for raw pixels, which have no projection.

    Args:
        ms: M, two or more, each from 1 to 2N - 2.
        tau: temperature, for any temperature of the training.
        batch_size: N, from 2 to the size of the train split.
        batches: 2 or more.
    """

    at_most_images = "batch_size"

    ms: Annotated[Sequence[Count], Meta(min_length=2)] = (1, 5, 10, 50, 126)
    tau: Positive = 0.2
    batch_size: TwoOrMore = 64
    batches: TwoOrMore = 100

    def __post_init__(self) -> None:
        self.ms, most = sorted(set(self.ms)), 2 * self.batch_size - 2
        valid = len(self.ms) >= 2 and self.ms[-1] <= most
        require(valid, "ms", self.ms, f"two or more numbers of negatives, each from 1 to {most}")

    def run(self, target: Target) -> Iterator[tuple[str, float | Artifact]]:
        assert target.network is not None
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
        views = torch.cat([make_views(each, each.uniform(len(ids), generator), images) for each in target.augment[:2]])
        q = unit(network(views.to(next(network.parameters()).dtype))["projection"]).unflatten(0, (2, len(ids)))
        return contrast_of(q, q, q, ids.to(q.device))

    def _theory(self, ratios: Sequence[float]) -> list[float]:
        """The ratios at each M by 1 / ratio^2 = A + C / M, fitted to the first and last; zeros if one of these is 0."""
        if not ratios[0] * ratios[-1]:
            return [0.0] * len(self.ms)
        noise, inverse = [1 / r**2 for r in (ratios[0], ratios[-1])], [1 / self.ms[0], 1 / self.ms[-1]]
        c = (noise[0] - noise[1]) / (inverse[0] - inverse[1])
        return [1 / math.sqrt(noise[0] + c * (1 / m - inverse[0])) for m in self.ms]


def gradient(loss: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """The gradient of a loss at the weights as one vector [W]; the graph can be differentiated again."""
    parts = torch.autograd.grad(loss, weights, retain_graph=True, materialize_grads=True)
    return torch.cat([part.flatten() for part in parts])


def other_views(size: int, generator: torch.Generator) -> Tensor:
    """Indices of the 2N - 2 views of other images in random order for each anchor: int64 [2, N, 2N - 2]."""
    order = torch.rand(2, size, 2 * size - 2, generator=generator).argsort(-1)
    image = torch.arange(size)[:, None]
    order = order + (order >= image)  # skip the image's own first view
    return order + (order >= image + size)
