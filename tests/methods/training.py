"""A method's training on this rank's share of the images, for comparisons of ranks and of interrupted runs."""

from typing import Any

import torch
from torch import Tensor

from ssl_bench.data.batch import Batch
from ssl_bench.distributed import parallel, rank, world
from ssl_bench.methods.base import Method
from ssl_bench.networks.norm import synchronise


def batches(images: Batch, steps: int) -> list[Batch]:
    """The images cut into steps, of each of which this rank has its slice."""
    size = len(images.ids) // steps
    share = size // world()
    made = []
    for start in range(0, size * steps, size):
        mine = slice(start + rank() * share, start + (rank() + 1) * share)
        made.append(Batch([view[mine] for view in images.views], images.ids[mine], images.labels[mine]))
    return made


def some(batch: Batch, rows: slice) -> Batch:
    """Some of a batch's images."""
    return Batch([view[rows] for view in batch.views], batch.ids[rows], batch.labels[rows])


def trained(method: Method, steps: list[Batch], state: dict[str, Any] | None = None) -> Tensor:
    """All weights after the steps, by SGD with momentum; its state is taken from ``state`` and left there."""
    if world() > 1:
        synchronise(method, torch.device("cpu"))
    network = parallel(method, torch.device("cpu"))
    optimizer = torch.optim.SGD(method.parameters(), 0.01, momentum=0.9)
    if state:
        optimizer.load_state_dict(state)
    for batch in steps:
        optimizer.zero_grad()
        network(batch, 0.0)[0].backward()
        optimizer.step()
        method.after_step(0.0)
    if state is not None:
        state |= optimizer.state_dict()
    return torch.cat([p.detach().flatten() for p in method.parameters()])
