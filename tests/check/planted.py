"""Losses for several ranks with one fault each, and the same losses without: ``planted:dcl__own``, ``planted:dcl``."""

import math
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

from ssl_bench.distributed import rank, world

# Of the gathering: nothing gathered, no gradient of it, 1 / W missing or twice there, own images first.
GATHERED = ["own", "detached", "mean", "times", "first"]
FAULTS: dict[str, list[str]] = {
    "nt_xent": [
        *GATHERED,
        *["self_kept", "positive_twice", "first_view_only", "next_diagonal", "overflow", "added", "least_tau"],
    ],
    "dcl": [*GATHERED, "positive_kept"],
    "clip": [*GATHERED, "first_view_only"],
    "siglip": [*GATHERED, "mean_of_pairs", "no_bias"],
    "supcon": [*GATHERED, "log_of_mean", "own_labels"],
    "eqco": [*GATHERED, "wrong_count"],
    "dclw": ["own_mean", "weights_with_gradient"],
    "moco": ["unsaved", "unsaved_place", "own_keys", "too_early", "first_view_kept"],
    "vicreg": ["own", "detached", "mean", "biased"],
    "barlow_twins": ["own", "detached", "mean", "own_correlation"],
    "sogclr": ["unsaved", "own_averages", "share_missing"],
}
FAULTS["nt_xent"] += ["fixed_tau", "squared_tau", "unnormalised", "coarse", "scaled"]
RIGHT = [*FAULTS]
PLANTED = [f"{kind}__{fault}" for kind, faults in FAULTS.items() for fault in faults]


def __getattr__(name: str) -> Any:
    kind, _, fault = name.partition("__")
    if kind not in FAULTS:
        raise AttributeError(name)
    return partial(Planted, kind, fault)


