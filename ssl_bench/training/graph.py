"""A whole step as one CUDA graph: the GPU gets one launch from the host instead of a thousand.

Recorded is :meth:`ssl_bench.training.step.Stepper.compute`. What changes from step to step reaches it through tensors:
the ids of the images, the random numbers of their views, the learning rate, the progress of the training, and the
seeds of the generators that the objective draws from. What follows the optimiser's step, the method's update, is eager,
and so are the first steps and those that record diagnostics.

Before a recording is used, replays are compared with eager steps, at other numbers than the recorded ones: what the
recording has kept of the host, a learning rate or a random draw, shows as a difference.

What torch offers records less. ``torch.compile(mode="reduce-overhead")`` stops tracing at ``backward()`` and at draws
from a generator, and each piece is a graph of its own. ``make_graphed_callables`` makes two graphs of a network, its
forward and its backward pass: the views, the optimiser, the loss scaling and the queues stay outside.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from ssl_bench.data.arrays import Source
from ssl_bench.data.batch import Step
from ssl_bench.data.loader import Loader
from ssl_bench.errors import RunError
from ssl_bench.hardware import release_memory
from ssl_bench.objective.sampling import StepGenerator
from ssl_bench.seeding import rng_state, set_rng_state
from ssl_bench.training.step import Stepper

log = logging.getLogger("ssl_bench")

EAGER_STEPS = 3  # before recording: libraries choose their algorithms, and the optimiser makes its moments
TRIALS = 2  # comparisons of a replay with an eager step
TOLERANCE = 0.05  # of the norm of a step's change: sums on a GPU are rounded in no fixed order


class Recording(Protocol):
    """A recorded computation."""

    def record(self, compute: Callable[[], Any], generators: Sequence[torch.Generator]) -> None:
        """Record the operations of ``compute``, which may draw from ``generators``; they need not be carried out."""

    def replay(self) -> None:
        """Carry out the recorded operations on the same tensors."""


class CudaRecording:
    """A CUDA graph."""

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    def record(self, compute: Callable[[], Any], generators: Sequence[torch.Generator]) -> None:
        for generator in generators:
            # Since torch 2.14 a graph finds its generators by itself.
            if generator.device.type == "cuda" and TorchVersion(torch.__version__) < "2.14":
                self._graph.register_generator_state(generator)  # type: ignore[no-untyped-call]
        pool: Any = torch.cuda.graph_pool_handle()
        try:
            with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(self._graph, pool):
                compute()
        except BaseException:
            _free(pool)
            raise

    def replay(self) -> None:
        self._graph.replay()  # type: ignore[no-untyped-call]


class GraphedStepper:
    """Steps of which most are replays of one recording; the others, and all if it cannot be made, are eager.

    Args:
        stepper: carries out eager steps.
        loader: of images in the memory of the device.
        required: raise an error where the steps cannot be replayed, instead of staying eager.
        recording: an empty recording.
    """

    def __init__(self, stepper: Stepper, loader: Loader, required: bool, recording: Recording) -> None:
        self.stepper, self.loader, self.required = stepper, loader, required
        self._recording: Recording | None = recording  # None: the steps stay eager
        self._eager_steps, self._ready = 0, False
        self._kept: Any = None  # of the batch, in the memory of the recording: each replay writes there
        state, device = stepper.state, loader.device
        self._draws = [module for module in state.method.modules() if isinstance(module, StepGenerator)]
        # The kernels of fused optimisers read a rate in single precision on GPUs.
        single = device.type == "cuda"
        self._lr = torch.zeros((), dtype=torch.float32 if single else torch.float64, device=device)
        self._progress = torch.zeros((), dtype=torch.float64, device=device)
        self._ids = loader.ids(state.step).clone()
        self._uniform = [numbers.clone() for numbers in loader.uniform(state.step)]

    def __call__(self, diagnostics: bool) -> dict[str, Tensor]:
        """Carry out the next step; return its diagnostics, which only eager steps have."""
        if not diagnostics and not self._ready and self._recording is not None and self._eager_steps >= EAGER_STEPS:
            self._record()
        lr, progress = self.stepper.prepare()
        self._feed(self.stepper.state.step, lr, progress)
        if diagnostics or not self._ready or self._recording is None:
            self._eager_steps += 1
            self.stepper.set_lr(lr)
            result = self.stepper.compute(self._step(), progress, diagnostics)
            kept, found = result.kept, result.diagnostics
        else:
            self._recording.replay()
            kept, found = self._kept, {}
        self.stepper.finish(kept, progress)
        return found

    def _feed(self, step: int, lr: float, progress: float) -> None:
        """Set all that changes from step to step."""
        self._ids.copy_(self.loader.ids(step))
        for static, numbers in zip(self._uniform, self.loader.uniform(step), strict=True):
            static.copy_(numbers)
        self._lr.fill_(lr)
        self._progress.fill_(progress)
        for draws in self._draws:
            draws.reseed()

    def _step(self) -> Step:
        images, loader = self.loader.images, self.loader
        return Step(
            self._ids, images.labels[self._ids], images.take(self._ids), self._uniform, loader.views, loader.dtype
        )

    def _compute(self) -> None:
        self.stepper.set_lr(self._lr)  # here: the rate of a layer is a product, which is computed again in each replay
        self._kept = self.stepper.compute(self._step(), self._progress, False).kept

    def _record(self) -> None:
        """Record a step and compare replays with eager steps; afterwards everything is as before."""
        recording = self._recording
        assert recording is not None
        kept, before = rng_state(), dict[str, list[Tensor]]()
        try:
            self._check_memory()
            before = self._values()
            with self._tensor_lr():
                generators = [generator for draws in self._draws for generator in draws.reseed()]
                recording.record(self._compute, generators)
            self._restore(before)
            different = [n for trial in range(1, TRIALS + 1) for n in self._compared(recording, trial, before)]
            reason = f"a replayed step changes {different[0]} otherwise than an eager one" if different else ""
        except Exception as error:  # whatever the capture raises: the eager steps are complete
            reason = _cause(error)
        self._restore(before)
        set_rng_state(kept)
        self._ready = not reason
        if reason:
            self._recording = self._kept = None
            del recording  # frees its memory
            for draws in self._draws:
                draws.forget()  # to torch before 2.14 its generators belong to the failed recording
            release_memory(self._lr.device)
        if reason and self.required:
            raise RunError(f"the step cannot be replayed as a CUDA graph ({reason}): set graph=auto or false")
        if reason:
            log.warning("the step cannot be replayed as a CUDA graph and stays eager: %s", reason)
        else:
            log.info("from step %d on, steps are replayed as a CUDA graph", self.stepper.state.step)

    def _check_memory(self) -> None:
        """Raise an error if a recording, which keeps the memory of a step, would not fit beside the eager steps."""
        device = self._lr.device
        if device.type != "cuda":
            return
        allocated = torch.cuda.memory_allocated(device)
        step = torch.cuda.max_memory_allocated(device) - allocated
        copies = sum(t.nbytes for tensors in self.stepper.state.tensors().values() for t in tensors)
        free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - allocated
        needed = 2 * step + 3 * copies
        if needed > free:
            raise RunError(f"that takes {needed / 2**30:.1f} GiB of the GPU's memory, and {free / 2**30:.1f} are free")

    def _compared(self, recording: Recording, trial: int, before: dict[str, list[Tensor]]) -> list[str]:
        """Name the kinds of tensors that a replay changes unlike an eager step, with the numbers of another step."""
        step = (self.stepper.state.step + trial) % self.stepper.schedule.last_step
        lr, progress = (
            self.stepper.schedule.lr * (1 + trial),
            min(1.0, self.stepper.schedule.progress(step) + trial / 4),
        )
        method, numbers, found = self.stepper.state.method, rng_state(), []
        steps = [draws.step for draws in self._draws]
        for replayed in (True, False):
            for draws, now in zip(self._draws, steps, strict=True):
                draws.step = now + trial
            self._feed(step, lr, progress)
            self.stepper.set_lr(lr)
            if replayed:
                recording.replay()
            kept = self._kept if replayed else self.stepper.compute(self._step(), progress, False).kept
            method.update(kept, progress)
            found.append(self._values())
            self._restore(before)
            set_rng_state(numbers)
        for draws, now in zip(self._draws, steps, strict=True):
            draws.step = now
        one, other = found
        return [name for name in before if not _close(one[name], other[name], before[name])]

    @torch.no_grad()  # else clones keep nodes of autograd that belong to the default stream: no capture allows them
    def _values(self) -> dict[str, list[Tensor]]:
        return {name: [t.clone() for t in tensors] for name, tensors in self.stepper.state.tensors().items()}

    @torch.no_grad()
    def _restore(self, values: dict[str, list[Tensor]]) -> None:
        for name in values:
            for tensor, value in zip(self.stepper.state.tensors()[name], values[name], strict=True):
                tensor.copy_(value)

    @contextlib.contextmanager
    def _tensor_lr(self) -> Iterator[None]:
        """Let the optimiser read the learning rate from a tensor, as long as its step is recorded."""
        groups = self.stepper.state.optimizer.param_groups
        capturable = [group.get("capturable") for group in groups]
        for group in groups:
            group.update({"capturable": self._lr.is_cuda} if "capturable" in group else {})
        try:
            yield
        finally:
            for group, value in zip(groups, capturable, strict=True):
                group.update({} if value is None else {"capturable": value})
            self.stepper.set_lr(self.stepper.prepare()[0])


def obstacle(config: Mapping[str, Any], images: Source) -> str:
    """Why the steps of a training cannot be recorded; empty if they can."""
    obstacles = {
        "there are several ranks": config["devices"] > 1,
        "the batch is processed in chunks": config["batch_size"]["chunk"] is not None,
        "the moments of the gradients are recorded": config["diagnostics"]["gradient_snr"] is not None,
        "the learning rate would be rounded": config["precision"] == "fp64",
        "the images are not in the memory of the GPU": not images.labels.is_cuda,
    }
    return next((reason for reason, given in obstacles.items() if given), "")


def _free(pool: Any) -> None:
    """Let go of the memory of a capture that has failed: torch up to 2.11 keeps it, and 2.6 then can free no other."""
    core: Any = torch._C
    end = getattr(core, "_cuda_endAllocateToPool", None) or core._cuda_endAllocateCurrentStreamToPool
    with contextlib.suppress(RuntimeError):  # newer ones have done so
        end(torch.cuda.current_device(), pool)
        core._cuda_releasePool(torch.cuda.current_device(), pool)


def _cause(error: BaseException) -> str:
    """The first error of a chain, in a sentence: to end a recording after an error is another one."""
    while error.__context__ is not None:
        error = error.__context__
    name = "" if isinstance(error, RunError) else f"{type(error).__name__}: "
    return f"{name}{' '.join(str(error).split())[:200]}"


@torch.no_grad()
def _close(replayed: list[Tensor], eager: list[Tensor], before: list[Tensor]) -> bool:
    """Whether two steps changed tensors alike: integers equally, others within the tolerance, all together."""
    change, difference = 0.0, 0.0
    for a, b, start in zip(replayed, eager, before, strict=True):
        if not a.is_floating_point():
            if not torch.equal(a, b):
                return False
            continue
        change += float((b.double() - start.double()).square().sum())
        difference += float((a.double() - b.double()).square().sum())
    return difference <= TOLERANCE**2 * change
