"""The meaning of an evaluator's number: its unit, which way is better, and what it counts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

ROUNDING = 1e-6  # of a share that is a mean
NOT_HELPED = "the training has not helped"  # the end of a warning of a run


@dataclass(frozen=True)
class Metric:
    """The meaning of a number.

    Attributes:
        unit: a share lies in [0, 1] and is printed in percent.
        better: ``neither`` for a number that describes a network and does not rank it.
        of: the things that are counted or averaged, such as ``test images``.
    """

    unit: Literal["share", "number"] = "number"
    better: Literal["high", "low", "neither"] = "neither"
    of: str = ""

    @property
    def scale(self) -> int:
        """The factor that a number is multiplied by before it is printed."""
        return 100 if self.unit == "share" else 1

    @property
    def sign(self) -> int:
        """1 if a higher number is better, -1 if a lower one is, 0 if neither."""
        return {"high": 1, "low": -1, "neither": 0}[self.better]

    def possible(self, value: float) -> bool:
        """Whether the metric can have a value: a share is NaN, or in [0, 1] but for rounding."""
        return self.unit != "share" or math.isnan(value) or -ROUNDING <= value <= 1 + ROUNDING

    def half_width(self, value: float, other: float, images: int = 0) -> float:
        """Half the width of the 95% interval of the difference of two accuracies on ``images`` test images, drawn for
        each of them; 0 for other metrics.
        """
        variance = value * (1 - value) + other * (1 - other)
        return 1.96 * math.sqrt(variance / images) if images and self.unit == "share" else 0.0

    def text(self, value: float) -> str:
        """The printed form of a number: 64.2% or 3.142."""
        return f"{100 * value:.1f}%" if self.unit == "share" else f"{value:.4g}"


Declared = Mapping[str, Metric]  # by the end of a name after the last "/", in which * is any text; the first one counts

NUMBER = Metric()
ACCURACY = Metric("share", "high", "test images")
# The accuracies of an evaluator that declares no metrics, and of runs that recorded no declaration.
ACCURACIES: Declared = {"val_top1": Metric("share", "high", "images that settings are chosen by")}
ACCURACIES = {**ACCURACIES, "*top1": ACCURACY, "*top5": ACCURACY, "*top1_class*": ACCURACY}


def heading(name: str) -> str:
    """A metric as the heading of a column: ``knn`` of ``knn/top1``."""
    return name.removesuffix("/top1")


def declared(metrics: Declared, name: str) -> Metric | None:
    """The metric of a name; None if it is not declared."""
    end = name.rpartition("/")[2]
    return next((metric for pattern, metric in metrics.items() if fnmatchcase(end, pattern)), None)
