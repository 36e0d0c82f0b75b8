"""The keys that an anchor is contrasted with: explicit sets, frequencies of all sets, two processes against one.

Keys are one-hot, and the entries of an anchor are 0, 1, 2, ..., so that its cosine with a key is the key's number.
"""

import copy
import itertools
import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode

from ssl_bench.errors import InvalidValue
from ssl_bench.objective import bits, sampling
from ssl_bench.objective.bits import unpack
from ssl_bench.objective.candidates import Keyed
from ssl_bench.objective.contrast import Contrast, Embedded
from ssl_bench.objective.memory import Memory
from ssl_bench.objective.negatives import CrossView, InBatch, Negatives, NoNegatives, OwnView, Queue, RandomK
from ssl_bench.objective.sampling import StepGenerator, draw_excluded, without_replacement
from ssl_bench.objective.schedule import Count, Progress
from tests.door.door import refused
from tests.objective.test_losses import draw
from tests.ranks import on_two_ranks


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
def test_in_batch_is_both_views_of_every_other_image(tiled: bool) -> None:
    found = keys_of(InBatch(), numbered(5), tiled)
    for v, b in itertools.product(range(2), range(5)):
        assert found[v][b] == [key for key in range(10) if key % 5 != b]
    assert InBatch().count(5) == 8


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("views", [1, 2])
def test_cross_view_is_every_other_image_in_the_view_of_the_positive(views: int, tiled: bool) -> None:
    found = keys_of(CrossView(), numbered(5, views), tiled)
    for v, b in itertools.product(range(views), range(5)):
        assert found[v][b] == [v * 5 + image for image in range(5) if image != b]
    assert CrossView().count(5) == 4


@pytest.mark.parametrize("tiled", [False, True])
def test_own_view_is_every_other_image_in_the_view_of_the_anchor(tiled: bool) -> None:
    """The anchors of view 0 have their positives, keys 0 to 4, in view 1, and the keys of their own view are 5 to 9."""
    found = keys_of(OwnView(), numbered(5), tiled)
    for v, b in itertools.product(range(2), range(5)):
        assert found[v][b] == [(1 - v) * 5 + image for image in range(5) if image != b]
    assert OwnView().count(5) == 4


def test_an_image_that_appears_twice_is_never_its_own_negative() -> None:
    e = numbered(4)
    e = Embedded(e.q, e.p, e.raw, torch.tensor([3, 1, 3, 0]))
    assert keys_of(InBatch(), e)[0] == [[1, 3, 5, 7], [0, 2, 3, 4, 6, 7], [1, 3, 5, 7], [0, 1, 2, 4, 5, 6]]


def test_no_negatives() -> None:
    negatives, e = NoNegatives(), numbered(3)
    assert negatives.bank(e) is None  # type: ignore[func-returns-value]
    contrast = negatives.select(Contrast.of(e, None), 0.0)
    assert contrast.candidates is None and contrast.count.tolist() == [[0, 0, 0]] and negatives.count(3) == 0
    with pytest.raises(ValueError, match="negatives"):
        contrast.lse(torch.tensor(1.0))


