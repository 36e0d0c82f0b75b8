"""Values on the fake GPU, whose kernels do nothing: each operation is carried out once more, on CPU tensors at the same
addresses.

torch's own code for GPUs runs first: checks, allocations, streams, the rules of capture. While a graph is captured, the
operations are listed; a replay carries out the list, on whatever its addresses then hold. New memory is filled with
bytes that are no number, so that a result which depends on it shows.
"""

import ctypes
import functools
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten


LIBRARY = ctypes.CDLL(None)  # with the fake runtime in it
MODE: list[TorchDispatchMode] = []  # torch 2.6 alone does not keep it alive


def install() -> None:
    """Compute values in this process from now on."""
    LIBRARY.fake_cuda_calls_by_hand()
    graph = torch.cuda.CUDAGraph
    begin, replay = graph.capture_begin, graph.replay

    def capture_begin(self: Any, *arguments: Any, **options: Any) -> None:
        Values.recorded, Values.captured_draws = [], {}
        self.operations = Values.recorded
        begin(self, *arguments, **options)

    def replayed(self: Any) -> None:
        replay(self)
        for operation in self.operations:
            operation()

    graph.capture_begin, graph.replay = capture_begin, replayed  # type: ignore[method-assign]
    MODE.append(Values())
    MODE[0].__enter__()  # type: ignore[no-untyped-call]


class At:
    """The place of a tensor in the memory of the GPU; called, it is a CPU tensor there."""

    def __init__(self, x: Tensor) -> None:
        storage = x.untyped_storage()
        self.memory = storage.data_ptr(), storage.nbytes()
        self.layout = x.storage_offset(), tuple(x.size()), tuple(x.stride())
        self.dtype = x.dtype

    def __call__(self) -> Tensor:
        return torch.empty(0, dtype=self.dtype).set_(_memory(*self.memory).untyped_storage(), *self.layout)


def _memory(address: int, count: int) -> Tensor:
    if not count:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_byte * count).from_address(address), dtype=torch.uint8)


def _poison(places: Iterable[At]) -> None:
    for at in places:
        address, count = at.memory
        if count:
            ctypes.memset(address, 0xFF, count)


class Draw:
    """The random numbers of one operation: of the seed that its generator has when they are drawn, and its number."""

    def __init__(self, generator: torch.Generator, number: int) -> None:
        self.generator, self.number = generator, number

    def __call__(self) -> torch.Generator:
        seed = self.generator.initial_seed()
        return torch.Generator().manual_seed(seed if not self.number else hash((seed, self.number)) % 2**63)


def _on_host(value: Any) -> Any:
    if isinstance(value, (At, Draw)):
        return value()
    return torch.device("cpu") if isinstance(value, torch.device) else value


# ---- kernels that only GPUs have


def _channels(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (x.ndim - 2))


def _sums(x: Tensor) -> Tensor:
    return x.sum([0, *range(2, x.ndim)])


