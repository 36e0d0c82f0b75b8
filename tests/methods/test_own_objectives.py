"""Exemplar and the VAE, whose objectives are their own: losses and gradients against naive loops."""

from typing import Literal

import pytest
import torch
from torch import nn

from ssl_bench.config.compose import load
from ssl_bench.data.batch import Batch
from ssl_bench.methods.exemplar import Exemplar
from ssl_bench.methods.vae import VAE, Decoder
from ssl_bench.networks.backbones import DigitsResNet
from ssl_bench.networks.heads import MLP
from ssl_bench.training import build


def test_exemplar_is_a_classifier_of_images() -> None:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(9, 12), nn.Tanh())
    method = Exemplar(backbone, MLP(12, 1, None, 5, norm=False, final_norm="none"), 24, "sync").double()
    generator = torch.Generator().manual_seed(2)
    ids = torch.randperm(24, generator=generator)[:6]
    views = torch.randn(2, 6, 1, 3, 3, generator=generator, dtype=torch.float64)
    loss, diagnostics, _ = method(Batch([*views], ids, ids), 0.0, True)
    weight = method.classifier.weight
    assert weight.shape == (24, 5) and not any("classifier" in name for name in method.encoder.state_dict())
    values, correct = [], 0
    for v in range(2):
        for b in range(6):
            z = method.encoder(views[v, b : b + 1])["projection"][0]
            scores = torch.stack([(w * z).sum() for w in weight])
            values.append(scores.exp().sum().log() - scores[ids[b]])
            correct += int(scores.argmax()) == int(ids[b])
    expected = torch.stack(values).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    assert float(diagnostics["train/top1"]) == pytest.approx(correct / 12)
    parameters = list(method.parameters())
    for pair in zip(*(torch.autograd.grad(each, parameters) for each in (loss, expected)), strict=True):
        torch.testing.assert_close(*pair, rtol=1e-10, atol=1e-14)


LATENTS, CHANNELS, SIZE = 3, 2, 8


def vae(constants: Literal["once", "pixel"] = "once") -> VAE:
    """A VAE of images with one normalised channel and one constant channel, in double precision."""
    torch.manual_seed(0)
    backbone, head = DigitsResNet(2, CHANNELS), MLP(8, 1, None, 2 * LATENTS, norm=False, final_norm="none")
    return VAE(backbone, head, 2, CHANNELS, SIZE, (0.3,), (0.5,), 0.7, constants, seed=5).double()


def images(count: int, seed: int = 0) -> Batch:
    """Views made of pixels in [0, 1]."""
    pixels = torch.rand(2, count, CHANNELS, SIZE, SIZE, generator=torch.Generator().manual_seed(seed)).double()
    pixels[:, :, 0] = (pixels[:, :, 0] - 0.3) / 0.5
    return Batch([*pixels], torch.arange(count), torch.full((count,), -1))


@pytest.mark.parametrize("constants", ["once", "pixel"])
def test_the_loss_is_the_bound_from_a_naive_loop(constants: Literal["once", "pixel"]) -> None:
    """A channel without normalisation counts as one pixel, or as all of its pixels."""
    method, batch = vae(constants), images(4)
    loss, diagnostics, _ = method(batch, 0.0, True)
    gradients = torch.autograd.grad(loss, list(method.parameters()))
    moments = method.encoder(torch.cat(batch.views))["projection"].view(2, 4, 2 * LATENTS)
    noise = torch.randn(2, 4, LATENTS, generator=method.draws.generator(torch.device("cpu"))).double()
    z = moments[..., :LATENTS] + (moments[..., LATENTS:] / 2).exp() * noise
    probabilities = torch.sigmoid(method.decoder(z.view(8, LATENTS))).view(2, 4, CHANNELS, SIZE, SIZE)
    reconstruction, divergence = torch.zeros(()).double(), torch.zeros(()).double()
    for v in range(2):
        for b in range(4):
            for c in range(CHANNELS):
                x = batch.views[v][b, c] * (0.5 if c == 0 else 1.0) + (0.3 if c == 0 else 0.0)
                p = probabilities[v, b, c]
                once = SIZE**-2 if c == 1 and constants == "once" else 1.0
                reconstruction = reconstruction - once * (x * p.log() + (1 - x) * (1 - p).log()).sum() / 8
            for d in range(LATENTS):
                m, log_variance = moments[v, b, d], moments[v, b, LATENTS + d]
                divergence = divergence + (m**2 + log_variance.exp() - 1 - log_variance) / 2 / 8
    expected = reconstruction + 0.7 * divergence
    # The mean of the normalisation is stored in single precision.
    torch.testing.assert_close(loss, expected, rtol=1e-7, atol=0)
    torch.testing.assert_close(diagnostics["vae/reconstruction"], reconstruction.detach(), rtol=1e-7, atol=0)
    torch.testing.assert_close(diagnostics["vae/kl"], divergence.detach(), rtol=1e-12, atol=0)
    for pair in zip(gradients, torch.autograd.grad(expected, list(method.parameters())), strict=True):
        torch.testing.assert_close(*pair, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("size", "side", "widths"), [(20, 3, [128, 64, 32]), (64, 4, [256, 128, 64, 32])])
def test_the_decoder_makes_images_of_every_size(size: int, side: int, widths: list[int]) -> None:
    decoder = Decoder(5, 32, 13, size)
    assert [m.in_channels for m in decoder.layers if isinstance(m, nn.ConvTranspose2d)] == widths
    assert decoder.layers[1](decoder.layers[0](torch.zeros(1, 5))).shape == (1, widths[0], side, side)
    assert decoder(torch.randn(2, 5)).shape == (2, 13, size, size)


def test_evaluators_see_the_mean_of_the_latents() -> None:
    method = vae().eval()
    x = images(4).views[0]
    outputs = method.encoder(x)
    moments = method.encoder.get_submodule("head")(method.encoder.get_submodule("backbone")(x))
    assert torch.equal(outputs["backbone"], moments[:, :LATENTS]) and torch.equal(outputs["projection"], moments)


def test_the_options_fit_their_datasets() -> None:
    assert build.method(build.build(load(["framework=exemplar"]))).get_parameter("classifier.weight").shape == (
        1347,
        128,
    )
    config = load(["framework=vae", "dataset=randbit_mnist", "dataset.bits=3"])
    assert config["choices"]["optimizer"] == "adam" and config["head"]["out"] == 256
    batch = Batch([torch.rand(2, 4, 28, 28)] * 2, torch.arange(2), torch.zeros(2))
    assert build.method(build.build(config))(batch, 0.0)[0].isfinite()
    batch = Batch([(torch.zeros(2, 1, 20, 20) - 0.214) / 0.275] * 2, torch.arange(2), torch.zeros(2))
    target = build.method(build.build(load(["framework=vae"]))).momentum_outputs(batch)["target"]
    torch.testing.assert_close(target, torch.zeros(2, 2, 1, 20, 20), rtol=0, atol=1e-6)  # black
