"""A GPU that is not there: tensors on ``cuda`` that have shapes and no values, and a count of the launches.

    with fake_gpu():
        method = on_device(method, "cuda")
        with Launches() as launches:
            with launches.phase("forward"):
                ...
        print(launches.counts)

torch's FakeTensorMode runs every operation for its shapes, types and devices only. Two things are added. Generators say
that they are on the GPU. The backward pass walks the graph in Python, because torch's engine asks the driver for the
GPU; the operations of the nodes are the same.
"""

import contextlib
import functools
import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from phases import phases
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import TorchDispatchMode

from ssl_bench.data.arrays import Images
from ssl_bench.data.batch import Step
from ssl_bench.data.loader import Loader
from ssl_bench.distributed import world
from ssl_bench.parts import Parts
from ssl_bench.precision import Precision
from ssl_bench.training.optim import Schedule
from ssl_bench.training.state import TrainingState
from ssl_bench.training.step import Stepper

Module = TypeVar("Module", bound=nn.Module)
FUSED = [f"_fused_{name}_{overload}" for name in ("sgd", "adam", "adamw") for overload in ("", ".tensor_lr")]


class FakeGenerator(torch.Generator):
    """A generator of the CPU that names another device as its own."""

    device: torch.device

    def __new__(cls, device: torch.device | str = "cpu") -> "FakeGenerator":
        made = super().__new__(cls)
        made.__dict__["device"] = torch.device(device)
        return made

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, "__dict__")[name] if name == "device" else super().__getattribute__(name)


@contextlib.contextmanager
def fake_gpu() -> Iterator[None]:
    """Make tensors on ``cuda`` possible inside the block, where no tensor has a value."""
    # Fused optimisers change values only, and torch has no kernel of them for tensors without values.
    library = torch.library.Library("aten", "IMPL")
    with contextlib.ExitStack() as stack:
        for name in FUSED:
            library.impl(name, lambda *arguments, **options: None, "Meta")
        stack.callback(library._destroy)
        for name, replacement in _replacements().items():
            stack.enter_context(patch(f"torch.{name}", replacement))
        stack.enter_context(FakeTensorMode())
        yield


def _replacements() -> dict[str, Any]:
    """Parts of torch that would ask the driver."""
    return {
        "Generator": FakeGenerator,
        "autograd.backward": backward,
        "autograd.grad": grad,
        "Tensor.pin_memory": _pinned,
        "cuda.get_rng_state": lambda device=None: torch.empty(16, dtype=torch.uint8),  # on the host, as the driver's
        "cuda.set_rng_state": lambda state, device=None: None,
        "cuda.amp.common.amp_definitely_not_available": lambda: False,
        "cuda.is_bf16_supported": lambda *arguments, **options: True,
        "cuda.is_current_stream_capturing": lambda: False,
    }


def _pinned(x: Tensor) -> Tensor:
    """A copy of ``x`` that says so: memory is pinned by the driver."""
    copy = x.clone()
    copy.pinned = True  # type: ignore[attr-defined]
    return copy


def on_device(module: Module, device: torch.device | str) -> Module:
    """Replace the parameters and buffers of ``module`` by tensors on ``device``, channels last as in a run."""

    def like(x: Tensor) -> Tensor:
        order = torch.channels_last if x.ndim == 4 else torch.contiguous_format
        return torch.empty(x.shape, dtype=x.dtype, device=device, memory_format=order)

    made: dict[Tensor, Tensor] = {}  # tensors that two modules share stay shared
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                new = made.setdefault(parameter, nn.Parameter(like(parameter), parameter.requires_grad))
                part._parameters[name] = new  # type: ignore[assignment]
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = made.setdefault(buffer, like(buffer))
    return module


# ---- the backward pass


def backward(tensors: Tensor | Sequence[Tensor], grad_tensors: Any = None, *_: Any, **__: Any) -> None:
    """``torch.autograd.backward`` without torch's engine, except for hooks and second derivatives."""
    roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    given = [grad_tensors] if grad_tensors is None or isinstance(grad_tensors, Tensor) else list(grad_tensors)
    for leaf, value in _walk(roots, given):
        leaf.grad = value if leaf.grad is None else leaf.grad + value


def grad(outputs: Tensor, inputs: Tensor, *_: Any, **__: Any) -> tuple[Tensor | None]:
    """``torch.autograd.grad`` of one output by one leaf, in the same way."""
    found = [value for leaf, value in _walk([outputs], [None]) if leaf is inputs]
    return (found[0] if found else None,)


