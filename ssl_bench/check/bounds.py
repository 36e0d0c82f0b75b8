"""Bounds on the error against float64: number formats, and the comparison of tensors by their norms."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssl_bench.check.answer import REPORT, Answer, Verdict
from ssl_bench.training.precision import Precision, bf16_is_slow, set_matmul_options

WRONG_RESULT = "the device, its driver or this build of torch computes wrongly: install other versions of them, try "
WRONG_RESULT += f"another device, and {REPORT}"


@dataclass(frozen=True)
class NumberFormat:
    """A number format of matrix products and convolutions on a device.

    Attributes:
        name: fp64, fp32, tf32, fp16 or bf16.
        precision: the precision of a run in this format.
    """

    name: str
    precision: Precision

    @property
    def half(self) -> bool:
        """Whether factors have fewer bits than in float32."""
        return self.name not in ("fp64", "fp32")

    def select(self) -> None:
        """Compute in this format from now on, without half precision in the sums of split products."""
        set_matmul_options(self.name == "tf32")
        for name in ("fp16", "bf16"):
            setattr(torch.backends.cuda.matmul, f"allow_{name}_reduced_precision_reduction", False)


def formats(device: torch.device) -> list[NumberFormat]:
    """The formats that a device has; float64 only where it is not the reference itself.

    A processor without instructions for bf16 adds in bf16, which the bounds do not cover, and is slow at it.
    """
    cuda = device.type == "cuda"
    names = ["fp32"] if bf16_is_slow() else ["fp32", "bf16"]
    if cuda:
        names = ["fp64", "fp32", "fp16"]
        names += ["tf32"] if torch.cuda.get_device_capability(device) >= (8, 0) else []
        names += ["bf16"] if torch.cuda.is_bf16_supported(including_emulation=False) else []
    return [NumberFormat(name, Precision.of("fp32" if name == "tf32" else name, cuda)) for name in names]


@dataclass(frozen=True)
class Deviation:
    """The distance of a result from the reference.

    Attributes:
        name: name of the result.
        error: norm of its error.
        bound: largest error that rounding explains, in the same unit; 0: the result must be equal.
    """

    name: str
    error: float
    bound: float

    @property
    def share(self) -> float:
        """Error in bounds; at most 1 if the result is right."""
        error = self.error if math.isfinite(self.error) else math.inf
        return error / self.bound if self.bound else math.inf if error else 0.0


def distance(name: str, result: Tensor, exact: Tensor, bound: float, least: float = 1e-12) -> Deviation:
    """Compare a result of any device with float64 on the CPU by the norm of the error, relative to that of the result.

    Args:
        least: norm that the error is relative to if the result's is smaller.
    """
    result, exact = result.detach().cpu().double(), exact.detach().cpu().double()
    return Deviation(name, float((result - exact).norm()) / max(float(exact.norm()), least), bound)


def answer_of(name: str, deviations: Sequence[Deviation], what: str, advice: str = WRONG_RESULT) -> Answer:
    """The answer about some results of one kind: wrong if one of them is beyond its bound, which is then named.

    Args:
        what: is compared, in the plural: ``gradients``.
    """
    worst = max(deviations, key=lambda deviation: deviation.share)
    values = {"worst": worst.name, "error": worst.error, "bound": worst.bound, "compared": len(deviations)}
    if worst.share > 1:
        reason = f"{worst.name}: the error {worst.error:.2g} is above the bound {worst.bound:.2g}"
        return Answer(name, f"error {worst.error:.1e}", Verdict.WRONG, reason, advice, values)
    so = f", error at most {worst.share:.0%} of the bound ({worst.name})" if worst.bound else " equal"
    return Answer(name, f"{len(deviations)} {what}{so}", Verdict.GOOD, values=values)
