"""The temperature of the contrast, as a function of training progress and of the batch."""

import torch
from torch import Tensor, nn

from ssl_bench.objective.contrast import Contrast


class Temperature(nn.Module):
    def forward(self, progress: float, contrast: Contrast) -> Tensor:
        """tau > 0, [] or [V, B], at ``progress`` in [0, 1] of the training."""
        raise NotImplementedError


class Fixed(Temperature):
    """The same ``tau`` throughout."""

    tau: Tensor

    def __init__(self, tau: float) -> None:
        super().__init__()
        if not tau > 0:
            raise ValueError(f"tau={tau} must be positive")
        # A buffer travels to the device once; a scalar in double precision leaves the type of float32 cosines alone.
        self.register_buffer("tau", torch.tensor(tau, dtype=torch.float64), persistent=False)

    def forward(self, progress: float, contrast: Contrast) -> Tensor:
        return self.tau
