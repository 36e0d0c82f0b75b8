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

from ssl_bench.config.build import near
from ssl_bench.errors import ConfigError, InvalidValue


class Batch(NamedTuple):
    """Vectors [2, N, D] of two views, of any length; image and class [N]."""

    z: Tensor
    ids: Tensor
    labels: Tensor


Formula = Callable[[Sequence[Batch], float], Tensor]  # the loss of each anchor of the last batch, [1 or 2, N]
Views = Literal["both", "cross", "own"]
FORMULAS: dict[str, Callable[..., Tensor]] = {}
LABELLED = {"supcon", "sincere"}
MOMENTUM = {"moco"}  # the second view is of a momentum network: it comes without gradient


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


def named(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A formula of batches and temperature under the name of its function."""
    FORMULAS[function.__name__] = function
    return function


def contrastive(views: Views = "both") -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """A formula of one anchor and the temperature under the name of its function, with the option ``views``."""

    def decorate(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def formula(batches: Sequence[Batch], tau: float, *, views: Views = views, **options: Any) -> Tensor:
            z = batches[-1].z
            return torch.stack([function(a, tau, **options) for a in anchors(z, views)]).view(2, -1)

        functools.update_wrapper(formula, function)
        own = inspect.signature(formula, follow_wrapped=False).parameters["views"]
        given = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
        formula.__signature__ = inspect.Signature([own, *given])  # type: ignore[attr-defined]
        return named(formula)

    return decorate


def make(name: str, options: Mapping[str, Any]) -> Formula:
    """The formula of a name with its options.

    Raises:
        ConfigError: there is no such formula, or it has no such option, or another kind of value.
    """
    if name not in FORMULAS:
        raise ConfigError(f"--as {name}: no such formula{near(name, FORMULAS)}; they are {', '.join(FORMULAS)}")
    known = {
        p.name: p.default for p in inspect.signature(FORMULAS[name]).parameters.values() if p.kind is p.KEYWORD_ONLY
    }
    for key, value in options.items():
        if key not in known:
            has = f"its options are {', '.join(known)}" if known else "it has no options"
            raise ConfigError(f"{key}={value}: --as {name} has no such option: {has}")
        if key == "views":
            allowed: Any = ("both", "cross", "own")
            fits = value in allowed
        else:
            allowed = "true or false" if type(known[key]) is bool else "a finite number"
            fits = isinstance(value, bool) == isinstance(known[key], bool) and isinstance(value, int | float)
            fits &= math.isfinite(value) if fits else False
        if not fits:
            raise InvalidValue(key, value, allowed if isinstance(allowed, str) else " or ".join(allowed))
    return functools.partial(FORMULAS[name], **options)


# ---- of the anchor alone


@contrastive()
def nt_xent(a: Anchor, tau: float) -> Tensor:
    return softplus((a.k / tau).logsumexp(0) - a.s / tau)


@contrastive("cross")
def clip(a: Anchor, tau: float) -> Tensor:
    return softplus((a.k / tau).logsumexp(0) - a.s / tau)


@contrastive()
def eqco(a: Anchor, tau: float, *, alpha: float = 256.0) -> Tensor:
    return softplus((a.k / tau).logsumexp(0) + math.log(alpha / len(a.k)) - a.s / tau)


@contrastive()
def dcl(a: Anchor, tau: float) -> Tensor:
    return (a.k / tau).logsumexp(0) - a.s / tau


@contrastive()
def flatnce(a: Anchor, tau: float) -> Tensor:
    u = (a.k / tau).logsumexp(0) - a.s / tau
    return (u - u.detach()).exp()


@contrastive()
def macl(a: Anchor, tau: float) -> Tensor:
    u = (a.k / tau).logsumexp(0) - a.s / tau
    return softplus(u) / u.detach().sigmoid()


@contrastive("own")
def dhel(a: Anchor, tau: float) -> Tensor:
    return (a.k / tau).logsumexp(0) - a.s / tau / 2


@contrastive()
def dual_temperature(a: Anchor, tau: float, *, ratio: float = 10.0) -> Tensor:
    w, far = (((a.k / t).logsumexp(0) - a.s / t).sigmoid().detach() for t in (tau, ratio * tau))
    return far / w * softplus((a.k / tau).logsumexp(0) - a.s / tau)


@contrastive()
def debiased(a: Anchor, tau: float, *, tau_plus: float = 0.1) -> Tensor:
    return hcl.__wrapped__(a, tau, beta=0.0, tau_plus=tau_plus)  # type: ignore[attr-defined, no-any-return]


@contrastive()
def hcl(a: Anchor, tau: float, *, beta: float = 1.0, tau_plus: float = 0.1) -> Tensor:
    x = (a.k - a.s) / tau
    mean = ((beta * a.k / tau).softmax(0).log() + x).logsumexp(0).exp()
    least = (-(1 + a.s) / tau).exp()
    return torch.log1p(len(a.k) * torch.maximum((mean - tau_plus) / (1 - tau_plus), least))


@contrastive("cross")
def relic(a: Anchor, tau: float, *, weight: float = 1.0) -> Tensor:
    p, q = ((torch.cat([x[None], y]) / tau).log_softmax(0) for x, y in ((a.s, a.k), (torch.ones_like(a.s), a.mirror)))
    return -p[0] + weight * (p.exp() * (p - q)).sum()


@contrastive("cross")
def siglip(a: Anchor, tau: float, *, bias: float = -10.0) -> Tensor:
    return softplus(-a.s / tau - bias) + softplus(a.k / tau + bias).sum()


@contrastive("cross")
def spectral(a: Anchor, tau: float, *, mu: float = 1.0) -> Tensor:
    return -2 * mu * a.s + (mu * a.k).square().mean()


@contrastive()
def kcl(a: Anchor, tau: float, *, t: float = 2.0, weight: float = 16.0) -> Tensor:
    return weight * (2 * t * (a.k - 1)).exp().mean() - (2 * t * (a.s - 1)).exp()


@contrastive()
def decoupled_nt_xent(a: Anchor, tau: float, *, weight: float = 0.1) -> Tensor:
    return weight * (torch.cat([a.s[None], a.k]) / tau).logsumexp(0) - a.s


@contrastive()
def byol(a: Anchor, tau: float) -> Tensor:
    return 2 - 2 * a.s


# ---- of all anchors


@named
def dclw(batches: Sequence[Batch], tau: float, *, sigma: float = 0.5) -> Tensor:
    rows = [*anchors(batches[-1].z, "both")]
    close = torch.stack([a.s for a in rows]).detach() / sigma
    weights = 2 - len(rows) * close.softmax(0)
    return torch.stack([(a.k / tau).logsumexp(0) - w * a.s / tau for w, a in zip(weights, rows, strict=True)]).view(
        2, -1
    )


@named
def align_uniform(batches: Sequence[Batch], tau: float, *, weight: float = 1.0, t: float = 2.0) -> Tensor:
    rows = [*anchors(batches[-1].z, "own")]
    kernels = torch.stack([(2 * t * (a.k - 1)).exp().mean() for a in rows]).view(2, -1)
    return 2 - 2 * torch.stack([a.s for a in rows]).view(2, -1) + weight * kernels.mean(1, keepdim=True).log()


@named
def supcon(batches: Sequence[Batch], tau: float) -> Tensor:
    """The mean over the positives of an anchor's class is outside of the logarithm."""
    return _by_class(batches[-1], tau, lambda same, other, every: every.logsumexp(0) - same)


@named
def sincere(batches: Sequence[Batch], tau: float) -> Tensor:
    return _by_class(batches[-1], tau, lambda same, other, every: softplus(other.logsumexp(0) - same))


def _by_class(batch: Batch, tau: float, each: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """The mean of ``each`` over the positives, of the logits of the anchor's class, of other classes and of all."""
    u, labels = normalize(batch.z.flatten(0, 1), dim=-1), batch.labels.repeat(2)
    losses = []
    for i in range(len(u)):
        rest = [j for j in range(len(u)) if j != i]
        logits, same = u[rest] @ u[i] / tau, labels[rest] == labels[i]
        losses.append(each(logits[same], logits[~same], logits).mean())
    return torch.stack(losses).view(2, -1)


@named
def vicreg(
    batches: Sequence[Batch], tau: float, *, invariance: float = 25.0, variance: float = 25.0, covariance: float = 1.0
) -> Tensor:
    """As the official code: the mean of the views' variance terms, and the sum of their covariance terms."""
    z = batches[-1].z
    images, width = z.shape[1:]
    total = invariance * (z[0] - z[1]).square().mean()
    for x in z:
        c = torch.stack([y - y.mean() for y in x.T])
        for i in range(width):
            total = total + variance / 2 * (1 - (c[i] @ c[i] / (images - 1) + 1e-4).sqrt()).clamp(min=0) / width
            for j in range(width):
                total = total + (covariance * (c[i] @ c[j] / (images - 1)).square() / width if i != j else 0)
    return total.expand(2, images)


@named
def barlow_twins(batches: Sequence[Batch], tau: float, *, weight: float = 0.0051, listing: bool = False) -> Tensor:
    """As the official code, with BatchNorm, or as the paper's listing: torch's deviation, which divides by N - 1."""
    first, second = batches[-1].z
    images, total = len(first), torch.zeros(())

    def standard(x: Tensor) -> Tensor:
        centred = x - x.mean()
        squares = centred @ centred
        return centred / ((squares / (images - 1)).sqrt() + 1e-5 if listing else (squares / images + 1e-5).sqrt())

    for i, x in enumerate(first.T):
        for j, y in enumerate(second.T):
            c = standard(x) @ standard(y) / images
            total = total + ((1 - c).square() if i == j else weight * c.square())
    return total.expand(2, images)


# ---- of all batches


@named
def moco(batches: Sequence[Batch], tau: float, *, with_batch: bool = False) -> Tensor:
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


@named
def sogclr(batches: Sequence[Batch], tau: float, *, gamma: float = 0.9) -> Tensor:
    """tau log u' - s with the moving average u' of each image, of which the batch's share has the gradient."""
    return _averaged(batches, tau, gamma=gamma)


@named
def isogclr(
    batches: Sequence[Batch],
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
    return _averaged(batches, tau, gamma, rho, eta, beta, tau_min, tau_max, largest)


def _averaged(
    batches: Sequence[Batch],
    tau: float,
    gamma: float,
    rho: float = 0.0,
    eta: float = 0.0,
    beta: float = 1.0,
    tau_min: float = 0.0,
    tau_max: float = math.inf,
    largest: float = math.inf,
) -> Tensor:
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
