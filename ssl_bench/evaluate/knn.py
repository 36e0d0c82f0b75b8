"""Weighted k-nearest-neighbour classification of frozen features (Wu et al., 2018, arXiv:1805.01978, section 3.4).

    cosines    = normalize(queries) @ normalize(bank).T     [Q, N], one block at a time, never stored as a whole
    neighbours = the k largest cosines of every row         [Q, k], updated after every block
    score(c)   = sum of exp(cosine / temperature) over the neighbours of class c; the highest score wins

The k largest cosines of a block are found without sorting it. Its entries are cut into groups of 8. The k-th largest
maximum of k or more groups is a floor: k entries are as near, so none below it can be a neighbour. The k-th cosine of
the blocks before is another one. Few groups have a maximum at or above both, and only their entries are looked at.

Shapes: Q queries, N bank entries, D features, n queries and m bank entries of a block, G entries of a group.
"""

import itertools
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ssl_bench.distributed import all_sum, rank, world
from ssl_bench.errors import require
from ssl_bench.evaluate.target import Evaluator, Target
from ssl_bench.precision import products
from ssl_bench.signals import stop_if_asked

GROUP = 8  # G
PARTS = 16  # a multiple of G that divides m
LOW_HALF = 0xFFFFFFFF
NEXT = 1 << 32  # from a key to one with the next larger cosine
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
        queries: [Q, D], of any length. A row with NaN or infinity counts as zeros.
        bank: [N, D], likewise, on the same device.
        k: 1 to N.
        blocks: queries and bank entries whose cosines are computed at once; None: those for the device.
    """
    query_block, bank_block = blocks or BLOCKS.get(queries.device.type, BLOCKS["cpu"])
    best = _keys(torch.full((len(queries), k), -torch.inf, device=bank.device), LOW_HALF)
    bank_block = -(-len(bank) // -(-len(bank) // bank_block))  # blocks of equal size
    for start in range(0, len(bank), bank_block):
        stop_if_asked()
        count = min(bank_block, len(bank) - start)
        entries = torch.empty(-(-count // PARTS) * PARTS, bank.shape[1], device=bank.device)  # [m, D], whole parts
        entries[:count], entries[count:] = bank[start : start + count], 0
        entries.div_(entries.norm(dim=1, keepdim=True).clamp_min(1e-12)).nan_to_num_(0)
        for some_queries, some_best in zip(queries.split(query_block), best.split(query_block), strict=True):
            cosines = _products(entries, F.normalize(some_queries.float(), dim=1).nan_to_num(0))  # [m, n]
            cosines[count:] = -torch.inf  # the padding
            _update(some_best, cosines.unflatten(0, (-1, GROUP)), start)
    return best.sort(dim=1, descending=True).values


def _update(best: Tensor, cosines: Tensor, start: int) -> None:
    """Put the keys of nearer entries into ``best`` [n, k].

    Args:
        cosines: [m / G, G, n], of the bank entries from index ``start`` on.
    """
    (groups, _, n), k = cosines.shape, best.shape[1]
    maxima = cosines.amax(1)  # [m / G, n]
    if cosines.is_cuda:
        return _update_by_groups(best, cosines, maxima, start)
    floor = _unpacked(best.amin(1) + NEXT)[0].float()  # [n]; an equal cosine is not nearer: its index is higher
    if groups >= k:
        joined = max(1, groups // (4 * k))  # maxima of 4 k or more larger groups: topk of all of them would be slow
        larger = maxima[: groups // joined * joined].unflatten(0, (joined, -1)).amax(0)
        floor = torch.maximum(floor, larger.T.topk(k, sorted=False).values.amin(1))
    query, group = (maxima >= floor).T.nonzero(as_tuple=True)  # sorted by query
    if len(query) > 4 * n * k:  # many equal cosines: those of the first half are a floor for the second one
        _update(best, cosines[: groups // 2], start)
        return _update(best, cosines[groups // 2 :], start + groups // 2 * GROUP)
    members = cosines[group, :, query]  # [groups found, G]
    found, member = (members >= floor[query, None]).nonzero(as_tuple=True)
    query, index = query[found], start + group[found] * GROUP + member
    counts = query.bincount(minlength=n)
    column = k + torch.arange(len(query), device=query.device) - (counts.cumsum(0) - counts)[query]  # k, k + 1, ...
    keys = F.pad(best, (0, max(counts.tolist(), default=0)), value=torch.iinfo(torch.int64).min)  # below every key
    keys[query, column] = _keys(members[found, member], index)
    best.copy_(keys.topk(k, dim=1, sorted=False).values)


def _update_by_groups(best: Tensor, cosines: Tensor, maxima: Tensor, start: int) -> None:
    """Do the same without waiting for a GPU to say how much it found: look at the k groups with the largest maxima.

    An entry of another group is no neighbour: those maxima are k entries that are nearer.
    """
    groups, device = len(cosines), cosines.device
    keys = _keys(maxima.T.contiguous(), torch.arange(groups, device=device))  # among equal maxima, the first groups
    group = _index(keys.topk(min(best.shape[1], groups), dim=1, sorted=False).values).unsqueeze(2)  # [n, k, 1]
    members = cosines.permute(2, 0, 1).gather(1, group.expand(-1, -1, GROUP))  # [n, k, G]
    keys = _keys(members, start + group * GROUP + torch.arange(GROUP, device=device)).flatten(1)
    best.copy_(torch.cat([best, keys], dim=1).topk(best.shape[1], dim=1, sorted=False).values)


def _products(entries: Tensor, queries: Tensor) -> Tensor:
    """entries @ queries.T, [m, n], contiguous and in full float32, even where the run allows TF32.

    On CPUs it is a 1 x 1 convolution. On AMD processors oneDNN computes that 1.2 to 1.4 times as fast as MKL the matrix
    product, both with AVX-512 and with AVX2. The entries are 16 images: torch leaves a convolution of fewer to MKL if
    there is one thread.
    """
    if entries.device.type == "cpu" and torch.backends.mkldnn.is_available() and len(queries):
        pixels = entries.view(PARTS, 1, -1, entries.shape[1]).permute(0, 3, 1, 2)  # [16, D, 1, m / 16], channels last
        cosines = F.conv2d(pixels, queries[:, :, None, None])  # [16, n, 1, m / 16], channels last too
        return cosines[:, :, 0].mT.reshape(len(entries), len(queries))  # no copy
    return products(entries, queries)


def _keys(cosines: Tensor, index: Tensor | int) -> Tensor:
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
        require(min(self.temperature, default=0) > 0, "temperature", temperature, "one or more positive numbers")

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
