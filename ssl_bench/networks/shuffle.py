"""Shuffled groups: images are dealt to groups for the momentum network, and its outputs return to them (MoCo).

Group k of G gets the images k, k + G, k + 2 G ... of the global batch, so that an image shares its batch statistics
with other images than in the trained network. Ranks exchange only the images that change ranks, in one collective.

Shapes: B images of this rank; W ranks; G groups; g = G / W groups of this rank.
"""

import functools

import torch
import torch.distributed as dist
from torch import Tensor

from ssl_bench.distributed import rank, world
from ssl_bench.networks.norm import local_groups


@torch.no_grad()
def deal(x: Tensor, groups: int) -> Tensor:
    """The images of this rank's groups, one group after the other, from the slice ``x`` [B, ...] of the global batch.

    Under autocast they travel in its half precision, to which the network would convert them anyway.
    """
    rows = x.movedim(1, -1)  # dense for images whose channels are last in memory
    if world() > 1:
        if x.dtype == torch.float32 and torch.is_autocast_enabled(x.device.type):
            rows = rows.to(torch.get_autocast_dtype(x.device.type))
        order, sent, received = _route(len(x), groups, rank(), world(), x.device)
        rows = _exchange(rows[order], sent, received)  # in the order of the global batch, from group to group
    return rows.unflatten(0, (-1, local_groups(groups))).transpose(0, 1).flatten(0, 1).movedim(-1, 1)


@torch.no_grad()
def collect(y: Tensor, groups: int) -> Tensor:
    """The outputs [B, D] for this rank's slice of the global batch, from those for the images of :func:`deal`."""
    rows = y.unflatten(0, (local_groups(groups), -1)).transpose(0, 1).flatten(0, 1)
    if world() == 1:
        return rows
    order, sent, received = _route(len(y), groups, rank(), world(), y.device)
    returned = torch.empty_like(rows)
    returned[order] = _exchange(rows, received, sent)
    return returned


@functools.lru_cache(maxsize=8)
def _route(
    images: int, groups: int, rank: int, ranks: int, device: torch.device
) -> tuple[Tensor, list[int], list[int]]:
    """Order [B] that sorts the images of a rank by their destinations, and how many go to and come from each rank."""
    destination = torch.arange(images * ranks) % groups // (groups // ranks)
    local = destination[rank * images : (rank + 1) * images]
    received = (destination == rank).view(ranks, images).sum(1)
    return local.argsort(stable=True).to(device), local.bincount(minlength=ranks).tolist(), received.tolist()


def _exchange(rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
    """Send the first ``sent[0]`` rows to rank 0, the next to rank 1 and so on; return what arrives, in their order."""
    arrived = torch.empty_like(rows, memory_format=torch.contiguous_format)
    dist.all_to_all_single(arrived, rows.contiguous(), received, sent)
    return arrived
