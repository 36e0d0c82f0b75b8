"""Mean loss and the first non-finite loss, kept on the device and read every few steps."""

import math

import torch
from torch import Tensor

from ssl_bench.distributed import gather, world
from ssl_bench.errors import RunError

ROWS = 1024  # steps between two readings that need no reading of their own

Summary = tuple[float, float, float, float]  # sum of the losses, their number, first bad step (or -1), tau at that step
EMPTY: Summary = (0.0, 0.0, -1.0, 0.0)


class Meter:
    """The mean loss since the last reading, and the first step whose loss was not finite.

    A step adds a row on the device, by tensors only; reading synchronises host and device once.

    Args:
        device: of the losses.
        dtype: of the losses.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._rows = torch.zeros(ROWS, 2, dtype=dtype, device=device)  # loss and temperature of each step
        self._place = torch.zeros(1, dtype=torch.int64, device=device)
        self._steps: list[int] = []  # of the rows
        self._before = EMPTY  # of the steps before the rows

    def add(self, loss: Tensor, tau: Tensor | None) -> None:
        """Add the loss [] of a step at temperature ``tau`` [], None: without one; :meth:`advance` follows it."""
        tau = torch.zeros_like(loss) if tau is None else tau.to(loss.dtype)
        row = torch.stack([loss.detach(), tau.detach()])
        self._rows.index_copy_(0, self._place, row[None])
        self._place.add_(1)

    def advance(self, step: int) -> None:
        """The last row is that of ``step``."""
        self._steps.append(step)
        if len(self._steps) == ROWS:
            self.restore(self.summary())

    def summary(self) -> Summary:
        """Of this rank, without starting again."""
        total, count, bad, bad_tau = self._before
        for step, (loss, tau) in zip(self._steps, self._rows[: len(self._steps)].tolist(), strict=True):
            if bad < 0 and not math.isfinite(loss):
                bad, bad_tau = step, tau
            total, count = total + loss, count + 1
        return total, count, float(bad), bad_tau

    def restore(self, summary: Summary) -> None:
        """Start from a summary."""
        self._before, self._steps = summary, []
        self._place.zero_()

    def tensors(self) -> list[Tensor]:
        """The tensors that :meth:`add` changes."""
        return [self._rows, self._place]

    def read(self) -> tuple[float, int, float]:
        """(mean loss over ranks and steps or NaN, first bad step or -1, temperature at it); then start again at 0."""
        summary = self.summary()
        self.restore(EMPTY)
        rows = [list(summary)]
        if world() > 1:
            rows = gather(torch.tensor(rows, dtype=torch.float64, device=self._rows.device)).tolist()  # [W, 4]
        count = int(summary[1])
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
