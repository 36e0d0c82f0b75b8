"""k-nearest-neighbour classification by Euclidean distance of vectors that are not normalised, as in solo-learn.

Shapes: Q queries, N bank entries, D features, W ranks, n queries of a block.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ssl_bench.distributed import gather, rank, world
from ssl_bench.errors import require
from ssl_bench.evaluate.accuracy import of_all_ranks, top_accuracies
from ssl_bench.evaluate.knn import check_votes
from ssl_bench.evaluate.sharded import Sharded
from ssl_bench.evaluate.target import Evaluator, Target
from ssl_bench.signals import stop_if_asked

BLOCK = 5_000_000  # distances at once


def rank_by_distance(
    queries: Tensor, bank: Sharded, labels: Tensor, k: int, epsilon: float, num_classes: int
) -> Tensor:
    """[Q / W, num_classes] classes, best first: each of the k nearest entries votes with 1 / (distance + epsilon).

    They are those of this rank's share of the queries, r, r + W, r + 2 W ...

    Args:
        queries: [Q, D]; bank: [N, D]; labels: [N] in [0, num_classes).
        k: 1 to N; epsilon: positive.
    """
    rankings, here = [], min(k, len(bank.rows))
    for block in queries.split(max(1, BLOCK // bank.count) * world()):
        stop_if_asked()
        distances, nearest = torch.cdist(block, bank.rows).topk(here, dim=1, largest=False)  # [n, k or less]
        distances = _of_own_queries(F.pad(distances, (0, k - here), value=torch.inf))
        nearest = _of_own_queries(F.pad(nearest + bank.first, (0, k - here)))
        distances, best = distances.topk(k, dim=1, largest=False)
        nearest = nearest.gather(1, best)  # [n / W, k]
        scores = distances.new_zeros(len(nearest), num_classes, dtype=torch.float64)
        scores.scatter_add_(1, labels[nearest], 1 / (distances.double() + epsilon))
        rankings.append(scores.sort(dim=1, descending=True, stable=True).indices)
    return torch.cat(rankings) if rankings else labels.new_zeros(0, num_classes)


def _of_own_queries(x: Tensor) -> Tensor:
    """The rows of all ranks' ``x``, [n, k] for n queries, of this rank's share of the queries: [n / W, W k]."""
    return gather(x).unflatten(0, (world(), -1))[:, rank() :: world()].transpose(0, 1).flatten(1)


class EuclideanKNN(Evaluator):
    """Accuracy of kNN by Euclidean distance for the backbone and for the projection: top1, projection_top1.

    With more than five classes also top5 and projection_top5.

    Args:
        k: neighbours, at most the images of the train split.
        epsilon: added to a distance, whose inverse is the vote.
    """

    needs_labels = True
    takes_labels = True

    def __init__(self, k: int = 20, epsilon: float = 0.00001) -> None:
        require(k >= 1, "k", k, "1 or more")
        require(epsilon > 0, "epsilon", epsilon, "a positive number")
        self.k, self.epsilon = k, epsilon

    def check(self, target: Target) -> None:
        target.labels("test")
        check_votes(target.labels("train"), self.k, 1.0, target.num_classes)

    def run(self, target: Target) -> Iterator[tuple[str, float]]:
        self.check(target)
        bank_labels, labels = target.labels("train"), target.labels("test")
        for space, bank in target.shards("train").items():
            queries = target.features("test")[space]
            ranking = rank_by_distance(queries, bank, bank_labels, self.k, self.epsilon, target.num_classes)
            ranking = of_all_ranks(ranking[:, :5], len(labels))
            for name, value in top_accuracies(ranking, labels, target.num_classes):
                yield name if space == "backbone" else f"{space}_{name}", value
