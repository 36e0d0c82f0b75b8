"""Exemplar: its loss and gradients against a naive loop, and a vector for every image."""

import pytest
import torch
from torch import nn

from ssl_bench.config.compose import load
from ssl_bench.data.batch import Batch
from ssl_bench.methods.exemplar import Exemplar
from ssl_bench.networks.heads import MLP
from ssl_bench.training.parts import Parts

WIDTH, INSTANCES = 5, 24


def network() -> tuple[nn.Module, MLP]:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(9, 12), nn.Tanh())
    return backbone, MLP(12, 1, None, WIDTH, norm=False, final_norm="none")


def exemplar() -> Exemplar:
    return Exemplar(*network(), INSTANCES, "sync").double()


def test_exemplar_is_a_classifier_of_images() -> None:
    method = exemplar()
    generator = torch.Generator().manual_seed(2)
    ids = torch.randperm(INSTANCES, generator=generator)[:6]
    views = torch.randn(2, 6, 1, 3, 3, generator=generator, dtype=torch.float64)
    loss, diagnostics, _ = method(Batch([*views], ids, ids), 0.0, True)
    weight = method.classifier.weight
    assert weight.shape == (INSTANCES, WIDTH)
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


def test_exemplar_has_a_vector_for_every_image_of_the_dataset() -> None:
    method = Parts(load(["framework=exemplar"])).method
    assert isinstance(method, Exemplar) and method.classifier.weight.shape == (1347, 128)
    assert "classifier.weight" in method.state_dict()
    assert not any("classifier" in name for name in method.encoder.state_dict())
