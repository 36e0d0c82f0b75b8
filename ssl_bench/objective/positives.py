"""The positives of an anchor: the vectors that it is pulled towards.

Shapes: V anchor views; B images on this rank; D width.
"""

from abc import ABC, abstractmethod
from dataclasses import replace

from torch import nn

from ssl_bench.objective.contrast import Embedded
from ssl_bench.objective.negatives import Queue
from ssl_bench.objective.schedule import Progress
from ssl_bench.objective.tiles import nearest_keys


class Positives(nn.Module, ABC):
    """The positives of a batch, and what is kept for the next batch.

    Attributes:
        gives: requirements that a loss may list in its ``needs``.
        takes: properties of the framework that are lost with these positives.
        needs: requirements on negatives and loss.
    """

    gives: frozenset[str] = frozenset()
    takes: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()

    @abstractmethod
    def choose(self, e: Embedded) -> Embedded:
        """``e`` with the chosen positives. The negatives are still made from ``e`` itself."""

    def update(self, e: Embedded, progress: Progress) -> None:
        """Keep what later batches need; called once after each optimiser step, without gradient."""


class OtherView(Positives):
    """The other view of the same image."""

    def choose(self, e: Embedded) -> Embedded:
        return e


class NearestKey(Positives):
    """The key of an earlier batch that is nearest to the other view, in its place (NNCLR, Dwibedi et al. 2021).

    NNCLR's eq. 2, where NN(z) is the nearest key of the support queue and z_i, z_i' are two views of image i:

        L_i = -log( exp(NN(z_i) . z_i' / tau) / sum_k exp(NN(z_i) . z_k' / tau) )

    Section 3.2 adds the same with NN(z_k) . z_i' in the sum: the anchor is then z_i'. Here it is z_i' too, with the
    positive NN(z_i), and its negatives are those of ``negatives``, keys themselves and not their neighbours, so that an
    experiment changes nothing but the positive. The queue takes in the keys of both views (in the paper those of one,
    which it found to make no difference) and has random unit vectors at the start.

    Args:
        k: keys in the queue, at least 1.
        dim: width D of a key.
        seed: of the first keys; the queue is the same on all ranks.
    """

    takes = frozenset({"two_views"})

    def __init__(self, k: int, dim: int, seed: int) -> None:
        super().__init__()
        self.queue = Queue(k, dim, seed)

    def choose(self, e: Embedded) -> Embedded:
        index = nearest_keys(e.p.flatten(0, 1), self.queue.keys)  # [V B]
        return replace(e, p=self.queue.keys[index].view_as(e.p))

    def update(self, e: Embedded, progress: Progress) -> None:
        self.queue.update(e, progress)


class SameLabel(Positives):
    """The other view, and every candidate that shows an image of the anchor's class (SupCon, Khosla et al. 2020).

    An image without a label (-1) has its other view as its only positive.
    """

    gives = frozenset({"labels"})
    needs = frozenset({"labelled", "several"})

    def choose(self, e: Embedded) -> Embedded:
        return e
