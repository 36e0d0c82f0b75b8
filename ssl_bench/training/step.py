"""One training step in three parts, so that the middle one can be recorded and replayed.

prepare   compute numbers on the host: learning rate, progress of the training
compute   views, forward, backward, optimiser, meter: operations on tensors only
finish    update what gradients do not train (:meth:`ssl_bench.methods.base.Method.update`), and counters on the host
"""

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from ssl_bench.data.batch import Loader, Step
from ssl_bench.distributed import average_gradients, parallel, separate_statistics, world
from ssl_bench.methods.base import StepResult
from ssl_bench.objective.schedule import Progress
from ssl_bench.training import chunked
from ssl_bench.training.optim import Schedule
from ssl_bench.training.precision import Precision
from ssl_bench.training.state import TrainingState


class Stepper:
    """Carries out steps of a training.

    Args:
        loader: yields the images of each step.
        chunk: images of this rank per pass, or None: all at once.

    Attributes:
        network: the method of ``state``, or DDP around it.
    """

    def __init__(
        self, state: TrainingState, schedule: Schedule, precision: Precision, loader: Loader, chunk: int | None = None
    ) -> None:
        self.network: nn.Module = state.method
        self._batches = loader.steps(state.step, schedule.last_step)
        self.state, self.schedule, self.precision, self.chunk = state, schedule, precision, chunk

    def __call__(self, diagnostics: bool) -> dict[str, Tensor]:
        """Carry out the next step; return its diagnostics, all of them if ``diagnostics``."""
        lr, progress = self.prepare()
        self.set_lr(lr)
        result = self.compute(next(self._batches), progress, diagnostics)
        self.finish(result.for_update, progress)
        return result.diagnostics

    def prepare(self) -> tuple[float, float]:
        """Learning rate and progress of the next step."""
        return self.schedule.lr_at(self.state.step), self.schedule.progress(self.state.step)

    def distribute(self) -> None:
        """Let DDP average the gradients from now on: during the backward pass. On one process, do nothing."""
        if self.state.method.groups < world():
            separate_statistics()
        self.network = parallel(self.state.method, self.state.device)

    def set_lr(self, lr: float | Tensor) -> None:
        """Set the learning rate of each parameter group: ``lr``, times the group's ``lr_scale`` if it has one."""
        for group in self.state.optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"] if "lr_scale" in group else lr

    def compute(self, images: Step, progress: Progress, diagnostics: bool) -> StepResult:
        """Run forward, backward and optimiser; return the result of the forward, with all diagnostics of the step."""
        state = self.state
        state.optimizer.zero_grad()
        result = self._backward(images, progress, diagnostics)
        values = result.diagnostics
        if state.snr is not None or self.schedule.recipe.clip is not None:
            state.scaler.unscale_(state.optimizer)
        if state.snr is not None:
            state.snr.add()
            values |= state.snr.read() if diagnostics else {}
        if self.schedule.recipe.clip is not None:
            norm = self.schedule.recipe.clipped(state.method)
            values |= {"gradient_norm": norm} if diagnostics else {}
        scale = state.scale()
        state.scaler.step(state.optimizer)
        state.scaler.update()
        # A step whose gradients overflow is skipped, and the scale is smaller after it.
        skipped = state.scale() < scale if state.scaler.is_enabled() else None
        state.meter.add(result.loss, values.get("tau"), skipped)
        return result._replace(diagnostics=values)

    def finish(self, for_update: Any, progress: float) -> None:
        """Update what gradients do not train, and the counters; ``for_update`` is the field of the step's result."""
        self.state.method.update(for_update, progress)
        self.state.meter.advance(self.state.step)
        self.state.step += 1

    def _backward(self, images: Step, progress: Progress, diagnostics: bool) -> StepResult:
        """Forward of a step and backward of its loss, at once or in chunks."""
        method, scale = self.state.method, self.state.scaler.scale
        if self.chunk is None:
            with self._autocast():
                result: StepResult = self.network(images.batch(), progress, diagnostics)
            scale(result.loss).backward()
        else:
            result = chunked.backward(
                method, images.batch, len(images.ids), self.chunk, progress, diagnostics, self._autocast, scale
            )
        if self.network is method:
            average_gradients(method)
        return result

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        dtype = self.precision.autocast
        device = next(self.state.method.parameters()).device
        return torch.autocast(device.type, dtype) if dtype else contextlib.nullcontext()