def _exact(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, training: bool, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    return *aten.native_batch_norm(x, weight, bias, mean, var, training, momentum, eps), torch.empty(0)


def _batch_norm_backward(
    x: Tensor, dy: Tensor, weight: Tensor, m: Tensor, v: Tensor, mean: Tensor, invstd: Tensor, eps: float, _: Tensor
) -> Any:
    return aten.native_batch_norm_backward(dy, x, weight, m, v, mean, invstd, True, eps, [True] * 3)


def _stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    var, mean = torch.var_mean(_exact(x), [0, *range(2, x.ndim)], correction=0)
    return mean, (var + eps).rsqrt()


def _gather_stats(
    x: Tensor, means: Tensor, invstds: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float, eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    share, total = (counts / counts.sum())[:, None], counts.sum()
    mean = (share * means).sum(0)
    var = (share * (invstds**-2 - eps + (means - mean) ** 2)).sum(0)
    if running_mean is not None:
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(var * total / (total - 1), momentum)
    return mean, (var + eps).rsqrt()


def _elemt(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, invstd: Tensor, eps: float) -> Tensor:
    y = (_exact(x) - _channels(mean, x)) * _channels(invstd, x)
    return (y if weight is None else y * _channels(weight, x) + _channels(bias, x)).to(x.dtype)


def _reduce(dy: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, *_: Any) -> tuple[Tensor, ...]:
    dy = _exact(dy)
    total, dot = _sums(dy), _sums(dy * (_exact(x) - _channels(mean, x)))
    return total, dot, dot * invstd, total


def _backward_elemt(
    dy: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor, total: Tensor, dot: Tensor, counts: Tensor
) -> Tensor:
    n = counts.sum()
    inner = _exact(dy) - _channels(total / n, x)
    inner -= (_exact(x) - _channels(mean, x)) * _channels(invstd**2 * dot / n, x)
    return (inner * _channels(invstd if weight is None else invstd * weight, x)).to(dy.dtype)


def _update_stats(x: Tensor, mean: Tensor, var: Tensor, momentum: float) -> tuple[Tensor, Tensor]:
    found = torch.var_mean(_exact(x), [0, *range(2, x.ndim)], correction=0)
    return found[1], found[0]


FORMULAS: dict[str, Callable[..., Any]] = {
    "cudnn_batch_norm": _batch_norm,
    "cudnn_batch_norm_backward": _batch_norm_backward,
    "batch_norm_stats": _stats,
    "batch_norm_gather_stats_with_counts": _gather_stats,
    "batch_norm_elemt": _elemt,
    "batch_norm_backward_reduce": _reduce,
    "batch_norm_backward_elemt": _backward_elemt,
    "batch_norm_update_stats": _update_stats,
    "log_sigmoid_backward": lambda grad, x, _: grad * torch.sigmoid(-x),
}
NEW = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
AS_IT_IS = {"resize_", "set_", "_unsafe_view", "record_stream", "is_pinned", "_pin_memory", "_local_scalar_dense"}
# Torch's code for GPUs reads values on the host, which its kernels have not written.
READS = {"nonzero", "masked_select", "equal", "bincount", "_unique2", "unique_dim", "unique_consecutive", "multinomial"}


class Values(TorchDispatchMode):
    """Carries out each operation on the memory that the GPU's tensors have."""

    recorded: ClassVar[list[Callable[[], Any]]]  # of the graph that is captured
    captured_draws: ClassVar[dict[int, int]]  # number of draws of each generator, in a capture and outside
    draws: ClassVar[dict[int, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[-1]
        on_gpu = any(isinstance(x, Tensor) and x.is_cuda for x in tree_leaves((args, kwargs)))
        makes = str(kwargs.get("device", "")).startswith("cuda")
        returns = func._schema.returns
        if func.namespace == "c10d" and torch.cuda.is_current_stream_capturing():
            return _recorded_calls(func, args, kwargs)
        view = returns and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        if func.namespace not in ("aten", "ssl_bench") or not (on_gpu or makes) or view or name in AS_IT_IS:
            return func(*args, **kwargs)
        capturing = torch.cuda.is_current_stream_capturing()
        draw = self._draw(kwargs.get("generator"), capturing)
        given = tree_map(lambda x: At(x) if isinstance(x, Tensor) and x.is_cuda else x, (args, kwargs))
        compute = FORMULAS.get(name, func)
        masks = name.startswith("index") and any(m is not None and m.dtype == torch.bool for m in _indices(args))
        if (name in READS or masks) and not capturing:
            found = _computed(compute, given, None)
            torch.cuda.synchronize()
            return (
                args[0] if name.endswith("_") else tree_map(lambda x: x.cuda() if isinstance(x, Tensor) else x, found)
            )
        out = func(*args, **kwargs)
        places = [At(x) if isinstance(x, Tensor) and x.is_cuda else x for x in tree_leaves(out)]
        if name in NEW:
            again: Callable[[], None] = functools.partial(_poison, [at for at in places if isinstance(at, At)])
        else:
            in_place = bool(returns) and returns[0].alias_info is not None
            again = functools.partial(_again, name, compute, given, draw, [] if in_place else places)
        if capturing:
            Values.recorded.append(again)
        else:
            again()
        return out

    def _draw(self, generator: Any, capturing: bool) -> Draw | None:
        if not isinstance(generator, torch.Generator) or generator.device.type != "cuda":
            return None
        draws = Values.captured_draws if capturing else Values.draws
        with _disable_current_modes():  # the second half of the state counts the numbers since the seed was set
            fresh = not capturing and not any(generator.get_state()[8:16].tolist())
        key = generator._cdata  # type: ignore[attr-defined]  # which the objects of a generator in Python share
        number = 0 if fresh else draws.get(key, 0)
        draws[key] = number + 1
        return Draw(generator, number)


def _recorded_calls(func: Any, args: Any, kwargs: Any) -> Any:
    """Call an operation that records collectives; they take their place among the other operations of the graph."""
    before = LIBRARY.fake_cuda_recorded_calls()
    out = func(*args, **kwargs)
    for number in range(before, LIBRARY.fake_cuda_recorded_calls()):
        Values.recorded.append(functools.partial(LIBRARY.fake_cuda_call, ctypes.c_long(number)))
    return out


def _indices(args: Any) -> list[Tensor | None]:
    return list(args[1]) if len(args) > 1 and isinstance(args[1], list | tuple) else []


def _computed(compute: Callable[..., Any], given: Any, draw: Draw | None) -> Any:
    with _disable_current_modes(), torch.no_grad():
        args, kwargs = tree_map(_on_host, given)
        kwargs.pop("pin_memory", None)
        if draw is not None:
            kwargs["generator"] = draw()
        return compute(*args, **kwargs)


def _again(name: str, compute: Callable[..., Any], given: Any, draw: Draw | None, places: list[Any]) -> None:
    """Compute an operation, and put its results in their places; those of one in place are there."""
    try:
        found = _computed(compute, given, draw)
    except Exception as error:
        raise RuntimeError(f"values of {name}: {type(error).__name__}: {error}") from error
    with _disable_current_modes(), torch.no_grad():
        for place, result in zip(places, tree_leaves(found), strict=False):
            target = place() if isinstance(place, At) else place
            if isinstance(target, Tensor) and isinstance(result, Tensor) and target.shape == result.shape:
                target.copy_(result)
