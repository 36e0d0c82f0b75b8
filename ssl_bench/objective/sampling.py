"""Random numbers of an objective, keyed by purpose, seed and step: the same on all ranks and after any interruption."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ssl_bench.seeding import stream


class StepGenerator(nn.Module):
    """A new stream of random numbers at every step; the step is in the checkpoint and is advanced by the method."""

    def __init__(self, purpose: str, seed: int) -> None:
        super().__init__()
        self.purpose, self.seed, self.step = purpose, seed, 0
        self._generators: dict[tuple[torch.device, tuple[int, ...]], torch.Generator] = {}

    def generator(self, device: torch.device, *key: int) -> torch.Generator:
        """Random numbers of this step; draws of one step with different keys are independent.

        While a CUDA graph is captured the generator keeps its place: :meth:`reseed` sets it before each replay.
        """
        if (device, key) not in self._generators:
            self._generators[device, key] = torch.Generator(device)
        if not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
            self._seed(self._generators[device, key], key)
        return self._generators[device, key]

    def reseed(self) -> list[torch.Generator]:
        """Set the generators to the start of this step's streams, for a replay of its draws; return them."""
        for (_, key), generator in self._generators.items():
            self._seed(generator, key)
        return [*self._generators.values()]

    def _seed(self, generator: torch.Generator, key: tuple[int, ...]) -> None:
        generator.manual_seed(stream(self.purpose, self.seed, self.step, *key))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_generators": {}}  # a generator cannot be copied

    def get_extra_state(self) -> dict[str, int]:
        return {"step": self.step}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def without_replacement(rows: int, pool: int, k: int, generator: torch.Generator, kept: slice = slice(None)) -> Tensor:
    """Draw ``k`` different integers in [0, pool) for each of the ``kept`` rows, uniform, in no order: [kept, k].

    For small ``k`` these are the first different values of a longer sequence drawn with replacement, at a cost that
    does not depend on the pool; the sequence is too short once in 10^20 rows, which ends in an index out of range. For
    large ``k`` they are the places of the largest of ``pool`` random numbers.
    """
    device = generator.device
    if 2 * k > pool:
        return torch.rand(rows, pool, generator=generator, device=device)[kept].topk(k, sorted=False).indices
    # Draws until the k-th new value: a sum of geometric variables of success (pool - i) / pool.
    new = [(pool - i) / pool for i in range(k)]
    mean, spread = sum(1 / p for p in new), math.sqrt(sum((1 - p) / p**2 for p in new))
    length = math.ceil(mean + 10 * spread) + 32
    high, low = pool.bit_length(), length.bit_length()
    dtype = torch.int32 if high + low < 31 else torch.int64  # a value and its place in one number
    drawn = torch.randint(pool, (rows, length), generator=generator, device=device, dtype=dtype)[kept]
    order = _sort(drawn << low | torch.arange(length, dtype=dtype, device=device))  # by value, then by place
    repeated = (order[:, 1:] >> low) == (order[:, :-1] >> low)
    order = (order & ((1 << low) - 1)) << high | order >> low
    order[:, 1:].masked_fill_(repeated, torch.iinfo(dtype).max)
    return _smallest(order, k) & ((1 << high) - 1)  # by place; repeated values come last


def _sort(x: Tensor) -> Tensor:
    """Sort along the last dimension. numpy's sort is several times faster than torch's on a CPU."""
    return torch.from_numpy(np.sort(x.numpy(), axis=-1)) if x.device.type == "cpu" else x.sort(-1).values


def _smallest(x: Tensor, k: int) -> Tensor:
    """The ``k`` smallest values along the last dimension, in any order."""
    if x.device.type == "cpu":
        return torch.from_numpy(np.partition(x.numpy(), k - 1, axis=-1))[..., :k]
    return x.topk(k, largest=False, sorted=False).values
