"""Whether batch norms are computed together with what follows them: tried on the first batch of a process.

A test step is a forward and a backward pass, with torch's batch norm and with :mod:`ssl_bench.networks.fused_norm`; it
leaves the training as it was. Where steps will be replayed as a CUDA graph, test steps are replayed too: eager ones of
a small batch would measure the host.
"""

import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import batch_norm, relu

from ssl_bench.data.loader import Loader
from ssl_bench.distributed import Votes
from ssl_bench.errors import RunError
from ssl_bench.hardware import release_memory
from ssl_bench.networks.norm import GroupedBatchNorm, of_this_rank
from ssl_bench.objective.sampling import StepGenerator
from ssl_bench.seeding import rng_state, set_rng_state
from ssl_bench.training.graph import TOLERANCE, cause, close
from ssl_bench.training.precision import Precision
from ssl_bench.training.recording import CudaRecording
from ssl_bench.training.step import Stepper

log = logging.getLogger("ssl_bench")

STEPS = 3  # that are timed
# Of a test step in half precision, whose rounding alone gives a deep network other gradients: NaN and gross ones show.
# Smaller ones show in the comparison of the kernels, and in single precision.
HALF_TOLERANCE = 2.0
LOSS_SCALE = 1024.0  # of the test steps: gradients in fp16 neither overflow nor vanish
NO_NORMS = "no batch norm of feature maps has the statistics of the images of one rank"


def not_fused(config: Mapping[str, Any]) -> str:
    """Say why a configuration has no fused batch norms on a GPU; empty if it can have them."""
    obstacles = {
        "compile=true fuses them": config["compile"],
        "their kernels compute in single precision": config["precision"] == "fp64",
        "the package triton is not installed": find_spec("triton") is None,
    }
    return next((reason for reason, given in obstacles.items() if given), "")


def choose(config: Mapping[str, Any], stepper: Stepper, loader: Loader, votes: Votes, replayed: bool) -> None:
    """Fuse the batch norms of a training, as ``fused_norm`` says; ``auto``: where that is faster on all ranks.

    Args:
        replayed: whether the steps will be replayed as a CUDA graph.

    Raises:
        RunError: ``fused_norm=true``, and they cannot be fused.
    """
    wanted, norms = config["fused_norm"], of_this_rank(stepper.state.method)
    if wanted is False:
        return
    reason, seconds = "", list[float]()

    def is_possible() -> None:
        if why_not := not_fused(config) or NO_NORMS * (not norms):
            raise RunError(why_not)

    def steps_are_faster() -> None:
        seconds.extend(_Trial(stepper, loader, votes, replayed).compared(norms))
        if wanted == "auto" and seconds[1] >= seconds[0]:
            raise RunError("a test step takes {1:.2f} ms in place of {0:.2f}".format(*(1000 * s for s in seconds)))

    for part in (is_possible, partial(_check_kernels, norms, stepper.precision, loader.device), steps_are_faster):
        if not reason:  # on any rank: none waits in a collective for one that refuses
            try:
                part()
            except Exception as error:  # whatever Triton raises: torch's batch norms are there
                reason = cause(error)
            reason = votes.first(reason)
    if reason and wanted is True:
        raise RunError(f"fused_norm=true: {reason}: set fused_norm=auto or false")
    _compute(norms, fused=not reason)
    if reason:
        log.info("batch norms are not fused with what follows them: %s", reason)
    else:
        times = [1000 * s for s in reversed(seconds)]
        log.info("batch norms are fused with what follows them: a test step takes %.2f ms in place of %.2f", *times)


def _compute(norms: Sequence[GroupedBatchNorm], fused: bool) -> None:
    """Let ``norms`` be computed by the fused kernels, or by torch's."""
    function: Callable[..., Tensor] = batch_norm
    if fused:
        from ssl_bench.networks import fused_norm  # imports Triton, which not every torch brings

        function = fused_norm.batch_norm
    for norm in norms:
        norm.normalise = function


