"""A list of dispatched operations that can be replayed, in place of a CUDA graph."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

HOST_READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::is_nonzero"}


class Operations(TorchDispatchMode):
    """The operations of a computation, which can be carried out again."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in HOST_READS:
            raise RuntimeError(f"{func._schema.name} makes the host wait")
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def record(self, compute: Callable[[], Any], generators: Sequence[torch.Generator]) -> None:
        with self:
            compute()

    @torch.no_grad()
    def replay(self) -> None:
        """Carry the operations out; their results are in the recorded tensors, as those of a graph are."""
        made: dict[int, Any] = {}  # by the id of a recorded result, the result of this replay

        def current(value: Any) -> Any:
            return made.get(id(value), value)

        for func, args, kwargs, out in self.calls:
            new = func(*tree_map(current, args), **tree_map(current, kwargs))
            made.update(zip(map(id, tree_flatten(out)[0]), tree_flatten(new)[0], strict=True))
        for func, _, _, out in self.calls:
            if all(each.alias_info is None for each in func._schema.returns):  # no view of another tensor
                for tensor in tree_flatten(out)[0]:
                    if isinstance(tensor, torch.Tensor):
                        tensor.copy_(made[id(tensor)])
