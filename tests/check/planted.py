"""Losses for several ranks, right or with one fault that ``check --loss`` must find."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

from ssl_bench.distributed import gather, rank


def units(z: Tensor) -> Tensor:
    return normalize(z if z.dtype == torch.float64 else z.float(), dim=-1)


def contrastive(z1: Tensor, z2: Tensor, tau: float = 0.1, fault: str = "") -> Tensor:
    """NT-Xent.

    Args:
        fault: own: a rank has its own images only; detached: gathered vectors have no gradient; sum: over the anchors;
            standardised: by the statistics of the rank's images; overflow: an exponential at a small temperature.
    """
    with torch.autocast("cpu", enabled=False):
        if fault == "standardised":
            z1, z2 = ((z - z.mean(0)) / (z.std(0) + 1e-3) for z in (z1, z2))
        views, images = [units(z1), units(z2)], len(z1)
        keys = views if fault == "own" else [gather(u.detach() if fault == "detached" else u) for u in views]
        if fault == "detached":
            for key, u in zip(keys, views, strict=True):
                key[rank() * images :][:images] = u
        rows, count = torch.arange(2 * images), len(keys[0])
        anchors = rows % images + (0 if fault == "own" else rank() * images) + rows // images * count
        positives = (anchors + count) % (2 * count)
        logits = torch.cat(views) @ torch.cat(keys).T / tau
        left_out = torch.zeros_like(logits, dtype=torch.bool)
        left_out[rows, anchors] = left_out[rows, positives] = True
        if fault == "overflow":
            lse = logits.exp().masked_fill(left_out, 0).sum(1).log()
        else:
            lse = logits.masked_fill(left_out, -math.inf).logsumexp(1)
        values = softplus(lse - logits[rows, positives])
        return values.sum() if fault == "sum" else values.mean()


class MoCo(nn.Module):
    """The keys of the two batches before are the negatives; ``saved``: the ``state_dict`` has them."""

    keys: Tensor

    def __init__(self, temperature: float = 0.1, saved: bool = True) -> None:
        super().__init__()
        self.temperature = temperature
        self.register_buffer("keys", torch.zeros(32, 6), persistent=saved)

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            q, k = units(z1), units(z2)
            logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.keys.T], 1) / self.temperature
            new = gather(k.detach())
            self.keys = torch.cat([self.keys[len(new) :], new])
            return (logits.logsumexp(1) - logits[:, 0]).mean()
