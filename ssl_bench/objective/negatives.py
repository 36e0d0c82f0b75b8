"""The negatives of an anchor: the keys that it is pushed away from.

Shapes: N images of all ranks; V anchor views; B images on this rank; D width; K negatives per anchor; C candidates.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from ssl_bench.distributed import gather, rank, world
from ssl_bench.errors import require
from ssl_bench.objective import bits
from ssl_bench.objective.candidates import Pool
from ssl_bench.objective.contrast import Bank, Contrast, Embedded
from ssl_bench.objective.memory import Memory
from ssl_bench.objective.sampling import StepGenerator, draw_excluded, without_replacement
from ssl_bench.objective.schedule import Count, Name, Progress

LISTED_UP_TO_ONE_IN = 8  # candidates: of fewer chosen ones their numbers are listed, else the others are marked


class Negatives(nn.Module, ABC):
    """Candidates for a batch, the choice among them, and what is stored for the next batch.

    Attributes:
        gives: requirements that a loss may list in its ``needs``; ``labelled``: the candidates have the classes of
            their images.
        needs: requirements on the framework.
        varies: whether K depends on the progress of the training.
    """

    gives: frozenset[str] = frozenset({"negatives"})
    needs: frozenset[str] = frozenset()
    varies: bool = False

    @abstractmethod
    def count(self, images: int, progress: float = 0.0) -> int:
        """K at a global batch of ``images``, at ``progress`` in [0, 1] of the training.

        Raises:
            InvalidValue: the batch has fewer candidates than are asked for, now or later in the training.
        """

    @abstractmethod
    def bank(self, e: Embedded) -> Bank | None:
        """The candidates; those whose id is the anchor's do not count."""

    def select(self, contrast: Contrast, progress: Progress) -> Contrast:
        """The contrast with the chosen negatives only; ``progress`` may be a tensor [] that the host must not read."""
        return contrast

    def update(self, e: Embedded, progress: Progress) -> None:
        """Keep what later batches need; called once after each optimiser step, without gradient."""


class InBatch(Negatives):
    """Both views of every other image of the global batch: K = 2N - 2 (SimCLR; DCL's U_i).

    With more than two views, these are the view of the anchor and the view of its positive.
    """

    gives = frozenset({"negatives", "labelled"})
    needs = frozenset({"both_views"})

    def count(self, images: int, progress: float = 0.0) -> int:
        return 2 * images - 2

    def bank(self, e: Embedded) -> Bank:
        ids = gather(e.ids).repeat(2)
        labels = None if e.labels is None else gather(e.labels).repeat(2)
        if e.anchor_keys is None:
            return Bank(gather(e.p, dim=1).flatten(0, 1), ids, labels)  # [2 N, D]
        both = gather(torch.stack([e.p, e.anchor_keys], 1), dim=2)  # [V, 2, N, D]
        return Bank(both.flatten(1, 2), ids, labels)  # [V, 2 N, D]


class CrossView(Negatives):
    """Every other image of the global batch in the view of the positive: K = N - 1 (MACL's code, SiMo, CLIP)."""

    gives = frozenset({"negatives", "aligned", "labelled"})

    def count(self, images: int, progress: float = 0.0) -> int:
        return images - 1

    def bank(self, e: Embedded) -> Bank:
        labels = None if e.labels is None else gather(e.labels)
        return Bank(gather(e.p, dim=1), gather(e.ids), labels)  # keys [V, N, D]


class OwnView(CrossView):
    """Every other image of the global batch in the view of the anchor: K = N - 1 (DHEL)."""

    gives = frozenset({"negatives", "own_view"})
    needs = frozenset({"both_views"})

    def bank(self, e: Embedded) -> Bank:
        keys = e.p.flip(0) if e.anchor_keys is None else e.anchor_keys
        return Bank(gather(keys, dim=1), gather(e.ids))  # keys [V, N, D]


