"""Training of a method on this rank's share of the images, for tests of ranks, chunks and interrupted runs."""

import contextlib
import functools
from typing import Any

import torch
import yaml
from torch import Tensor

from ssl_bench.config.build import directory, find_target
from ssl_bench.data.batch import Batch
from ssl_bench.distributed import average_gradients, parallel, rank, world
from ssl_bench.methods.base import Method
from ssl_bench.networks.norm import group_statistics
from ssl_bench.training import chunked


def options(group: str) -> list[str]:
    """The options of a configuration group."""
    return sorted(path.stem for path in (directory() / group).glob("*.yaml"))


def has_own_objective(framework: str) -> bool:
    """Whether a framework is a Method without loss, negatives and temperature; Hydra would take a second for all."""
    file = yaml.safe_load((directory() / "framework" / f"{framework}.yaml").read_text())
    if "_target_" in file["framework"]:
        return issubclass(find_target(file["framework"], "framework"), Method)
    return has_own_objective(file["defaults"][0])


def local_batches(images: Batch, steps: int) -> list[Batch]:
    """Cut the images into steps, and keep this rank's slice of each."""
    size = len(images.ids) // steps
    share = size // world()
    starts = [start + rank() * share for start in range(0, size * steps, size)]
    return [select(images, slice(start, start + share)) for start in starts]


def select(batch: Batch, rows: slice) -> Batch:
    """The images ``rows`` of a batch."""
    return Batch([view[rows] for view in batch.views], batch.ids[rows], batch.labels[rows])


def train(
    method: Method, steps: list[Batch], state: dict[str, Any] | None = None, progress: list[float] | None = None
) -> Tensor:
    """Train by SGD with momentum and return all weights; the optimiser continues from ``state`` and updates it."""
    group_statistics(method, method.groups)
    network = parallel(method, torch.device("cpu"))
    optimizer = torch.optim.SGD(method.parameters(), 0.01, momentum=0.9)
    if state:
        optimizer.load_state_dict(state)
    for batch, share in zip(steps, progress or [0.0] * len(steps), strict=True):
        optimizer.zero_grad()
        loss, _, for_update = network(batch, share)
        loss.backward()
        optimizer.step()
        method.update(for_update, share)
    if state is not None:
        state |= optimizer.state_dict()
    return weights(method)


def train_in_chunks(method: Method, steps: list[Batch], chunk: int, progress: list[float] | None = None) -> Tensor:
    """As :func:`train`, each batch in chunks of ``chunk`` images."""
    group_statistics(method, method.groups)
    optimizer = torch.optim.SGD(method.parameters(), 0.01, momentum=0.9)
    for batch, share in zip(steps, progress or [0.0] * len(steps), strict=True):
        optimizer.zero_grad()
        part, images = functools.partial(select, batch), len(batch.ids)
        chunks = chunked.backward(method, part, images, chunk, share, True, contextlib.nullcontext, lambda loss: loss)
        average_gradients(method)
        optimizer.step()
        method.update(chunks.for_update, share)
    return weights(method)


def weights(method: Method) -> Tensor:
    return torch.cat([p.detach().flatten() for p in method.parameters()])
