"""Mean loss, first non-finite loss and skipped steps, collected on the device and read every few steps."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ssl_bench.distributed import gather, world
from ssl_bench.errors import RunError

ROWS = 1024  # steps that fit between two readings; after more, the rows are read into a summary

# Sum of the losses, their number, first bad step (or -1), tau at that step, number of skipped steps.
Summary = tuple[float, float, float, float, float]
EMPTY: Summary = (0.0, 0.0, -1.0, 0.0, 0.0)


class Meter:
    """Mean loss, first step whose loss was not finite, and number of skipped steps, since the last reading.

    A step is skipped if the scaled gradients overflow in fp16.

    A step adds a row on the device, by tensors only; reading synchronises host and device once.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._rows = torch.zeros(ROWS, 3, dtype=dtype, device=device)  # loss, temperature, skipped or not
        self._next = torch.zeros(1, dtype=torch.int64, device=device)  # index of the row that is written next
        self._steps: list[int] = []  # number of the step of each row
        self._before = EMPTY  # summary of the steps before those of the rows

    def add(self, loss: Tensor, tau: Tensor | None, skipped: Tensor | None) -> None:
        """Add the loss [] of a step at temperature ``tau`` [] and whether it was skipped []; :meth:`advance` follows.

        None stands for a loss without a temperature, and for a step that is never skipped.
        """
        zero = torch.zeros_like(loss)
        rest = [zero if value is None else value.to(loss.dtype) for value in (tau, skipped)]
        self._rows.index_copy_(0, self._next, torch.stack([loss, *rest]).detach()[None])
        self._next.add_(1)

    def advance(self, step: int) -> None:
        """Note that the last row is that of ``step``."""
        self._steps.append(step)
        if len(self._steps) == ROWS:
            self.restore(self.summary())

    def summary(self) -> Summary:
        """The summary of this rank since the last reading; nothing is reset."""
        return self._summary(self._before, self._rows[: len(self._steps)].tolist())

    def _summary(self, before: Iterable[float], rows: list[list[float]]) -> Summary:
        """The summary of the steps in ``before`` and of the rows that follow them."""
        total, count, bad, bad_tau, skips = before
        for step, (loss, tau, skipped) in zip(self._steps, rows, strict=True):
            if bad < 0 and not math.isfinite(loss):
                bad, bad_tau = step, tau
            total, count, skips = total + loss, count + 1, skips + skipped
        return total, count, float(bad), bad_tau, skips

    def restore(self, summary: Summary) -> None:
        """Replace everything by a summary."""
        self._before, self._steps = summary, []
        self._next.zero_()

    def tensors(self) -> list[Tensor]:
        """The tensors that :meth:`add` changes."""
        return [self._rows, self._next]

    def read(self, more: Sequence[Tensor] = ()) -> tuple[float, int, float, int, list[float]]:
        """Read everything and start again at 0.

        Args:
            more: other tensors to read in the same synchronisation.

        Returns:
            Mean loss over ranks and steps or NaN, first bad step or -1, temperature at it, number of skipped steps, and
            the values of ``more``.
        """
        before, rows = [self._before] * world(), self._rows[: len(self._steps)].double()[None]
        if world() > 1:
            if self._before != EMPTY:  # on all ranks at once: after a resumption, or more steps than rows
                before = gather(torch.tensor(before[:1], dtype=torch.float64, device=rows.device)).tolist()
            rows = gather(rows)
        values = torch.cat([rows.flatten(), *(tensor.double().flatten() for tensor in more)]).tolist()
        read = torch.tensor(values[: rows.numel()], dtype=rows.dtype).reshape(rows.shape).tolist()
        by_rank = [self._summary(*pair) for pair in zip(before, read, strict=True)]
        self.restore(EMPTY)
        count = int(by_rank[0][1])
        bad = min(((int(summary[2]), summary[3]) for summary in by_rank if summary[2] >= 0), default=(-1, 0.0))
        mean = sum(summary[0] for summary in by_rank) / len(by_rank) / count if count else float("nan")
        return mean, *bad, int(by_rank[0][4]), values[rows.numel() :]


def raise_bad_loss(step: int, lr: float, tau: float) -> None:
    """Raise RunError for a loss that was not finite; ``tau`` is 0 where the loss has no temperature."""
    at = f"lr {lr:.6g}, tau {tau:.6g}" if tau else f"lr {lr:.6g}"
    raise RunError(
        f"the loss is not finite at step {step} ({at}): a smaller optimizer.lr, a warm-up"
        f"{' or a larger temperature' if tau else ''} may help"
    )
