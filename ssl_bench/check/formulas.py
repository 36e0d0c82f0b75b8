"""The losses that ``ssl-bench conformance --as NAME`` compares with: loops over the anchors, in double precision.

Nothing here uses the losses of the package, whose tests compare them with these. N images, width D; s is the cosine of
an anchor with its positive, k [K] are those with its negatives.
"""

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ssl_bench.config.build import converted, near
from ssl_bench.errors import ConfigError


class VectorBatch(NamedTuple):
    """Vectors [2, N, D] of two views, of any length; image and class [N]."""

    z: Tensor
    ids: Tensor
    labels: Tensor


Batches = Sequence[VectorBatch]
Formula = Callable[[Batches, float], Tensor]  # the loss of each anchor of the last batch, [1 or 2, N]
Views = Literal["both", "cross", "own"]


class Anchor(NamedTuple):
    """One anchor; ``mirror`` [K] are the cosines of its positive with its negatives."""

    image: int
    s: Tensor
    k: Tensor
    mirror: Tensor


def anchors(z: Tensor, views: Views) -> Iterator[Anchor]:
    """The anchors of the first view, then those of the second; negatives are the other images in the views given."""
    u = normalize(z, dim=-1)
    for v in (0, 1):
        for i in range(z.shape[1]):
            of = {"both": (0, 1), "cross": (1 - v,), "own": (v,)}[views]
            others = torch.stack([u[w, j] for w in of for j in range(z.shape[1]) if j != i])
            yield Anchor(i, u[v, i] @ u[1 - v, i], others @ u[v, i], others @ u[1 - v, i])


def softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))


def log_odds(a: Anchor, tau: float) -> Tensor:
    return (a.k / tau).logsumexp(0) - a.s / tau


def per_anchor(batches: Batches, views: Views, of: Callable[[Anchor], Tensor]) -> Tensor:
    """A function of each anchor of the last batch, [2, N]."""
    return torch.stack([of(a) for a in anchors(batches[-1].z, views)]).view(2, -1)


# ---- of the anchor alone


def nt_xent(batches: Batches, tau: float, *, views: Views = "both") -> Tensor:
    return per_anchor(batches, views, lambda a: softplus(log_odds(a, tau)))


def clip(batches: Batches, tau: float, *, views: Views = "cross") -> Tensor:
    return nt_xent(batches, tau, views=views)


def eqco(batches: Batches, tau: float, *, views: Views = "both", alpha: float = 256.0) -> Tensor:
    return per_anchor(batches, views, lambda a: softplus(log_odds(a, tau) + math.log(alpha / len(a.k))))


def dcl(batches: Batches, tau: float, *, views: Views = "both") -> Tensor:
    return per_anchor(batches, views, lambda a: log_odds(a, tau))


def flatnce(batches: Batches, tau: float, *, views: Views = "both") -> Tensor:
    return per_anchor(batches, views, lambda a: (log_odds(a, tau) - log_odds(a, tau).detach()).exp())


def macl(batches: Batches, tau: float, *, views: Views = "both") -> Tensor:
    return per_anchor(batches, views, lambda a: softplus(log_odds(a, tau)) / log_odds(a, tau).detach().sigmoid())


def dhel(batches: Batches, tau: float, *, views: Views = "own") -> Tensor:
    return per_anchor(batches, views, lambda a: (a.k / tau).logsumexp(0) - a.s / tau / 2)


def dual_temperature(batches: Batches, tau: float, *, views: Views = "both", ratio: float = 10.0) -> Tensor:
    def of(a: Anchor) -> Tensor:
        near_weight, far_weight = (log_odds(a, t).sigmoid().detach() for t in (tau, ratio * tau))
        return far_weight / near_weight * softplus(log_odds(a, tau))

    return per_anchor(batches, views, of)


def hcl(batches: Batches, tau: float, *, views: Views = "both", beta: float = 1.0, tau_plus: float = 0.1) -> Tensor:
    def of(a: Anchor) -> Tensor:
        mean = ((beta * a.k / tau).softmax(0).log() + (a.k - a.s) / tau).logsumexp(0).exp()
        least = (-(1 + a.s) / tau).exp()
        return torch.log1p(len(a.k) * torch.maximum((mean - tau_plus) / (1 - tau_plus), least))

    return per_anchor(batches, views, of)


def debiased(batches: Batches, tau: float, *, views: Views = "both", tau_plus: float = 0.1) -> Tensor:
    return hcl(batches, tau, views=views, beta=0.0, tau_plus=tau_plus)


