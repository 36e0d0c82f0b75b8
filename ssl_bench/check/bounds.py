"""How far a result may be from float64: number formats, a bound for sums, and the comparison of tensors.

u is the unit roundoff of a format: half the distance from 1 to the next number.

**A sum of products** of n numbers that the format holds exactly. Every addition in the float32 accumulator rounds by u
relative to the partial sum. If these roundings have mean zero, the error is below lambda sqrt(n) u sum |a b| with
probability 1 - 2 exp(-lambda^2 / 2) (Higham and Mary 2019, SIAM J. Sci. Comput. 41(5), A2815, theorem 2.4); lambda = 8
leaves 3e-14 for each number. Tensor cores cut off instead of rounding, but add 8 or more products at once, which stays
below the bound up to n = 1,024. The result is then rounded to the format.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssl_bench.check.finding import Finding, Verdict
from ssl_bench.precision import Precision, bf16_is_slow, set_matmul_options

UNITS = {"fp64": 2.0**-53, "fp32": 2.0**-24, "tf32": 2.0**-11, "bf16": 2.0**-8, "fp16": 2.0**-11}
U32 = UNITS["fp32"]
LAMBDA = 8
WRONG_RESULT = "the device, its driver or this build of torch computes wrongly: install other versions of them, try \
another device, and report this finding with check.md"


@dataclass(frozen=True)
class NumberFormat:
    """A number format of matrix products and convolutions on a device.

    Attributes:
        name: a key of ``UNITS``.
        precision: of a run in this format.
    """

    name: str
    precision: Precision

    @property
    def unit(self) -> float:
        """Its unit roundoff u."""
        return UNITS[self.name]

    @property
    def dtype(self) -> torch.dtype:
        """Type of the tensors that are multiplied."""
        return self.precision.autocast or self.precision.weights

    def rounded(self, x: Tensor) -> Tensor:
        """``x`` with numbers that the format holds exactly, in the type of its tensors."""
        if self.name == "tf32":
            return (x.float().view(torch.int32) & ~0x1FFF).view(torch.float32)  # 10 of 23 stored bits
        return x.to(self.dtype)


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


@contextlib.contextmanager
def computing(tf32: bool) -> Iterator[None]:
    """Compute the block with or without TF32, without half precision in the sums of split products.

    cuDNN chooses its algorithms as in a run. Afterwards the switches are as before.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    switches = [(matmul, "allow_tf32"), (cudnn, "allow_tf32"), (cudnn, "benchmark")]
    switches += [(matmul, f"allow_{name}_reduced_precision_reduction") for name in ("fp16", "bf16")]
    before = [getattr(owner, name) for owner, name in switches]
    set_matmul_options(tf32)
    for owner, name in switches[3:]:
        setattr(owner, name, False)
    try:
        yield
    finally:
        for (owner, name), value in zip(switches, before, strict=True):
            setattr(owner, name, value)


def sum_bound(terms: float, unit: float = U32) -> float:
    """Error of a sum of ``terms`` products relative to the sum of their magnitudes."""
    return LAMBDA * math.sqrt(terms) * unit


@dataclass(frozen=True)
class Difference:
    """How far a result is from the reference.

    Attributes:
        name: of the result.
        error: its largest error, in a unit that ``bound`` shares.
        bound: largest error that rounding explains; 0: the result must be equal.
        place: where the error is.
    """

    name: str
    error: float
    bound: float
    place: str = ""

    @property
    def share(self) -> float:
        """Error in bounds; at most 1 if the result is right."""
        if not math.isfinite(self.error):
            return math.inf
        return self.error / self.bound if self.bound else math.inf if self.error else 0.0


def difference(name: str, found: Tensor, exact: Tensor, bound: Tensor | float = 0.0) -> Difference:
    """Compare a result of any device with float64 on the CPU: the element that is furthest beyond its ``bound``."""
    if found.shape != exact.shape:
        return Difference(name, math.inf, 0.0, f"the shape {list(found.shape)} in place of {list(exact.shape)}")
    if found.numel() == 0:
        return Difference(name, 0.0, 0.0)
    found, exact = found.detach().cpu().double(), exact.detach().cpu().double()
    errors, bounds = (found - exact).abs(), torch.as_tensor(bound, dtype=torch.float64).detach().expand(exact.shape)
    shares = torch.where(errors == 0, 0.0, errors / bounds).nan_to_num(math.inf)  # NaN: the worst there is
    worst = int(shares.flatten().argmax())
    index = [int(i) for i in torch.unravel_index(torch.tensor(worst), exact.shape)]
    value, expected = float(found.flatten()[worst]), float(exact.flatten()[worst])
    wrong = int((shares > 1).sum())
    place = f"element {index} is {value:.9g} in place of {expected:.9g}, {wrong} of {exact.numel()} are wrong"
    return Difference(name, float(errors.flatten()[worst]), float(bounds.flatten()[worst]), place)


def distance(name: str, found: Tensor, exact: Tensor, bound: float, least: float = 0.0) -> Difference:
    """Compare a result of any device with float64 on the CPU by the norm of the error, relative to that of the result.

    Args:
        least: norm that the error is relative to if the result's is smaller.
    """
    found, exact = found.detach().cpu().double(), exact.detach().cpu().double()
    return Difference(name, float((found - exact).norm()) / max(float(exact.norm()), least, 1e-12), bound)


def judged(name: str, differences: Sequence[Difference], what: str, advice: str = WRONG_RESULT) -> Finding:
    """The finding about some results of one kind: wrong if one of them is beyond its bound, which is then named.

    Args:
        what: is compared, in the plural: ``matrix products``.
    """
    worst = max(differences, key=lambda each: each.share)
    values = {"worst": worst.name, "error": worst.error, "bound": worst.bound, "compared": len(differences)}
    if worst.share > 1:
        others = sum(each.share > 1 for each in differences) - 1
        more = f" ({others} more of {len(differences)} {what})" if others else ""
        place = f"{worst.place}: " if worst.place else ""
        reason = f"{worst.name}: {place}the error {worst.error:.2g} is above the bound {worst.bound:.2g}{more}"
        return Finding(name, f"error {worst.error:.1e}", Verdict.WRONG, reason, advice, values)
    if worst.bound == 0:
        return Finding(name, f"{len(differences)} {what} equal", Verdict.GOOD, values=values)
    figure = f"{len(differences)} {what}, error at most {worst.share:.0%} of the bound ({worst.name})"
    return Finding(name, figure, Verdict.GOOD, values=values)
