"""Shapes, initial values and batch statistics of the networks."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ssl_bench.models.backbones import DigitsResNet, timm_backbone
from ssl_bench.models.heads import MLP
from ssl_bench.models.norm import synchronise
from ssl_bench.models.siamese import Siamese
from ssl_bench.objective.contrast import Batch
from tests.ranks import on_two_ranks


@pytest.mark.parametrize(
    ("name", "stem", "size", "features", "parameters"),
    # Counts of the published networks less their classifiers; the CIFAR stem has 7,680 weights fewer.
    [
        ("resnet18", "imagenet", 64, 512, 11_176_512),
        ("resnet18", "cifar", 32, 512, 11_168_832),
        ("resnet50", "imagenet", 64, 2048, 23_508_032),
        ("resnet50", "cifar", 32, 2048, 23_500_352),
    ],
)
def test_resnets(name: str, stem: str, size: int, features: int, parameters: int) -> None:
    model = timm_backbone(name, 3, stem, zero_init_residual=True).eval()  # type: ignore[arg-type]
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model(torch.zeros(2, 3, size, size)).shape == (2, features) and model.num_features == features
    last = model.get_submodule("layer1.0.bn2" if name == "resnet18" else "layer1.0.bn3")
    assert not last.state_dict()["weight"].any()
    halved = {"imagenet": 32, "cifar": 8}[stem]
    maps: list[Tensor] = []
    model.get_submodule("layer4").register_forward_hook(lambda *seen: maps.append(seen[2]))
    model(torch.zeros(1, 3, size, size))
    assert maps[0].shape[-1] == size // halved


def test_any_network_of_timm_and_any_number_of_channels() -> None:
    model = timm_backbone("vit_tiny_patch16_224", 5)
    assert model(torch.zeros(1, 5, 224, 224)).shape == (1, model.num_features)
    with pytest.raises(ValueError, match="stem=cifar is for ResNets"):
        timm_backbone("vit_tiny_patch16_224", 3, "cifar")
    with pytest.raises(ValueError, match="set it to null"):
        timm_backbone("vit_tiny_patch16_224", 3, zero_init_residual=True)


def test_the_small_network() -> None:
    model = DigitsResNet(16, 1)
    assert model(torch.zeros(2, 1, 20, 20)).shape == (2, 64) and model.num_features == 64


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
def test_simclrs_heads(layers: int) -> None:
    """k layers: k Linears without bias, each followed by a BN; the last one's BN has a scale and no shift."""
    head = MLP(12, layers, None, 5)
    linears = [m for m in head.modules() if isinstance(m, nn.Linear)]
    norms = [m for m in head.modules() if isinstance(m, nn.BatchNorm1d)]
    assert len(linears) == len(norms) == layers and all(m.bias is None for m in linears)
    assert [m.out_features for m in linears] == [12] * (layers - 1) + [5]
    assert [m.bias.requires_grad for m in norms] == [True] * (layers - 1) + [False]
    assert sum(isinstance(m, nn.ReLU) for m in head.modules()) == layers - 1
    assert float(linears[-1].weight.detach().std()) < 0.02
    assert head(torch.randn(4, 12)).shape == (4, 5)


def test_mocos_heads() -> None:
    head = MLP(12, 2, 7, 5, norm=False, final_norm=False)
    assert [type(m).__name__ for m in head.layers] == ["Linear", "ReLU", "Linear"]
    assert all(m.bias is not None for m in head.layers if isinstance(m, nn.Linear))


def _siamese(views_forward: str, momentum: float | None = None) -> Siamese:
    torch.manual_seed(0)
    made = Siamese(DigitsResNet(4, 1), MLP(16, 2, None, 8), momentum, views_forward)  # type: ignore[arg-type]
    return made.double()


def _views() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(6, 1, 12, 12, generator=generator, dtype=torch.float64) * (1 + v) for v in range(2)]


def test_a_positive_is_the_other_view_and_anchors_are_unit_vectors() -> None:
    framework = _siamese("separate")
    e = framework(Batch(_views(), torch.arange(6), torch.zeros(6)))
    torch.testing.assert_close(e.q.norm(dim=-1), torch.ones(2, 6, dtype=torch.float64))
    assert torch.equal(e.p, e.q.flip(0)) and e.p.requires_grad
    alone = [framework.encoder(view)["projection"] for view in _views()]
    torch.testing.assert_close(e.raw, torch.stack(alone))


def test_joint_batch_statistics_are_over_both_views() -> None:
    joint, separate = (
        _siamese(kind)(Batch(_views(), torch.arange(6), torch.zeros(6))) for kind in ("joint", "separate")
    )
    framework = _siamese("joint")
    both = framework.encoder(torch.cat(_views()))["projection"].unflatten(0, (2, 6))
    assert torch.equal(joint.raw, both)
    assert float(((joint.raw - separate.raw).norm() / separate.raw.norm()).detach()) > 0.01


def test_momentum_positives_have_no_gradient() -> None:
    e = _siamese("joint", 0.9)(Batch(_views(), torch.arange(6), torch.zeros(6)))
    assert e.q.requires_grad and not e.p.requires_grad
    torch.testing.assert_close(e.p, e.q.flip(0).detach())  # the average starts where the network does
    with pytest.raises(ValueError, match=r"momentum=1\.5 must be in \[0, 1\)"):
        _siamese("joint", 1.5)


def _norm(rank: int | None) -> dict[str, Tensor]:
    """A BN over 8 rows in a training step, or over the rank's half of them, with the gradient of a global mean."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 3, 2, 2, generator=generator, dtype=torch.float64) * 5 + 100
    target = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    model: nn.Module = nn.Sequential(nn.BatchNorm2d(3)).double()
    rows = slice(None) if rank is None else slice(4 * rank, 4 * rank + 4)
    if rank is not None:
        model = synchronise(model, torch.device("cpu"))
    x = x[rows].requires_grad_()
    y = model(x)
    (y - target[rows]).square().mean().backward()
    norm = model[0]  # type: ignore[index]
    found = {"y": y.detach(), "weight": norm.weight.grad, "bias": norm.bias.grad, "x": x.grad}
    found |= {"mean": norm.running_mean, "var": norm.running_var}
    if rank is not None:
        for name in ("weight", "bias"):
            dist.all_reduce(found[name])
            found[name] /= 2
    return found


def test_global_batch_statistics_are_those_of_one_process() -> None:
    alone, ranks = _norm(None), on_two_ranks(_norm)
    for rank in ranks:
        for name in ("weight", "bias", "mean", "var"):
            torch.testing.assert_close(rank[name], alone[name], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.cat([r["y"] for r in ranks]), alone["y"], rtol=1e-11, atol=1e-11)
    # Each rank's loss is a mean over half of the rows, so the gradient of a row is twice that of the global mean.
    torch.testing.assert_close(torch.cat([r["x"] for r in ranks]) / 2, alone["x"], rtol=1e-11, atol=1e-13)


def test_a_norm_that_cannot_be_made_global_is_refused() -> None:
    class Special(nn.BatchNorm2d):
        pass

    with pytest.raises(ValueError, match="Special cannot be made global: set norm to local"):
        synchronise(nn.Sequential(Special(3)), torch.device("cpu"))
