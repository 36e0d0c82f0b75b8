"""The temperature of the contrast, as a function of training progress and of the batch."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from ssl_bench.distributed import global_mean
from ssl_bench.objective.contrast import Contrast


class Temperature(nn.Module):
    needs: ClassVar[frozenset[str]] = frozenset()  # what the loss must give

    def forward(self, progress: float, contrast: Contrast) -> Tensor:
        """tau > 0, [] or [V, B], at ``progress`` in [0, 1] of the training."""
        raise NotImplementedError


class Fixed(Temperature):
    """The same ``tau`` throughout."""

    tau: Tensor

    def __init__(self, tau: float) -> None:
        super().__init__()
        _positive(tau=tau)
        # A buffer travels to the device once; a scalar in double precision leaves the type of float32 cosines alone.
        self.register_buffer("tau", torch.tensor(tau, dtype=torch.float64), persistent=False)

    def forward(self, progress: float, contrast: Contrast) -> Tensor:
        return self.tau


class Linear(Fixed):
    """tau + ``slope`` x epoch, the epoch as a real number (MACL, figure 2 and table 1)."""

    def __init__(self, tau: float, slope: float, epochs: int) -> None:
        super().__init__(tau)
        if tau + slope * epochs <= 0:
            raise ValueError(f"slope={slope} takes tau={tau} to {tau + slope * epochs:g} by epoch {epochs}: raise it")
        self.rise = slope * epochs

    def forward(self, progress: float, contrast: Contrast) -> Tensor:
        return self.tau + self.rise * progress


class Cosine(Fixed):
    """From ``tau`` to ``final`` and back: final + (tau - final) (1 + cos(2 pi cycles progress)) / 2.

    Half a cycle anneals; epochs / T cycles are the schedule of Kukleva et al. 2023, eq. 4, of period T.
    """

    def __init__(self, tau: float, final: float, cycles: float) -> None:
        super().__init__(tau)
        _positive(final=final, cycles=cycles)
        self.final, self.cycles = final, cycles

    def forward(self, progress: float, contrast: Contrast) -> Tensor:
        return self.final + (self.tau - self.final) * ((1 + math.cos(2 * math.pi * self.cycles * progress)) / 2)


class MACLa(Fixed):
    """tau alpha^A, A the mean cosine of all positives of the batch, detached (MACL eq. 8)."""

    def __init__(self, tau: float, alpha: float) -> None:
        super().__init__(tau)
        _positive(alpha=alpha)
        self.alpha = alpha

    def forward(self, progress: float, contrast: Contrast) -> Tensor:
        return self.tau * self.alpha ** _alignment(contrast)


class MACLb(Fixed):
    """tau (1 + beta A), A the mean cosine of all positives of the batch, detached (MACL eq. 9)."""

    def __init__(self, tau: float, beta: float) -> None:
        super().__init__(tau)
        if not -1 < beta < 1:
            raise ValueError(f"beta={beta} must be in (-1, 1), or tau reaches 0 where all positives agree or disagree")
        self.beta = beta

    def forward(self, progress: float, contrast: Contrast) -> Tensor:
        return self.tau * (1 + self.beta * _alignment(contrast))


class Learned(Temperature):
    """Trained with the network: minimum + exp(theta), from ``tau``; no decay (CLIP, Radford et al. 2021, learns it so,
    with its bound as a clamp instead)."""

    needs = frozenset({"tau"})

    def __init__(self, tau: float, minimum: float) -> None:
        super().__init__()
        _positive(minimum=minimum)
        if not tau > minimum:
            raise ValueError(f"tau={tau} must be above minimum={minimum}")
        self.minimum = minimum
        self.theta = nn.Parameter(torch.tensor(math.log(tau - minimum)))

    def forward(self, progress: float, contrast: Contrast) -> Tensor:
        return self.minimum + self.theta.exp()


def _alignment(contrast: Contrast) -> Tensor:
    """A = E[f . g] over the batch of all ranks, [], in double precision."""
    with torch.no_grad():
        return global_mean(contrast.pos.double(), dim=1).mean()


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name}={value} must be positive")
