"""log sum_k exp(s_k / tau) over many candidates, without storing the matrix of their cosines.

The anchors are processed in panels. The backward pass computes the cosines of each panel again, and with the result of
the forward pass the softmax, from which the gradient follows:

    l_i = log sum_k exp(s_ik / tau_i),   p_ik = exp(s_ik / tau_i - l_i),   s_ik = q_i . key_k
    dl_i/dq_i = sum_k p_ik key_k / tau_i,   dl_i/dkey_k = p_ik q_i / tau_i,   dl_i/dtau_i = -(q_i . dl_i/dq_i) / tau_i

Shapes: R anchors; C candidates; K of them chosen for an anchor; D width.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ssl_bench.objective.bits import unpack
from ssl_bench.precision import without_tf32

PANEL = 2**21  # cosines per panel: 8 MB in float32, which stay in a CPU's cache
# The same on a GPU, which is faster with few large kernels than with many small ones: 64 MB. The form without panels
# stores about five such matrices, little beside the activations of a step.
GPU_PANEL = 2**24
# An excluded candidate has a logit of PENALTY / tau, which is raised to LOWEST below the largest: its share of the sum
# is 1e-35, less than rounding in float64. An exponential that underflows would cost a CPU ten times as much.
PENALTY, LOWEST = -1e20, -80.0
MARKED = 64  # rows that are marked at once on a CPU, which copies bytes as floats before it adds them
ROWS = 32  # fewest anchors per panel if it reads all candidates: with a million of them, reading is what costs
# Reading a chosen key costs about as much as this many cosines of a matrix product (float32, D = 128, CPU).
READ = 36


def pooled_lse(
    q: Tensor,
    keys: Tensor,
    tau: Tensor,
    second_tau: Tensor | None,
    image_ids: tuple[Tensor, Tensor] | None,
    excluded: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """The logarithm over all candidates that are not excluded.

    Args:
        q: [R, D].
        keys: [C, D].
        tau: [] or [R].
        second_tau: [] or [R], a temperature at which the value is computed too.
        image_ids: ids of the images of the anchors [R] and of the candidates [C]; a candidate with the anchor's id is
            excluded.
        excluded: [R, ceil(C / 8)] packed booleans, true for candidates that do not count.

    Returns:
        [R] at ``tau``, [R] at ``second_tau``.
    """
    first, second = _Pooled.apply(q, keys, tau, second_tau, image_ids, excluded)
    return first, None if second_tau is None else second


def picked_lse(
    q: Tensor, keys: Tensor, tau: Tensor, second_tau: Tensor | None, index: Tensor
) -> tuple[Tensor, Tensor | None]:
    """The logarithm over the candidates ``index`` [R, K] of each anchor.

    ``q``, ``keys``, ``tau``, ``second_tau`` and the results are as in :func:`pooled_lse`.
    """
    first, second = _Picked.apply(q, keys, tau, second_tau, index)
    return first, None if second_tau is None else second


class _Pooled(torch.autograd.Function):
    @staticmethod
    @without_tf32()
    def forward(
        ctx: Any, q: Tensor, keys: Tensor, tau: Tensor, second_tau: Tensor | None, image_ids: Any, excluded: Any
    ) -> Any:
        ctx.image_ids, ctx.excluded = image_ids, excluded
        lse, second = q.new_empty(len(q)), q.new_empty(len(q) if second_tau is not None else 0)
        for rows in _panels(q, len(keys), ROWS):
            cosines = _cosines(q, keys, image_ids, excluded, rows)
            if second_tau is not None:
                _logsumexp(cosines / _column(second_tau, rows), excluded, second[rows])
            _logsumexp(cosines.div_(_column(tau, rows)), excluded, lse[rows])
        ctx.save_for_backward(q, keys, tau, lse, second_tau, second)
        ctx.set_materialize_grads(False)  # None for a result that has no gradient
        return lse, second

    @staticmethod
    @without_tf32()
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, keys = ctx.saved_tensors[:2]
        by_q, by_keys = torch.empty_like(q), torch.zeros_like(keys) if ctx.needs_input_grad[1] else None
        dot = q.new_zeros(len(q))
        for rows in _panels(q, len(keys), ROWS):
            cosines = _cosines(q, keys, ctx.image_ids, ctx.excluded, rows)
            share = _by_cosines(ctx, grads, cosines, rows, dot)
            torch.mm(share, keys, out=by_q[rows])
            if by_keys is not None:
                by_keys.addmm_(share.T, q[rows])
        return by_q, by_keys, *_by_taus(ctx, grads, by_q, dot), None, None


class _Picked(torch.autograd.Function):
    @staticmethod
    @without_tf32()
    def forward(ctx: Any, q: Tensor, keys: Tensor, tau: Tensor, second_tau: Tensor | None, index: Tensor) -> Any:
        lse, second = q.new_empty(len(q)), q.new_empty(len(q) if second_tau is not None else 0)
        for rows in _picked_panels(q, keys, index):
            cosines = _picked_cosines(q, keys, index, rows)
            if second_tau is not None:
                torch.logsumexp(cosines / _column(second_tau, rows), 1, out=second[rows])
            torch.logsumexp(cosines.div_(_column(tau, rows)), 1, out=lse[rows])
        ctx.index, ctx.excluded = index, None
        ctx.save_for_backward(q, keys, tau, lse, second_tau, second)
        ctx.set_materialize_grads(False)  # None for a result that has no gradient
        return lse, second

    @staticmethod
    @without_tf32()
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, keys = ctx.saved_tensors[:2]
        by_q, by_keys = torch.empty_like(q), torch.zeros_like(keys) if ctx.needs_input_grad[1] else None
        dot = q.new_zeros(len(q))
        for rows in _picked_panels(q, keys, ctx.index):
            share = _by_cosines(ctx, grads, _picked_cosines(q, keys, ctx.index, rows), rows, dot)  # [r, K]
            chosen = ctx.index[rows].long()
            if _reads(keys, ctx.index):
                by_q[rows] = (share[:, None] @ keys[chosen])[:, 0]
                if by_keys is not None:
                    by_keys.index_add_(0, chosen.flatten(), (share[..., None] * q[rows, None]).flatten(0, 1))
            else:
                full = share.new_zeros(len(share), len(keys)).scatter_(1, chosen, share)
                torch.mm(full, keys, out=by_q[rows])
                if by_keys is not None:
                    by_keys.addmm_(full.T, q[rows])
        return by_q, by_keys, *_by_taus(ctx, grads, by_q, dot), None


def panel(q: Tensor) -> int:
    """Number of cosines in a panel on the device of ``q`` [...]; if there are no more, they are computed at once."""
    return GPU_PANEL if q.is_cuda else PANEL


def _panels(q: Tensor, width: int, fewest: int = 1) -> Iterator[slice]:
    """Rows of each panel, for ``width`` numbers per anchor and at least ``fewest`` anchors."""
    height = max(fewest, panel(q) // max(1, width))
    for start in range(0, len(q), height):
        yield slice(start, min(len(q), start + height))


def _picked_panels(q: Tensor, keys: Tensor, index: Tensor) -> Iterator[slice]:
    # A panel has K x D numbers per anchor if keys are read one by one, else C.
    return _panels(q, index.shape[1] * q.shape[1] if _reads(keys, index) else len(keys))


def _reads(keys: Tensor, index: Tensor) -> bool:
    """Whether the chosen candidates are so few that reading them costs less than computing all cosines."""
    return index.shape[1] * READ < len(keys)


def _column(tau: Tensor, rows: slice) -> Tensor:
    return tau[rows, None] if tau.ndim else tau


def _cosines(
    q: Tensor, keys: Tensor, image_ids: tuple[Tensor, Tensor] | None, excluded: Tensor | None, rows: slice
) -> Tensor:
    cosines = q[rows] @ keys.T  # [r, C]
    if image_ids is not None:
        cosines.masked_fill_(image_ids[0][rows, None] == image_ids[1], float("-inf"))
    if excluded is not None:
        height = len(cosines) if cosines.is_cuda else MARKED
        for part, packed in zip(cosines.split(height), excluded[rows].split(height), strict=True):
            part.add_(unpack(packed, len(keys)).view(torch.uint8), alpha=PENALTY)
    return cosines


def _logsumexp(logits: Tensor, excluded: Tensor | None, out: Tensor) -> None:
    """Write log sum exp over the candidates [r, C] to ``out`` [r]; the logits may be changed."""
    if excluded is not None:
        logits.clamp_(min=logits.amax(1, keepdim=True) + LOWEST)
    torch.logsumexp(logits, 1, out=out)


def _picked_cosines(q: Tensor, keys: Tensor, index: Tensor, rows: slice) -> Tensor:
    chosen = index[rows].long()  # [r, K]
    if _reads(keys, index):
        return (keys[chosen] @ q[rows, :, None])[..., 0]
    return (q[rows] @ keys.T).gather(1, chosen)


def _by_cosines(ctx: Any, grads: tuple[Tensor | None, ...], cosines: Tensor, rows: slice, dot: Tensor) -> Tensor:
    """The gradient by the cosines [r, C] of a panel, which may be changed.

    ``dot`` [R] gets the sum of the cosines times their gradient through the second logarithm, if tau is learned.
    """
    _, _, tau, lse, second_tau, second = ctx.saved_tensors
    if grads[1] is None:
        return _share(ctx, cosines.div_(_column(tau, rows)), lse, grads[0] / tau, rows)
    share = _share(ctx, cosines / _column(second_tau, rows), second, grads[1] / second_tau, rows)
    if any(ctx.needs_input_grad[2:4]):
        dot[rows] = (share * cosines.clamp(min=-2)).sum(1)  # -inf, where it does not count, times a share of 0
    if grads[0] is not None:
        share.add_(_share(ctx, cosines.div_(_column(tau, rows)), lse, grads[0] / tau, rows))
    return share


def _share(ctx: Any, logits: Tensor, lse: Tensor, weight: Tensor, rows: slice) -> Tensor:
    """The softmax [r, C], times ``weight`` [R], in place of the logits."""
    logits.sub_(lse[rows, None])
    if ctx.excluded is not None:
        logits.clamp_(min=LOWEST)
    return logits.exp_().mul_(weight[rows, None])


def _by_taus(ctx: Any, grads: tuple[Tensor | None, ...], by_q: Tensor, dot: Tensor) -> list[Tensor | None]:
    """The gradients by the two temperatures."""
    q, _, tau, _, second_tau, _ = ctx.saved_tensors
    found: list[Tensor | None] = [None, None]
    if ctx.needs_input_grad[2] and grads[0] is not None:
        found[0] = (dot - (q * by_q).sum(1)) / tau  # [R]
    if ctx.needs_input_grad[3] and grads[1] is not None:
        found[1] = -dot / second_tau
    return [x if x is None or t.ndim else x.sum() for x, t in zip(found, (tau, second_tau), strict=True)]
