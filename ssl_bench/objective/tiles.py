"""log sum_k exp(s_k / tau) over many candidates without their matrix of cosines, forward or backward.

Panels of anchors are taken one after the other; backward computes each panel's cosines again, and from them and the
result of the forward the softmax, which is all that the gradient needs:

    l_i = log sum_k exp(s_ik / tau_i),   p_ik = exp(s_ik / tau_i - l_i),   s_ik = q_i . key_k
    dl_i/dq_i = sum_k p_ik key_k / tau_i,   dl_i/dkey_k = p_ik q_i / tau_i,   dl_i/dtau_i = -(q_i . dl_i/dq_i) / tau_i

R anchors   C candidates   K of them chosen for an anchor   D width
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

PANEL = 2**21  # cosines at a time: 8 MB in float32, which stay in a CPU's cache
WIDE_PANEL = 2**24  # the same on a GPU, which a few large products keep busier than many small ones
ROWS = 32  # anchors at a time, at least, where all candidates are read for them: of a million, reading is what costs
# Reading a chosen key costs about as much as this many cosines of a matrix product (float32, D = 128, CPU).
READ = 36


def pooled_lse(
    q: Tensor, keys: Tensor, tau: Tensor, wide: Tensor | None, own: tuple[Tensor, Tensor] | None, drop: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Over all candidates but the excluded ones.

    Args:
        q: [R, D].
        keys: [C, D].
        tau: [] or [R].
        wide: a second temperature, [] or [R], at which the value is wanted too, without gradient.
        own: ids of the anchors [R] and of the candidates [C]; equal ids exclude.
        drop: [R, n] further candidates that do not count.

    Returns:
        [R] at ``tau``, [R] at ``wide``.
    """
    first, second = _Pooled.apply(q, keys, tau, wide, own, drop)
    return first, None if wide is None else second


def picked_lse(
    q: Tensor, keys: Tensor, tau: Tensor, wide: Tensor | None, index: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Over the candidates ``index`` [R, K] of each anchor; the rest as in :func:`pooled_lse`."""
    first, second = _Picked.apply(q, keys, tau, wide, index)
    return first, None if wide is None else second


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, keys: Tensor, tau: Tensor, wide: Tensor | None, own: Any, drop: Any) -> Any:
        ctx.own, ctx.drop = own, drop
        lse, second = q.new_empty(len(q)), q.new_empty(len(q) if wide is not None else 0)
        for rows in _panels(q, len(keys), ROWS):
            cosines = _cosines(q, keys, own, drop, rows)
            if wide is not None:
                torch.logsumexp(cosines / _column(wide, rows), 1, out=second[rows])
            torch.logsumexp(cosines.div_(_column(tau, rows)), 1, out=lse[rows])
        ctx.save_for_backward(q, keys, tau, lse)
        ctx.mark_non_differentiable(second)
        return lse, second

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, keys, tau, lse = ctx.saved_tensors
        by_q, by_keys = torch.empty_like(q), torch.zeros_like(keys) if ctx.needs_input_grad[1] else None
        weight = grads[0] / tau  # [R]
        for rows in _panels(q, len(keys), ROWS):
            share = _cosines(q, keys, ctx.own, ctx.drop, rows).div_(_column(tau, rows)).sub_(lse[rows, None]).exp_()
            share.mul_(weight[rows, None])
            torch.mm(share, keys, out=by_q[rows])
            if by_keys is not None:
                by_keys.addmm_(share.T, q[rows])
        return by_q, by_keys, _by_tau(ctx, q, by_q, tau), None, None, None


class _Picked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, keys: Tensor, tau: Tensor, wide: Tensor | None, index: Tensor) -> Any:
        lse, second = q.new_empty(len(q)), q.new_empty(len(q) if wide is not None else 0)
        for rows in _picked_panels(q, keys, index):
            cosines = _picked_cosines(q, keys, index, rows)
            if wide is not None:
                torch.logsumexp(cosines / _column(wide, rows), 1, out=second[rows])
            torch.logsumexp(cosines.div_(_column(tau, rows)), 1, out=lse[rows])
        ctx.save_for_backward(q, keys, tau, lse, index)
        ctx.mark_non_differentiable(second)
        return lse, second

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, keys, tau, lse, index = ctx.saved_tensors
        by_q, by_keys = torch.empty_like(q), torch.zeros_like(keys) if ctx.needs_input_grad[1] else None
        weight = grads[0] / tau  # [R]
        for rows in _picked_panels(q, keys, index):
            share = _picked_cosines(q, keys, index, rows).div_(_column(tau, rows)).sub_(lse[rows, None]).exp_()
            share.mul_(weight[rows, None])  # [r, K]
            chosen = index[rows].long()
            if _reads(keys, index):
                by_q[rows] = (share[:, None] @ keys[chosen])[:, 0]
                if by_keys is not None:
                    by_keys.index_add_(0, chosen.flatten(), (share[..., None] * q[rows, None]).flatten(0, 1))
            else:
                full = share.new_zeros(len(share), len(keys)).scatter_(1, chosen, share)
                torch.mm(full, keys, out=by_q[rows])
                if by_keys is not None:
                    by_keys.addmm_(full.T, q[rows])
        return by_q, by_keys, _by_tau(ctx, q, by_q, tau), None, None


def _panels(q: Tensor, width: int, least: int = 1) -> Iterator[slice]:
    height = max(least, (WIDE_PANEL if q.is_cuda else PANEL) // max(1, width))
    for start in range(0, len(q), height):
        yield slice(start, min(len(q), start + height))


def _picked_panels(q: Tensor, keys: Tensor, index: Tensor) -> Iterator[slice]:
    # Where keys are read one by one a panel holds K x D numbers per anchor, else C.
    return _panels(q, index.shape[1] * q.shape[1] if _reads(keys, index) else len(keys))


def _reads(keys: Tensor, index: Tensor) -> bool:
    """Whether so few candidates are chosen that reading them is cheaper than all the cosines."""
    return index.shape[1] * READ < len(keys)


def _column(tau: Tensor, rows: slice) -> Tensor:
    return tau[rows, None] if tau.ndim else tau


def _cosines(q: Tensor, keys: Tensor, own: tuple[Tensor, Tensor] | None, drop: Tensor | None, rows: slice) -> Tensor:
    cosines = q[rows] @ keys.T  # [r, C]
    if own is not None:
        cosines.masked_fill_(own[0][rows, None] == own[1], float("-inf"))
    if drop is not None:
        cosines.scatter_(1, drop[rows].long(), float("-inf"))
    return cosines


def _picked_cosines(q: Tensor, keys: Tensor, index: Tensor, rows: slice) -> Tensor:
    chosen = index[rows].long()  # [r, K]
    if _reads(keys, index):
        return (keys[chosen] @ q[rows, :, None])[..., 0]
    return (q[rows] @ keys.T).gather(1, chosen)


def _by_tau(ctx: Any, q: Tensor, by_q: Tensor, tau: Tensor) -> Tensor | None:
    if not ctx.needs_input_grad[2]:
        return None
    each = -(q * by_q).sum(1) / tau  # [R]
    return each if tau.ndim else each.sum()
