"""log sum_k exp(s_k / tau) over many candidates, without storing the matrix of their cosines.

The anchors are processed in panels. The backward pass computes the cosines of each panel again, and with the result of
the forward pass the softmax, from which the gradient follows:

    l_i = log sum_k exp(s_ik / tau_i),   p_ik = exp(s_ik / tau_i - l_i),   s_ik = q_i . key_k
    dl_i/dq_i = sum_k p_ik key_k / tau_i,   dl_i/dkey_k = p_ik q_i / tau_i,   dl_i/dtau_i = -(q_i . dl_i/dq_i) / tau_i

Shapes: R anchors; C candidates; K of them chosen for an anchor; D width.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssl_bench.objective.bits import unpack
from ssl_bench.objective.products import products, without_tf32

COSINES_PER_PANEL = 2**21  # 8 MB in float32, which stay in a CPU's cache
# The same on a GPU, which is faster with few large kernels than with many small ones: 64 MB. The form without panels
# stores about five such matrices, little beside the activations of a step.
GPU_COSINES_PER_PANEL = 2**24
# An excluded candidate has a logit of PENALTY / tau, which is raised to LOWEST below the largest: its share of the sum
# is 1e-35, less than rounding in float64. An exponential that underflows would cost a CPU ten times as much.
PENALTY, LOWEST = -1e20, -80.0
ROWS_PER_MASK = 64  # rows that are marked at once on a CPU, which copies bytes as floats before it adds them
# On a CPU, :func:`reduced` calls its function on so many parts of a panel: autograd keeps several tensors of a part,
# which stay in its cache. On a GPU a panel is one part: of eight, each would be a kernel too small for it.
PARTS_PER_PANEL = 8
FEWEST_ANCHORS = 32  # of a panel that reads all candidates: with a million of them, reading is what costs
# Reading a chosen key costs about as much as this many cosines of a matrix product (float32, D = 128, CPU).
COST_OF_READING_A_KEY = 36


Reduction = Callable[..., Tensor]


@dataclass(frozen=True)
class Choice:
    """The candidates that count for R anchors: all of them if everything is None.

    Attributes:
        image_ids: ids of the images of the anchors [R] and of the candidates [C]; a candidate with the anchor's id does
            not count.
        excluded: [R, ceil(C / 8)] packed booleans, true for candidates that do not count.
        index: [R, K] the candidates that count.
    """

    image_ids: tuple[Tensor, Tensor] | None = None
    excluded: Tensor | None = None
    index: Tensor | None = None


def lse(
    q: Tensor, keys: Tensor, choice: Choice, tau: Tensor, second_tau: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The logarithm over the candidates that count.

    Args:
        q: [R, D].
        keys: [C, D].
        choice: of the candidates.
        tau: [] or [R].
        second_tau: [] or [R], a temperature at which the value is computed too.

    Returns:
        [R] at ``tau``, [R] at ``second_tau``.
    """
    first, second = _LogSumExp.apply(q, keys, choice, tau, second_tau)
    return first, None if second_tau is None else second


def reduced(q: Tensor, keys: Tensor, choice: Choice, f: Reduction, *values: Tensor) -> Tensor:
    """``f`` of the cosines of each anchor with its candidates, [R].

    Args:
        q: [R, D].
        keys: [C, D].
        choice: of the candidates.
        f: maps cosines [r, C], booleans of that shape, true where they do not count (None: nowhere), and the values of
            these anchors, [] or [r, 1], to [r]. With an ``index``, K stands for C.
        values: [] or [R], all tensors of which ``f`` has a gradient; or vectors [R, D], in whose place ``f`` gets their
            cosines [r, C] with the same candidates.
    """
    return _Reduced.apply(f, choice, q, keys, *values)  # type: ignore[no-any-return]


@torch.no_grad()
def nearest_keys(q: Tensor, keys: Tensor) -> Tensor:
    """Number [R] of the key with the largest cosine to each anchor; ``q`` is [R, D], ``keys`` [C, D]."""
    return torch.cat([products(q[rows], keys).argmax(1) for rows in _panels(q, keys, Choice())])