def relic(batches: Batches, tau: float, *, views: Views = "cross", weight: float = 1.0) -> Tensor:
    def of(a: Anchor) -> Tensor:
        pairs = ((a.s, a.k), (torch.ones_like(a.s), a.mirror))
        p, q = ((torch.cat([x[None], y]) / tau).log_softmax(0) for x, y in pairs)
        return -p[0] + weight * (p.exp() * (p - q)).sum()

    return per_anchor(batches, views, of)


def siglip(batches: Batches, tau: float, *, views: Views = "cross", bias: float = -10.0) -> Tensor:
    return per_anchor(batches, views, lambda a: softplus(-a.s / tau - bias) + softplus(a.k / tau + bias).sum())


def spectral(batches: Batches, tau: float, *, views: Views = "cross", mu: float = 1.0) -> Tensor:
    return per_anchor(batches, views, lambda a: -2 * mu * a.s + (mu * a.k).square().mean())


def kcl(batches: Batches, tau: float, *, views: Views = "both", t: float = 2.0, weight: float = 16.0) -> Tensor:
    return per_anchor(batches, views, lambda a: weight * (2 * t * (a.k - 1)).exp().mean() - (2 * t * (a.s - 1)).exp())


def decoupled_nt_xent(batches: Batches, tau: float, *, views: Views = "both", weight: float = 0.1) -> Tensor:
    return per_anchor(batches, views, lambda a: weight * (torch.cat([a.s[None], a.k]) / tau).logsumexp(0) - a.s)


def byol(batches: Batches, tau: float) -> Tensor:
    return per_anchor(batches, "both", lambda a: 2 - 2 * a.s)


# ---- of all anchors


def dclw(batches: Batches, tau: float, *, sigma: float = 0.5) -> Tensor:
    close = per_anchor(batches, "both", lambda a: a.s.detach() / sigma)
    weights = iter((2 - close.numel() * close.flatten().softmax(0)).unbind())
    return per_anchor(batches, "both", lambda a: (a.k / tau).logsumexp(0) - next(weights) * a.s / tau)


def align_uniform(batches: Batches, tau: float, *, weight: float = 1.0, t: float = 2.0) -> Tensor:
    kernels = per_anchor(batches, "own", lambda a: (2 * t * (a.k - 1)).exp().mean())
    return byol(batches, tau) + weight * kernels.mean(1, keepdim=True).log()


def supcon(batches: Batches, tau: float) -> Tensor:
    """The mean over the positives of an anchor's class is outside of the logarithm."""
    return _by_class(batches[-1], tau, lambda same, other, every: every.logsumexp(0) - same)


def sincere(batches: Batches, tau: float) -> Tensor:
    return _by_class(batches[-1], tau, lambda same, other, every: softplus(other.logsumexp(0) - same))


