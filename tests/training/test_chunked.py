"""Both passes over the chunks have the same dropout and running statistics. ``test_invariances`` tests the gradient."""

import contextlib
import copy
import functools

import torch
from torch import Tensor, nn

from ssl_bench.data.batch import Batch
from ssl_bench.methods.contrastive import Contrastive
from ssl_bench.methods.siamese import Siamese
from ssl_bench.networks.heads import MLP
from ssl_bench.objective.losses import InfoNCE
from ssl_bench.objective.negatives import InBatch
from ssl_bench.objective.temperature import Fixed
from ssl_bench.training import chunked
from tests.methods.training import select

IMAGES, SIZE = 8, 6


def batch() -> Batch:
    views = torch.rand(2, IMAGES, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(1)).double()
    return Batch([*views], torch.arange(IMAGES), torch.arange(IMAGES))


def method(*layers: nn.Module, momentum: float | None = None) -> Contrastive:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(SIZE**2, 12), *layers)
    framework = Siamese(backbone, MLP(12, 1, None, 6, final_norm="none"), momentum=momentum)
    return Contrastive(framework, InBatch(), Fixed(0.2), InfoNCE()).double()


def test_chunks_move_running_statistics_once_and_repeat_dropout() -> None:
    made, images = method(nn.BatchNorm1d(12), nn.Dropout(0.5), momentum=0.9), batch()
    masks: list[Tensor] = []
    backbone: nn.Module = made.framework.encoder.backbone  # type: ignore[assignment, union-attr]
    _, linear, norm, dropout = backbone.children()
    dropout.register_forward_hook(lambda module, inputs, output: masks.append(output.detach() != 0))
    once = copy.deepcopy(norm)
    for half in (select(images, rows) for rows in (slice(0, None, 2), slice(1, None, 2))):
        once(linear(torch.cat(half.views).flatten(1)))
    part = functools.partial(select, images)
    chunked.backward(made, part, IMAGES, 4, 0.0, False, contextlib.nullcontext, lambda loss: loss)
    torch.testing.assert_close(norm.running_mean, once.running_mean)
    torch.testing.assert_close(norm.running_var, once.running_var)
    assert torch.equal(masks[0], masks[2]) and torch.equal(masks[1], masks[3]) and not torch.equal(masks[0], masks[1])
