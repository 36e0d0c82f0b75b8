"""Weighted k-nearest-neighbour classification of frozen features (Wu et al., 2018, arXiv:1805.01978, section 3.4).

Shapes: Q queries, N bank entries, D features, n x m a block of both, g entries per group.

The whole cost is one product of Q x D by D x N and the choice of k in every row of it. The product is made block by
block and never kept. The choice looks at the maximum of each group of g neighbouring bank entries first: the k nearest
entries lie in the k groups with the largest maxima, so that only k * g entries of a block are ever compared singly.
"""

import itertools
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ssl_bench.distributed import all_sum, rank, world
from ssl_bench.evaluate.target import Target

GROUP = 8
INDEX = 0xFFFFFFFF  # low half of a key
BLOCKS = {"cpu": (256, 20480), "cuda": (2048, 32768)}  # queries x bank entries: the cosines kept at a time


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
    """Ranks the classes for every query by its k nearest bank entries.

    Neighbours are nearest in cosine similarity s, each votes for its class with weight exp(s / temperature). Among
    equally similar neighbours the lower bank index counts as nearer; among equal classes the lower one comes first.
    Cosines are float32, votes are summed in float64 in one fixed order. Extra memory does not grow with Q * N.

    Args:
        queries, bank: features [Q, D] and [N, D], normalised in here; bank_labels: [N] in [0, num_classes).
        k: neighbours, in [1, N]; temperature: above 0.
        blocks: the most queries and bank entries compared at a time; the result does not depend on it.

    Returns:
        [Q, num_classes] classes, best first.

    Raises:
        ValueError: if k, temperature or a label is out of range.
    """
    check_votes(bank_labels, k, temperature, num_classes)
    query_block, bank_block = blocks or BLOCKS.get(queries.device.type, BLOCKS["cpu"])
    return rank_classes(nearest(queries, bank, k, query_block, bank_block), bank_labels, k, temperature, num_classes)


def rank_classes(keys: Tensor, bank_labels: Tensor, k: int, temperature: float, num_classes: int) -> Tensor:
    """[Q, num_classes] classes, best first, by the votes of the first k of the neighbours ``keys`` [Q, k or more]."""
    ranking = torch.empty(len(keys), num_classes, dtype=torch.int64, device=keys.device)
    for block, out in zip(keys.split(4096), ranking.split(4096), strict=True):
        cosines, labels = _cosines_of(block), bank_labels[INDEX - (block & INDEX)]
        weights = ((cosines - cosines[:, :1]) / temperature).exp()  # relative to the nearest: cannot overflow
        scores = weights.new_zeros(len(block), num_classes)
        for j in range(k):  # one neighbour of all queries at a time: no two additions race, so that ties are exact
            scores.scatter_add_(1, labels[:, j : j + 1], weights[:, j : j + 1])
        out.copy_(scores.sort(dim=1, descending=True, stable=True).indices)
    return ranking


