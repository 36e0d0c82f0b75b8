"""The temperature of the contrast, as a function of the progress of the training and of the batch.

Shapes: V anchor views; B images on this rank.
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from ssl_bench.distributed import global_mean
from ssl_bench.errors import require
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.schedule import Progress, falling_cosine


class Temperature(nn.Module, ABC):
    """Base class of the temperatures.

    Attributes:
        needs: requirements on the loss: ``tau``, a loss that depends on the temperature.
    """

    needs: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def forward(self, progress: Progress, contrast: Contrast) -> Tensor:
        """tau > 0, [] or [V, B].

        Args:
            progress: part of the training that is done, in [0, 1].
            contrast: of the batch, for temperatures that depend on it.
        """


class Fixed(Temperature):
    """The same ``tau`` throughout."""

    tau: Tensor

    def __init__(self, tau: float) -> None:
        super().__init__()
        _require_positive(tau=tau)
        # A buffer is moved to the device once; a double precision scalar leaves the type of float32 cosines unchanged.
        self.register_buffer("tau", torch.tensor(tau, dtype=torch.float64), persistent=False)

    def forward(self, progress: Progress, contrast: Contrast) -> Tensor:
        return self.tau

    def _number(self, value: Progress) -> Progress:
        """A number by which tau is changed: a tensor is rounded as torch rounds a number, to the type of tau."""
        return value.to(self.tau.dtype) if isinstance(value, Tensor) else value


class Linear(Fixed):
    """tau + ``slope`` x epoch, the epoch as a real number (MACL, figure 2 and table 1).

    Args:
        tau: at the start, positive.
        slope: change per epoch.
        epochs: length of the training.

    Raises:
        InvalidValue: tau would not stay positive.
    """

    def __init__(self, tau: float, slope: float, epochs: int) -> None:
        super().__init__(tau)
        end = tau + slope * epochs
        require(end > 0, "slope", slope, f"more than -tau / epochs: tau={tau} would reach {end:g} by epoch {epochs}")
        self.rise = slope * epochs

    def forward(self, progress: Progress, contrast: Contrast) -> Tensor:
        return self.tau + self._number(self.rise * progress)


class Cosine(Fixed):
    """From ``tau`` to ``final`` and back: final + (tau - final) (1 + cos(2 pi cycles progress)) / 2.

    Half a cycle anneals; epochs / T cycles are the schedule of Kukleva et al. 2023, eq. 4, of period T.
    """

    def __init__(self, tau: float, final: float, cycles: float) -> None:
        super().__init__(tau)
        _require_positive(final=final, cycles=cycles)
        self.final, self.cycles = final, cycles

    def forward(self, progress: Progress, contrast: Contrast) -> Tensor:
        return self.final + (self.tau - self.final) * self._number(falling_cosine(progress, self.cycles))


class MACLa(Fixed):
    """tau alpha^A, A the mean cosine of all positives of the batch, detached (MACL eq. 8)."""

    def __init__(self, tau: float, alpha: float) -> None:
        super().__init__(tau)
        _require_positive(alpha=alpha)
        self.alpha = alpha

    def forward(self, progress: Progress, contrast: Contrast) -> Tensor:
        return self.tau * self.alpha ** _alignment(contrast)


class MACLb(Fixed):
    """tau (1 + beta A), A the mean cosine of all positives of the batch, detached (MACL eq. 9).

    With a beta of 1, the default of the official code, it would be 0 for positives that are all opposite.
    """

    def __init__(self, tau: float, beta: float) -> None:
        super().__init__(tau)
        remedy = "a number above -1 and up to 1: at -1, tau reaches 0 where all positives agree"
        require(-1 < beta <= 1, "beta", beta, remedy)
        self.beta = beta

    def forward(self, progress: Progress, contrast: Contrast) -> Tensor:
        return self.tau * (1 + self.beta * _alignment(contrast))


class Learned(Temperature):
    """minimum + exp(theta), starting at ``tau``; theta is trained with the network, without decay.

    CLIP (Radford et al. 2021) learns it so, with a clamp as its bound.
    """

    needs = frozenset({"tau"})

    def __init__(self, tau: float, minimum: float) -> None:
        super().__init__()
        _require_positive(minimum=minimum)
        require(tau > minimum, "tau", tau, f"a number above minimum={minimum}")
        self.minimum = minimum
        self.theta = nn.Parameter(torch.tensor(math.log(tau - minimum)))

    def forward(self, progress: Progress, contrast: Contrast) -> Tensor:
        return self.minimum + self.theta.exp()


def _alignment(contrast: Contrast) -> Tensor:
    """A = E[f . g] over the batch of all ranks, [], in double precision."""
    with torch.no_grad():
        return global_mean(contrast.cosine.double(), dim=1).mean()


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        require(1e-6 <= value <= 1e6, name, value, "a positive number from 1e-6 to 1e6")
