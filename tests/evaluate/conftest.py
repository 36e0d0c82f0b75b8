"""Switches of torch that a test may turn."""

from collections.abc import Callable, Iterator

import pytest
import torch


@pytest.fixture
def tf32() -> Iterator[Callable[[bool], None]]:
    """Sets what a run sets; afterwards all is as it was."""
    cublas, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = cublas.allow_tf32, cudnn.allow_tf32, cudnn.benchmark

    def allow(yes: bool) -> None:
        cublas.allow_tf32 = cudnn.allow_tf32 = yes

    yield allow
    cublas.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before
