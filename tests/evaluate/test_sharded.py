"""Features of which each rank has a part: the rows of all, and evaluations in which no rank holds all of them."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ssl_bench.data.source import Images
from ssl_bench.distributed import rank, world
from ssl_bench.evaluate import sharded
from ssl_bench.evaluate.knn import KNN, HeldOutKNN
from ssl_bench.evaluate.linear import LinearProbe
from ssl_bench.evaluate.sharded import Sharded, ends_of
from ssl_bench.evaluate.target import Target
from tests.ranks import on_ranks

CLASSES, TRAIN, SIDE = 3, 61, 6
WIDTH = 3 * SIDE * SIDE
RATES = [0.1, 0.01, 0.001, 0.0001, 0.3]


def rows_of(count: int) -> Tensor:
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(count))


def methods(_: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for count in (1, 2, 21):
        ids = torch.randint(count, (13,), generator=torch.Generator().manual_seed(1))
        first, last = ends_of(count)[rank() :][:2]
        shard = Sharded(rows_of(count)[first:last], first, count, world() > 1)
        again = shard.chosen(ids)
        found[f"{count}"] = [shard.take(ids), shard.joined(), *shard.moments(ids), again.joined()]
        assert len(again.rows) in (13 // world(), -(-13 // world())) and again.count == 13
    return found


@pytest.mark.slow
def test_the_rows_of_all_ranks() -> None:
    for found in (methods(), *on_ranks(methods, 3)):
        for count in (1, 2, 21):
            rows, ids = rows_of(count), torch.randint(count, (13,), generator=torch.Generator().manual_seed(1))
            taken, joined, std, mean, again = found[f"{count}"]
            assert torch.equal(taken, rows[ids]) and torch.equal(joined, rows) and torch.equal(again, rows[ids])
            torch.testing.assert_close((std, mean), torch.std_mean(rows[ids], dim=0, correction=0))


class Shapes(TorchDispatchMode):
    """The shapes of all tensors that operations make."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = set[tuple[int, ...]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen |= {tuple(leaf.shape) for leaf in tree_leaves(result) if isinstance(leaf, Tensor)}
        return result


def split(count: int, seed: int) -> Images:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (count, 3, SIDE, SIDE), dtype=torch.uint8, generator=generator)
    return Images([pixels], torch.randint(CLASSES, (count,), generator=generator))


def evaluated(_: int = 0) -> tuple[dict[str, Any], set[tuple[int, ...]]]:
    """Raw pixels of 61 images, in batches of 8, so that features have another first dimension than images."""
    target = Target(
        None, split(TRAIN, 1), split(9, 2), num_classes=CLASSES, view=Tensor.float, device="cpu", seed=0, batch_size=8
    )
    found: dict[str, Any] = {}
    probe = LinearProbe(lrs=RATES, epochs=4, batch_size=16)
    with Shapes() as shapes, patch.object(sharded, "PIECE", 8):
        for name, evaluator in {"knn": KNN(k=5), "knn_val": HeldOutKNN(k=5), "linear": probe}.items():
            found |= {f"{name}/{key}": value for key, value in evaluator.run(target)}
    return found, shapes.seen


def test_no_rank_holds_all_features_and_each_fits_its_share_of_the_rates() -> None:
    (alone, seen), ranks = evaluated(), on_ranks(evaluated, 2)
    assert (TRAIN, WIDTH) in seen and (len(RATES) * CLASSES, WIDTH) in seen
    for number, (found, shapes) in enumerate(ranks):
        assert found == pytest.approx(alone, rel=1e-6) and {"linear/lr", "knn_val/top1"} <= found.keys()
        assert max(shape[0] for shape in shapes if shape[1:] == (WIDTH,)) == 32  # a half in whole groups of 16
        assert (len(RATES[number::2]) * CLASSES, WIDTH) in shapes and (len(RATES) * CLASSES, WIDTH) not in shapes