class RandomK(Negatives):
    """K keys of other images, drawn uniformly without replacement at every step.

    With a schedule, K grows or falls in the course of the training: each step draws the largest K in a random order,
    and the first K of them count.

    Args:
        k: per anchor, at least 1; at the start, if there is a schedule.
        views: ``all``: out of the 2N - 2 of both views (SimCLR in "Less can be more" and EqCo); ``cross``: out of the
            N - 1 in the positive's view (ReLIC there); ``own``: out of the N - 1 in the anchor's own view.
        shared: one draw for all anchors instead of one each (SiMo's code).
        seed: seed of the draws, which are the same on any number of ranks.
        final, schedule, milestones: as in :class:`ssl_bench.objective.schedule.Count`.

    Raises:
        InvalidValue: as Count, or a schedule of a shared draw.
    """

    def __init__(
        self,
        k: int,
        views: Literal["all", "cross", "own"],
        shared: bool,
        seed: int,
        final: int | None = None,
        schedule: Name = "constant",
        milestones: Sequence[float] = (),
    ) -> None:
        super().__init__()
        self.k_at, self.draws = Count(k, final, schedule, milestones), StepGenerator("random_k", seed)
        self.views, self.shared, self.varies = views, shared, self.k_at.varies
        require(not (shared and self.varies), "shared", shared, "false: a schedule draws for each anchor")
        self.pool = {"all": InBatch(), "cross": CrossView(), "own": OwnView()}[views]
        self.gives, self.needs = self.pool.gives - {"labelled"}, self.pool.needs

    def count(self, images: int, progress: float = 0.0) -> int:
        pool = self.pool.count(images)
        remedy = f"{pool} or less, the candidates of an anchor at a batch of {images}"
        for name, k in (("k", self.k_at.k), ("final", self.k_at.final)):
            require(k <= pool, name, k, remedy)
        return int(self.k_at(progress))

    def bank(self, e: Embedded) -> Bank | None:
        return self.pool.bank(e)

    def select(self, contrast: Contrast, progress: Progress) -> Contrast:
        share = contrast.pos.shape[1]
        images = share * world()
        first = torch.arange(rank() * share, (rank() + 1) * share, dtype=torch.int32, device=contrast.pos.device)
        own_keys = [first, first + images] if self.views == "all" else [first]
        pool = self.pool.count(images)
        if self.varies:
            return _marked(contrast, self.k_at(progress), pool, own_keys, self.draws, self.k_at.most)
        return _chosen(contrast, self.k_at.k, pool, own_keys, self.draws, self.shared)


def _chosen(
    contrast: Contrast, k: int, pool: int, own_keys: list[Tensor], draws: StepGenerator, shared: bool = False
) -> Contrast:
    """Keep k of each anchor's ``pool`` candidates as its only negatives, drawn uniformly without replacement.

    Args:
        own_keys: indices [B] of the keys that show an anchor's own image and are no candidates, in ascending order.
        shared: one draw for all anchors instead of one each.
    """
    views, share = contrast.pos.shape
    images, device = share * world(), contrast.pos.device
    if k >= pool:
        return contrast
    if not shared and LISTED_UP_TO_ONE_IN * k > pool:
        return _marked(contrast, k, pool, own_keys, draws)
    local_rows = slice(rank() * share, (rank() + 1) * share)
    index = []
    for view in range(views):
        # Drawn for rows of the global batch: the same for any number of ranks.
        rows, local = (1, slice(None)) if shared else (images, local_rows)
        drawn = without_replacement(rows, pool, k, draws.generators(device, view), local)
        chosen = drawn.expand(share, -1).int()  # [B, k] in [0, pool)
        for own_key in own_keys:
            chosen = chosen + (chosen >= own_key[:, None])  # skip the key of the anchor's own image
        index.append(chosen)
    return contrast.pick(torch.stack(index))


def _marked(
    contrast: Contrast,
    k: Tensor | int,
    pool: int,
    own_keys: list[Tensor],
    draws: StepGenerator,
    most: int | None = None,
) -> Contrast:
    """Do as :func:`_chosen`, by marking the others; ``most`` is the largest k if it changes."""
    views, share = contrast.pos.shape
    local_rows, generators = slice(rank() * share, (rank() + 1) * share), draws.generators(contrast.pos.device)
    width = pool + len(own_keys)
    left_out = draw_excluded(views, share * world(), width, k, own_keys, generators, local_rows, most)
    return contrast.excluding(left_out, k)


