"""The base class of the losses, and functions that they share.

Shapes: V anchor views; B images on this rank; N of all ranks; D width; K negatives of an anchor.
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from ssl_bench.distributed import gather, rank, world
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.products import products


class Loss(nn.Module, ABC):
    """A value per anchor from cosines alone: a loss does not depend on views, ranks or the framework.

    Attributes:
        needs: requirements on the negatives and the framework; a combination that lacks one is refused before anything
            runs. ``negatives``: at least one per anchor. ``aligned``: an anchor's candidates are of the view of its
            positive. ``own_view``: they are of the anchor's view. ``two_views``: the anchors of two views, of one
            network, are each other's positives. ``labels``: which candidates are of the anchor's class. ``cosine``: no
            other similarity, since the loss is no function of s / tau and s_k / tau alone, which one without
            ``uses_tau`` never is.
        uses_tau: whether the loss depends on the option ``temperature``.
        equation, gradient: value and gradient per anchor in the letters of ``losses/__init__.py``, for its table.
        code: a public repository with the loss, with which ``tests/objective/test_official.py`` compares it.
        instances: N, if the loss remembers numbers of each image to pre-train on, in buffers [N]; None: it does not.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    uses_tau: ClassVar[bool] = True
    equation: ClassVar[str] = ""
    gradient: ClassVar[str] = ""
    code: ClassVar[str] = ""
    instances: int | None = None

    @abstractmethod
    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        """The loss of each anchor [V, B].

        Args:
            contrast: cosines of the anchors with their positives and negatives.
            tau: [] or [V, B], positive; that of :meth:`temperature`.
        """

    def temperature(self, contrast: Contrast, tau: Tensor) -> Tensor:
        """The temperature for :meth:`forward`: ``tau``, which is that of the option, unless the loss has its own."""
        return tau

    def for_update(self, contrast: Contrast, tau: Tensor) -> dict[str, Tensor]:
        """New values [B] of what is remembered of the images of the batch, by the name of the buffer.

        ``contrast`` and ``tau`` are those of :meth:`forward`; called after it, without gradient.
        """
        return {}

    def update(self, ids: Tensor, new_values: dict[str, Tensor]) -> None:
        """Remember the values of :meth:`for_update` of all ranks; called once after each step, without gradient.

        Args:
            ids: [B] images of this rank, none of them on two ranks or twice on one.
        """
        everywhere = gather(ids) if new_values else ids
        for name, values in new_values.items():
            buffer = self.get_buffer(name)
            buffer.index_copy_(0, everywhere, gather(values).to(buffer.dtype))

    def information(self, contrast: Contrast, tau: Tensor) -> Tensor:
        """Contribution of each anchor to the lower bound on the mutual information of the views, in nats: [V, B].

        log(1 + K) - InfoNCE (CPC, van den Oord et al. 2018; EqCo, Zhu et al. 2020, section 2.1). ``contrast`` and
        ``tau`` are those of :meth:`forward`.
        """
        return torch.log1p(contrast.count) - softplus(contrast.log_odds(tau))


def softplus(u: Tensor) -> Tensor:
    """log(1 + e^u) of any shape [...], without torch's shortcut above 20, which is off by 2e-9 in double precision."""
    return -logsigmoid(-u)


def unscaled_softplus(u: Tensor) -> Tensor:
    """softplus(u) / sg sigmoid(u) of any shape [...], in value and gradient: InfoNCE without its multiplier sigmoid(u).

    The gradient is that of u itself and comes through u: where sigmoid(u) underflows, the quotient has none.
    """
    v = u.detach().clamp(min=-30)  # below, the quotient is 1 to 13 digits
    return softplus(v) / v.sigmoid() + (u - u.detach())


def debiased(u: Tensor, contrast: Contrast, tau: Tensor, tau_plus: float) -> Tensor:
    """The log-odds [V, B] without a share ``tau_plus`` of the negatives that is like the positive.

    That is log max((exp(u) - K tau_plus) / (1 - tau_plus), K exp(-(1 + s) / tau)), the last for K negatives of cosine
    -1 (Debiased contrastive learning, Chuang et al. 2020).
    """
    if tau_plus == 0:
        return u
    log_k = contrast.count.log()
    log_share = (log_k + math.log(tau_plus) - u).clamp(max=-torch.finfo(u.dtype).eps)  # log of the share of exp(u)
    return torch.maximum(u + (-log_share.expm1()).log() - math.log1p(-tau_plus), log_k - (1 + contrast.pos) / tau)


def unnormalised(contrast: Contrast) -> Tensor:
    """The anchors before normalisation [V, B, D].

    Raises:
        ValueError: the contrast was made from cosines without them.
    """
    if contrast.raw is None:
        raise ValueError("raw is not known: give Contrast.dense the anchors before normalisation")
    return contrast.raw


def squared_products(a: Tensor, b: Tensor) -> Tensor:
    """Sum [...] of the squared inner products of all columns of ``a`` with all of ``b``, [..., N, D] each: |a^T b|^2.

    From products of the rows where these are fewer: it is the sum of (a a^T) (b b^T), element by element. ``a`` and
    ``b`` are the same on all ranks, and each of them computes its share of the products.
    """
    by_rows = a.shape[-2] < a.shape[-1]
    count = a.shape[-2] if by_rows else a.shape[-1]
    mine = slice(count * rank() // world(), count * (rank() + 1) // world())
    if by_rows:
        share = (products(a[..., mine, :], a) * products(b[..., mine, :], b)).sum((-2, -1))
    else:
        share = products(a[..., mine].mT, b.mT).square().sum((-2, -1))
    return gather(share[None]).sum(0)
