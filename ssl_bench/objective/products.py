"""Inner products in full float32, whatever formats the networks compute in."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


@contextlib.contextmanager
def without_tf32() -> Iterator[None]:
    """Compute the matrix products of the block in full float32, even where the run allows TF32.

    TF32 rounds the factors to 11 bits. The block covers no backward pass that runs after it: :func:`products` does.
    """
    # Use the same switch as a run does: torch refuses to read one switch after another one has set something else.
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


def products(a: Tensor, b: Tensor) -> Tensor:
    """Inner products of all vectors of ``a`` with all of ``b``, a @ b.mT, without TF32 or autocast.

    They can be differentiated once.

    Args:
        a: [n, R, D] or [R, D].
        b: [n, C, D], or [C, D] for any ``a``.

    Returns:
        [n, R, C] or [R, C].
    """
    if a.ndim > b.ndim:
        return products(a.flatten(0, 1), b).unflatten(0, a.shape[:2])
    with torch.autocast(a.device.type, enabled=False):
        if torch.compiler.is_compiling():
            return _compiled_products(a, b)
        return _Products.apply(a, b)  # type: ignore[no-any-return]


class _Products(torch.autograd.Function):
    @staticmethod
    @without_tf32()
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b.mT

    @staticmethod
    @without_tf32()
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (a, b), (grad,) = ctx.saved_tensors, grads
        by_a, by_b = ctx.needs_input_grad
        # Each as in torch's own backward pass of the product, so that the sums round alike.
        of_b = None if not by_b else grad.T @ a if b.ndim == 2 else (a.mT @ grad).mT
        return grad @ b if by_a else None, of_b


# A compiled function calls this as it is: it would read the switch of TF32 when it runs, after the block that set it.
@torch.library.custom_op("ssl_bench::products", mutates_args=())
@without_tf32()
def _compiled_products(a: Tensor, b: Tensor) -> Tensor:
    return a @ b.mT


@_compiled_products.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(*a.shape[:-1], b.shape[-2])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    a, b = ctx.saved_tensors
    of_b = _compiled_products(grad.mT, a.mT) if b.ndim == 2 else _compiled_products(a.mT, grad.mT).mT
    return _compiled_products(grad, b.mT), of_b


_compiled_products.register_autograd(_backward, setup_context=_keep)
