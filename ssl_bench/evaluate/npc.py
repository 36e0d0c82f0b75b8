"""The negative-positive coupling multiplier of a network at several batch sizes (Yeh et al., Decoupled Contrastive
Learning, figure 1).

Shapes: N images of a batch, P projection width, 2 views; an image is an anchor in each view.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ssl_bench.errors import require
from ssl_bench.evaluate.artifacts import Artifact, Curve, Histogram
from ssl_bench.evaluate.target import Evaluator, Target
from ssl_bench.objective.contrast import Bank, Contrast, Embedded
from ssl_bench.seeding import stream


class NPC(Evaluator):
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

    needs_projection = True

    def __init__(
        self,
        batch_sizes: Sequence[int] = (32, 64, 128, 256, 512, 1024),
        batches: int = 10,
        tau: float = 0.1,
        bins: int = 20,
    ) -> None:
        require(min(batch_sizes, default=0) >= 2, "batch_sizes", list(batch_sizes), "one or more sizes, each 2 or more")
        require(batches >= 1, "batches", batches, "1 or more")
        require(1 <= bins <= 100_000, "bins", bins, "1 to 100000")
        require(tau > 0, "tau", tau, "a positive number")
        self.batch_sizes, self.batches, self.tau, self.bins = sorted(set(batch_sizes)), batches, tau, bins

    def check(self, target: Target) -> None:
        count = len(target.train)
        remedy = f"sizes up to {count}, the number of images in the train split"
        require(self.batch_sizes[-1] <= count, "batch_sizes", self.batch_sizes, remedy)

    def run(self, target: Target) -> Iterator[tuple[str, float | Artifact]]:
        if target.network is None:
            return
        self.check(target)
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
    e = Embedded(q=unit, p=unit.flip(0), raw=projections, ids=ids)
    # The same candidates as InBatch, which cannot be used: it would gather, but here every rank has the whole batch.
    contrast = Contrast.of(e, Bank(e.p.flatten(0, 1), ids.repeat(2)))
    return contrast.log_odds(torch.tensor(tau, dtype=unit.dtype, device=unit.device)).sigmoid()
