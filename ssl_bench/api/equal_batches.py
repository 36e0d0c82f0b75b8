"""The ranks of a loss must have batches of one size.

A module of its own: ``torch.compiler.disable`` imports torch's compiler, and a process without ranks needs neither.
"""

import torch
import torch.distributed as dist

from ssl_bench.errors import require


@torch.compiler.disable
def check_equal(images: int, device: torch.device) -> None:
    """Refuse batches of different sizes on the ranks, which the collectives would mix up or wait for without end."""
    sizes = torch.tensor([images, -images], device=device)
    dist.all_reduce(sizes, dist.ReduceOp.MAX)
    most, least = sizes[0].item(), -sizes[1].item()
    remedy = f"the same on all ranks: the smallest is {least}, the largest {most} (drop_last=true of the loader)"
    require(most == least, "batch size", images, remedy)
