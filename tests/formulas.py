"""The losses as loops over anchors, in double precision: a value and, by autograd, a gradient for each anchor.

Nothing here uses the losses of the package, which the tests compare with these. A formula is a function of an anchor
and of all anchors of its view; one with a memory is a class, whose ``update`` follows each batch. ``scripts`` compares
the losses of other libraries with them, too.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize


class Anchor(NamedTuple):
    """One anchor with its positive and K negatives.

    Attributes:
        image: its number.
        s, k, mirror: cosines with the positive [] and with the negatives [K], and of the positive with these [K].
        t: the temperature [].
        h, g: anchor and positive before normalisation [D].
        same: [K], which negatives are of the anchor's class.
    """

    image: int
    s: Tensor
    k: Tensor
    mirror: Tensor
    t: Tensor
    h: Tensor
    g: Tensor
    same: Tensor

    @property
    def u(self) -> Tensor:
        """The log-odds of the negatives against the positive."""
        return (self.k / self.t).logsumexp(0) - self.s / self.t

    def infonce(self) -> Tensor:
        return softplus(self.u)


View = Sequence[Anchor]
Formula = Callable[[Anchor, View], Tensor]


def per_anchor(formula: Formula, batches: Sequence[Sequence[View]]) -> Tensor:
    """The loss [V, B] of each anchor of the last batch."""
    for views in batches:
        values = torch.stack([torch.stack([formula(anchor, view) for anchor in view]) for view in views])
        getattr(formula, "update", lambda: None)()
    return values


def anchors(
    z: Tensor, t: float, negatives: Literal["both", "cross", "own"] = "both", ids: Any = None, labels: Any = None
) -> list[list[Anchor]]:
    """The anchors of two views [2, N, D]; the negatives are the other images in both views, or in one of them."""
    count = z.shape[1]
    ids, labels = (x if x is not None else torch.arange(count) for x in (ids, labels))
    return [[*_anchors(z, v, torch.tensor(t, dtype=z.dtype), negatives, ids, labels)] for v in (0, 1)]


def _anchors(z: Tensor, v: int, t: Tensor, negatives: str, ids: Tensor, labels: Tensor) -> Iterator[Anchor]:
    unit, sides = normalize(z, dim=-1), {"both": (0, 1), "cross": (1 - v,), "own": (v,)}[negatives]
    for i in range(z.shape[1]):
        others = [(w, j) for w in sides for j in range(z.shape[1]) if j != i]
        keys, same = torch.stack([unit[pair] for pair in others]), [bool(labels[j] == labels[i]) for _, j in others]
        mine, positive = unit[v, i], unit[1 - v, i]
        cosines = mine @ positive, keys @ mine, keys @ positive
        yield Anchor(int(ids[i]), *cosines, t, z[v, i], z[1 - v, i], torch.tensor(same))


def softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))


# ---- of the anchor alone


def infonce(a: Anchor, view: View) -> Tensor:
    return a.infonce()


def eqco(a: Anchor, view: View, alpha: float = 256) -> Tensor:
    return softplus(a.u + math.log(alpha / len(a.k)))


def dcl(a: Anchor, view: View) -> Tensor:
    return a.u


def flatnce(a: Anchor, view: View) -> Tensor:
    return (a.u - a.u.detach()).exp()


def macl(a: Anchor, view: View) -> Tensor:
    return a.infonce() / a.u.detach().sigmoid()


def macl_w(a: Anchor, view: View) -> Tensor:
    return (2 - a.s.detach()) * macl(a, view)


def dual_temperature(a: Anchor, view: View, ratio: float = 10) -> Tensor:
    weights = a._replace(t=ratio * a.t).u.detach().sigmoid() / a.u.detach().sigmoid()
    return weights * a.infonce()


def decoupled_nt_xent(a: Anchor, view: View, weight: float = 0.1) -> Tensor:
    return weight * (torch.cat([a.s[None], a.k]) / a.t).logsumexp(0) - a.s


def decoupled_official(a: Anchor, view: View, weight: float = 0.1, scale: float = 1000) -> Tensor:
    """The anchor is among its own candidates, and the positive's distance is a mean over the width."""
    every = (torch.cat([a.s[None], a.k, torch.ones_like(a.s)[None]]) / a.t).logsumexp(0)
    return scale * ((1 - a.s) / len(a.h) + weight * (every - math.log(len(a.h))))


