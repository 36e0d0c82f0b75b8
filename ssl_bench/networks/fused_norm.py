"""Batch norm with the addition and the ReLU that follow it, in Triton kernels for channels-last maps on GPUs.

torch has a kernel or more for each of the three, and each reads and writes the whole map. Here a forward pass reads the
map for its statistics, and once more for the result of all three; a backward pass reads it for two sums, and once more
for the gradient. No module changes: :func:`batch_norm` takes the place of torch's function, and its result is computed
when it is used. An addition is kept, a ReLU computes all three, and anything else computes what there is so far.

Shapes: M positions of a map, which are images times height times width; C channels; S parts of the positions; BM and
BC the positions and channels of a tile. The rows of ``stat`` [4, C] are mean, 1 / sqrt(var + eps), weight and bias.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils._pytree import tree_map_only

TILE, COLUMNS = 2048, 8  # elements of a tile, and channels of a program that combines the parts
PARTS = 512  # most programs that share the sums over a map
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OPTIONS = {"enable_fp_fusion": True}  # x * y + z is rounded once; the default depends on Triton and its environment


@triton.jit
def _place(m, M, C, BC: tl.constexpr):
    """Channels [1, BC] of a program and which of them there are; of positions ``m`` where they are, and which."""
    c = tl.program_id(1) * BC + tl.arange(0, BC)[None, :]
    return c, c < C, m * C + c, (m < M) & (c < C)


@triton.jit
def _read(x, at, inside):
    return tl.load(x + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _statistics(x, parts, M, C, rows, BM: tl.constexpr, BC: tl.constexpr):
    """Mean and sum of squared deviations [S, 2, C] of each part of ``rows`` positions, by Welford's updates."""
    first, lane = tl.program_id(0) * rows, tl.arange(0, BM)[:, None]
    last = tl.minimum(M, first + rows)
    mean, squares = tl.zeros((BM, BC), tl.float32), tl.zeros((BM, BC), tl.float32)
    count = 0.0
    for start in range(first, last, BM):
        _, _, at, inside = _place(start + lane, last, C, BC)
        v = _read(x, at, inside)
        count += 1.0
        change = tl.where(inside, v - mean, 0.0)
        mean += change * (1.0 / count)
        squares += change * (v - mean)
    counts = ((last - first - lane + BM - 1) // BM).to(tl.float32)  # of positions that a lane has had
    total = tl.sum(mean * counts, 0)[None, :] / (last - first)
    squares += counts * (mean - total) * (mean - total)
    _, ok, at, _ = _place(tl.program_id(0) * 2, M, C, BC)
    tl.store(parts + at, total, mask=ok)
    tl.store(parts + at + C, tl.sum(squares, 0)[None, :], mask=ok)


@triton.jit
def _combine(parts, mean_, var_, weight, bias, stat, M, C, rows, S, momentum, eps, BS: tl.constexpr, BC: tl.constexpr):
    """``stat`` of all parts; the running averages move towards the mean and the unbiased variance."""
    s = tl.arange(0, BS)[:, None]
    c, ok, at, inside = _place(s * 2, S * 2, C, BC)
    counts, means = tl.minimum(rows, M - s * rows), _read(parts, at, inside)
    mean = tl.sum(means * counts, 0)[None, :] / M
    change = tl.where(inside, means - mean, 0.0)
    squares = tl.sum(_read(parts + C, at, inside) + change * change * counts, 0)[None, :]
    tl.store(stat + c, mean, mask=ok)
    tl.store(stat + C + c, 1.0 / tl.sqrt_rn(squares / M + eps), mask=ok)
    tl.store(stat + 2 * C + c, _read(weight, c, ok), mask=ok)
    tl.store(stat + 3 * C + c, _read(bias, c, ok), mask=ok)
    before = _read(mean_, c, ok)
    tl.store(mean_ + c, before + momentum * (mean - before), mask=ok)
    before = _read(var_, c, ok)
    tl.store(var_ + c, before + momentum * (squares / (M - 1) - before), mask=ok)


@triton.jit
def _normalised(x, at, inside, stat, c, ok, C):
    """The normalised map, without and with weight and bias."""
    h = (_read(x, at, inside) - _read(stat, c, ok)) * _read(stat + C, c, ok)
    return h, h * _read(stat + 2 * C, c, ok) + _read(stat + 3 * C, c, ok)


@triton.jit
def _apply(x, added, y, stat, M, C, ADD: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr):
    c, ok, at, inside = _place(tl.program_id(0) * BM + tl.arange(0, BM)[:, None], M, C, BC)
    _, v = _normalised(x, at, inside, stat, c, ok, C)
    if ADD:
        v += _read(added, at, inside)
    if RELU:
        v = tl.where(v <= 0, 0.0, v)  # NaN stays
    tl.store(y + at, v.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _before_relu(dy, x, y, at, inside, stat, c, ok, C, ADD: tl.constexpr, RELU: tl.constexpr):
    """The gradient of what the ReLU is given, and the normalised map; the sign is that of ``y`` with an addition."""
    g = _read(dy, at, inside)
    h, v = _normalised(x, at, inside, stat, c, ok, C)
    if RELU:
        if ADD:
            v = _read(y, at, inside)
        g = tl.where(v <= 0, 0.0, g)
    return g, h


@triton.jit
def _sums(dy, x, y, parts, stat, M, C, rows, ADD: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr):
    """The gradients [S, 2, C] of bias and weight of each part."""
    first, lane = tl.program_id(0) * rows, tl.arange(0, BM)[:, None]
    last = tl.minimum(M, first + rows)
    of_bias, of_weight = tl.zeros((BM, BC), tl.float32), tl.zeros((BM, BC), tl.float32)
    for start in range(first, last, BM):
        c, ok, at, inside = _place(start + lane, last, C, BC)
        g, h = _before_relu(dy, x, y, at, inside, stat, c, ok, C, ADD, RELU)
        of_bias += g
        of_weight += g * h
    c, ok, at, _ = _place(tl.program_id(0) * 2, M, C, BC)
    tl.store(parts + at, tl.sum(of_bias, 0)[None, :], mask=ok)
    tl.store(parts + at + C, tl.sum(of_weight, 0)[None, :], mask=ok)


@triton.jit
def _gradient(
    dy, x, y, dx, of_added, sums, stat, M, C, ADD: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr
):
    c, ok, at, inside = _place(tl.program_id(0) * BM + tl.arange(0, BM)[:, None], M, C, BC)
    g, h = _before_relu(dy, x, y, at, inside, stat, c, ok, C, ADD, RELU)
    if ADD:
        tl.store(of_added + at, g.to(of_added.dtype.element_ty), mask=inside)
    g -= _read(sums, c, ok) / M + h * (_read(sums + C, c, ok) / M)
    scale = _read(stat + C, c, ok) * _read(stat + 2 * C, c, ok)
    tl.store(dx + at, (scale * g).to(dx.dtype.element_ty), mask=inside)


def _shape(x: Tensor) -> tuple[tuple[int, int], dict[str, int], tuple[int, int]]:
    """M and C of a map, the sides of a tile, and the number of tiles along both."""
    m, c = x.numel() // x.shape[1], x.shape[1]
    width = min(64, triton.next_power_of_2(c))
    height = TILE // width
    return (m, c), {"BM": height, "BC": width}, (triton.cdiv(m, height), triton.cdiv(c, width))


def _parts(x: Tensor) -> tuple[Tensor, int, tuple[int, int]]:
    """Memory [S, 2, C] for sums over the parts of a map, the positions of a part, and the grid of programs."""
    (m, c), tile, (tall, wide) = _shape(x)
    rows = triton.cdiv(tall, max(1, PARTS // wide)) * tile["BM"]
    parts = triton.cdiv(m, rows)
    return torch.empty(parts, 2, c, dtype=torch.float32, device=x.device), rows, (parts, wide)


def _start(kernel: Any, grid: tuple[int, int], *arguments: Any, **constants: Any) -> None:
    kernel[grid](*arguments, **constants, **OPTIONS)


class _Fused(torch.autograd.Function):
    """The normalised map, with ``added`` if that is not None, through a ReLU or not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, added: Tensor | None, *rest: Any) -> Tensor:
        _, _, stat, relu = rest  # weight and bias are in stat
        size, tile, grid = _shape(x)
        y, ctx.settings = torch.empty_like(x), {"ADD": added is not None, "RELU": relu}
        _start(_apply, grid, x, x if added is None else added, y, stat, *size, **ctx.settings, **tile)
        ctx.save_for_backward(x, x if added is None or not relu else y, stat)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, y, stat), added = ctx.saved_tensors, ctx.settings["ADD"]
        dy = grads[0].contiguous(memory_format=torch.channels_last)
        size, tile, grid = _shape(x)
        parts, rows, grid_of_parts = _parts(x)
        _start(_sums, grid_of_parts, dy, x, y, parts, stat, *size, rows, **ctx.settings, **tile)
        sums, dx = parts.sum(0), torch.empty_like(x)
        of_added = torch.empty_like(x) if added else None
        _start(_gradient, grid, dy, x, y, dx, of_added if added else dx, sums, stat, *size, **ctx.settings, **tile)
        return dx, of_added, sums[1], sums[0], None, None


def batch_norm(x: Tensor, running_mean: Any, running_var: Any, weight: Any, bias: Any, *settings: Any) -> Tensor:
    """As torch's function in training, and by its kernels if ``x`` is no channels-last map [B, C, H, W] of DTYPES."""
    x = _value(x)
    fits = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last) and x.shape[1] < x.numel() < 2**31
    if not fits or x.dtype not in DTYPES or weight is None or running_mean is None:
        return functional.batch_norm(x, running_mean, running_var, weight, bias, *settings)
    with torch.no_grad():
        size, tile, _ = _shape(x)
        parts, rows, grid = _parts(x)
        stat = parts.new_empty(4, x.shape[1])
        _start(_statistics, grid, x, parts, *size, rows, **tile)
        of_all = running_mean, running_var, weight, bias, stat, *size, rows, len(parts), *settings[1:]
        BS = triton.next_power_of_2(len(parts))
        _start(_combine, (1, triton.cdiv(x.shape[1], COLUMNS)), parts, *of_all, BS=BS, BC=COLUMNS)
    return _Pending(x, weight, bias, stat)


class _Pending(Tensor):
    """The result of a batch norm, which is computed when it is used."""

    x: Tensor
    parameters: tuple[Tensor, ...]
    added: Tensor | None
    computed: Tensor | None

    def __new__(cls, x: Tensor, *parameters: Tensor) -> Any:
        make: Any = Tensor._make_wrapper_subclass  # type: ignore[attr-defined]
        with torch._C.DisableTorchFunctionSubclass():
            self = make(cls, x.shape, strides=x.stride(), dtype=x.dtype, device=x.device, requires_grad=True)
            self.register_hook(cls.__torch_dispatch__)
        self.x, self.parameters, self.added, self.computed = x, parameters, None, None
        return self

    def result(self, relu: bool) -> Tensor:
        return _Fused.apply(self.x, self.added, *self.parameters, relu)  # type: ignore[no-any-return]

    def can_add(self, other: Any) -> bool:
        alike = isinstance(other, Tensor) and other.shape == self.x.shape and other.dtype == self.x.dtype
        return self.added is None and alike and other.is_contiguous(memory_format=torch.channels_last)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        one, kwargs = args[0], kwargs or {}
        if isinstance(one, cls) and one.computed is None:
            if func in RELUS:
                y = one.result(True)
                one.computed = y if func.__name__ == "relu_" or kwargs.get("inplace") else None
                return y
            if func in SUMS and len(args) == 2 and not kwargs and one.can_add(other := _value(args[1])):
                to = one if func in IN_PLACE else cls(one.x, *one.parameters)
                to.added = other
                return to
        args, kwargs = tree_map_only(cls, _value, (tuple(args), kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, *_: Any) -> Any:
        raise NotImplementedError("an autograd.Function got a batch norm that is not computed")


def _value(x: Any) -> Any:
    """The value of a pending batch norm so far; anything else itself."""
    if isinstance(x, _Pending) and x.computed is None:
        x.computed = x.result(False)
    return x.computed if isinstance(x, _Pending) else x


RELUS = {functional.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_}
IN_PLACE = {Tensor.add_, Tensor.__iadd__}
SUMS = {torch.add, Tensor.add, Tensor.__add__} | IN_PLACE
