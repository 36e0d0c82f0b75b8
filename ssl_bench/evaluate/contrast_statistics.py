"""Gradients and bounds of InfoNCE and EqCo on one network at several numbers of negatives (Zhu et al., EqCo, arXiv
2010.01929, figures 1 and 4).

Shapes: Q queries, N keys, K negatives of a query, P projection width.
"""

import math
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from ssl_bench.distributed import all_sum, rank, world
from ssl_bench.errors import require
from ssl_bench.evaluate.artifacts import Artifact, Curve
from ssl_bench.evaluate.target import Evaluator, Target
from ssl_bench.networks.encoder import unit
from ssl_bench.objective.contrast import Bank, Contrast, Embedded
from ssl_bench.objective.loss import Loss
from ssl_bench.objective.losses import EqCo, InfoNCE
from ssl_bench.seeding import stream

BLOCK = 32  # queries whose negatives are drawn together, whatever the number of ranks


class ContrastStatistics(Evaluator):
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

    needs_projection = True

    def __init__(
        self,
        ks: Sequence[int] = (16, 256, 1024, 4096, 65536),
        alpha: float = 65536.0,
        tau: float = 0.2,
        queries: int = 1024,
        keys: int = 16384,
        draws: int = 10,
    ) -> None:
        require(min(ks, default=0) >= 1, "ks", list(ks), "one or more numbers of negatives, each 1 or more")
        require(tau > 0, "tau", tau, "a positive number")
        require(keys >= 2, "keys", keys, "2 or more")
        require(1 <= queries <= keys, "queries", queries, f"1 to {keys}, the number of keys")
        require(draws >= 1, "draws", draws, "1 or more")
        self.losses: dict[str, Loss] = {"infonce": InfoNCE(), "eqco": EqCo(alpha)}
        self.ks, self.tau, self.queries, self.keys, self.draws = sorted(set(ks)), tau, queries, keys, draws

    def check(self, target: Target) -> None:
        count = len(target.train)
        require(self.keys <= count, "keys", self.keys, f"{count} or less, the number of images in the train split")

    def run(self, target: Target) -> Iterator[tuple[str, float | Artifact]]:
        if target.network is None:
            return
        self.check(target)
        generator = torch.Generator().manual_seed(stream("contrast_statistics", target.seed))
        ids = torch.randperm(len(target.train), generator=generator)[: self.keys]
        views = unit(target.positives("train", ids, generator)["projection"].double())  # [2, N, P]
        moments = self._moments(views[0, : self.queries], views[1])
        norms = {name: list[list[float]]([[], []]) for name in self.losses}
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
                norms[name][0].append(float(metrics["gradient"]))
                norms[name][1].append(float(metrics["gradient_std"]))
        lines = dict[str, list[float]]()
        for name, (means, deviations) in norms.items():
            lines |= {f"{name}: mean of |dL/dq|": means, f"{name}: standard deviation of |dL/dq|": deviations}
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
