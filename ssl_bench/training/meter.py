"""Mean loss and the first non-finite loss, accumulated on the device and read every few steps."""

import torch
from torch import Tensor

from ssl_bench.distributed import gather
from ssl_bench.errors import RunError


class Meter:
    """The mean loss since the last reading, and the first step whose loss was not finite.

    Adding a step does not synchronise host and device; reading does so once.
    """

    def __init__(self, device: torch.device) -> None:
        # [4]: sum of the losses, their number, first bad step (or -1), the temperature at that step
        self.state = torch.tensor([0.0, 0.0, -1.0, 0.0], dtype=torch.float64, device=device)

    def add(self, step: int, loss: Tensor, tau: Tensor) -> None:
        """Add the loss [] of a step at temperature ``tau`` []."""
        total, count, bad, bad_tau = self.state
        first = ~loss.isfinite() & (bad < 0)
        self.state = torch.stack(
            [total + loss.detach(), count + 1, torch.where(first, step, bad), torch.where(first, tau, bad_tau)]
        )

    def read(self) -> tuple[float, int, float]:
        """(mean loss over ranks and steps or NaN, first bad step or -1, temperature at it); then start again at 0."""
        rows = gather(self.state[None]).tolist()  # [W, 4]
        self.state = torch.zeros_like(self.state)
        self.state[2] = -1
        count = int(rows[0][1])
        bad = min(((int(row[2]), row[3]) for row in rows if row[2] >= 0), default=(-1, 0.0))
        mean = sum(row[0] for row in rows) / len(rows) / count if count else float("nan")
        return mean, *bad


def raise_bad_loss(step: int, lr: float, tau: float) -> None:
    """Raise RunError for a loss that was not finite; ``tau`` is 0 where the loss has no temperature."""
    at = f"lr {lr:.6g}, tau {tau:.6g}" if tau else f"lr {lr:.6g}"
    raise RunError(
        f"the loss is not finite at step {step} ({at}): a smaller optimizer.lr, a warm-up"
        f"{' or a larger temperature' if tau else ''} may help"
    )
