"""Compiled views: each run of a process has them, and it says that it compiles."""

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from ssl_bench.data.views import Views
from tests.gpu.runs import Log, training

COMPILE = Views.compile


def traced(self: Views) -> None:
    """As :meth:`Views.compile`, without the minute that generating and compiling kernels takes."""
    with patch.object(torch, "compile", partial(torch.compile, backend="eager")):
        COMPILE(self)


def one_run_after_another(limit: int) -> list[list[str]]:
    """Lines about compiling of runs of different batch sizes, one more than torch compiles forms of a function."""
    found, config = list[list[str]](), torch._dynamo.config
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"  # before torch 2.7
    with patch.object(Views, "compile", traced), config.patch({name: limit}):
        for number in range(limit + 1):
            log = Log()
            run = training("compile_views=true", f"batch_size.size={8 + 4 * number}", one_layer=True)
            step = run.stepper()
            for _ in range(2):
                step(False)
            found.append([line for line in log.lines if "compil" in line])
    return found


def test_every_run_of_a_process_has_compiled_views_and_says_so_once(gpu: Callable[..., Any]) -> None:
    assert gpu(one_run_after_another, 2, values=False) == [["compiling the views, which can take a minute"]] * 3