class Gather(torch.autograd.Function):
    """Vectors of all ranks; the gradient is summed over the ranks, and multiplied."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        parts = [torch.empty_like(x) for _ in range(world())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        grad = grads[0].clone()
        dist.all_reduce(grad)
        return grad.chunk(world())[rank()] * ctx.factor, None


def gather(x: Tensor, fault: str = "") -> Tensor:
    if fault == "own":
        return x
    whole: Tensor = Gather.apply(x, {"mean": 1 / world(), "times": world()}.get(fault, 1))
    parts = [*whole.chunk(world())]
    if fault == "detached":
        parts = [x if r == rank() else part.detach() for r, part in enumerate(parts)]
    return torch.cat([parts[rank()], *parts[: rank()], *parts[rank() + 1 :]] if fault == "first" else parts)


class Planted(nn.Module):
    keys: Tensor
    place: Tensor
    log_u: Tensor

    def __init__(self, kind: str, fault: str, tau: float) -> None:
        super().__init__()
        self.kind, self.fault = kind, fault
        self.tau = {"least_tau": max(tau, 0.05), "fixed_tau": 0.1, "squared_tau": tau**2}.get(fault, tau)
        kept = fault != "unsaved"
        self.register_buffer("keys", torch.zeros(32, 6), persistent=kept and kind == "moco")
        self.register_buffer("place", torch.zeros(()), persistent=kept and fault != "unsaved_place" and kind == "moco")
        self.register_buffer("log_u", torch.full((16,), math.nan), persistent=kept and kind == "sogclr")

    def forward(self, z1: Tensor, z2: Tensor, ids: Tensor, labels: Tensor | None = None) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            z = torch.stack([z1, z2])
            z = z if z.dtype == torch.float64 else z.float()
            if self.kind in ("vicreg", "barlow_twins"):
                return getattr(self, self.kind)(*z)  # type: ignore[no-any-return]
            u = normalize(z, dim=-1)
            if self.fault == "unnormalised":
                u = torch.stack([u[0], z[1]])
            if self.kind == "moco":
                return self.moco(*u)
            return self.contrastive(u, ids, labels)

    def contrastive(self, u: Tensor, ids: Tensor, labels: Tensor | None) -> Tensor:
        fault, kind, tau, images = self.fault, self.kind, self.tau, u.shape[1]
        keys = torch.cat([gather(x, fault if fault in GATHERED else "") for x in u])
        n = len(keys) // 2
        i = torch.arange(images) + (0 if fault == "own" else rank() * images)
        me, other = torch.cat([i, n + i]), torch.cat([n + i, i])
        if fault == "next_diagonal":
            other = (other + 1) % (2 * n)
        cosines = u.flatten(0, 1) @ keys.T
        if fault == "coarse":
            cosines = cosines.half().to(u.dtype)
        rows, column = torch.arange(2 * images), torch.arange(2 * n)
        s, logits = cosines[rows, other], cosines / tau
        out = column == me[:, None]
        positive = column == other[:, None]
        if kind in ("clip", "siglip"):
            out = (column < n) == (me < n)[:, None]
        negative = ~out & ~positive
        if fault == "self_kept":
            negative = ~positive
        if fault in ("positive_twice", "positive_kept"):
            negative = ~out
        lse = logits.masked_fill(~negative, -math.inf).logsumexp(1)
        count = negative.sum(1)
        if fault == "overflow":
            lse = (logits.exp() * negative).sum(1).log()
        if fault == "added":
            lse = ((logits - 1 / tau).exp() * negative).sum(1).add(1e-3).log() + 1 / tau
        if kind in ("nt_xent", "clip"):
            values = torch.logaddexp(lse, s / tau) - s / tau
            values = values * (n / (n - 1) if fault == "scaled" else 1)
        elif kind == "dcl":
            values = lse - s / tau
        elif kind == "eqco":
            margin = math.log(256) - (2 * n * torch.ones_like(s) if fault == "wrong_count" else count).log()
            values = softplus(lse + margin - s / tau)
        elif kind == "siglip":
            bias = 0 if fault == "no_bias" else -10
            pushed = softplus(logits + bias) * negative
            values = softplus(-s / tau - bias) + (pushed.mean(1) if fault == "mean_of_pairs" else pushed.sum(1))
        elif kind == "supcon":
            assert labels is not None
            every = labels.repeat(n // images) if fault in ("own", "own_labels") else gather(labels, fault)
            same = (labels.repeat(2)[:, None] == every.repeat(2)) & ~out
            p = logits.masked_fill(out, -math.inf).log_softmax(1)
            mean = (p.masked_fill(out, 0) * same).sum(1) / same.sum(1)
            values = -(p.exp() * same).sum(1).div(same.sum(1)).log() if fault == "log_of_mean" else -mean
        elif kind == "dclw":
            weight = (s / 0.5).exp()
            weight = weight if fault == "weights_with_gradient" else weight.detach()
            total = weight.mean() if fault == "own_mean" else gather(weight).mean()
            values = lse - (2 - weight / total) * s / tau
        else:
            values = self.averaged(lse - count.log(), s, ids)
        return values.view(2, -1)[0].mean() if fault == "first_view_only" else values.mean()

    def averaged(self, log_g: Tensor, s: Tensor, ids: Tensor) -> Tensor:
        old, fixed = self.log_u[ids.repeat(2)].to(s.dtype), log_g.detach()
        new = torch.where(old.isnan(), fixed, torch.logaddexp(old + math.log(0.1), fixed + math.log(0.9)))
        share = 1 if self.fault == "share_missing" else (fixed - new).exp()
        mean = new.view(2, -1).logsumexp(0) - math.log(2)
        own = self.fault == "own_averages"
        self.log_u[ids if own else gather(ids)] = (mean if own else gather(mean)).to(self.log_u.dtype)
        return self.tau * (new + share * (log_g - fixed)) - s

    def moco(self, q: Tensor, k: Tensor) -> Tensor:
        kept = (q if self.fault == "first_view_kept" else k).detach()
        new = kept.repeat(world(), 1) if self.fault == "own_keys" else gather(kept)
        if self.fault == "too_early":
            self.enqueue(new)
        pair, others = (q * k).sum(1, keepdim=True), q @ self.keys.to(q.dtype).T.clone()
        logits = torch.cat([pair, others], 1) / self.tau
        if self.fault != "too_early":
            self.enqueue(new)
        return (logits.logsumexp(1) - logits[:, 0]).mean()

    def enqueue(self, new: Tensor) -> None:
        place = int(self.place)
        self.keys[place : place + len(new)] = new.to(self.keys.dtype)
        self.place.fill_((place + len(new)) % len(self.keys))

    def vicreg(self, z1: Tensor, z2: Tensor) -> Tensor:
        total = 25 * (z1 - z2).square().mean()
        for z in (z1, z2):
            x = gather(z, self.fault if self.fault in GATHERED else "")
            x = x - x.mean(0)
            c = x.T @ x / (len(x) - (self.fault != "biased"))
            total = total + 12.5 * (1 - (c.diagonal() + 1e-4).sqrt()).relu().mean()
            total = total + (c.square().sum() - c.diagonal().square().sum()) / len(c)
        return total

    def barlow_twins(self, z1: Tensor, z2: Tensor) -> Tensor:
        mode = self.fault if self.fault in GATHERED else ""
        x, y = (
            (z - z.mean(0)) / (z.var(0, unbiased=False) + 1e-5).sqrt() for z in (gather(z1, mode), gather(z2, mode))
        )
        if self.fault == "own_correlation":
            x, y = x.chunk(world())[rank()], y.chunk(world())[rank()]
        c = x.T @ y / len(x)
        on = (1 - c.diagonal()).square().sum()
        return on + 0.0051 * (c.square().sum() - c.diagonal().square().sum())
