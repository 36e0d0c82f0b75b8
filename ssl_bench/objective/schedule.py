"""Functions of the progress of the training, and the number of negatives as one."""

import math
from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from ssl_bench.errors import require

Progress = float | Tensor  # of the training, in [0, 1]; a float64 tensor [] in a step that is replayed
Name = Literal["constant", "linear", "cosine", "step"]


def falling_cosine(progress: Progress, cycles: float = 0.5) -> Progress:
    """(1 + cos(2 pi cycles progress)) / 2, which falls from 1 to 0 in half a cycle."""
    angle = 2 * math.pi * cycles * progress
    return (1 + (angle.cos() if isinstance(angle, Tensor) else math.cos(angle))) / 2


class Count:
    """K at a progress p in [0, 1], rounded to the nearest integer, a half to the even one.

        constant   k
        linear     k + (final - k) p
        cosine     k + (final - k) (1 - cos(pi p)) / 2
        step       k + (final - k) m / M, where m of the M milestones are reached

    Args:
        k: at the start, at least 1.
        final: at the end, at least 1; None under ``constant``.
        schedule: one of the four.
        milestones: for ``step``, in (0, 1]: fractions of the training.

    Attributes:
        varies: whether K depends on the progress.
        most: the largest K.

    Raises:
        InvalidValue: a number outside its range, or one that the schedule needs and does not get, or does not use.
    """

    def __init__(self, k: int, final: int | None, schedule: Name, milestones: Sequence[float]) -> None:
        require(k >= 1, "k", k, "1 or more")
        self.varies, step = schedule != "constant", schedule == "step"
        remedy = f"the number at the end, 1 or more, for schedule={schedule}"
        remedy = remedy if self.varies else "null, or schedule to linear, cosine or step"
        fits = final is not None and final >= 1 if self.varies else final is None
        require(fits, "final", final, remedy)
        inside = bool(milestones) == step and all(0 < milestone <= 1 for milestone in milestones)
        remedy = "numbers in (0, 1], fractions of the training" if step else "[], or schedule to step"
        require(inside, "milestones", list(milestones), remedy)
        self.k, self.final, self.schedule, self.milestones = k, k if final is None else final, schedule, milestones
        self.most = max(self.k, self.final)

    def __call__(self, progress: Progress) -> int | Tensor:
        """K: of a tensor [] a tensor [], int64, without a wait for its device."""
        if not self.varies:
            return self.k
        k = self.k + (self.final - self.k) * self._share(progress)
        return k.round().long() if isinstance(k, Tensor) else round(k)

    def _share(self, progress: Progress) -> Progress:
        """The share of the way from ``k`` to ``final`` that is done."""
        if self.schedule == "step":
            reached = sum(progress >= milestone for milestone in self.milestones)
            return (reached.double() if isinstance(reached, Tensor) else reached) / len(self.milestones)
        return progress if self.schedule == "linear" else 1 - falling_cosine(progress)