class Queue(Negatives):
    """Queue of the last K keys, first in first out (MoCo, section 3.2); random unit vectors at the start.

    If K is smaller than a batch, K random keys of the batch before (EqCo's experiments). With a schedule, the queue
    holds the largest K keys, those of a batch in a random order, and the last K of them count.

    Args:
        k: keys in the queue, at least 1; at the start, if there is a schedule.
        dim: width D of a key.
        seed: seed of the first keys and of the draws; the queue is the same on all ranks.
        final, schedule, milestones: as in :class:`ssl_bench.objective.schedule.Count`.

    Attributes:
        k: the largest number of keys.
        place: the row that the next key is written to.
    """

    gives = frozenset({"negatives", "aligned"})
    keys: Tensor
    place: Tensor

    def __init__(
        self,
        k: int,
        dim: int,
        seed: int,
        final: int | None = None,
        schedule: Name = "constant",
        milestones: Sequence[float] = (),
    ) -> None:
        super().__init__()
        self.k_at, self.draws = Count(k, final, schedule, milestones), StepGenerator("queue", seed)
        self.k, self.varies = self.k_at.most, self.k_at.varies
        start = torch.randn(self.k, dim, generator=self.draws.generator(torch.device("cpu"), -1), device="cpu")
        self.register_buffer("keys", nn.functional.normalize(start, dim=1))
        self.register_buffer("place", torch.zeros((), dtype=torch.int64))

    def count(self, images: int, progress: float = 0.0) -> int:
        return int(self.k_at(progress))

    def bank(self, e: Embedded) -> Bank:
        return Bank(self.keys, None)

    def select(self, contrast: Contrast, progress: Progress) -> Contrast:
        if not self.varies:
            return contrast
        k, rows = self.k_at(progress), torch.arange(self.k, device=self.place.device)
        age = (self.place - 1 - rows) % self.k  # 0: of the key that came last
        return contrast.excluding(bits.pack(age >= k).expand(*contrast.pos.shape, -1), k)

    def update(self, e: Embedded, progress: Progress) -> None:
        keys = gather(e.keys.detach(), dim=1).flatten(0, 1)  # [V N, D]
        if self.varies:
            numbers = torch.rand(len(keys), generator=self.draws.generator(keys.device), device=keys.device)
            keys = keys[numbers.argsort()[: self.k]]
        if self.k < len(keys):
            drawn = without_replacement(1, len(keys), self.k, self.draws.generators(keys.device))
            self.keys.copy_(keys[drawn[0]])
        else:
            rows = (self.place + torch.arange(len(keys), device=keys.device)) % self.k
            self.keys.index_copy_(0, rows, keys)
            self.place.add_(len(keys)).remainder_(self.k)


class MemoryBank(Negatives):
    """One key for each training image, the moving average of the keys of its views (Wu et al. 2018; PIRL).

    The anchor's own image is never a negative. The keys of a batch enter after the step, as in
    :meth:`ssl_bench.objective.memory.Memory.update`.

    Args:
        k: number of other images for each anchor, drawn uniformly without replacement at every step; None: all of them.
        momentum: the share of the old key in the average, in [0, 1].
        dim: width D of a key.
        instances: images to pre-train on.
        seed: seed of the first keys and of the draws, which are the same on any number of ranks.
    """

    gives = frozenset({"negatives", "aligned"})
    ids: Tensor

    def __init__(self, k: int | None, momentum: float, dim: int, instances: int, seed: int) -> None:
        super().__init__()
        others = instances - 1
        fits = k is None or 1 <= k <= others
        require(fits, "k", k, f"a number from 1 to {others}, the other images, or to null for all of them")
        self.k, self.others, self.draws = k or others, others, StepGenerator("memory_bank", seed)
        self.memory = Memory(instances, dim, momentum, seed)
        self.register_buffer("ids", torch.arange(instances), persistent=False)

    def count(self, images: int, progress: float = 0.0) -> int:
        return self.k

    def bank(self, e: Embedded) -> Bank:
        return Bank(self.memory.vectors, self.ids)

    def select(self, contrast: Contrast, progress: Progress) -> Contrast:
        pool = contrast.candidates
        assert isinstance(pool, Pool) and pool.image_ids is not None
        return _chosen(contrast, self.k, self.others, [pool.image_ids[0]], self.draws)

    def update(self, e: Embedded, progress: Progress) -> None:
        self.memory.update(e.ids, e.keys)


class NoNegatives(Negatives):
    """No negatives, for losses that need none (BYOL, SWD)."""

    gives = frozenset()

    def count(self, images: int, progress: float = 0.0) -> int:
        return 0

    def bank(self, e: Embedded) -> None:
        return None
