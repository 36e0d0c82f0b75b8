"""Losses for several ranks, right or with one fault that conformance must find: ``planted:nt_xent__own``."""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

from ssl_bench.distributed import gather, rank

RIGHT = ["nt_xent", "dcl", "moco"]
# A rank has its own images only; no gradient of gathered vectors; DCL with its positive among the negatives; e^x that
# overflows; a queue that the state_dict lacks.
FAULTS = ["nt_xent__own", "nt_xent__detached", "dcl__positive_kept", "nt_xent__overflow", "moco__unsaved"]


def __getattr__(name: str) -> Any:
    if name not in RIGHT + FAULTS:
        raise AttributeError(name)
    kind, _, fault = name.partition("__")
    return partial(MoCo, fault) if kind == "moco" else partial(contrastive, kind=kind, fault=fault)


def units(z: Tensor) -> Tensor:
    return normalize(z if z.dtype == torch.float64 else z.float(), dim=-1)


def contrastive(z1: Tensor, z2: Tensor, tau: float, kind: str, fault: str) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        views, images = [units(z1), units(z2)], len(z1)
        keys = views if fault == "own" else [gather(u.detach() if fault == "detached" else u) for u in views]
        if fault == "detached":
            for key, u in zip(keys, views, strict=True):
                key[rank() * images :][:images] = u
        rows, count = torch.arange(2 * images), len(keys[0])
        anchors = rows % images + (0 if fault == "own" else rank() * images) + rows // images * count
        logits = torch.cat(views) @ torch.cat(keys).T / tau
        left_out = torch.zeros_like(logits, dtype=torch.bool)
        left_out[rows, anchors] = True
        positives = (anchors + count) % (2 * count)
        left_out[rows, positives] = fault != "positive_kept"
        if fault == "overflow":
            lse = logits.exp().masked_fill(left_out, 0).sum(1).log()
        else:
            lse = logits.masked_fill(left_out, -math.inf).logsumexp(1)
        log_odds = lse - logits[rows, positives]
        return (log_odds if kind == "dcl" else softplus(log_odds)).mean()


class MoCo(nn.Module):
    """The keys of the two batches before are the negatives."""

    keys: Tensor

    def __init__(self, fault: str, tau: float) -> None:
        super().__init__()
        self.tau = tau
        self.register_buffer("keys", torch.zeros(32, 6), persistent=fault != "unsaved")

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            q, k = units(z1), units(z2)
            logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.keys.T], 1) / self.tau
            new = gather(k)
            self.keys = torch.cat([self.keys[len(new) :], new])
            return (logits.logsumexp(1) - logits[:, 0]).mean()