def test_gives_and_needs() -> None:
    every: list[Negatives] = [InBatch(), CrossView(), RandomK(1, "all", False, 0), RandomK(1, "cross", False, 0)]
    every += [Queue(3, 2, 0), NoNegatives(), OwnView(), RandomK(1, "own", False, 0)]
    assert [sorted(n.gives) for n in every] == [
        ["labelled", "negatives"],
        ["aligned", "labelled", "negatives"],
        ["negatives"],
        ["aligned", "negatives"],
        ["aligned", "negatives"],
        [],
        ["negatives", "own_view"],
        ["negatives", "own_view"],
    ]
    both = {"both_views"}
    assert [n.needs for n in every] == [both, set(), both, set(), set(), set(), both, both]


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
    ("views", "k", "in_numpy"),
    [("all", 1, True), ("all", 2, True), ("all", 6, True), ("all", 6, False), ("cross", 1, True), ("cross", 3, True)],
)
def test_random_k_is_uniform(views: Any, k: int, in_numpy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chi-square over all subsets, as a CPU and as a GPU draws."""
    monkeypatch.setattr(bits, "in_numpy", lambda device: in_numpy)
    images = 5
    pool = range(2 * images if views == "all" else images)
    negatives, subsets = RandomK(k, views, False, 0), []
    for step in range(300):
        negatives.draws.step = step
        for view in keys_of(negatives, numbered(images)):
            for b, keys in enumerate(view):
                allowed = [key for key in pool if key % images != b]
                offset = 0 if views == "all" else images * (keys[0] // images)
                subsets.append(tuple(allowed.index(key - offset) for key in keys))
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


def test_marked_draws_of_a_large_pool_are_uniform_and_rows_do_not_depend_on_what_is_kept() -> None:
    """Shares of single columns and of pairs of columns, which chi-square over subsets cannot test here."""
    rows, width, k = 700, 3001, 1100
    draw = partial(draw_excluded, 1, rows, width, k)
    own = torch.arange(rows)
    whole = draw([own], seeded, slice(None))
    for kept in (slice(0, 350), slice(350, 700), slice(123, 130)):
        assert torch.equal(draw([own[kept]], seeded, kept), whole[:, kept])
    chosen = (~unpack(whole, width))[0, :, rows:].double()  # columns that are no row's own
    p = k / (width - 1)
    assert float(chosen.mean()) == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / chosen.numel()))
    shares = chosen.mean(0)
    assert stats.chisquare(shares * rows, torch.full_like(shares, float(shares.mean()) * rows)).pvalue > 1e-3
    deviation = chosen - p
    pairs = (deviation[:, 1:] * deviation[:, :-1]).mean() / (p * (1 - p))  # correlation of neighbours
    assert float(pairs) == pytest.approx(-1 / (width - 2), abs=4 / math.sqrt(chosen.numel()))


class Drawn(TorchDispatchMode):
    """Counts the random numbers that are drawn."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if "rand" in func._schema.name:
            self.numbers += out.numel()
        return out


@pytest.mark.parametrize("grows", [True, False])
@pytest.mark.parametrize("k", [3, 17, 30])  # of 38: by a sequence with repetitions, by marking, by marking nearly all
def test_a_rank_on_a_gpu_draws_few_rows_beside_its_own_and_the_same_as_one_process(
    k: int, grows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn as on GPUs, in blocks; ten ranks of four rows each."""
    rows, views, width = 40, 2, 38
    monkeypatch.setattr(bits, "in_numpy", lambda device: False)
    monkeypatch.setattr(sampling, "GPU_BLOCK", 3 * views * width)

    def found(kept: slice) -> list[Tensor]:
        own = [torch.arange(rows)[kept] % width]
        left_out = draw_excluded(views, rows, width, k, own, seeded, kept, 31 if grows else None)
        return [left_out.transpose(0, 1), without_replacement(rows, width, k, seeded, kept)]

    with Drawn() as by_one:
        whole = found(slice(None))
    with Drawn() as by_ten:
        parts = [found(slice(4 * part, 4 * part + 4)) for part in range(10)]
    assert by_ten.numbers < 2.5 * by_one.numbers  # the rows of a rank are in up to three blocks of three rows
    for one, *several in zip(whole, *parts, strict=True):
        assert torch.equal(one, torch.cat(several))
    assert len(whole[0].unique(dim=0)) == rows


@pytest.mark.parametrize(("views", "pool"), [("all", 14), ("cross", 7)])
def test_more_than_the_pool_is_refused(views: Any, pool: int) -> None:
    assert RandomK(pool, views, False, 0).count(8) == pool
    with pytest.raises(InvalidValue, match=rf"^k={pool + 1}: .*\b{pool}\b"):
        RandomK(pool + 1, views, False, 0).count(8)
    for make in (lambda: RandomK(0, views, False, 0), lambda: Queue(0, 4, 0)):
        with pytest.raises(InvalidValue, match=r"^k=0: .*\b1\b"):
            make()


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


@pytest.mark.parametrize("start", [lambda s: Queue(2000, 16, s).keys, lambda s: Memory(2000, 16, 0.5, s).vectors])
def test_a_queue_and_a_memory_start_with_random_unit_vectors(start: Callable[[int], Tensor]) -> None:
    keys = start(5)
    torch.testing.assert_close(keys.norm(dim=1), torch.ones(2000))
    assert float(keys.mean(0).abs().max()) < 0.03 and float(keys.square().mean(0).sub(1 / 16).abs().max()) < 0.01
    assert torch.equal(keys, start(5)) and not torch.equal(keys, start(6))


@pytest.mark.parametrize(("k", "views", "images"), [(1, 1, 8), (3, 1, 8), (7, 1, 8), (5, 2, 8)])
def test_a_queue_smaller_than_a_batch_is_k_different_keys_of_the_batch_before(k: int, views: int, images: int) -> None:
    queue, chosen = Queue(k, 4, 0).double(), set()
    for e in batches(20, views, images):
        queue.update(e, 0.0)
        same = (queue.keys[:, None] == e.p.flatten(0, 1)).all(-1)  # [k, V images]
        assert same.sum(1).tolist() == [1] * k and int(same.any(0).sum()) == k
        chosen.add(tuple(same.int().argmax(1).sort().values.tolist()))
        queue.draws.step += 1
    assert len(chosen) > 2  # they differ between steps


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


@pytest.mark.parametrize("views", ["all", "cross"])
def test_a_growing_k_is_uniform(views: Any) -> None:
    images, subsets = 5, []
    negatives = RandomK(1, views, False, 0, 3, "linear")
    for step in range(150):
        negatives.draws.step = step
        for v, view in enumerate(keys_of(negatives, numbered(images), progress=0.5)):
            for b, keys in enumerate(view):
                allowed = [k for k in range(2 * images) if k % images != b and (views == "all" or k // images == v)]
                subsets.append(tuple(map(allowed.index, keys)))
    assert_uniform(subsets, len(allowed), 2)


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
        for at in (progress, torch.tensor(progress, dtype=torch.float64)):
            contrast = queue.select(Contrast.of(e, queue.bank(e)), at)
            _, valid = contrast.candidates.cosines(e.q)  # type: ignore[union-attr]
            assert (
                valid.sum(-1).unique().tolist()
                == contrast.count.unique().tolist()
                == [k]
                == [queue.count(images, progress)]
            )
            lse = torch.stack([(e.q @ key).exp() for key in order[-k:]]).sum(0).log()
            torch.testing.assert_close(contrast.lse(torch.tensor(1.0)), lse, rtol=1e-12, atol=1e-12)
        queue.update(e, progress)
        queue.draws.step += 1
        came = queue.keys.roll(-int(queue.place), 0)[-min(most, 2 * images) :]
        assert (came[:, None] == e.p.flatten(0, 1)).all(-1).sum(1).tolist() == [1] * len(came)
        order = [*order, *came][-most:]
        assert most <= 2 * images or torch.equal(torch.stack(order), queue.keys.roll(-int(queue.place), 0))


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ((4, 9, "constant", ()), "final=9 null schedule linear cosine step"),
        ((4, None, "linear", ()), "final=null 1 schedule=linear"),
        ((4, 0, "cosine", ()), "final=0 1 schedule=cosine"),
        ((4, 9, "step", ()), "milestones=[] (0, 1]"),
        ((4, 9, "linear", (0.5,)), "milestones=[0.5] [] schedule step"),
        ((0, 9, "linear", ()), "k=0 1"),
    ],
)
def test_a_schedule_that_is_incomplete_is_refused(settings: Any, names: str) -> None:
    with refused(names, InvalidValue):
        Count(*settings)


def test_a_schedule_must_fit_the_batch_at_both_ends_and_draw_for_each_anchor() -> None:
    for k, final, name in ((15, 3, "k"), (3, 15, "final")):
        with pytest.raises(InvalidValue, match=rf"^{name}=15: .*\b14\b"):
            RandomK(k, "all", False, 0, final, "linear").count(8)
    with pytest.raises(InvalidValue, match=r"^shared=true: .*false"):
        RandomK(3, "all", True, 0, 5, "linear")


# ---- two processes

RANDOM: list[tuple[Any, int, bool]] = [("all", 4, False), ("all", 9, False), ("cross", 2, False), ("cross", 3, True)]
QUEUES = [(3, 1), (5, 2), (9, 1), (25, 2)]  # keys, views
GLOBAL = 8


def _state(rows: slice) -> dict[str, Any]:
    """Keys of the anchors ``rows``, and the queues after a few steps of which these rows are given."""
    drawn = []
    for views, k, shared in RANDOM:
        negatives = RandomK(k, views, shared, 2)
        negatives.draws.step = 5
        e = numbered(GLOBAL)
        local = Embedded(e.q[:, rows], e.p[:, rows], e.raw[:, rows], e.ids[rows])
        drawn.append(keys_of(negatives, local))
    queues = []
    for k, views in QUEUES:
        queue = Queue(k, 4, 0).double()
        for e in batches(4, views, GLOBAL, rows):
            queue.update(e, 0.0)
            queue.draws.step += 1
        queues.append(queue.keys)
    return {"drawn": drawn, "queues": queues}


def _rank_state(rank: int) -> dict[str, Any]:
    return _state(slice(rank * GLOBAL // 2, (rank + 1) * GLOBAL // 2))


def test_two_ranks_draw_and_keep_the_same_as_one_process() -> None:
    alone, (first, second) = _state(slice(None)), on_two_ranks(_rank_state)
    for whole, *halves in zip(alone["drawn"], first["drawn"], second["drawn"], strict=True):
        assert whole == [first_half + second_half for first_half, second_half in zip(*halves, strict=True)]
    for whole, *both in zip(alone["queues"], first["queues"], second["queues"], strict=True):
        assert all(torch.equal(whole, keys) for keys in both)


def test_a_replay_draws_the_numbers_of_its_step() -> None:
    draws, cpu = StepGenerator("a", 0), torch.device("cpu")
    kept: dict[int, Any] = dict.fromkeys(range(3))
    for draws.step in kept:
        kept[draws.step] = torch.rand(4, generator=draws.generator(cpu, 7))
    draws.step = 1
    (generator,) = draws.reseed()
    assert torch.equal(torch.rand(4, generator=generator), kept[1])
    assert copy.deepcopy(draws).step == 1
