"""A whole step as one CUDA graph: the GPU gets one launch from the host instead of a thousand.

:meth:`ssl_bench.training.step.Stepper.compute` is recorded, once with diagnostics and once without. All that changes
from step to step is given to it in tensors: the ids of the images, the random numbers of their views, the learning
rate, the progress of the training, and the seeds of the generators that the objective draws from. The method's update,
which follows the optimiser's step, is eager, and so are the first steps.

Before a recording is used, replays are compared with eager steps, with other numbers than the recorded ones. A number
of the host that the recording would repeat, such as a learning rate or a random draw, shows as a difference.

Several ranks replay only with graph=true, since DDP sends gradients during the backward pass. They record their
collectives, too: those of the networks and the objective, and the mean of the gradients after the backward pass.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from ssl_bench.data.batch import Loader, Step
from ssl_bench.data.source import Source
from ssl_bench.distributed import Votes, world
from ssl_bench.errors import RunError, in_one_line
from ssl_bench.hardware import release_memory
from ssl_bench.methods.base import StepResult
from ssl_bench.objective.sampling import StepGenerator
from ssl_bench.seeding import rng_state, set_rng_state
from ssl_bench.training.step import Stepper

log = logging.getLogger("ssl_bench")

EAGER_STEPS = 3  # before recording: libraries choose their algorithms, and the optimiser makes its moments
TRIALS = 2  # comparisons of a replay with an eager step
TOLERANCE = 0.05  # of the norm of a step's change: sums on a GPU are rounded in no fixed order


class CudaRecording:
    """A CUDA graph.

    Args:
        pool: of memory, of :func:`torch.cuda.graph_pool_handle`. Graphs may share one if what one of them has computed
            is read before another one is replayed.
    """

    def __init__(self, pool: Any) -> None:
        self._graph, self._pool = torch.cuda.CUDAGraph(), pool

    def record(self, compute: Callable[[], Any], generators: Sequence[torch.Generator]) -> None:
        """Record the operations of ``compute``, which may draw from ``generators``; they are not carried out."""
        for generator in generators:
            # Since torch 2.14 a graph finds its generators by itself.
            if generator.device.type == "cuda" and TorchVersion(torch.__version__) < "2.14":
                self._graph.register_generator_state(generator)  # type: ignore[no-untyped-call]
        stream = torch.cuda.stream(torch.cuda.current_stream())
        # Other threads may ask for the state of events during the capture, as that of NCCL does.
        graph = torch.cuda.graph(self._graph, self._pool, capture_error_mode="thread_local")
        try:
            with stream, graph:
                compute()
        except BaseException:
            _free(self._pool)
            raise

    def replay(self) -> None:
        """Carry out the recorded operations on the same tensors."""
        self._graph.replay()  # type: ignore[no-untyped-call]


def _free(pool: Any) -> None:
    """Free the memory of a failed capture: torch up to 2.11 does not, and torch 2.6 can then free no other memory."""
    core: Any = torch._C
    end = getattr(core, "_cuda_endAllocateToPool", None) or core._cuda_endAllocateCurrentStreamToPool
    with contextlib.suppress(RuntimeError):  # newer versions of torch have freed it
        end(torch.cuda.current_device(), pool)
        core._cuda_releasePool(torch.cuda.current_device(), pool)


class _Recorded:
    """A recorded step, with its results in the memory of the recording: each replay writes there."""

    def __init__(self, recording: Any) -> None:
        self.recording = recording
        self._for_update: Any = None
        self._diagnostics: dict[str, Tensor] = {}

    def store(self, result: StepResult, diagnostics: bool) -> None:
        """Store the results of a step, without the loss, which has nodes of autograd."""
        self._for_update, self._diagnostics = result.for_update, result.diagnostics if diagnostics else {}

    def replay(self) -> tuple[Any, dict[str, Tensor]]:
        """Carry out a step; return its ``for_update``, valid until the next replay, and its diagnostics, if any."""
        self.recording.replay()
        return self._for_update, {name: value.detach().clone() for name, value in self._diagnostics.items()}


class GraphedStepper:
    """Steps of which most are replays of a recording; the others, and all if it cannot be made, are eager.

    Args:
        stepper: carries out eager steps. Its network is the method, not under DDP: no recording could follow DDP,
            whose nodes of autograd belong to the default stream.
        loader: of images in the memory of the device.
        required: raise an error where steps cannot be replayed.
        new: makes an empty :class:`CudaRecording`, or another object with its methods.
        votes: exchanges the reasons of the ranks.
    """

    def __init__(self, stepper: Stepper, loader: Loader, required: bool, new: Callable[[], Any], votes: Votes) -> None:
        self.stepper, self.loader, self.required = stepper, loader, required
        self._new, self._votes = new, votes
        self._recorded: dict[bool, _Recorded] = {}  # with diagnostics, and without
        self._eager_steps, self._refused = Counter[bool](), False
        state, device = stepper.state, loader.device
        self._draws = [module for module in state.method.modules() if isinstance(module, StepGenerator)]
        # The kernels of fused optimisers read a rate in single precision on GPUs.
        single = device.type == "cuda"
        self._lr = torch.zeros((), dtype=torch.float32 if single else torch.float64, device=device)
        self._progress = torch.zeros((), dtype=torch.float64, device=device)
        self._ids = loader.ids(state.step).clone()
        self._uniform = [numbers.clone() for numbers in loader.uniform(state.step)]

    def __call__(self, diagnostics: bool) -> dict[str, Tensor]:
        """Carry out the next step; return its diagnostics, all of them if ``diagnostics``."""
        if self._eager_steps.total() == 1 and self._lr.is_cuda:
            # In the first step cuDNN has tried algorithms: in memory of the run's peak, but of no later step.
            self.stepper.state.peak = torch.cuda.max_memory_reserved(self._lr.device)
            torch.cuda.reset_peak_memory_stats(self._lr.device)
        warm = self._eager_steps[diagnostics] > 0 and self._eager_steps.total() >= EAGER_STEPS
        if warm and diagnostics not in self._recorded and not self._refused:
            self._record(diagnostics)
        lr, progress = self.stepper.prepare()
        recorded = self._recorded.get(diagnostics)
        self._eager_steps[diagnostics] += recorded is None
        for_update, values = self._computed(recorded, self.stepper.state.step, lr, progress, diagnostics)
        self.stepper.finish(for_update, progress)
        return values

    def _computed(
        self, recorded: _Recorded | None, step: int, lr: float, progress: float, diagnostics: bool
    ) -> tuple[Any, dict[str, Tensor]]:
        """Replay a step, or without a recording carry it out; return its ``for_update`` and its diagnostics."""
        self._feed(step, lr, progress)
        if recorded is not None:
            return recorded.replay()
        self.stepper.set_lr(lr)
        result = self.stepper.compute(self._step(), progress, diagnostics)
        return result.for_update, result.diagnostics

    def _feed(self, step: int, lr: float, progress: float) -> None:
        """Write the inputs of a step into the tensors that a replay reads."""
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

    def _record(self, diagnostics: bool) -> None:
        """Record a step if all ranks can; else the steps stay eager."""
        before = dict[str, list[Tensor]]()
        with self._undone(before):
            reason = self._reason_against(diagnostics, before)
        before.clear()
        self.stepper.state.optimizer.zero_grad()  # replays have gradients of their own
        release_memory(self._lr.device)
        one, many = ("a step with diagnostics", "steps with diagnostics") if diagnostics else ("the step", "steps")
        if not reason:
            log.info("from step %d on, %s are replayed as a CUDA graph", self.stepper.state.step, many)
            return
        self._refused = True
        for draws in self._draws:
            draws.forget()  # to torch before 2.14 its generators belong to the failed recording
        if self.required:
            raise RunError(f"{one} cannot be replayed as a CUDA graph ({reason}): set graph=auto or false")
        log.warning("%s cannot be replayed as a CUDA graph and stays eager: %s", one, reason)

    def _reason_against(self, diagnostics: bool, before: dict[str, list[Tensor]]) -> str:
        """Record a step and compare replays with eager steps; return the reason against using them, empty if none.

        Each part is carried out on all ranks or on none: no rank waits in a collective for one that refuses.

        Args:
            before: filled with the values that the step changes, as they were before it.
        """
        recorded = _Recorded(self._new())

        def capture() -> str:
            if lacks := self._check_memory():
                return lacks
            before.update(self._values())
            self._capture(recorded, diagnostics)
            self._restore(before)
            return ""

        def compare() -> str:
            trials = (self._compared(recorded, diagnostics, trial, before) for trial in range(1, TRIALS + 1))
            different = [name for names in trials for name in names]
            return f"a replayed step changes {different[0]} otherwise than an eager one" if different else ""

        reason = self._agreed(capture) or self._agreed(compare, together=True)
        if not reason:
            self._recorded[diagnostics] = recorded
        return reason

    def _agreed(self, part: Callable[[], str], together: bool = False) -> str:
        """Carry out a part of a recording on all ranks; return the reason why a rank fails, empty if none does.

        Args:
            together: whether the ranks wait for each other in this part: an error on one of several ranks ends the run.
        """
        try:
            reason = part()
        except Exception as error:  # whatever the capture raises: the eager steps are complete
            if together and world() > 1:
                raise
            reason = _cause(error)
        return self._votes.first(reason)

    def _capture(self, recorded: _Recorded, diagnostics: bool) -> None:
        def compute() -> None:
            self.stepper.set_lr(self._lr)  # here: the rate of a layer is a product, computed again in each replay
            recorded.store(self.stepper.compute(self._step(), self._progress, diagnostics), diagnostics)

        with self._tensor_lr():
            generators = [generator for draws in self._draws for generator in draws.reseed()]
            recorded.recording.record(compute, generators)

    def _check_memory(self) -> str:
        """The reason why a recording, with the memory of a step, does not fit beside eager steps; empty if it does."""
        device = self._lr.device
        if device.type != "cuda":
            return ""
        allocated = torch.cuda.memory_allocated(device)
        step = torch.cuda.max_memory_allocated(device) - allocated
        copies = sum(t.nbytes for tensors in self.stepper.state.tensors().values() for t in tensors)
        free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - allocated
        needed = 2 * step + 3 * copies
        takes = f"that takes {needed / 2**30:.1f} GiB of the GPU's memory, and {free / 2**30:.1f} are free"
        return takes if needed > free else ""

    def _compared(
        self, recorded: _Recorded, diagnostics: bool, trial: int, before: dict[str, list[Tensor]]
    ) -> list[str]:
        """Name the kinds of tensors that a replay and an eager step change differently, both with later inputs."""
        step = (self.stepper.state.step + trial) % self.stepper.schedule.last_step
        lr = self.stepper.schedule.lr * (1 + trial)
        progress = min(1.0, self.stepper.schedule.progress(step) + trial / 4)
        results = []
        for way in (recorded, None):
            with self._undone(before):
                for draws in self._draws:
                    draws.step += trial
                for_update, values = self._computed(way, step, lr, progress, diagnostics)
                self.stepper.state.method.update(for_update, progress)
                results.append(self._values() | {"diagnostics": [*values.values()] if diagnostics else []})
        one, other = results
        start = before | {"diagnostics": [*map(torch.zeros_like, other["diagnostics"])]}
        return [name for name in start if not _close(one[name], other[name], start[name])]

    @torch.no_grad()  # else clones keep nodes of autograd that belong to the default stream: no capture allows them
    def _values(self) -> dict[str, list[Tensor]]:
        return {name: [t.clone() for t in tensors] for name, tensors in self.stepper.state.tensors().items()}

    @torch.no_grad()
    def _restore(self, values: dict[str, list[Tensor]]) -> None:
        for name in values:
            for tensor, value in zip(self.stepper.state.tensors()[name], values[name], strict=True):
                tensor.copy_(value)

    @contextlib.contextmanager
    def _undone(self, before: dict[str, list[Tensor]]) -> Iterator[None]:
        """After the block, restore the values ``before`` and the state of the random numbers."""
        random, steps = rng_state(), [draws.step for draws in self._draws]
        yield
        self._restore(before)
        set_rng_state(random)
        for draws, step in zip(self._draws, steps, strict=True):
            draws.step = step

    @contextlib.contextmanager
    def _tensor_lr(self) -> Iterator[None]:
        """Within the block, let the optimiser read the learning rate from a tensor, as recordings need."""
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


def reason_against(config: Mapping[str, Any], images: Source) -> str:
    """The reason why the steps of a training cannot be recorded; empty if they can."""
    reasons = {
        "the batch is processed in chunks": config["batch_size"]["chunk"] is not None,
        "the moments of the gradients are recorded": config["diagnostics"]["gradient_snr"] is not None,
        "the learning rate would be rounded": config["precision"] == "fp64",
        "the images are not in the memory of the GPU": not images.labels.is_cuda,
        "there are several ranks, which replay with graph=true": world() > 1 and config["graph"] is not True,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _cause(error: BaseException) -> str:
    """The first error of a chain, in a sentence: the end of a recording after an error raises another one."""
    while error.__context__ is not None:
        error = error.__context__
    name = "" if isinstance(error, RunError) else f"{type(error).__name__}: "
    return f"{name}{in_one_line(error)}"


@torch.no_grad()
def _close(replayed: list[Tensor], eager: list[Tensor], before: list[Tensor]) -> bool:
    """Whether two steps changed tensors alike: integers equally, others within TOLERANCE, all together."""
    change, difference = 0.0, 0.0
    for a, b, start in zip(replayed, eager, before, strict=True):
        if not a.is_floating_point():
            if not torch.equal(a, b):
                return False
            continue
        change += float((b.double() - start.double()).square().sum())
        difference += float((a.double() - b.double()).square().sum())
    return difference <= TOLERANCE**2 * change