def relic(a: Anchor, view: View, weight: float = 1, own_view: bool = False, detach_target: bool = False) -> Tensor:
    p = (torch.cat([a.s[None], a.k]) / a.t).log_softmax(0)
    q = (torch.cat([torch.ones_like(a.s)[None], a.mirror]) / a.t).log_softmax(0)
    divergence = (p.exp() * (p - (q.detach() if detach_target else q))).sum()
    return a.infonce() + weight * divergence - (q[0] if own_view else 0)


def siglip(a: Anchor, view: View, bias: float = -10) -> Tensor:
    return softplus(-a.s / a.t - bias) + softplus(a.k / a.t + bias).sum()


def spectral(a: Anchor, view: View, mu: float = 1) -> Tensor:
    return -2 * mu * a.s + (mu * a.k).square().mean()


def kcl(a: Anchor, view: View, kernel: str = "gaussian", t: float = 2, weight: float = 16) -> Tensor:
    """With the kernel as a function of the squared distance of unit vectors."""
    of = {"gaussian": lambda d: (-t * d).exp(), "imq": lambda d: t / (t**2 + d).sqrt()}[kernel]
    return weight * of(2 - 2 * a.k).mean() - of(2 - 2 * a.s)


def hcl(a: Anchor, view: View, beta: float = 1, tau_plus: float = 0.1) -> Tensor:
    mean = ((beta * a.k / a.t).softmax(0) * ((a.k - a.s) / a.t).exp()).sum()
    corrected = torch.maximum((mean - tau_plus) / (1 - tau_plus), (-(1 + a.s) / a.t).exp())
    return torch.log1p(len(a.k) * corrected)


def debiased(a: Anchor, view: View, tau_plus: float = 0.1) -> Tensor:
    return hcl(a, view, 0, tau_plus)


def dhel(a: Anchor, view: View) -> Tensor:
    return (a.k / a.t).logsumexp(0) - a.s / a.t / 2


def byol(a: Anchor, view: View) -> Tensor:
    return 2 - 2 * a.s


def invariant_spread(a: Anchor, view: View) -> Tensor:
    every = (torch.cat([a.s[None], a.k]) / a.t).logsumexp(0)
    return a.infonce() - torch.log1p(-(a.k / a.t - every).exp()).sum()


def nce(a: Anchor, view: View, images: int = 100, log_z: float = 3) -> Tensor:
    share, p, q = len(a.k) / images, (a.s / a.t - log_z).exp(), (a.k / a.t - log_z).exp()
    return -(p / (p + share)).log() - (share / (q + share)).log().sum()


def supcon(a: Anchor, view: View) -> Tensor:
    """The mean over the positives is outside of the logarithm."""
    every = (torch.cat([a.s[None], a.k]) / a.t).logsumexp(0)
    return (every - torch.cat([a.s[None], a.k[a.same]]) / a.t).mean()


def sincere(a: Anchor, view: View) -> Tensor:
    positives = torch.cat([a.s[None], a.k[a.same]])
    return torch.stack([a._replace(s=s, k=a.k[~a.same]).infonce() for s in positives]).mean()


# ---- of all anchors of a view


def dclw(a: Anchor, view: View, sigma: float = 0.5) -> Tensor:
    mean = torch.stack([(b.s / sigma).exp() for b in view]).mean()
    weight = (2 - (a.s / sigma).exp() / mean).detach()
    return (a.k / a.t).logsumexp(0) - weight * a.s / a.t


def align_uniform(a: Anchor, view: View, weight: float = 1, t: float = 2) -> Tensor:
    each = torch.stack([(-t * (2 - 2 * b.k)).exp().mean() for b in view])
    return 2 - 2 * a.s + weight * each.mean().log()


def vicreg(a: Anchor, view: View, invariance: float = 25, variance: float = 25, covariance: float = 1) -> Tensor:
    """As the official code: the mean of the views' variance terms, and the sum of their covariance terms."""
    n, d = len(view), len(a.h)
    mean = torch.stack([b.h for b in view]).mean(0)
    c = torch.stack([torch.outer(b.h - mean, b.h - mean) for b in view]).sum(0) / (n - 1)
    narrow = torch.stack([(1 - (c[j, j] + 1e-4).sqrt()).clamp(min=0) for j in range(d)]).mean()
    correlated = torch.stack([c[i, j] ** 2 for i, j in itertools.permutations(range(d), 2)]).sum() / d
    return invariance * (a.h - a.g).square().sum() / d + variance * narrow + 2 * covariance * correlated