@torch.no_grad()
def _walk(roots: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[tuple[Tensor, Tensor]]:
    """Run the nodes of the graph, the latest first, as torch's engine does: the leaves with their gradients."""
    numbers, waiting, found = itertools.count(), Counter[Any](), list[tuple[Tensor, Tensor]]()
    values: dict[Any, dict[int, Tensor]] = {}

    def add(node: Any, place: int, value: Tensor) -> None:
        expected = node._input_metadata[place]
        if value.shape != torch.Size(expected.shape):
            value = value.sum_to_size(expected.shape)
        if value.dtype != expected.dtype:
            value = value.to(expected.dtype)
        slots = values.setdefault(node, {})
        slots[place] = slots[place] + value if place in slots else value

    starts: list[Any] = [root.grad_fn for root in roots]
    seen, unseen = set(starts), list(starts)
    while unseen:
        for node, _ in unseen.pop().next_functions:
            if node is not None:
                waiting[node] += 1
                if node not in seen:
                    seen.add(node)
                    unseen.append(node)
    for root, value in zip(roots, gradients, strict=True):
        add(root.grad_fn, root.output_nr, torch.ones_like(root) if value is None else value)
    ready = [(-node._sequence_nr(), next(numbers), node) for node in seen if not waiting[node]]
    heapq.heapify(ready)
    while ready:
        _, _, node = heapq.heappop(ready)
        slots = values.pop(node, {})
        if hasattr(node, "variable"):  # it accumulates the gradient of a leaf
            found += [(node.variable, value) for value in slots.values()]
            continue
        result: Any = (None,) * len(node.next_functions)
        if slots:
            inputs = [slots.get(place) for place in range(len(node._input_metadata))]
            result = node.apply(*inputs) if isinstance(node, BackwardCFunction) else node(*inputs)
        results = result if isinstance(result, tuple) else (result,)
        for value, (following, place) in zip(results, node.next_functions, strict=False):
            if following is not None:
                if value is not None:
                    add(following, place, value)
                waiting[following] -= 1
                if not waiting[following]:
                    heapq.heappush(ready, (-following._sequence_nr(), next(numbers), following))
    return found


# ---- the count

# Operations that reserve memory or read a property, and start no kernel.
FREE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_", "_unsafe_view"}
FREE |= {"lift_fresh", "is_pinned", "sym_size", "sym_stride", "sym_numel", "sym_storage_offset"}


@functools.cache
def is_launch(operation: Any) -> bool:
    """Whether an operation starts a kernel: it does not if it only returns views, reserves memory or asks a question.

    An operation counts once. Some start several kernels (the backward of a convolution two, logsumexp six, a sort
    several), so the number of launches on a GPU is larger.
    """
    if operation._schema.name.removeprefix("aten::") in FREE:
        return False
    returns = operation._schema.returns
    return not returns or any(each.alias_info is None or each.alias_info.is_write for each in returns)


def waits(operation: Any, arguments: Sequence[Any]) -> bool:
    """Whether the result of an operation, or its shape, depends on values, so that the host waits for them."""
    name = operation._schema.name.removeprefix("aten::")
    if name in ("index", "index_put", "index_put_", "_unsafe_index"):
        masks = any(x.dtype in (torch.bool, torch.uint8) for x in tensors_of(arguments[1]))
        number = name.startswith("index_put") and arguments[2].ndim == 0 and arguments[2].device.type == "cpu"
        return masks and not number  # x[mask] = number is one kernel
    return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(operation.tags))


def tensors_of(*values: Any) -> Iterator[Tensor]:
    """The tensors among arguments, in lists and tuples too."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_of(*value)


class Launches(TorchDispatchMode):
    """Counts the launches on ``device`` by phase and by operation, and the times that the host waits for values."""

    def __init__(self, device: str = "cuda") -> None:
        super().__init__()
        self.device, self._phase = device, ""
        self.clear()

    def clear(self) -> None:
        """Start again at 0."""
        self.counts, self.waits = Counter[str](), 0
        self.operations: dict[str, Counter[str]] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what is inside the block under ``name``."""
        before, self._phase = self._phase, name
        yield
        self._phase = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace == "prim":  # a question about a tensor
            return result
        self.waits += waits(func, args)
        if is_launch(func):
            touched = tensors_of(result, *args, *(kwargs or {}).values())
            if any(x.device.type == self.device for x in touched):
                self.counts[self._phase] += 1
                self.operations.setdefault(self._phase, Counter())[func._schema.name.removeprefix("aten::")] += 1
        return result


# ---- a training


class FakeTraining:
    """A training on the fake GPU, with its images there; make it inside :func:`fake_gpu`.

    Args:
        config: of the run, as :func:`ssl_bench.config.compose.load` returns it.
        images: of the dataset.
        launches: counts the phases of the steps.
    """

    def __init__(self, config: dict[str, Any], images: int, launches: Launches) -> None:
        device = torch.device("cuda", 0)
        with unset_fake_temporarily():
            self.parts = parts = Parts(config)
            parts.dataset.check = lambda: images  # type: ignore[method-assign]
            _ = parts.method
        size, precision = parts.dataset.size, Precision.of(config["precision"], cuda=True)
        if config["evaluate"]["baselines"]:
            raise ValueError("set evaluate.baselines=[]: the network at initialisation would be copied")
        with patch("ssl_bench.training.state.move", on_device):
            self.state = TrainingState(parts, precision, device)
        pixels = torch.empty(images, size, size, parts.dataset.channels, dtype=torch.uint8, device=device)
        source = Images([pixels.permute(0, 3, 1, 2)], torch.empty(images, dtype=torch.int64, device=device))
        batch = config["batch_size"]["size"]
        loader = Loader(source, parts.views, batch, device, config["seed"], precision.weights)
        schedule = Schedule.of(parts.recipe, batch, config["epochs"], loader.steps_per_epoch, None)
        self.state.method.train()
        chunk = config["batch_size"]["chunk"]
        self.stepper = Stepper(self.state.method, self.state, schedule, precision, chunk and chunk // world())
        self.launches, self.steps = launches, loader.steps(0, schedule.last_step)

    def step(self, diagnostics: bool = False, images: Step | None = None) -> None:
        """Carry out the next step, with the loader's images if no others are given."""
        with phases(self.state, self.launches.phase):
            self.stepper(next(self.steps) if images is None else images, diagnostics)
