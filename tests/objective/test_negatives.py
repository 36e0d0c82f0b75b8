"""The keys that an anchor is contrasted with, and the key that is its positive: explicit sets, frequencies of all sets.

Keys are one-hot, and the entries of an anchor are 0, 1, 2, ..., so that its cosine with a key is the key's number.
"""

import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn.functional import normalize

from ssl_bench.errors import InvalidValue
from ssl_bench.objective import bits, sampling
from ssl_bench.objective.candidates import Keyed
from ssl_bench.objective.contrast import Contrast, Embedded
from ssl_bench.objective.losses import SINCERE, InfoNCE, SupCon
from ssl_bench.objective.memory import Memory
from ssl_bench.objective.negatives import CrossView, InBatch, MemoryBank, Negatives, OwnView, Queue, RandomK
from ssl_bench.objective.positives import NearestKey
from ssl_bench.objective.sampling import draw_excluded, without_replacement
from ssl_bench.objective.schedule import Count, Progress
from tests.door.door import refused
from tests.objective.test_losses import draw

TAU = torch.tensor(0.2, dtype=torch.float64)


def numbered(images: int, views: int = 2) -> Embedded:
    """Key number v N + b, one-hot, is the positive of anchor b of view v, so it shows image b in the other view."""
    keys = torch.eye(views * images, dtype=torch.float64).unflatten(0, (views, images))
    q = torch.arange(views * images, dtype=torch.float64).expand(views, images, -1)
    return Embedded(q, keys, q, torch.arange(images).flip(0) * 7)


def keys_of(
    negatives: Negatives, e: Embedded, tiled: bool | None = None, progress: Progress = 0.0
) -> list[list[list[int]]]:
    """[V][B] numbers of the keys that the anchor is contrasted with."""
    contrast = negatives.select(Contrast.of(e, negatives.bank(e), tiled), progress)
    assert isinstance(contrast.candidates, Keyed)
    cosines, valid = contrast.candidates.cosines(e.q)
    valid = torch.ones_like(cosines, dtype=torch.bool) if valid is None else valid.expand(cosines.shape)
    # The sum that a loss uses is over the listed keys.
    lse = cosines.masked_fill(~valid, -torch.inf).logsumexp(-1)
    torch.testing.assert_close(contrast.lse(torch.tensor(1.0)), lse, rtol=1e-12, atol=1e-12)
    assert torch.equal(contrast.count.expand(lse.shape).long(), valid.sum(-1))
    views = [zip(*pair, strict=True) for pair in zip(cosines, valid, strict=True)]
    return [[sorted(int(key) for key in row[mask]) for row, mask in anchors] for anchors in views]


# ---- from the batch


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize(
    ("pool", "views", "of_view", "count"),
    [
        (InBatch(), 2, lambda v: (0, 1), 8),
        *((CrossView(), views, lambda v: (v,), 4) for views in (1, 2)),  # the view of the positive
        (OwnView(), 2, lambda v: (1 - v,), 4),
    ],
)
def test_a_pool_is_every_other_image_in_its_views(
    pool: Negatives, views: int, of_view: Callable[[int], tuple[int, ...]], count: int, tiled: bool
) -> None:
    """The anchors of view 0 have their positives, keys 0 to 4, in view 1, and the keys of their own view are 5 to 9."""
    found = keys_of(pool, numbered(5, views), tiled)
    for v, b in itertools.product(range(views), range(5)):
        assert found[v][b] == [w * 5 + image for w in of_view(v) for image in range(5) if image != b]
    assert pool.count(5) == count


def test_an_image_that_appears_twice_is_never_its_own_negative() -> None:
    e = numbered(4)
    e = Embedded(e.q, e.p, e.raw, torch.tensor([3, 1, 3, 0]))
    assert keys_of(InBatch(), e)[0] == [[1, 3, 5, 7], [0, 2, 3, 4, 6, 7], [1, 3, 5, 7], [0, 1, 2, 4, 5, 6]]