class _LogSumExp(torch.autograd.Function):
    """The logarithm with its gradient by formula: :func:`reduced` would take a CPU 1.4 to 2.4 times as long."""

    @staticmethod
    @without_tf32()
    def forward(
        ctx: Any, q: Tensor, keys: Tensor, choice: Choice, tau: Tensor, second_tau: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ctx.choice = choice
        lse, second = q.new_empty(len(q)), q.new_empty(len(q) if second_tau is not None else 0)
        for rows in _panels(q, keys, choice):
            cosines = _masked_cosines(q, keys, choice, rows)
            if second_tau is not None:
                _logsumexp(cosines / _column(second_tau, rows), choice, second[rows])
            _logsumexp(cosines.div_(_column(tau, rows)), choice, lse[rows])
        ctx.save_for_backward(q, keys, tau, lse, second_tau, second)
        ctx.set_materialize_grads(False)  # None for a result that has no gradient
        return lse, second

    @staticmethod
    @without_tf32()
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        q, keys, *at = ctx.saved_tensors
        learned = ctx.needs_input_grad[3:]
        # Each temperature with a gradient: its number, itself, the logarithm at it, and the gradient by the logit.
        both = zip((0, 1), at[::2], at[1::2], grads, strict=True)
        levels = [(i, tau, lse, grad / tau) for i, tau, lse, grad in both if grad is not None]
        by_q = [torch.zeros_like(q) for _ in levels]
        by_keys = torch.zeros_like(keys) if ctx.needs_input_grad[1] else None
        for rows in _panels(q, keys, ctx.choice):
            cosines, shares = _masked_cosines(q, keys, ctx.choice, rows), []
            for level, tau, lse, weight in levels:
                column = _column(tau, rows)
                share = cosines.div_(column) if level == levels[-1][0] else cosines / column  # [r, C]
                share.sub_(lse[rows, None])
                if ctx.choice.excluded is not None:
                    share.clamp_(min=LOWEST)
                shares.append(share.exp_().mul_(weight[rows, None]))
            if not any(learned):
                shares = [functools.reduce(Tensor.add_, shares)]
            for share, part in zip(shares, by_q, strict=False):
                _add_gradients(share, q, keys, ctx.choice, rows, part, by_keys)
        by_tau: list[Tensor | None] = [None, None]
        for (level, tau, *_), part in zip(levels, by_q, strict=True):
            if learned[level]:
                by_anchor = -(q * part).sum(1) / tau  # [R]
                by_tau[level] = by_anchor if tau.ndim else by_anchor.sum()
        return functools.reduce(Tensor.add_, by_q), by_keys, None, *by_tau


class _Reduced(torch.autograd.Function):
    @staticmethod
    @without_tf32()
    def forward(ctx: Any, f: Reduction, choice: Choice, q: Tensor, keys: Tensor, *values: Tensor) -> Tensor:
        ctx.f, ctx.choice = f, choice
        ctx.save_for_backward(q, keys, *values)
        out = q.new_empty(len(q))
        for panel in _panels(q, keys, choice):
            for rows, cosines in _parts(panel, _cosines(q, keys, choice, panel)):
                columns = (_of_rows(value, keys, choice, rows) for value in values)
                out[rows] = f(cosines, _left_out(choice, len(keys), rows), *columns)
        return out

    @staticmethod
    @without_tf32()
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, keys, *values = ctx.saved_tensors
        by_q, by_keys = torch.empty_like(q), torch.zeros_like(keys) if ctx.needs_input_grad[3] else None
        needed = [
            trained or (value.ndim == 2 and by_keys is not None)  # the cosines of vectors have a gradient by the keys
            for trained, value in zip(ctx.needs_input_grad[4:], values, strict=True)
        ]
        by_values = [torch.zeros_like(x) if trained else None for x, trained in zip(values, needed, strict=True)]
        for panel in _panels(q, keys, ctx.choice):
            cosines = _cosines(q, keys, ctx.choice, panel)  # and, part by part, the gradient by them
            for rows, part in _parts(panel, cosines):
                leaf = part.detach().requires_grad_()
                columns = [
                    _of_rows(x, keys, ctx.choice, rows).detach().requires_grad_(trained)
                    for x, trained in zip(values, needed, strict=True)
                ]
                with torch.enable_grad():
                    out = ctx.f(leaf, _left_out(ctx.choice, len(keys), rows), *columns)
                inputs = [leaf, *(column for column in columns if column.requires_grad)]
                by_part, *by_columns = torch.autograd.grad(out, inputs, grads[0][rows], materialize_grads=True)
                part.copy_(by_part)
                for value, by_value in zip(values, by_values, strict=True):
                    if by_value is None:
                        continue
                    by_column = by_columns.pop(0)
                    if value.ndim == 2:
                        _add_gradients(by_column, value, keys, ctx.choice, rows, by_value, by_keys)
                    elif value.ndim:
                        by_value[rows] = by_column[:, 0]
                    else:
                        by_value += by_column
            _add_gradients(cosines, q, keys, ctx.choice, panel, by_q, by_keys)
        return None, None, by_q, by_keys, *by_values


def panel(q: Tensor) -> int:
    """Number of cosines in a panel on the device of ``q`` [...]; if there are no more, they are computed at once."""
    return GPU_COSINES_PER_PANEL if q.is_cuda else COSINES_PER_PANEL


def _panels(q: Tensor, keys: Tensor, choice: Choice) -> Iterator[slice]:
    """Rows of each panel."""
    width, fewest = len(keys), FEWEST_ANCHORS  # C numbers per anchor
    if choice.index is not None:
        fewest = 1
        if _cheaper_to_read(keys, choice.index):
            width = choice.index.shape[1] * q.shape[1]  # K x D numbers
    height = max(fewest, panel(q) // max(1, width))
    for start in range(0, len(q), height):
        yield slice(start, min(len(q), start + height))


def _parts(rows: slice, cosines: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Rows and cosines of each part of a panel."""
    start = rows.start
    for part in cosines.chunk(1 if cosines.is_cuda else PARTS_PER_PANEL):
        yield slice(start, start + len(part)), part
        start += len(part)


def _cheaper_to_read(keys: Tensor, index: Tensor) -> bool:
    """Whether the chosen candidates are so few that reading them costs less than computing all cosines."""
    return index.shape[1] * COST_OF_READING_A_KEY < len(keys)


def _column(value: Tensor, rows: slice) -> Tensor:
    return value[rows, None] if value.ndim else value


def _of_rows(value: Tensor, keys: Tensor, choice: Choice, rows: slice) -> Tensor:
    """A value of :func:`reduced` for some anchors: [] or [r, 1], or the cosines [r, C] of vectors."""
    return _cosines(value, keys, choice, rows) if value.ndim == 2 else _column(value, rows)


def _cosines(q: Tensor, keys: Tensor, choice: Choice, rows: slice) -> Tensor:
    """[r, C] of all candidates, or [r, K] of those that an index lists."""
    if choice.index is None:
        return q[rows] @ keys.T
    chosen = choice.index[rows].long()  # [r, K]
    if _cheaper_to_read(keys, choice.index):
        return (keys[chosen] @ q[rows, :, None])[..., 0]
    return (q[rows] @ keys.T).gather(1, chosen)


def _left_out(choice: Choice, width: int, rows: slice) -> Tensor | None:
    """Booleans [r, C], true for the cosines that do not count; None: all count."""
    if choice.image_ids is not None:
        return choice.image_ids[0][rows, None] == choice.image_ids[1]
    return None if choice.excluded is None else unpack(choice.excluded[rows], width)


def _masked_cosines(q: Tensor, keys: Tensor, choice: Choice, rows: slice) -> Tensor:
    """Cosines, far below -1 where they do not count."""
    cosines = _cosines(q, keys, choice, rows)
    if choice.image_ids is not None:
        cosines.masked_fill_(choice.image_ids[0][rows, None] == choice.image_ids[1], float("-inf"))
    if choice.excluded is not None:
        height = len(cosines) if cosines.is_cuda else ROWS_PER_MASK
        for part, packed in zip(cosines.split(height), choice.excluded[rows].split(height), strict=True):
            part.add_(unpack(packed, len(keys)).view(torch.uint8), alpha=PENALTY)
    return cosines


def _logsumexp(logits: Tensor, choice: Choice, out: Tensor) -> None:
    """Write log sum exp over the candidates [r, C] to ``out`` [r]; the logits may be changed."""
    if choice.excluded is not None:
        logits.clamp_(min=logits.amax(1, keepdim=True) + LOWEST)
    torch.logsumexp(logits, 1, out=out)


def _add_gradients(
    by_cosines: Tensor, q: Tensor, keys: Tensor, choice: Choice, rows: slice, by_q: Tensor, by_keys: Tensor | None
) -> None:
    """From the gradient by the cosines of a panel, write that by its anchors, and add that by the keys."""
    if choice.index is not None:
        chosen = choice.index[rows].long()
        if _cheaper_to_read(keys, choice.index):
            by_q[rows] = (by_cosines[:, None] @ keys[chosen])[:, 0]
            if by_keys is not None:
                by_keys.index_add_(0, chosen.flatten(), (by_cosines[..., None] * q[rows, None]).flatten(0, 1))
            return
        by_cosines = by_cosines.new_zeros(len(by_cosines), len(keys)).scatter_(1, chosen, by_cosines)
    torch.mm(by_cosines, keys, out=by_q[rows])
    if by_keys is not None:
        by_keys.addmm_(by_cosines.T, q[rows])
