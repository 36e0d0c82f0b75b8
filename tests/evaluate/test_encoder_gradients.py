"""Gradients of the encoder at given weights compared with loops over batches, anchors and negatives."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssl_bench.data.pixels import sizes
from ssl_bench.errors import InvalidValue
from ssl_bench.evaluate.encoder_gradients import EncoderGradients, other_views
from ssl_bench.evaluate.target import Target
from ssl_bench.seeding import stream
from tests.evaluate.test_geometry import make_target

N, TAU, BATCHES = 5, 0.4, 4


class Linear(nn.Module):
    """A projection of the pixels to three numbers, in double precision, and a weight that nothing depends on."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3, 6 * 6, generator=generator, dtype=torch.float64))
        self.idle = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"backbone": x.flatten(1), "projection": x.flatten(1) @ self.weight.T}


def loop_gradients(target: Target, weight: Tensor, ms: tuple[int, ...]) -> dict[int, list[Tensor]]:
    """The gradient of the mean loss of each batch by M, from the chosen negatives of each anchor, one by one."""
    found: dict[int, list[Tensor]] = {m: [] for m in ms}
    for batch in range(BATCHES):
        generator = torch.Generator().manual_seed(stream("encoder_gradients", target.seed, batch))
        ids = torch.randperm(len(target.train), generator=generator)[:N]
        images = target.load(target.train, ids)
        draws = [augment.uniform(N, generator) for augment in target.augment]
        pairs = zip(target.augment, draws, strict=True)
        views = [augment.apply(images, augment.parameters(u, *sizes(images))) for augment, u in pairs]
        index = other_views(N, generator)
        leaf = weight.detach().clone().requires_grad_()
        z = F.normalize(torch.cat(views).double().flatten(1) @ leaf.T, dim=1)
        for m in ms:
            total = z.new_zeros(())
            for a in range(2 * N):
                positive = (z[a] @ z[(a + N) % (2 * N)] / TAU).exp()
                negatives = sum((z[a] @ z[j] / TAU).exp() for j in index[a // N, a % N, :m].tolist())
                total = total - (positive / (positive + negatives)).log() / (2 * N)
            found[m].append(torch.autograd.grad(total, leaf, retain_graph=True)[0].flatten())
    return found


def test_ratios_equal_loops_and_dcl_has_the_gradients_of_its_relatives() -> None:
    network, ms = Linear(), (1, 4, 2 * N - 2)
    target = make_target(network)
    results: dict[str, Any] = dict(EncoderGradients(ms, TAU, N, BATCHES).run(target))
    pooled = {}
    for m, gradients in loop_gradients(target, network.weight, ms).items():
        columns = [[float(value) for value in column] for column in torch.stack(gradients).T]
        means = [sum(c) / BATCHES for c in columns]
        variances = [sum((v - mean) ** 2 for v in c) / (BATCHES - 1) for c, mean in zip(columns, means, strict=True)]
        ratios = [abs(mean) / math.sqrt(v) for mean, v in zip(means, variances, strict=True) if v > 1e-20]
        assert results[f"m{m}_snr"] == pytest.approx(sum(ratios) / (len(columns) + 1), rel=1e-6)  # idle counts as 0
        signal = sum(mean**2 - v / BATCHES for mean, v in zip(means, variances, strict=True))
        pooled[m] = math.sqrt(max(signal, 0) / sum(variances))
        assert results[f"m{m}_pooled"] == pytest.approx(pooled[m], rel=1e-6)
    low, high = (1 / pooled[m] ** 2 for m in (1, 8))  # = A + C and A + C / 8
    c = (low - high) / (1 - 1 / 8)
    assert results["m4_pooled_theory"] == pytest.approx(1 / math.sqrt(low - c + c / 4), rel=1e-6)
    for name in ("infonce", "macl", "flatnce"):
        assert 0 <= results[f"difference_{name}"] < 1e-13
    assert results["by_negatives"].lines["pooled ratio"] == [results[f"m{m}_pooled"] for m in ms]
    assert not list(EncoderGradients(ms, TAU, N, BATCHES).run(make_target(None)))


def test_negatives_are_the_views_of_the_other_images_in_any_order() -> None:
    order = other_views(4, torch.Generator().manual_seed(0))
    for anchor in order.flatten(0, 1)[:4], order[1]:
        for image, row in enumerate(anchor.tolist()):
            assert sorted(row) == [place for place in range(8) if place % 4 != image]
    assert order[0, 0].tolist() != order[1, 0].tolist()


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidValue, match=r"^ms=\[1,9\]: .* 1 to 8"):
        EncoderGradients((1, 9), batch_size=N)
    with pytest.raises(InvalidValue, match=r"^batch_size=71: .*\b70\b"):
        EncoderGradients(batch_size=71).check(make_target(Linear()))
