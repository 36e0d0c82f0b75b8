"""Unit vectors are torch's, in value and gradient, but for those that are zero or nearly so."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from ssl_bench.networks.encoder import full_precision, unit


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unit_vectors_and_their_gradient_are_those_of_normalize(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 16, 24, dtype=dtype), torch.randn(2, 16, 24, dtype=dtype)
    x[1, 5] *= 1e-9
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, expected = unit(ours), normalize(theirs, dim=-1)
    (found * weight).sum().backward()
    (expected * weight).sum().backward()
    assert torch.equal(found, expected)
    assert ours.grad is not None and theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12 if dtype == torch.float64 else 1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("length", [0, 1e-17, 1e-13, 1e-5, 1e3, math.nan])
def test_a_vector_of_any_length_has_the_gradient_of_its_formula(dtype: torch.dtype, length: float) -> None:
    """x / |x| in double precision; zero has no gradient, and one of half precision is what that can hold."""
    x = torch.zeros(2, 512, dtype=torch.float64)
    x[:] = normalize(torch.randn(2, 512, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=1)
    x[0] *= length
    ours = x.to(dtype).requires_grad_()
    weight = torch.linspace(-1e-3, 1e-3, 512, dtype=torch.float64)
    theirs = ours.detach().double().requires_grad_()
    found = unit(full_precision(ours))
    (found.double() * weight).sum().backward()
    expected = normalize(theirs, dim=1, eps=1e-100)
    (expected * weight).sum().backward()
    assert ours.grad is not None and theirs.grad is not None
    wanted = theirs.grad.clone()
    if not theirs[0].any():
        assert not found[0].any() and not ours.grad[0].any()
        wanted[0] = 0
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-7, equal_nan=True)
    smallest = 1e-7 if dtype == torch.float16 else tolerance * float(wanted.abs().nan_to_num().amax())
    torch.testing.assert_close(ours.grad.double(), wanted, rtol=tolerance, atol=smallest, equal_nan=True)