def _check_kernels(norms: Sequence[GroupedBatchNorm], precision: Precision, device: torch.device) -> None:
    """Compare the kernels with torch's, on random maps with the channels and the number format of the networks.

    Raises:
        RunError: they give other results, gradients or running statistics.
    """
    from ssl_bench.networks import fused_norm

    functions: list[Callable[..., Tensor]] = [batch_norm, fused_norm.batch_norm]
    for channels, add in itertools.product({norm.num_features for norm in norms}, (False, True)):
        with torch.random.fork_rng([device]):
            maps = torch.randn(3, 8, 8, 8, channels, device=device).permute(0, 1, 4, 2, 3)
            affine, running = torch.randn(2, 2, channels, device=device)
        x, sign, dy = maps.to(precision.autocast or precision.weights)
        added = 8 * sign.sign()  # far from the kink of the ReLU, where rounding would choose a gradient
        values = []
        for function in functions:
            leaves = [tensor.detach().clone().requires_grad_() for tensor in (x, added, *affine)]
            mean, var = running.clone()
            y = function(leaves[0], mean, var, *leaves[2:], True, 0.1, 1e-5)
            y = relu(y + leaves[1] if add else y)
            gradients = torch.autograd.grad(y, leaves, dy, materialize_grads=True)
            values.append([y.detach(), *gradients, mean, var])
        for one, other in zip(*values, strict=True):
            if not close([other], [one], [torch.zeros_like(one)]):
                raise RunError("they have other values than torch's")


class _Trial:
    """Test steps of a training."""

    def __init__(self, stepper: Stepper, loader: Loader, votes: Votes, replayed: bool) -> None:
        self.stepper, self.votes, self.replayed = stepper, votes, replayed
        self.method, self.device, now = stepper.state.method, loader.device, stepper.state.step
        (self.images,) = loader.steps(now, now + 1)
        self.progress = torch.full((), stepper.prepare()[1], dtype=torch.float64, device=self.device)
        self.draws = [module for module in self.method.modules() if isinstance(module, StepGenerator)]
        with torch.no_grad():
            self.buffers = [buffer.clone() for buffer in self.method.buffers()]
        self.random = rng_state()

    def compared(self, norms: Sequence[GroupedBatchNorm]) -> list[float]:
        """Seconds of a test step with torch's batch norms, and with fused ones.

        Raises:
            RunError: they give other gradients or running statistics.
        """
        values, seconds = [], []
        try:
            for fused in (False, True):
                _compute(norms, fused)
                tensors, duration = self._measured()
                values.append(tensors)
                seconds.append(duration)
        finally:
            _compute(norms, fused=False)
            self._restore()
            for draws in self.draws:
                draws.forget()  # to torch before 2.14 its generators belong to the recording
            release_memory(self.device)
        (gradients, buffers), (others, other_buffers) = values
        bound = HALF_TOLERANCE if self.stepper.precision.autocast else TOLERANCE
        if not close(others, gradients, [*map(torch.zeros_like, gradients)], bound):
            raise RunError("the gradients of a test step are others")
        if not close(other_buffers, buffers, self.buffers, bound):
            raise RunError("the running statistics of a test step are others")
        return seconds

    @torch.no_grad()
    def _restore(self) -> None:
        self.stepper.state.optimizer.zero_grad()
        for buffer, value in zip(self.method.buffers(), self.buffers, strict=True):
            buffer.copy_(value)
        set_rng_state(self.random)

    def _step(self) -> None:
        self.stepper.state.optimizer.zero_grad()
        self.stepper.backward(self.images, self.progress, False, lambda loss: loss * LOSS_SCALE)

    def _measured(self) -> tuple[tuple[list[Tensor], list[Tensor]], float]:
        """Gradients and buffers after a test step, and the seconds that one takes."""
        self._step()  # in which libraries choose their algorithms, and kernels are compiled
        self._restore()
        step = self._recorded() if self.replayed else self._step
        step()
        with torch.no_grad():
            gradients = [p.grad.clone() for p in self.method.parameters() if p.grad is not None]
            buffers = [buffer.clone() for buffer in self.method.buffers()]
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        return (gradients, buffers), (time.perf_counter() - start) / STEPS

    def _recorded(self) -> Callable[[], None]:
        """A test step as a CUDA graph.

        Raises:
            RunError: on all ranks, if one of them cannot record it.
        """
        recording, reason = CudaRecording(torch.cuda.graph_pool_handle()), ""
        release_memory(self.device)  # a recording has memory of its own
        try:
            recording.record(self._step, [generator for draws in self.draws for generator in draws.reseed()])
        except Exception as error:
            reason = cause(error)
        if reason := self.votes.first(reason):
            raise RunError(f"a test step cannot be recorded: {reason}")
        return recording.replay
