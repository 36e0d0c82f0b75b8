"""Name the parts of a training step, for a profile or a count of it."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch

from ssl_bench.data.batch import Step
from ssl_bench.data.loader import Loader
from ssl_bench.data.views import Views
from ssl_bench.training.state import TrainingState

PHASES = ("draws", "views", "forward", "momentum", "loss", "backward", "optimiser", "after_step", "meter", "rest")


@contextlib.contextmanager
def phases(state: TrainingState, phase: Callable[[str], AbstractContextManager[Any]]) -> Iterator[None]:
    """Enter ``phase`` with the name of a part of ``PHASES`` around its calls, and with "rest" around all.

    Args:
        state: of the training whose steps are carried out inside.
    """
    method = state.method
    parts: list[tuple[str, Any, str]] = [
        ("draws", Loader, "uniform"),
        ("draws", Views, "parameters"),
        ("views", Step, "batch"),
        ("forward", method, "trained_outputs"),
        ("momentum", method, "momentum_outputs"),
        ("loss", method, "objective"),
        ("backward", torch.autograd, "backward"),
        ("optimiser", state.optimizer, "zero_grad"),
        ("optimiser", state.scaler, "step"),
        ("optimiser", state.scaler, "update"),
        ("after_step", method, "remember"),
        ("after_step", method, "advance"),
        ("meter", state.meter, "add"),
        ("meter", state.meter, "advance"),
    ]

    def within(name: str, function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            with phase(name):
                return function(*arguments, **options)

        return call

    with contextlib.ExitStack() as stack:
        stack.enter_context(phase("rest"))
        for name, owner, function in parts:
            stack.enter_context(patch.object(owner, function, within(name, getattr(owner, function))))
        yield