def _by_class(batch: VectorBatch, tau: float, of: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """The mean of a function over the positives, of the logits of the anchor's class, of other classes and of all."""
    u, labels = normalize(batch.z.flatten(0, 1), dim=-1), batch.labels.repeat(2)
    losses = []
    for i in range(len(u)):
        rest = [j for j in range(len(u)) if j != i]
        logits, same = u[rest] @ u[i] / tau, labels[rest] == labels[i]
        losses.append(of(logits[same], logits[~same], logits).mean())
    return torch.stack(losses).view(2, -1)


def vicreg(
    batches: Batches, tau: float, *, invariance: float = 25.0, variance: float = 25.0, covariance: float = 1.0
) -> Tensor:
    """As the official code: the mean of the views' variance terms, and the sum of their covariance terms."""
    z = batches[-1].z
    images, width = z.shape[1:]
    total = invariance * (z[0] - z[1]).square().mean()
    for x in z:
        c = (x - x.mean(0)).T @ (x - x.mean(0)) / (images - 1)
        total = total + variance / 2 * (1 - (c.diag() + 1e-4).sqrt()).clamp(min=0).mean()
        total = total + covariance * (c - c.diag().diag()).square().sum() / width
    return total.expand(2, images)


def barlow_twins(batches: Batches, tau: float, *, weight: float = 0.0051, listing: bool = False) -> Tensor:
    """As the official code, with BatchNorm, or as the paper's listing: torch's deviation, which divides by N - 1."""
    first, second = batches[-1].z
    images = len(first)

    def standard(x: Tensor) -> Tensor:
        centred = x - x.mean(0)
        squares = centred.square().sum(0)
        return centred / ((squares / (images - 1)).sqrt() + 1e-5 if listing else (squares / images + 1e-5).sqrt())

    c = standard(first).T @ standard(second) / images
    total = (1 - c.diag()).square().sum() + weight * (c - c.diag().diag()).square().sum()
    return total.expand(2, images)


# ---- of all batches


def moco(batches: Batches, tau: float, *, with_batch: bool = False) -> Tensor:
    """Anchors of the first view; keys without gradient in the second, and in those of the two batches before.

    ``with_batch``: the negatives are the other images of this batch and the one before it.
    """
    *before, (q, keys) = (normalize(b.z, dim=-1) for b in batches)
    losses = []
    for i in range(len(q)):
        others = torch.cat([keys[:i], keys[i + 1 :]] if with_batch else [b[1] for b in before[-2:-1]])
        k = torch.cat([others, *(b[1] for b in before[-1:])]).detach() @ q[i]
        losses.append(softplus((k / tau).logsumexp(0) - q[i] @ keys[i].detach() / tau))
    return torch.stack(losses)[None]


def sogclr(batches: Batches, tau: float, *, gamma: float = 0.9) -> Tensor:
    """tau log u' - s with the moving average u' of each image, of which the batch's share has the gradient."""
    return isogclr(batches, tau, gamma=gamma, rho=0.0, eta=0.0, tau_min=0.0, tau_max=math.inf)


def isogclr(
    batches: Batches,
    tau: float,
    *,
    gamma: float = 0.8,
    rho: float = 0.4,
    eta: float = 0.03,
    beta: float = 0.5,
    tau_min: float = 0.05,
    tau_max: float = 1.0,
    largest: float = 3.0,
) -> Tensor:
    """SogCLR with a learned temperature for each image; ``largest`` bounds its gradient, LibAUC has no such bound."""
    u: dict[int, Tensor] = {}
    taus, slopes = dict[int, float](), dict[int, float]()
    losses: list[Tensor] = []
    for batch in batches:
        losses, moved, slope = [], dict[int, list[Tensor]](), dict[int, list[Tensor]]()
        for a in anchors(batch.z, "both"):
            image = int(batch.ids[a.image])
            t = taus.setdefault(image, tau)
            g = (a.k / t).exp().mean()
            new = g.detach() if image not in u else (1 - gamma) * u[image] + gamma * g.detach()
            losses.append(t * (new.log() + (g - g.detach()) / new + rho) - a.s)
            moved.setdefault(image, []).append(new)
            slope.setdefault(image, []).append(new.log() + rho - ((a.k / t).exp() * a.k / t).mean().detach() / new)
        for image in moved:
            u[image] = torch.stack(moved[image]).mean()
            bounded = float(torch.stack(slope[image]).mean().clamp(-largest, largest))
            slopes[image] = (1 - beta) * slopes.get(image, 0.0) + beta * bounded
            taus[image] = min(max(taus[image] - eta * slopes[image], tau_min), tau_max)
    return torch.stack(losses).view(2, -1)


# ---- by name

LISTED: list[Callable[..., Tensor]] = [nt_xent, clip, eqco, dcl, flatnce, macl, dhel, dual_temperature, debiased, hcl]
LISTED += [relic, siglip, spectral, kcl, decoupled_nt_xent, byol, dclw, align_uniform, supcon, sincere, vicreg]
LISTED += [barlow_twins, moco, sogclr, isogclr]
FORMULAS: dict[str, Callable[..., Tensor]] = {formula.__name__: formula for formula in LISTED}
LABELLED = {"supcon", "sincere"}
MOMENTUM = {"moco"}  # the second view is of a momentum network: it comes without gradient


def make(name: str, options: Mapping[str, Any]) -> Formula:
    """The formula of a name with its options.

    Raises:
        ConfigError: there is no such formula, or it has no such option, or another kind of value.
    """
    if name not in FORMULAS:
        raise ConfigError(f"--as {name}: no such formula{near(name, FORMULAS)}; they are {', '.join(FORMULAS)}")
    parameters = inspect.signature(FORMULAS[name]).parameters.values()
    annotations = {p.name: p.annotation for p in parameters if p.kind is p.KEYWORD_ONLY}
    for key, value in options.items():
        if key not in annotations:
            has = f"its options are {', '.join(annotations)}" if annotations else "it has no options"
            raise ConfigError(f"{key}={value}: --as {name} has no such option: {has}")
        converted(value, annotations[key], key)
    return functools.partial(FORMULAS[name], **options)
