"""Positives by the nearest key, which two codes are compared with in test_official.py, and by labels."""

from dataclasses import replace

import torch
from torch import Tensor

from ssl_bench.objective.contrast import Contrast, Embedded
from ssl_bench.objective.losses import SINCERE, InfoNCE, SupCon
from ssl_bench.objective.negatives import CrossView, InBatch
from ssl_bench.objective.positives import NearestKey
from tests.objective.test_losses import draw
from tests.objective.test_negatives import unit

TAU = torch.tensor(0.2, dtype=torch.float64)


def embedded(seed: int = 0) -> Embedded:
    z = unit(2, 4, 5, seed=seed)
    return Embedded(z, z.flip(0), z, torch.tensor([5, 3, 9, 0]))


def test_the_keys_of_a_step_are_the_positives_of_the_next_and_have_no_gradient() -> None:
    positives, e = NearestKey(8, 5, 0).double(), embedded()
    first = positives.choose(e)
    assert not torch.equal(first.p, e.p) and positives.queue.keys.norm(dim=1).allclose(torch.ones(8).double())
    positives.update(e, 0.0)
    p = draw(2, 4, 5).requires_grad_()
    later = positives.choose(replace(e, p=e.p + 0.01 * p))
    assert torch.equal(later.p, e.p) and not later.p.requires_grad


def test_classes_of_one_image_and_unknown_ones_give_nt_xent() -> None:
    for pool in (InBatch(), CrossView()):
        for labels in (torch.arange(4), torch.full((4,), -1)):
            e = replace(embedded(), labels=labels)
            contrast = Contrast.of(e, pool.bank(e))
            for loss in (SupCon(), SINCERE()):
                assert torch.equal(loss(contrast, TAU), InfoNCE()(contrast, TAU))


def test_the_positives_of_a_class_are_its_other_images_in_the_views_of_the_candidates() -> None:
    e = replace(embedded(), labels=torch.tensor([1, -1, 1, -1]))
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
