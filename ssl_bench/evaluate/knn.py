"""Weighted k-nearest-neighbour classification of frozen features (Wu et al., 2018, arXiv:1805.01978, section 3.4).

    cosines    = normalize(queries) @ normalize(bank).T     [Q, N], one block at a time, never stored as a whole
    neighbours = the k largest cosines of every row         [Q, k], updated after every block
    score(c)   = sum of exp(cosine / temperature) over the neighbours of class c; the highest score wins

To find the k largest of the m cosines of a block, cut its entries into groups of 8 and take the maximum of each group.
The k nearest entries all lie in the k groups with the largest maxima: for an entry of any other group, those maxima are
k entries that are nearer. So a top-k of m / 8 maxima and a top-k of the 8 k entries of those groups are enough. After
the first block, groups whose maximum is below the k-th cosine so far are left out too.

Shapes: Q queries, N bank entries, D features, n queries and m bank entries of a block, G entries of a group.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ssl_bench.distributed import all_sum, rank, world
from ssl_bench.errors import require
from ssl_bench.evaluate.target import Evaluator, Target
from ssl_bench.precision import products

GROUP = 8  # G
PARTS = 16  # a multiple of G that divides m
LOW_HALF = 0xFFFFFFFF
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
    blocks: tuple[int, int] | None = None,
) -> Tensor:
    """Rank the classes for every query by its k nearest bank entries.

    Neighbours are the nearest in cosine similarity s, and each votes for its class with weight exp(s / temperature).
    Among equal cosines the lower bank index is nearer; among equal scores the lower class is first. Cosines are
    float32; votes are summed in float64 in a fixed order. Extra memory does not grow with Q * N.

    Args:
        queries, bank: features [Q, D] and [N, D], of any norm; bank_labels: [N] in [0, num_classes).
        k: neighbours, in [1, N]; temperature: above 0.
        blocks: the largest n and m; the result does not depend on them.

    Returns:
        [Q, num_classes] classes, best first.

    Raises:
        ValueError: k, temperature or a label is out of range.
    """
    check_votes(bank_labels, k, temperature, num_classes)
    return rank_classes(nearest(queries, bank, k, blocks), bank_labels, k, temperature, num_classes)


def nearest(queries: Tensor, bank: Tensor, k: int, blocks: tuple[int, int] | None = None) -> Tensor:
    """Find the k nearest bank entries of every query: their keys, int64 [Q, k], nearest first.

    A key holds a cosine and an index: :func:`rank_classes` reads it.

    Args:
        queries: [Q, D], of any length.
        bank: [N, D], of any length, on the same device.
        k: 1 to N.
        blocks: queries and bank entries whose cosines are computed at once; None: those for the device.
    """
    query_block, bank_block = blocks or BLOCKS.get(queries.device.type, BLOCKS["cpu"])
    device, offsets = bank.device, torch.arange(GROUP, device=bank.device)
    best = torch.full((len(queries), k), torch.iinfo(torch.int64).min, device=device)  # below every key
    bank_block = -(-len(bank) // -(-len(bank) // bank_block))  # blocks of equal size
    for start in range(0, len(bank), bank_block):
        count = min(bank_block, len(bank) - start)
        groups = -(-count // PARTS) * PARTS // GROUP
        entries = torch.empty(groups * GROUP, bank.shape[1], device=device)  # [m, D], padded to whole parts
        entries[:count], entries[count:] = bank[start : start + count], 0
        entries /= entries.norm(dim=1, keepdim=True).clamp_min(1e-12)
        for some_queries, some_best in zip(queries.split(query_block), best.split(query_block), strict=True):
            cosines = _products(entries, F.normalize(some_queries.float(), dim=1))  # [m, n]
            cosines[count:] = -torch.inf  # the padding
            cosines = cosines.view(groups, GROUP, len(some_queries))
            maxima = _keys(cosines.amax(1).T.contiguous(), torch.arange(groups, device=device))  # [n, groups]
            near = _most_above(maxima, some_best) if device.type == "cpu" else groups  # the host would wait for a GPU
            chosen = _index(_largest(maxima, min(k, near))).unsqueeze(2)  # [n, k or fewer, 1] groups
            members = cosines.permute(2, 0, 1).gather(1, chosen.expand(-1, -1, GROUP))  # [n, k, G] their cosines
            keys = _keys(members, start + chosen * GROUP + offsets).flatten(1)  # [n, k G]
            some_best.copy_(_largest(torch.cat([some_best, keys], dim=1), k))
    return best.sort(dim=1, descending=True).values


def _most_above(maxima: Tensor, best: Tensor) -> int:
    """The largest number of groups of a query, by their ``maxima`` [n, groups], that can change its ``best`` [n, k]."""
    farthest = best.amin(1, keepdim=True)  # [n, 1]
    return max(((maxima >> 32) >= (farthest >> 32)).sum(1).tolist(), default=0)


def _largest(keys: Tensor, k: int) -> Tensor:
    """The ``k`` largest of each row of ``keys`` [n, m], [n, k], in any order."""
    if keys.device.type != "cpu":
        return keys.topk(k, dim=1, sorted=False).values
    if k in (0, keys.shape[1]):
        return keys[:, :k]
    rest = keys.shape[1] - k
    return torch.from_numpy(
        np.partition(keys.numpy(), rest, axis=1)[:, rest:]
    )  # with vector instructions: torch has none


def _products(entries: Tensor, queries: Tensor) -> Tensor:
    """entries @ queries.T, [m, n], contiguous and in full float32, even where the run allows TF32.

    On CPUs it is a 1 x 1 convolution, which oneDNN computes with AVX-512 if the processor has it. The matrix product of
    MKL stays at AVX2 on AMD processors and takes 1.6 to 2.4 times as long. The entries are 16 images: torch leaves a
    convolution of fewer to MKL if there is one thread.
    """
    if entries.device.type == "cpu" and torch.backends.mkldnn.is_available() and len(queries):
        pixels = entries.view(PARTS, 1, -1, entries.shape[1]).permute(0, 3, 1, 2)  # [16, D, 1, m / 16], channels last
        cosines = F.conv2d(pixels, queries[:, :, None, None])  # [16, n, 1, m / 16], channels last too
        return cosines[:, :, 0].mT.reshape(len(entries), len(queries))  # no copy
    return products(entries, queries)


def _keys(cosines: Tensor, index: Tensor) -> Tensor:
    """Pack each cosine and its index into an int64, so that one sort orders by cosine, and ties by lower index.

    The high half is the cosine, the low half is 2^32 - 1 - index.
    """
    bits = (cosines + 0.0).view(torch.int32)  # + 0.0 turns minus zero into zero
    return _flip_negative(bits).long().bitwise_left_shift_(32).add_(LOW_HALF - index)


def _unpacked(keys: Tensor) -> tuple[Tensor, Tensor]:
    """The cosines (float64) and indices that were packed into keys."""
    return _flip_negative((keys >> 32).int()).view(torch.float32).double(), _index(keys)


def _index(keys: Tensor) -> Tensor:
    """The indices that were packed into keys."""
    return LOW_HALF - (keys & LOW_HALF)


def _flip_negative(bits: Tensor) -> Tensor:
    """Turn the bits of floats into integers in the same order, or back: flip all but the sign of negative ones."""
    return (bits >> 31).bitwise_and_(0x7FFFFFFF).bitwise_xor_(bits)


def rank_classes(keys: Tensor, bank_labels: Tensor, k: int, temperature: float, num_classes: int) -> Tensor:
    """[Q, num_classes] classes, best first, by the votes of the first k neighbours in ``keys`` [Q, k or more].

    Args:
        keys: from :func:`nearest`.
        bank_labels: [N] in [0, num_classes).
        k: 1 to the number of keys.
        temperature: a neighbour votes with exp(cosine / temperature); positive.
        num_classes: C.
    """
    ranking = torch.empty(len(keys), num_classes, dtype=torch.int64, device=keys.device)
    for some_keys, some_ranking in zip(keys.split(4096), ranking.split(4096), strict=True):
        cosines, indices = _unpacked(some_keys)
        labels = bank_labels[indices]
        weights = ((cosines - cosines[:, :1]) / temperature).exp()  # relative to the nearest: cannot overflow
        scores = weights.new_zeros(len(some_keys), num_classes)
        for j in range(k):  # one neighbour of all queries at a time: additions in a fixed order, so that ties are exact
            scores.scatter_add_(1, labels[:, j : j + 1], weights[:, j : j + 1])
        some_ranking.copy_(scores.sort(dim=1, descending=True, stable=True).indices)
    return ranking


def check_votes(bank_labels: Tensor, k: int, temperature: float, num_classes: int) -> None:
    """Check what :func:`rank_classes` is called with.

    Raises:
        InvalidValue: k is not between 1 and N, the number of ``bank_labels`` [N]; temperature is not positive.
        ValueError: a label is outside of [0, num_classes).
    """
    count = len(bank_labels)
    require(1 <= k <= count, "k", k, f"a number from 1 to {count}, the number of labelled training images")
    require(temperature > 0, "temperature", temperature, "a positive number")
    if bank_labels.min() < 0 or bank_labels.max() >= num_classes:
        raise ValueError(f"bank_labels must lie in [0, num_classes) = [0, {num_classes})")


class KNN(Evaluator):
    """Accuracy of kNN in the train split, seen without augmentation, for the backbone and for the projection.

    Yields top1 and projection_top1, with more than five classes also top5 and projection_top5. Raw pixels have no
    projection. A k larger than the train split is refused, never reduced.

    Args:
        k, temperature: of the votes. With lists, every pair is reported (k20_t0.07_top1), and the first one also under
            the plain names; the neighbours are searched once.
        per_class: also yield the accuracy on the test images of each class (top1_class0 ...), for the first pair.
    """

    def __init__(
        self, k: int | Sequence[int] = 200, temperature: float | Sequence[float] = 0.1, per_class: bool = False
    ) -> None:
        self.k = [k] if isinstance(k, int) else list(k)
        self.temperature = [temperature] if isinstance(temperature, float | int) else list(temperature)
        self.per_class = per_class
        require(bool(self.k), "k", self.k, "one or more numbers of neighbours")
        require(bool(self.temperature), "temperature", self.temperature, "one or more positive numbers")

    def check(self, target: Target) -> None:
        bank_labels, _ = target.labels("train"), target.labels("test")
        for k, temperature in itertools.product(self.k, self.temperature):
            check_votes(bank_labels, k, temperature, target.num_classes)

    def run(self, target: Target) -> Iterator[tuple[str, float]]:
        self.check(target)
        bank_labels, labels = target.labels("train"), target.labels("test")
        local_rows, pairs = slice(rank(), None, world()), list(itertools.product(self.k, self.temperature))
        for space, bank in target.features("train").items():
            keys = nearest(target.features("test")[space][local_rows], bank, max(self.k))
            prefix = "" if space == "backbone" else f"{space}_"
            for i, (k, temperature) in enumerate(pairs):
                ranking = rank_classes(keys, bank_labels, k, temperature, target.num_classes)
                hits = ranking[:, :5] == labels[local_rows, None]
                top, top1_by_class = top_accuracies(hits, labels, local_rows, target.num_classes)
                if i == 0:
                    plain = top | top1_by_class if self.per_class else top
                    yield from ((f"{prefix}{name}", value) for name, value in plain.items())
                if len(pairs) > 1:
                    yield from ((f"{prefix}k{k}_t{temperature:g}_{name}", value) for name, value in top.items())


def top_accuracies(
    hits: Tensor, labels: Tensor, local_rows: slice, num_classes: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Compute top1, top5 if there are more than five classes, and the top1 of each class, over all ranks.

    Args:
        hits: bool [n, 5 or fewer], whether the r-th best class is right, for the ``local_rows`` of this rank.
        labels: int64 [N] of all images.
    """
    correct = all_sum(hits.sum(0)).cumsum(0).double() / len(labels)
    top = {"top1": float(correct[0])}
    if num_classes > 5:
        top["top5"] = float(correct[4])
    per_class = torch.zeros(num_classes, dtype=torch.float64, device=hits.device)
    per_class = all_sum(per_class.index_add_(0, labels[local_rows], hits[:, 0].double()))
    sizes = labels.bincount(minlength=num_classes)
    return top, {f"top1_class{c}": float(per_class[c] / sizes[c]) for c in range(num_classes) if sizes[c]}
