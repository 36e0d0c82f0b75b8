"""DenseCL against plain loops in double precision."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ssl_bench.data.batch import Batch
from ssl_bench.methods.contrastive import Contrastive
from ssl_bench.methods.densecl import DenseCL
from ssl_bench.networks.backbones import timm_backbone
from ssl_bench.networks.heads import MLP
from ssl_bench.objective.losses import DCL, InfoNCE
from ssl_bench.objective.negatives import CrossView, Negatives, Queue
from ssl_bench.objective.temperature import Fixed, MACLa

IMAGES, DIM, CELLS, TAU = 6, 5, 4, 0.2


class Map(nn.Module):
    """Four cells of six features, without batch statistics."""

    num_features = 6

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 6, 3, 3), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]

    def forward_head(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def method(negatives: Negatives | None = None, loss: Any = None, **settings: Any) -> Any:
    torch.manual_seed(0)
    head = MLP(6, 2, 7, DIM, norm=False, final_norm="none")
    given: dict[str, Any] = {"weight": 0.3, "momentum": 0.9, "norm": "sync"} | settings
    framework = DenseCL(Map(), head, **given)
    with torch.no_grad():  # as after some training
        for parameter in framework.encoder.parameters():
            parameter.add_(torch.randn(parameter.shape) / 5)
    return Contrastive(framework, negatives or Queue(9, DIM, 0), Fixed(TAU), loss or InfoNCE()).double()


def batch(seed: int = 0) -> Batch:
    views = torch.randn(2, IMAGES, 1, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    views[1] += views[0]
    return Batch([*views], torch.arange(IMAGES), torch.arange(IMAGES))


def vectors(encoder: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Projections, vectors of the cells and features of the cells of a view, cell by cell."""
    found = encoder.backbone.layers(x).detach()  # [B, F, 2, 2]
    z = encoder.head(found.mean((2, 3))).detach()
    cells = torch.stack([found[:, :, i, j] for i in (0, 1) for j in (0, 1)], 1)
    return z, torch.stack([encoder.dense(cells[:, s]) for s in range(CELLS)], 1).detach(), cells


def info_nce(anchor: Tensor, positive: Tensor, negatives: list[Tensor]) -> float:
    logits = torch.stack([positive, *negatives]) @ anchor / TAU
    return float(logits.logsumexp(0) - logits[0])


def loops(method: Any, images: Batch, in_batch: bool) -> tuple[float, float, list[Tensor]]:
    """The two terms, and the pooled keys of the cells."""
    framework = method.framework
    z, r, cells = vectors(framework.encoder, images.views[0])
    k, key_r, key_cells = vectors(framework.target, images.views[1])
    z, r, k = (normalize(each, dim=-1) for each in (z, r, k))
    pooled, dense = [], []
    alike = torch.einsum("bif,bjf->bij", normalize(cells, dim=-1), normalize(key_cells, dim=-1))
    match = alike.argmax(-1).tolist()  # the most similar cell of the other view
    for b in range(IMAGES):
        others = [o for o in range(IMAGES) if o != b]
        queue = [k[o] for o in others] if in_batch else [*method.negatives.keys]
        pooled.append(info_nce(z[b], k[b], queue))
        for i in range(CELLS):
            found = normalize(key_r, dim=-1)
            queue = [found[o, match[o][i]] for o in others] if in_batch else [*method.further["dense"].negatives.keys]
            dense.append(info_nce(r[b, i], found[b, match[b][i]], queue))
    keys = [normalize(sum(key_r[b, i] for i in range(CELLS)), dim=-1) for b in range(IMAGES)]  # type: ignore[arg-type]
    return sum(pooled) / len(pooled), sum(dense) / len(dense), keys


@pytest.mark.parametrize("in_batch", [False, True])
def test_both_terms_are_their_formulas(in_batch: bool) -> None:
    made = method(CrossView() if in_batch else None)
    for step in range(3):
        pooled, dense, keys = loops(made, batch(step), in_batch)
        loss, found, for_update = made(batch(step), 0.0, True)
        assert float(loss.detach()) == pytest.approx(0.7 * pooled + 0.3 * dense, rel=1e-12)
        assert float(found["dense/loss"]) == pytest.approx(dense, rel=1e-12)
        made.update(for_update, 0.0)
        if not in_batch:  # each term has a queue of its own
            queue = made.further["dense"].negatives
            places = [(IMAGES * step + number) % 9 for number in range(IMAGES)]
            torch.testing.assert_close(queue.keys[places], torch.stack(keys), rtol=1e-12, atol=1e-12)
            assert not torch.allclose(queue.keys, made.negatives.keys)


def test_temperature_and_loss_act_on_both_terms() -> None:
    made = method(loss=DCL())
    made.temperature = MACLa(TAU, 2.0)
    found = made(batch(), 0.0, True).diagnostics
    for prefix in ("", "dense/"):
        tau, mean = (float(found[f"{prefix}{name}"]) for name in ("tau", "positive"))
        assert tau == pytest.approx(TAU * 2**mean, rel=1e-12)
    assert float(found["tau"]) != float(found["dense/tau"])


def test_the_map_of_a_network_of_timm_gives_its_features() -> None:
    backbone: Any = timm_backbone("resnet18", 1, "cifar").eval()
    x = torch.randn(2, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    found = backbone.forward_features(x)
    assert found.shape == (2, 512, 2, 2) and torch.equal(backbone.forward_head(found), backbone(x))