def barlow_twins(a: Anchor, view: View, weight: float = 0.0051, listing: bool = False) -> Tensor:
    """As the official code, with BatchNorm; ``listing``: as in the paper, whose deviation divides by N - 1."""

    def standard(x: Tensor) -> Tensor:
        centred = x - x.mean(0)
        squares = centred.square().sum(0)
        return centred / ((squares / (len(x) - 1)).sqrt() + 1e-5 if listing else (squares / len(x) + 1e-5).sqrt())

    first, second = (standard(torch.stack([*side])) for side in zip(*((b.h, b.g) for b in view), strict=True))
    c = torch.stack([torch.outer(x, y) for x, y in zip(first, second, strict=True)]).mean(0)
    pairs = itertools.product(range(len(a.h)), repeat=2)
    return torch.stack([(1 - c[i, j]) ** 2 if i == j else weight * c[i, j] ** 2 for i, j in pairs]).sum()


def sigreg(a: Anchor, view: View, weight: float, directions: Callable[[Tensor], Tensor]) -> Tensor:
    total, chosen = torch.zeros_like(a.s), directions(a.h)
    for direction in chosen:
        y = torch.stack([direction @ b.h for b in view])
        for k in range(-16, 17):
            t = 3 * k / 16
            real, imaginary = (t * y).cos().mean(), (t * y).sin().mean()
            error = (real - math.exp(-t * t / 2)) ** 2 + imaginary**2
            step = 3 / 16 / (2 if abs(k) == 16 else 1)
            total = total + step * error * math.exp(-t * t / 2) * len(y) / len(chosen)
    return (1 - weight) * ((a.h - a.g) / 2).square().mean() + weight * total


# ---- with a memory


class SogCLR:
    """t (log u' + rho) - s with the moving average u' of each image, of which the batch's share has the gradient.

    iSogCLR with ``eta``: the temperature of an image is learned; ``largest`` bounds its gradient.
    """

    def __init__(
        self,
        gamma: float = 0.9,
        rho: float = 0,
        eta: float = 0,
        beta: float = 0.5,
        tau_min: float = 0,
        tau_max: float = math.inf,
        largest: float = 3,
    ) -> None:
        self.gamma, self.rho, self.eta, self.beta, self.largest = gamma, rho, eta, beta, largest
        self.range = tau_min, tau_max
        self.u, self.taus, self.slopes = dict[int, Tensor](), dict[int, Tensor](), dict[int, Tensor]()
        self.seen: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}  # in this batch, by image

    def __call__(self, a: Anchor, view: View) -> Tensor:
        t = self.taus.get(a.image, a.t)
        g = (a.k / t).exp().mean()
        new = g.detach()
        if a.image in self.u:
            new = (1 - self.gamma) * self.u[a.image] + self.gamma * new
        slope = new.log() + self.rho - ((a.k / t).exp() * a.k / t).mean().detach() / new
        self.seen.setdefault(a.image, []).append((new, slope.detach(), t.detach()))
        return t * (new.log() + (g - g.detach()) / new + self.rho) - a.s

    def update(self) -> None:
        for image, pairs in self.seen.items():
            self.u[image], slope, t = (torch.stack(numbers).mean() for numbers in zip(*pairs, strict=True))
            if self.eta:
                bounded = self.beta * slope.clamp(-self.largest, self.largest)
                self.slopes[image] = (1 - self.beta) * self.slopes.get(image, torch.zeros(())) + bounded
                self.taus[image] = (t - self.eta * self.slopes[image]).clamp(*self.range)
        self.seen = {}


class ISogCLR(SogCLR):
    """With the defaults of the authors' code."""

    def __init__(self, gamma: float = 0.8, rho: float = 0.4, eta: float = 0.03, **others: float) -> None:
        super().__init__(gamma, rho, eta, **({"tau_min": 0.05, "tau_max": 1.0} | others))
