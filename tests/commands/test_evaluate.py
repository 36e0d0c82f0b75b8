"""A run that is judged again: in the number formats that it had, and refused where the evaluator cannot work."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ssl_bench.commands.evaluate import main
from tests.conftest import only_run


def test_a_run_is_judged_again_as_it_was(
    train: Callable[..., Any], tf32: Callable[[bool], None], capfd: pytest.CaptureFixture[str]
) -> None:
    assert train("max_steps=1", "tf32=false")[0] == 0
    folder = str(only_run())
    tf32(True)
    assert main([folder, "evaluate=knn", "evaluate.baselines=[]"]) == 0
    assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.benchmark
    capfd.readouterr()
    assert main([folder, "evaluate=knn", "evaluate.knn.k=2000"]) == 2
    assert capfd.readouterr().err.startswith("ssl-bench: evaluate.knn.k must be in [1, 1347]")
