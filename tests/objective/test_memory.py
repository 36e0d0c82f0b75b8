"""The memory of one vector per image against naive loops in double precision, and on two processes."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ssl_bench.distributed import rank, world
from ssl_bench.errors import InvalidValue
from ssl_bench.objective.candidates import Keyed
from ssl_bench.objective.contrast import Contrast, Embedded
from ssl_bench.objective.losses import InfoNCE, ISogCLR
from ssl_bench.objective.memory import Memory
from ssl_bench.objective.negatives import MemoryBank
from tests.door.door import refused

IMAGES, DIM, SHARE, VIEWS = 11, 4, 6, 2


def unit(*shape: int, seed: int) -> Tensor:
    vectors = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return normalize(vectors, dim=-1)


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Ids [6] and vectors [2, 6, 4] of a global batch."""
    ids = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(step))[:SHARE]
    return ids, unit(VIEWS, SHARE, DIM, seed=50 + step)


def local_rows() -> slice:
    """This rank's rows of a global batch."""
    return slice(rank() * SHARE // world(), (rank() + 1) * SHARE // world())


@pytest.mark.parametrize("momentum", [0.0, 0.5, 1.0])
def test_vectors_move_towards_new_ones(momentum: float) -> None:
    """With two views the second is applied first: the order of the backward passes in CLD's code."""
    memory = Memory(IMAGES, DIM, momentum, 0).double()
    expected = [[float(x) for x in row] for row in memory.vectors]
    for step in range(5):
        ids, fresh = batch(step)
        memory.update(ids, fresh)
        for v in (1, 0):
            for b, i in enumerate(ids.tolist()):
                moved = [
                    momentum * old + (1 - momentum) * float(new)
                    for old, new in zip(expected[i], fresh[v, b], strict=True)
                ]
                length = sum(x * x for x in moved) ** 0.5
                expected[i] = [x / length for x in moved]
        torch.testing.assert_close(memory.vectors, torch.tensor(expected, dtype=torch.float64), rtol=1e-13, atol=1e-14)


def test_the_images_of_a_batch_are_gathered_once_for_all_that_a_loss_remembers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gathered = list[Tensor]()

    def counted(values: Tensor) -> Tensor:
        gathered.append(values)
        return values

    monkeypatch.setattr("ssl_bench.objective.loss.gather", counted)
    loss, ids = ISogCLR(IMAGES), torch.tensor([7, 2, 9])
    fresh = {name: torch.rand(3) for name in ("log_u", "taus", "slopes")}
    loss.update(ids, fresh)
    assert len(gathered) == 4 and sum(values is ids for values in gathered) == 1
    assert all(torch.equal(loss.get_buffer(name)[ids], values) for name, values in fresh.items())
    InfoNCE().update(ids, {})
    assert len(gathered) == 4  # nothing is remembered, and nothing gathered


# ---- as negatives


def negatives_of(bank: MemoryBank, ids: Tensor, tiled: bool = False) -> list[list[list[int]]]:
    """[V][B] images that an anchor is contrasted with: keys are one-hot, so the cosine of key c with an anchor is c."""
    q = torch.arange(IMAGES, dtype=torch.float64).expand(VIEWS, len(ids), -1)
    e = Embedded(q, q, q, ids)
    contrast = bank.select(Contrast.of(e, bank.bank(e), tiled), 0.0)
    assert isinstance(contrast.candidates, Keyed)
    cosines, valid = contrast.candidates.cosines(q)
    valid = torch.ones_like(cosines, dtype=torch.bool) if valid is None else valid.expand(cosines.shape)
    lse = cosines.masked_fill(~valid, -torch.inf).logsumexp(-1)
    torch.testing.assert_close(contrast.lse(torch.tensor(1.0)), lse, rtol=1e-12, atol=1e-12)
    assert torch.equal(contrast.count.expand(lse.shape).long(), valid.sum(-1))
    views = [zip(*pair, strict=True) for pair in zip(cosines, valid, strict=True)]
    return [[sorted(int(c) for c in row[mask]) for row, mask in anchors] for anchors in views]


def one_hot(k: int | None, seed: int = 0) -> MemoryBank:
    bank = MemoryBank(k, 0.5, IMAGES, IMAGES, seed).double()
    bank.memory.vectors.copy_(torch.eye(IMAGES))
    return bank


@pytest.mark.parametrize("tiled", [False, True])
def test_every_other_image_is_a_negative(tiled: bool) -> None:
    ids = torch.tensor([3, 0, 10])
    for view in negatives_of(one_hot(None), ids, tiled):
        assert view == [[i for i in range(IMAGES) if i != own_image] for own_image in ids]
    assert one_hot(None).count(3) == IMAGES - 1


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("k", [1, 4, 5, 7, 10])
def test_k_of_the_other_images_are_negatives(k: int, tiled: bool) -> None:
    bank, ids = one_hot(k), torch.tensor([3, 0, 10])
    assert bank.count(3) == k
    for _ in range(5):
        for view in negatives_of(bank, ids, tiled):
            for own_image, images in zip(ids.tolist(), view, strict=True):
                assert len(set(images)) == len(images) == k and own_image not in images
        bank.draws.step += 1


@pytest.mark.parametrize(
    ("k", "momentum", "names"),
    [(0, 0.5, "k=0 1 10 null"), (11, 0.5, "k=11 1 10 null"), (None, 1.5, "momentum=1.5 0 1")],
)
def test_invalid_settings_are_refused(k: int | None, momentum: float, names: str) -> None:
    with refused(names, InvalidValue):
        MemoryBank(k, momentum, 4, IMAGES, 0)
