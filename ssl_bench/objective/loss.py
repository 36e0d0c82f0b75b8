"""The base class of the losses, and two functions of the log-odds u that they share.

Shapes: V anchor views; B images on this rank; K negatives of an anchor.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from ssl_bench.objective.contrast import Contrast


class Loss(nn.Module, ABC):
    """A value per anchor from cosines alone: a loss does not depend on views, ranks or the framework.

    Attributes:
        needs: requirements on the negatives and the framework; a combination that lacks one is refused before anything
            runs. ``negatives``: at least one per anchor. ``aligned``: an anchor's candidates are of the view of its
            positive. ``two_views``: the anchors of two views, of one network, are each other's positives. ``labels``:
            which candidates are of the anchor's class. ``dense``: the matrix of cosines itself.
        uses_tau: whether the loss depends on the temperature.
        equation, gradient: value and gradient per anchor in the letters of ``losses/__init__.py``, for its table.
        code: a public repository with the loss, with which ``tests/objective/test_official.py`` compares it.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    uses_tau: ClassVar[bool] = True
    equation: ClassVar[str] = ""
    gradient: ClassVar[str] = ""
    code: ClassVar[str] = ""

    @abstractmethod
    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        """The loss of each anchor [V, B].

        Args:
            contrast: cosines of the anchors with their positives and negatives.
            tau: [] or [V, B], positive.
        """
        raise NotImplementedError

    def information(self, contrast: Contrast, tau: Tensor) -> Tensor:
        """Contribution of each anchor to the lower bound on the mutual information of the views, in nats: [V, B].

        log(1 + K) - InfoNCE (CPC, van den Oord et al. 2018; EqCo, Zhu et al. 2020, section 3.1). ``contrast`` and
        ``tau`` are those of :meth:`forward`.
        """
        return torch.log1p(contrast.count) - softplus(contrast.log_odds(tau))


def softplus(u: Tensor) -> Tensor:
    """log(1 + e^u) of any shape [...], without torch's shortcut above 20, which is off by 2e-9 in double precision."""
    return -logsigmoid(-u)


def unscaled_softplus(u: Tensor) -> Tensor:
    """softplus(u) / sg sigmoid(u) of any shape [...], in value and gradient: InfoNCE without its multiplier sigmoid(u).

    The gradient is that of u itself and is taken from u: where sigmoid(u) underflows, the quotient has none.
    """
    v = u.detach().clamp(min=-30)  # below, the quotient is 1 to 13 digits
    return softplus(v) / v.sigmoid() + (u - u.detach())