# ---- random choices


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("views", "k"), [("all", 1), ("all", 4), ("all", 7), ("all", 10), ("cross", 2), ("cross", 4), ("own", 3)]
)
def test_random_k_is_k_different_keys_of_other_images(views: Any, k: int, shared: bool, tiled: bool) -> None:
    """With the chosen keys listed, with the others listed (k above half of the pool), and with the whole pool."""
    negatives = RandomK(k, views, shared, 3)
    for _ in range(5):
        for v, view in enumerate(keys_of(negatives, numbered(6), tiled)):
            for b, keys in enumerate(view):
                assert len(set(keys)) == len(keys) == k
                assert all(key % 6 != b for key in keys)
                assert views == "all" or all((key // 6 == v) == (views == "cross") for key in keys)
        negatives.draws.step += 1


def test_random_k_draws_for_each_step_view_and_anchor_and_depends_on_the_seed() -> None:
    def keys(seed: int, step: int) -> list[list[list[int]]]:
        negatives = RandomK(8, "all", False, seed)
        negatives.draws.step = step
        return keys_of(negatives, numbered(40))

    first = keys(0, 0)
    assert first == keys(0, 0)
    # 8 of 78 are the same by chance once in 10^10.
    for other in (first[1], keys(0, 1)[0], keys(1, 0)[0], first[0][1:] + first[0][:1]):
        assert not any(one == another for one, another in zip(first[0], other, strict=True))


def test_a_shared_draw_is_the_same_for_all_anchors_except_for_their_images() -> None:
    negatives = RandomK(3, "cross", True, 1)
    (found,) = keys_of(negatives, numbered(12, 1))
    # Number c of the eleven other images is key c before the anchor's image and key c + 1 after it.
    numbers = [[key - (key > b) for key in keys] for b, keys in enumerate(found)]
    assert all(drawn == numbers[0] for drawn in numbers)


def assert_uniform(subsets: list[tuple[int, ...]], pool: int, k: int) -> None:
    """Check that every k-subset is equally frequent, and with it every candidate and every pair."""
    counts = {subset: 0 for subset in itertools.combinations(range(pool), k)}
    for subset in subsets:
        counts[subset] += 1
    assert len(subsets) >= 20 * len(counts)
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3
    if k > 2:
        return
    # The subsets of consecutive anchors are independent.
    table = torch.zeros(len(counts), len(counts))
    order = {subset: place for place, subset in enumerate(counts)}
    for one, other in itertools.pairwise(subsets):
        table[order[one], order[other]] += 1
    assert stats.chi2_contingency(table).pvalue > 1e-3


@pytest.mark.parametrize(
    ("views", "k", "in_numpy", "progress"),
    [
        *(("all", 1, True, None), ("all", 6, True, None), ("all", 6, False, None), ("cross", 1, True, None)),
        *(("cross", 3, True, None), ("all", 2, True, 0.5)),
    ],
)
def test_random_k_is_uniform(
    views: Any, k: int, in_numpy: bool, progress: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chi-square over all subsets, as a CPU and as a GPU draws; with a progress, in the middle of a growing k."""
    monkeypatch.setattr(bits, "in_numpy", lambda device: in_numpy)
    images, subsets = 5, []
    grows = (k - 1, views, False, 0, k + 1, "linear")
    negatives = RandomK(k, views, False, 0) if progress is None else RandomK(*grows)  # type: ignore[arg-type]
    for negatives.draws.step in range(300):
        for v, view in enumerate(keys_of(negatives, numbered(images), progress=progress or 0.0)):
            for b, keys in enumerate(view):
                allowed = [i for i in range(2 * images) if i % images != b and (views == "all" or i // images == v)]
                subsets.append(tuple(map(allowed.index, keys)))
    assert_uniform(subsets, len(allowed), k)


def seeded(block: int) -> torch.Generator:
    return torch.Generator().manual_seed(block)


@pytest.mark.parametrize(
    ("rows", "pool", "k"), [(500, 16_382, 16), (3, 131_070, 4096), (20, 8190, 2047), (4, 400, 300)]
)
def test_a_small_draw_from_a_large_pool_has_no_repetition(rows: int, pool: int, k: int) -> None:
    drawn = without_replacement(rows, pool, k, seeded)
    ordered = drawn.sort(-1).values
    assert bool((ordered[:, 1:] > ordered[:, :-1]).all()) and int(drawn.min()) >= 0 and int(drawn.max()) < pool
    edges = torch.linspace(0, pool, 11).long()
    counts = torch.histogram(drawn.double(), edges.double()).hist
    # Without replacement the counts vary less than the test assumes.
    assert stats.chisquare(counts, edges.double().diff() / pool * drawn.numel()).pvalue > 1e-3


@pytest.mark.parametrize("grows", [True, False])
@pytest.mark.parametrize("k", [3, 17, 30])  # of 38: by a sequence with repetitions, by marking, by marking nearly all
def test_a_rank_on_a_gpu_draws_the_rows_of_one_process(k: int, grows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn as on GPUs, in blocks; ten ranks of four rows each."""
    rows, views, width = 40, 2, 38
    monkeypatch.setattr(bits, "in_numpy", lambda device: False)
    monkeypatch.setattr(sampling, "GPU_BLOCK_NUMBERS", 3 * views * width)

    def found(kept: slice) -> list[Tensor]:
        own = [torch.arange(rows)[kept] % width]
        left_out = draw_excluded(views, rows, width, k, own, seeded, kept, 31 if grows else None)
        return [left_out.transpose(0, 1), without_replacement(rows, width, k, seeded, kept)]

    whole, parts = found(slice(None)), [found(slice(4 * part, 4 * part + 4)) for part in range(10)]
    for one, *several in zip(whole, *parts, strict=True):
        assert torch.equal(one, torch.cat(several))
    assert len(whole[0].unique(dim=0)) == rows


# ---- the queue


def unit(*shape: int, seed: int = 0) -> Tensor:
    return normalize(draw(*shape, seed=seed), dim=-1)


def batches(steps: int, views: int, images: int, rows: slice = slice(None)) -> list[Embedded]:
    every = [unit(views, images, 4, seed=9 + step).requires_grad_() for step in range(steps)]
    return [Embedded(p[:, rows], p[:, rows], p[:, rows], torch.arange(images)[rows]) for p in every]


@pytest.mark.parametrize(("k", "views", "images"), [(7, 1, 3), (7, 2, 3), (6, 1, 6), (12, 2, 3), (50, 2, 4)])
def test_the_queue_holds_the_last_k_keys_first_in_first_out(k: int, views: int, images: int) -> None:
    """Also if k is no multiple of the keys of a step; the keys of both views enter."""
    queue = Queue(k, 4, 0).double()
    assert not torch.equal(queue.keys, Queue(k, 4, 1).double().keys)
    expected = deque(queue.keys.clone(), maxlen=k)
    for e in batches(9, views, images):
        bank = queue.bank(e)
        assert bank.ids is None and bank.keys.shape == (k, 4)
        torch.testing.assert_close(bank.keys.norm(dim=1), torch.ones(k, dtype=torch.float64))
        # The oldest key is in the place of the next one.
        assert torch.equal(bank.keys.roll(-int(queue.place), 0), torch.stack(list(expected)))
        queue.update(e, 0.0)
        expected.extend(e.p.detach().flatten(0, 1))
    assert queue.count(images) == k and not queue.keys.requires_grad


# ---- a number that follows the progress of the training


def test_k_follows_its_schedule() -> None:
    """Closed forms, at numbers and at tensors, which the host does not read."""
    places = [step / 60 for step in range(61)]
    expected: dict[Any, Callable[[float], float]] = {
        ("constant", ()): lambda p: 4,
        ("linear", ()): lambda p: 4 + 96 * p,
        ("cosine", ()): lambda p: 52 - 48 * math.cos(math.pi * p),
        ("step", (0.5,)): lambda p: 100 if p >= 0.5 else 4,
        ("step", (0.25, 0.5, 0.75)): lambda p: 4 + 32 * min(3, int(4 * p)),
    }
    for (schedule, milestones), k in expected.items():
        rising = Count(4, None if schedule == "constant" else 100, schedule, milestones)
        assert [rising(p) for p in places] == [round(k(p)) for p in places]
        on_device = [rising(torch.tensor(p, dtype=torch.float64)) for p in places]
        assert [int(found) for found in on_device] == [round(k(p)) for p in places]
        if schedule != "constant":
            assert all(isinstance(found, Tensor) for found in on_device) and rising.most == 100 and rising.varies
            falling = Count(100, 4, schedule, milestones)
            assert [falling(p) for p in places] == [104 - round(k(p)) for p in places] and falling.most == 100
    assert not Count(4, None, "constant", ()).varies


@pytest.mark.parametrize(("views", "pool"), [("all", 10), ("cross", 5), ("own", 5)])
def test_a_growing_k_draws_more_of_the_same_order(views: Any, pool: int) -> None:
    negatives, e, before = RandomK(1, views, False, 3, pool, "linear"), numbered(6), None
    for k in range(1, pool + 1):
        progress = (k - 1) / (pool - 1)
        found = keys_of(negatives, e, progress=progress)
        assert found == keys_of(negatives, e, progress=torch.tensor(progress, dtype=torch.float64))
        assert negatives.count(6, progress) == k
        for v, b in itertools.product(range(2), range(6)):
            keys = found[v][b]
            assert len(set(keys)) == k and all(key % 6 != b for key in keys)
            assert views == "all" or all((key // 6 == v) == (views == "cross") for key in keys)
            assert before is None or {*before[v][b]} < {*keys}
        before = found


@pytest.mark.parametrize("most", [5, 24, 30])  # less than a batch, several, and not a multiple
@pytest.mark.parametrize("grows", [True, False])
def test_the_last_k_keys_of_a_scheduled_queue_count(most: int, grows: bool) -> None:
    """Keys of a batch are in a random order among themselves, so that fewer than a batch are a random choice."""
    steps, images = 9, 4
    queue = Queue(*((2, 4, 0, most) if grows else (most, 4, 0, 2)), "linear").double()
    order = [*queue.keys.clone()]  # the key that came last is the last one
    for step, e in enumerate(batches(steps, 2, images)):
        k = round(2 + (most - 2) * (step if grows else steps - 1 - step) / (steps - 1))
        progress = step / (steps - 1)
        assert queue.count(images, progress) == k
        for at in (progress, torch.tensor(progress, dtype=torch.float64)):
            contrast = queue.select(Contrast.of(e, queue.bank(e)), at)
            lse = torch.stack([(e.q @ key).exp() for key in order[-k:]]).sum(0).log()
            torch.testing.assert_close(contrast.lse(TAU / TAU), lse, rtol=1e-12, atol=1e-12)
        queue.update(e, progress)
        queue.draws.step += 1
        came = queue.keys.roll(-int(queue.place), 0)[-min(most, 2 * images) :]
        assert (came[:, None] == e.p.flatten(0, 1)).all(-1).sum(1).tolist() == [1] * len(came)
        order = [*order, *came][-most:]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: Count(4, 9, "constant", ()), "final=9 null schedule linear cosine step"),
        (lambda: Count(4, None, "linear", ()), "final=null 1 schedule=linear"),
        (lambda: Count(4, 0, "cosine", ()), "final=0 1 schedule=cosine"),
        (lambda: Count(4, 9, "step", ()), "milestones=[] (0, 1]"),
        (lambda: Count(4, 9, "linear", (0.5,)), "milestones=[0.5] [] schedule step"),
        (lambda: Count(0, 9, "linear", ()), "k=0 1"),
        (lambda: Queue(0, 4, 0), "k=0 1"),
        (lambda: RandomK(15, "all", False, 0).count(8), "k=15 14"),
        (lambda: RandomK(8, "cross", False, 0).count(8), "k=8 7"),
        (lambda: RandomK(15, "all", False, 0, 3, "linear").count(8), "k=15 14"),
        (lambda: RandomK(3, "all", False, 0, 15, "linear").count(8), "final=15 14"),
        (lambda: RandomK(3, "all", True, 0, 5, "linear"), "shared=true false"),
        (lambda: MemoryBank(0, 0.5, 4, IMAGES, 0), "k=0 1 10 null"),
        (lambda: MemoryBank(11, 0.5, 4, IMAGES, 0), "k=11 1 10 null"),
        (lambda: MemoryBank(None, 1.5, 4, IMAGES, 0), "momentum=1.5 0 1"),
    ],
)
def test_invalid_settings_are_refused(make: Callable[[], Any], names: str) -> None:
    with refused(names, InvalidValue):
        make()


# ---- the memory of one vector for each image

IMAGES = 11


@pytest.mark.parametrize("momentum", [0.0, 0.5, 1.0])
def test_vectors_move_towards_new_ones(momentum: float) -> None:
    """With two views the second is applied first: the order of the backward passes in CLD's code."""
    memory = Memory(IMAGES, 4, momentum, 0).double()
    expected = memory.vectors.clone()
    for step in range(5):
        ids = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(step))[:6]
        fresh = unit(2, 6, 4, seed=50 + step)
        memory.update(ids, fresh)
        for v, (b, i) in itertools.product((1, 0), enumerate(ids.tolist())):
            moved = momentum * expected[i] + (1 - momentum) * fresh[v, b]
            expected[i] = moved / moved.square().sum().sqrt()
        torch.testing.assert_close(memory.vectors, expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("k", [None, 1, 4, 5, 7, 10])
def test_k_or_all_of_the_other_images_are_negatives(k: int | None, tiled: bool) -> None:
    bank, ids = MemoryBank(k, 0.5, IMAGES, IMAGES, 0).double(), torch.tensor([3, 0, 10])
    bank.memory.vectors.copy_(torch.eye(IMAGES))
    q = torch.arange(IMAGES, dtype=torch.float64).expand(2, 3, -1)
    assert bank.count(3) == (k or IMAGES - 1)
    for bank.draws.step in range(5):
        for view in keys_of(bank, Embedded(q, q, q, ids), tiled):
            for own_image, images in zip(ids.tolist(), view, strict=True):
                assert len(set(images)) == len(images) == (k or IMAGES - 1) and own_image not in images


# ---- positives by the nearest key, which two codes are compared with in test_official.py, and by labels


def test_the_keys_of_a_step_are_the_positives_of_the_next_and_have_no_gradient() -> None:
    positives, e = NearestKey(8, 5, 0).double(), four_images()
    first = positives.choose(e)
    assert not torch.equal(first.p, e.p) and positives.queue.keys.norm(dim=1).allclose(torch.ones(8).double())
    positives.update(e, 0.0)
    p = draw(2, 4, 5).requires_grad_()
    later = positives.choose(replace(e, p=e.p + 0.01 * p))
    assert torch.equal(later.p, e.p) and not later.p.requires_grad


def four_images(*labels: int) -> Embedded:
    z = unit(2, 4, 5)
    return Embedded(z, z.flip(0), z, torch.tensor([5, 3, 9, 0]), labels=torch.tensor(labels))


def test_the_positives_of_a_class_are_its_other_images_in_the_views_of_the_candidates() -> None:
    e = four_images(1, -1, 1, -1)
    alike = [[0, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    found: list[Tensor] = []

    def note(cosines: Tensor, left_out: Tensor | None, same: Tensor) -> Tensor:
        found.append(same)
        return cosines.sum(-1)

    for pool, expected in ((CrossView(), alike), (InBatch(), [row * 2 for row in alike])):
        for tiled in (False, True):
            found.clear()
            Contrast.of(e, pool.bank(e), tiled).reduce_by_class(note)
            assert torch.cat([same.flatten(0, -2) for same in found]).int().tolist() == expected * 2  # for each view
        for labels in ((0, 1, 2, 3), (-1, -1, -1, -1)):  # classes of one image, and unknown ones
            contrast = Contrast.of(each := four_images(*labels), pool.bank(each))
            for loss in (SupCon(), SINCERE()):
                assert torch.equal(loss(contrast, TAU), InfoNCE()(contrast, TAU))
