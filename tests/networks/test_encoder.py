"""Unit vectors are torch's, in value and gradient."""

import pytest
import torch
from torch.nn.functional import normalize

from ssl_bench.networks.encoder import unit


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unit_vectors_and_their_gradient_are_those_of_normalize(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 16, 24, dtype=dtype), torch.randn(2, 16, 24, dtype=dtype)
    x[0, 3] = 0  # its gradient is divided by the smallest length
    x[1, 5] *= 1e-9
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, expected = unit(ours), normalize(theirs, dim=-1)
    (found * weight).sum().backward()
    (expected * weight).sum().backward()
    assert torch.equal(found, expected)
    assert ours.grad is not None and theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12 if dtype == torch.float64 else 1e-6, atol=0)