def nearest(queries: Tensor, bank: Tensor, k: int, query_block: int, bank_block: int) -> Tensor:
    """Keys [Q, k] of the k nearest bank entries, nearest first; a key holds a cosine and an index."""
    device, group = bank.device, torch.arange(GROUP, device=bank.device)
    found = torch.full((len(queries), k), torch.iinfo(torch.int64).min, device=device)  # below every key
    bank_block = -(-len(bank) // -(-len(bank) // bank_block))  # equal blocks
    for start in range(0, len(bank), bank_block):
        count = min(bank_block, len(bank) - start)
        groups = -(-count // GROUP)
        entries = torch.empty(groups * GROUP, bank.shape[1], device=device)  # [m, D], padded to whole groups
        entries[:count], entries[count:] = bank[start : start + count], 0
        entries /= entries.norm(dim=1, keepdim=True).clamp_min(1e-12)
        for block, best in zip(queries.split(query_block), found.split(query_block), strict=True):
            cosines = _products(entries, F.normalize(block.float(), dim=1))  # [m, n]
            cosines[count:] = -torch.inf
            cosines = cosines.view(groups, GROUP, len(block))
            maxima = _keys(cosines.amax(1).T.contiguous(), torch.arange(groups, device=device))  # [n, groups]
            chosen = maxima.topk(min(k, groups), dim=1, sorted=False).indices.unsqueeze(2)  # [n, k, 1]
            candidates = cosines.permute(2, 0, 1).gather(1, chosen.expand(-1, -1, GROUP))  # [n, k, g]
            keys = _keys(candidates, start + chosen * GROUP + group).flatten(1)  # [n, k * g]
            best.copy_(torch.cat([best, keys], dim=1).topk(k, dim=1, sorted=False).values)
    return found.sort(dim=1, descending=True).values


def _products(entries: Tensor, queries: Tensor) -> Tensor:
    """entries @ queries.T, [m, n], contiguous and in full float32, whatever the run allows elsewhere.

    On CPU as a 1 x 1 convolution, which oneDNN computes with AVX-512 wherever the processor has it; the matrix product
    goes to MKL, which on AMD processors stays at AVX2 and takes 2.4 times as long.
    """
    if entries.device.type == "cpu" and torch.backends.mkldnn.is_available() and len(queries):
        pixels = entries[None, None].permute(0, 3, 1, 2)  # [1, D, 1, m], channels last
        return F.conv2d(pixels, queries[:, :, None, None])[0, :, 0].T.contiguous()  # channels last again: no copy
    # The switch that runs set: torch refuses to read one of its switches where another has said something else.
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False  # TF32 would round the cosines to 11 bits
    try:
        return entries @ queries.T
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


def _keys(cosines: Tensor, index: Tensor) -> Tensor:
    """One int64 each, ordered by the cosine and among equal cosines by the lower index."""
    bits = (cosines + 0.0).view(torch.int32)  # + 0.0: minus zero is zero
    return ((bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32) + (INDEX - index)


def _cosines_of(keys: Tensor) -> Tensor:
    """The cosines that `_keys` was given, as float64."""
    bits = (keys >> 32).int()
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).view(torch.float32).double()


def check_votes(bank_labels: Tensor, k: int, temperature: float, num_classes: int) -> None:
    """Raises ValueError unless k neighbours can be found in the bank and vote."""
    count = len(bank_labels)
    if not 1 <= k <= count:
        raise ValueError(f"k must be in [1, {count}], the number of bank entries, not {k}: set such a k")
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0, not {temperature}")
    if bank_labels.min() < 0 or bank_labels.max() >= num_classes:
        raise ValueError(f"bank_labels must lie in [0, num_classes) = [0, {num_classes}): set a labelled bank")


class KNN:
    """Accuracy of the k nearest neighbours in the clean train split, for the backbone and for the projection.

    Yields top1, projection_top1 and, with more than five classes, top5 and projection_top5. Raw pixels have no
    projection. Raises ValueError if k exceeds the train split: it is never cut silently.

    Args:
        k, temperature: of the votes; of several, all pairs are reported (k20_t0.07_top1), the first pair also plainly.
            The neighbours are searched once.
        per_class: also the accuracy on the test images of each class (top1_class0 ...), of the first pair.
    """

    def __init__(
        self, k: int | Sequence[int] = 200, temperature: float | Sequence[float] = 0.1, per_class: bool = False
    ) -> None:
        self.k = [k] if isinstance(k, int) else list(k)
        self.temperature = [temperature] if isinstance(temperature, float | int) else list(temperature)
        self.per_class = per_class
        if not self.k or not self.temperature:
            raise ValueError("k and temperature must not be empty lists")

    def check(self, target: Target) -> None:
        bank_labels, _ = target.labels("train"), target.labels("test")
        for k, temperature in itertools.product(self.k, self.temperature):
            check_votes(bank_labels, k, temperature, target.num_classes)

    def run(self, target: Target) -> Iterator[tuple[str, float]]:
        self.check(target)
        bank_labels, labels = target.labels("train"), target.labels("test")
        mine, pairs = slice(rank(), None, world()), list(itertools.product(self.k, self.temperature))
        for name, bank in target.features("train").items():
            queries = target.features("test")[name][mine]
            keys = nearest(queries, bank, max(self.k), *BLOCKS.get(queries.device.type, BLOCKS["cpu"]))
            prefix = "" if name == "backbone" else f"{name}_"
            for place, (k, temperature) in enumerate(pairs):
                ranking = rank_classes(keys, bank_labels, k, temperature, target.num_classes)
                found = dict(scores(ranking[:, :5] == labels[mine, None], labels, mine, target.num_classes))
                top = {key: value for key, value in found.items() if "class" not in key}
                if place == 0:
                    yield from ((f"{prefix}{key}", value) for key, value in (found if self.per_class else top).items())
                if len(pairs) > 1:
                    yield from ((f"{prefix}k{k}_t{temperature:g}_{key}", value) for key, value in top.items())


def scores(hits: Tensor, labels: Tensor, rows: slice, num_classes: int) -> Iterator[tuple[str, float]]:
    """top1, with more than five classes top5, and the top1 of each class.

    Args:
        hits: bool [n, 5 or fewer], whether the r-th best class is right, for this rank's ``rows`` of the images.
        labels: int64 [N] of all images.
    """
    counts = all_sum(hits.sum(0)).cumsum(0).double() / len(labels)
    yield "top1", float(counts[0])
    if num_classes > 5:
        yield "top5", float(counts[4])
    right = torch.zeros(num_classes, dtype=torch.float64, device=hits.device)
    right = all_sum(right.index_add_(0, labels[rows], hits[:, 0].double()))
    each = labels.bincount(minlength=num_classes)
    yield from ((f"top1_class{c}", float(right[c] / each[c])) for c in range(num_classes) if each[c])
