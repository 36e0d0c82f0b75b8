"""Weighted k-nearest-neighbour classification of frozen features (Wu et al., 2018, arXiv:1805.01978, section 3.4).

    cosines    = normalize(queries) @ normalize(bank).T     [Q, N], one block at a time, never stored as a whole
    neighbours = the k largest cosines of every row         [Q, k], updated after every block
    score(c)   = sum of exp(cosine / temperature) over the neighbours of class c; the highest score wins

The k largest cosines of a block are found without sorting it: they lie in the k groups of 16 entries with the largest
maxima, because the maxima of these groups are k entries that are nearer than any entry of another group.

Shapes: Q queries, N bank entries, D features, n queries and m bank entries of a block, G entries of a group.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ssl_bench.config.ranges import Positive
from ssl_bench.data.source import without_copies
from ssl_bench.distributed import all_sum, rank, world
from ssl_bench.errors import require
from ssl_bench.evaluate.accuracy import top_accuracies
from ssl_bench.evaluate.target import Evaluator, Target
from ssl_bench.networks.encoder import full_precision
from ssl_bench.objective.products import products
from ssl_bench.seeding import stream
from ssl_bench.signals import stop_if_asked

Spaces = Mapping[str, Tensor]  # features by their space
GROUP = 16  # G
LOW_HALF = 0xFFFFFFFF
SHORTEST = 1e-18  # length of a feature; the squares of shorter ones are below the smallest float32
DISTANCES = 5_000_000  # at once, Euclidean
# n, m. The cosines of a block on a CPU have 26 MB: glibc keeps freed memory of less than 32 MB for the next block.
BLOCKS = {"cpu": (128, 51200), "cuda": (2048, 32768)}


def knn_predict(
    queries: Tensor,
    bank: Tensor,
    bank_labels: Tensor,
    *,
    k: int,
    temperature: float,
    num_classes: int,
    blocks: Any = None,
) -> Tensor:
    """Rank the classes for every query by its k nearest bank entries.

    Neighbours are the nearest in cosine similarity s, and each votes for its class with weight exp(s / temperature).
    Among equal cosines the lower bank index is nearer; among equal scores the lower class is first. Cosines are
    float32, also inside ``torch.autocast``; votes are summed in float64 in a fixed order. Extra memory does not grow
    with Q * N.

    Args:
        queries, bank: finite features [Q, D] and [N, D], of any norm; bank_labels: [N] in [0, num_classes).
        k: neighbours, in [1, N]; temperature: above 0.
        blocks: the largest n and m, or None; the result does not depend on them.

    Returns:
        [Q, num_classes] classes, best first.

    Raises:
        InvalidValue: k or temperature is out of range, or a feature is not finite.
    """
    check_k(k, len(bank))
    require(temperature > 0, "temperature", temperature, "a positive number")
    outside = [label for label in (int(bank_labels.min()), int(bank_labels.max())) if not 0 <= label < num_classes]
    require(not outside, "bank_labels", outside, f"numbers in [0, num_classes) = [0, {num_classes})")
    require_finite(queries=queries, bank=bank)
    return rank_classes(nearest_entries(queries, bank, k, blocks), bank_labels, k, temperature, num_classes)


def nearest_entries(queries: Tensor, bank: Tensor, k: int, blocks: tuple[int, int] | None = None) -> Tensor:
    """Find the k nearest bank entries of every query: their keys, int64 [Q, k], nearest first.

    A key holds a cosine and an index: :func:`read_keys` and :func:`rank_classes` read it.

    Args:
        queries: [Q, D], finite; each row is zero, or has a length of SHORTEST or more.
        bank: [N, D], likewise, on the same device.
        k: 1 or more; if it is more than N, the other k - N keys have a cosine of minus infinity.
        blocks: numbers of queries and of bank entries whose cosines are computed at once; None: those in BLOCKS.
    """
    query_block, bank_block = blocks or BLOCKS.get(queries.device.type, BLOCKS["cpu"])
    best = _keys(torch.full((len(queries), k), -torch.inf, device=bank.device), LOW_HALF)
    bank_block = -(-len(bank) // max(1, -(-len(bank) // bank_block)))  # blocks of equal size
    for start in range(0, len(bank), max(1, bank_block)):
        stop_if_asked()
        count = min(bank_block, len(bank) - start)
        entries = torch.empty(-(-count // GROUP) * GROUP, bank.shape[1], device=bank.device)  # [m, D], whole groups
        entries[:count], entries[count:] = bank[start : start + count], 0
        entries.div_(entries.norm(dim=1, keepdim=True).clamp_min(SHORTEST))
        for some_queries, some_best in zip(queries.split(query_block), best.split(query_block), strict=True):
            cosines = _products(entries, F.normalize(some_queries.float(), dim=1, eps=SHORTEST))  # [m, n]
            cosines[count:] = -torch.inf  # the padding
            keys = torch.cat([some_best, _nearest_of_block(cosines, k, start)], dim=1)
            some_best.copy_(keys.topk(k, dim=1, sorted=False).values)
    return best.sort(dim=1, descending=True).values


def _nearest_of_block(cosines: Tensor, k: int, start: int) -> Tensor:
    """Keys of the k groups with the largest maxima, [n, k * G] or all m, from cosines [m, n] of the bank from start."""
    groups = cosines.unflatten(0, (-1, GROUP))  # [m / G, G, n]
    number = torch.arange(len(groups), device=cosines.device)
    maxima = _keys(groups.amax(1).T.contiguous(), number)  # [n, m / G]; of equal maxima the first are nearer
    chosen = _index(maxima.topk(min(k, len(groups)), dim=1, sorted=False).values).unsqueeze(2)  # [n, k, 1]
    members = groups.permute(2, 0, 1).gather(1, chosen.expand(-1, -1, GROUP))  # [n, k, G]
    return _keys(members, start + chosen * GROUP + torch.arange(GROUP, device=cosines.device)).flatten(1)


def _products(entries: Tensor, queries: Tensor) -> Tensor:
    """entries @ queries.T, [m, n], contiguous and in full float32, even where the run allows TF32.

    On CPUs it is a 1 x 1 convolution. On AMD processors oneDNN computes that 1.2 to 1.4 times as fast as MKL the matrix
    product, both with AVX-512 and with AVX2. The entries are 16 images: torch leaves a convolution of fewer to MKL if
    there is one thread.
    """
    if entries.device.type == "cpu" and torch.backends.mkldnn.is_available() and len(queries):
        pixels = entries.view(16, 1, -1, entries.shape[1]).permute(0, 3, 1, 2)  # [16, D, 1, m / 16], channels last
        with torch.autocast("cpu", enabled=False):
            cosines = F.conv2d(pixels, queries[:, :, None, None])  # [16, n, 1, m / 16], channels last too
        return cosines[:, :, 0].mT.reshape(len(entries), len(queries))  # no copy
    return products(entries, queries)


def _keys(cosines: Tensor, index: Tensor | int) -> Tensor:
    """Pack each cosine and its index into an int64, so that one sort orders by cosine, and ties by lower index.

    The high half is the cosine, the low half is 2^32 - 1 - index.
    """
    bits = (cosines + 0.0).view(torch.int32)  # + 0.0 turns minus zero into zero
    return _flip_negative(bits).long().bitwise_left_shift_(32).add_(LOW_HALF - index)


def _index(keys: Tensor) -> Tensor:
    """The indices that were packed into keys."""
    return LOW_HALF - (keys & LOW_HALF)


def read_keys(keys: Tensor) -> tuple[Tensor, Tensor]:
    """The cosines, float32, and the indices that were packed into keys."""
    return _flip_negative((keys >> 32).int()).view(torch.float32), _index(keys)


def _flip_negative(bits: Tensor) -> Tensor:
    """Turn the bits of floats into integers in the same order, or back: flip all but the sign of negative ones."""
    return (bits >> 31).bitwise_and_(0x7FFFFFFF).bitwise_xor_(bits)


def rank_classes(keys: Tensor, bank_labels: Tensor, k: int, temperature: float, num_classes: int) -> Tensor:
    """[Q, num_classes] classes, best first, by the votes of the first k neighbours in ``keys`` [Q, k or more].

    The keys are those of :func:`nearest_entries`; a neighbour votes with exp(cosine / temperature).
    """
    ranking = torch.empty(len(keys), num_classes, dtype=torch.int64, device=keys.device)
    for some_keys, some_ranking in zip(keys.split(4096), ranking.split(4096), strict=True):
        cosines, index = read_keys(some_keys)
        cosines, labels = cosines.double(), bank_labels[index]
        weights = ((cosines - cosines[:, :1]) / temperature).exp()  # relative to the nearest: cannot overflow
        scores = weights.new_zeros(len(some_keys), num_classes)
        for j in range(k):  # one neighbour of all queries at a time: additions in a fixed order, so that ties are exact
            scores.scatter_add_(1, labels[:, j : j + 1], weights[:, j : j + 1])
        some_ranking.copy_(scores.sort(dim=1, descending=True, stable=True).indices)
    return ranking


def leave_one_out(features: Tensor, labels: Tensor, *, k: int, temperature: float, num_classes: int) -> float:
    """Accuracy of kNN for each of the images among all others.

    Args:
        features: [N, D]; labels: [N] in [0, num_classes).
        k: neighbours, in [1, N - 1]; temperature: above 0.
    """
    keys = nearest_entries(features, features, k + 1)
    is_self = _index(keys) == torch.arange(len(features), device=features.device)[:, None]
    is_self[:, -1] |= ~is_self.any(1)  # of more than k + 1 equal images, an image may not be among its own neighbours
    ranking = rank_classes(keys[~is_self].reshape(-1, k), labels, k, temperature, num_classes)
    return (ranking[:, 0] == labels).double().mean().item()


def require_finite(**features: Tensor) -> None:
    """Refuse features [N, D] with rows that are not finite, or whose squares are out of the range of float32.

    Raises:
        InvalidValue: with the name of the features and the number of such rows.
    """
    for name, x in features.items():
        largest = torch.cat([full_precision(rows).abs().amax(1) for rows in x.split(4096)])
        fits = (largest == 0) | ((largest >= 1e-15) & (largest <= 1e15))  # not so for NaN
        bad, remedy = len(x) - int(fits.sum()), "finite numbers, in each row the largest from 1e-15 to 1e15 or all 0"
        require(not bad, name, f"NaN, infinite, too large or too small in {bad} of {len(x)} rows", remedy)


def check_k(k: int, count: int) -> None:
    """Refuse a number of neighbours that is not in [1, count], where ``count`` is the size of the bank."""
    require(1 <= k <= count, "k", k, f"a number from 1 to {count}, the number of labelled training images")


class KNN(Evaluator):
    """Accuracy of kNN in the train split, seen without augmentation, for the backbone and for the projection.

    Yields top1 and projection_top1, with more than five classes also top5 and projection_top5. Raw pixels have no
    projection. A k larger than the train split is refused, never reduced. The queries are divided over the ranks.

    Args:
        k, temperature: of the votes. With lists, every pair is reported (k20_t0.07_top1), and the first one also under
            the plain names; the neighbours are searched once.
        per_class: also yield the accuracy on the test images of each class (top1_class0 ...), for the first pair.
    """

    needs_labels = True
    takes_labels = True

    k: int | Sequence[int] = 200
    temperature: Positive | Sequence[Positive] = 0.1
    per_class: bool = False

    def __post_init__(self) -> None:
        settings: Any = ([x] if isinstance(x, int | float) else x for x in (self.k, self.temperature))
        self.pairs = [*itertools.product(*settings)]
        require(bool(self.pairs), "k", self.k, "one or more numbers of neighbours, as temperature")

    def check(self, target: Target) -> None:
        super().check(target)
        self.check_bank(len(target.train))

    def check_bank(self, count: int) -> None:
        """Refuse numbers of neighbours that a bank does not have."""
        for k, _ in self.pairs:
            check_k(k, count)

    def warnings(self, target: Target) -> Iterator[str]:
        """Warn if k is more than a tenth of the bank: the classes of distant images then decide."""
        k, bank = max(k for k, _ in self.pairs), len(target.train)
        if k > bank / 10:
            remedy = f"set k to {max(1, bank // 10)} or less"
            yield f"k={k} is more than a tenth of the {bank} images that can vote: {remedy}"

    def run(self, target: Target) -> Iterator[tuple[str, float]]:
        bank, queries = ((target.features(name), target.labels(name)) for name in ("train", "test"))  # type: ignore[arg-type]
        yield from self.accuracies(*queries, *bank, target.num_classes)

    def accuracies(
        self, queries: Spaces, labels: Tensor, banks: Spaces, bank_labels: Tensor, num_classes: int
    ) -> Iterator[tuple[str, float]]:
        """Yield the accuracies of queries with labels [Q] in banks with labels [N], in each space."""
        for space, bank in banks.items():
            prefix = "" if space == "backbone" else f"{space}_"
            of_rank = queries[space][rank() :: world()]
            for i, (pair, ranking) in enumerate(self.rankings(of_rank, bank, bank_labels, num_classes)):
                of_all = ranking.new_zeros(len(labels), min(5, num_classes))
                of_all[rank() :: world()] = ranking[:, :5]
                all_sum(of_all)
                for of_pair in [""] * (i == 0) + [pair] * (len(self.pairs) > 1):
                    every_class = self.per_class and not of_pair
                    for name, value in top_accuracies(of_all, labels, num_classes, every_class):
                        yield f"{prefix}{of_pair}{name}", value

    def rankings(
        self, queries: Tensor, bank: Tensor, bank_labels: Tensor, num_classes: int
    ) -> Iterator[tuple[str, Tensor]]:
        """For each k and temperature, the prefix of its metrics, and the ranked classes [Q, C] of queries [Q, D]."""
        keys = nearest_entries(queries, bank, max(k for k, _ in self.pairs))
        for k, temperature in self.pairs:
            yield f"k{k}_t{temperature:g}_", rank_classes(keys, bank_labels, k, temperature, num_classes)


class HeldOutKNN(KNN):
    """Accuracy of kNN for images to choose settings by: top1, projection_top1. No test image is seen.

    The images are those of ``dataset.held_out``, or without it a tenth of the train split, drawn by the seed. The tenth
    is not in the bank, but the network was trained on it.

    Args:
        k, temperature: of the votes; a k larger than the bank is refused.
    """

    takes_labels = False

    def __init__(self, k: int = 200, temperature: float = 0.1) -> None:
        super().__init__(k, temperature)

    def check(self, target: Target) -> None:
        count = len(target.labels("train"))
        self.check_bank(count if target.choose else count - math.ceil(count / 10))

    def run(self, target: Target) -> Iterator[tuple[str, float]]:
        banks, bank_labels = target.features("train"), target.labels("train")
        if target.choose:
            queries, labels = target.features("choose"), target.labels("choose")
        else:
            generator = torch.Generator().manual_seed(stream("knn_val", target.seed))
            order = torch.randperm(len(bank_labels), generator=generator).to(bank_labels.device)
            held_out, others = without_copies(order, math.ceil(len(order) / 10), target.twins("train"))
            queries, banks = ({space: x[ids] for space, x in banks.items()} for ids in (held_out, others))
            labels, bank_labels = bank_labels[held_out], bank_labels[others]
        for name, value in self.accuracies(queries, labels, banks, bank_labels, target.num_classes):
            if name.endswith("top1"):
                yield name, float(value)


class EuclideanKNN(KNN):
    """:class:`KNN` with one k, by the Euclidean distance of features that are not normalised, as in solo-learn.

    A neighbour at distance d votes with 1 / (d + epsilon).

    Args:
        k: neighbours, at most the images of the train split.
        epsilon: added to a distance, whose inverse is the vote.
    """

    def __init__(self, k: int = 20, epsilon: Positive = 0.00001) -> None:
        super().__init__(k)
        self.epsilon = epsilon

    def rankings(
        self, queries: Tensor, bank: Tensor, bank_labels: Tensor, num_classes: int
    ) -> Iterator[tuple[str, Tensor]]:
        rankings = [bank_labels.new_zeros(0, num_classes)]
        for block in queries.split(max(1, DISTANCES // len(bank))) if len(queries) else ():
            stop_if_asked()
            distances, nearest = torch.cdist(block, bank).topk(self.pairs[0][0], dim=1, largest=False)
            scores = distances.new_zeros(len(block), num_classes, dtype=torch.float64)
            scores.scatter_add_(1, bank_labels[nearest], 1 / (distances.double() + self.epsilon))
            rankings.append(scores.sort(dim=1, descending=True, stable=True).indices)
        yield "", torch.cat(rankings)
