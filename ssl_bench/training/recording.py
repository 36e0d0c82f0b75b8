"""The operations of a computation as a CUDA graph."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.torch_version import TorchVersion


class Recording(Protocol):
    """A recorded computation."""

    def record(self, compute: Callable[[], Any], generators: Sequence[torch.Generator]) -> None:
        """Record the operations of ``compute``, which may draw from ``generators``; they need not be carried out."""

    def replay(self) -> None:
        """Carry out the recorded operations on the same tensors."""


class CudaRecording:
    """A CUDA graph.

    Args:
        pool: of memory, of :func:`torch.cuda.graph_pool_handle`. Graphs may share one if what one of them has computed
            is read before another one is replayed.
    """

    def __init__(self, pool: Any) -> None:
        self._graph, self._pool = torch.cuda.CUDAGraph(), pool

    def record(self, compute: Callable[[], Any], generators: Sequence[torch.Generator]) -> None:
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
        self._graph.replay()  # type: ignore[no-untyped-call]


def _free(pool: Any) -> None:
    """Let go of the memory of a capture that has failed: torch up to 2.11 keeps it, and 2.6 then can free no other."""
    core: Any = torch._C
    end = getattr(core, "_cuda_endAllocateToPool", None) or core._cuda_endAllocateCurrentStreamToPool
    with contextlib.suppress(RuntimeError):  # newer ones have done so
        end(torch.cuda.current_device(), pool)
        core._cuda_releasePool(torch.cuda.current_device(), pool)
