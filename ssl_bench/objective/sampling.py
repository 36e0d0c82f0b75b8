"""Random numbers of an objective, keyed by purpose, seed and step.

They are the same on any number of ranks and after any interruption. A GPU draws other numbers from a seed than a CPU.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ssl_bench.objective import bits
from ssl_bench.objective.bits import np
from ssl_bench.seeding import stream

BLOCK_BYTES = 2**20  # random bytes of one sequence
GPU_BLOCK_NUMBERS = 2**24  # random, which a GPU draws at once: 64 MB, and a few times as much to choose from them
NUMBERS_AT_ONCE = 2**18  # of a CPU: they and what is computed from them stay in a core's cache

Generators = Callable[[int], torch.Generator]  # of each block of rows, by its number


class StepGenerator(nn.Module):
    """A new stream of random numbers at every step; the step is in the checkpoint and is advanced by the method.

    Args:
        purpose: name of the stream; streams with different names are independent.
        seed: of the run.
    """

    def __init__(self, purpose: str, seed: int) -> None:
        super().__init__()
        self.purpose, self.seed, self.step = purpose, seed, 0
        self._generators: dict[tuple[torch.device, tuple[int | str, ...]], torch.Generator] = {}

    def generator(self, device: torch.device, *key: int | str) -> torch.Generator:
        """Random numbers of this step; draws of one step with different keys are independent.

        While a CUDA graph is captured the generator is not seeded: :meth:`reseed` does it before each replay.
        """
        if (device, key) not in self._generators:
            self._generators[device, key] = torch.Generator(device)
        if not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
            self._seed(self._generators[device, key], key)
        return self._generators[device, key]

    def generators(self, device: torch.device, *key: int) -> Generators:
        """Random numbers of a draw in blocks of rows; those of the first block are ``generator(device, *key)``."""
        return lambda block: self.generator(device, *key, "block", block) if block else self.generator(device, *key)

    def reseed(self) -> list[torch.Generator]:
        """Set the generators to the start of this step's streams, for a replay of its draws; return them."""
        for (_, key), generator in self._generators.items():
            self._seed(generator, key)
        return [*self._generators.values()]

    def forget(self) -> None:
        """Draw from new generators from now on."""
        self._generators.clear()

    def _seed(self, generator: torch.Generator, key: tuple[int | str, ...]) -> None:
        generator.manual_seed(stream(self.purpose, self.seed, self.step, *key))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_generators": {}}  # a generator cannot be copied

    def get_extra_state(self) -> dict[str, int]:
        return {"step": self.step}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def _by_block(
    draw: Callable[[int, torch.Generator], Tensor], rows: int, length: int, local: slice, generators: Generators
) -> Iterator[Tensor]:
    """Draw the numbers [r, ...] of the rows ``local``, block by block, ``length`` numbers for each row.

    A GPU draws ``GPU_BLOCK_NUMBERS`` at once, and a rank only the blocks that its rows are in. On a CPU all rows are
    one block.

    Args:
        draw: makes the numbers of so many rows with a generator.
    """
    start, stop, _ = local.indices(rows)
    height = rows if bits.in_numpy(generators(0).device) else max(1, GPU_BLOCK_NUMBERS // length)
    for first in range(start - start % height, stop, height):
        numbers = draw(min(height, rows - first), generators(first // height))
        yield numbers[max(0, start - first) : stop - first]


def without_replacement(rows: int, pool: int, k: int, generators: Generators, local: slice = slice(None)) -> Tensor:
    """Draw ``k`` different integers in [0, pool) for each of the rows ``local``, uniform, in no order: [local, k].

    They are int64, on the device of the generators. For small ``k`` these are the first different values of a longer
    sequence drawn with replacement, at a cost that does not depend on the pool; the sequence is too short once in 10^20
    rows, which ends in an index out of range. For large ``k`` they are the indices of the largest of ``pool`` random
    numbers.
    """
    if 2 * k > pool:
        uniform = lambda n, source: torch.rand(n, pool, generator=source, device=source.device)  # noqa: E731
        blocks = _by_block(uniform, rows, pool, local, generators)
        return torch.cat([numbers.topk(k, sorted=False).indices for numbers in blocks])
    # Draws until the k-th new value: a sum of geometric variables of success (pool - i) / pool.
    new = [(pool - i) / pool for i in range(k)]
    mean, spread = sum(1 / p for p in new), math.sqrt(sum((1 - p) / p**2 for p in new))
    length = math.ceil(mean + 10 * spread) + 32
    high, low = pool.bit_length(), length.bit_length()
    dtype = torch.int32 if high + low < 31 else torch.int64  # a value and its index in one number

    def integers(n: int, source: torch.Generator) -> Tensor:
        return torch.randint(pool, (n, length), generator=source, device=source.device, dtype=dtype)

    parts = []
    for drawn in _by_block(integers, rows, length, local, generators):
        order = _sort(drawn << low | torch.arange(length, dtype=dtype, device=drawn.device))  # by value, then by index
        repeated = (order[:, 1:] >> low) == (order[:, :-1] >> low)
        order = (order & ((1 << low) - 1)) << high | order >> low
        order[:, 1:].masked_fill_(repeated, torch.iinfo(dtype).max)
        parts.append(_smallest(order, k) & ((1 << high) - 1))  # by index; repeated values come last
    return torch.cat(parts)


def draw_excluded(
    views: int,
    rows: int,
    width: int,
    k: Tensor | int,
    own_columns: Sequence[Tensor],
    generators: Generators,
    local: slice,
    most: int | None = None,
) -> Tensor:
    """Draw ``k`` different columns of ``width`` for each of the rows ``local`` and each view; mark all others.

    The draws are uniform, and their time does not depend on ``k``. A GPU, or a CPU if ``k`` changes, gives every column
    a random number and chooses the ``k`` largest. Else a CPU, for which that would take most of a step, gives every
    column a random byte and chooses the ``k`` smallest; of columns with equal bytes a second random number decides.

    Args:
        k: a number, or with ``most`` also a tensor [] on the device of the generators.
        own_columns: columns [local], one of each row, that are never drawn.
        most: the largest ``k``, if it changes: those of a smaller one are then among those of a larger one.

    Returns:
        [views, local, ceil(width / 8)] packed booleans (:mod:`ssl_bench.objective.bits`), true for the columns that
        were not drawn, ``own_columns`` among them.
    """
    never = torch.stack([columns.long() for columns in own_columns], 1)  # [local, n]
    never = never[:, None].expand(-1, views, -1)  # [local, views, n]
    generator, length, parts = generators(0), views * width, list[Any]()
    if most is not None or not bits.in_numpy(generator.device):
        uniform = lambda n, source: torch.rand(n, views, width, generator=source, device=source.device)  # noqa: E731
        done = 0
        for numbers in _by_block(uniform, rows, length, local, generators):
            numbers.scatter_(2, never[done : done + len(numbers)], 2.0)
            drawn = numbers.topk(int(most or k), largest=False, sorted=most is not None).indices
            beyond = (torch.arange(drawn.shape[-1], device=numbers.device) >= k).expand_as(drawn)
            parts.append(bits.pack(torch.ones_like(numbers, dtype=torch.bool).scatter_(2, drawn, beyond)))
            done += len(numbers)
        return torch.cat(parts).transpose(0, 1)
    assert isinstance(k, int)
    start, stop, _ = local.indices(rows)
    # A block of rows has random bytes of its own, so that a rank draws those of its rows only.
    height = max(1, BLOCK_BYTES // length)
    for block in range(start // height, -(-stop // height)):
        key = [generator.initial_seed(), block]
        seed = np.random.PCG64(key).advance(-(-height * length // 8)).random_raw()
        until = min(stop, (block + 1) * height)
        for first in range(max(start, block * height), until, max(1, NUMBERS_AT_ONCE // length)):
            last = min(until, first + max(1, NUMBERS_AT_ONCE // length))
            offset = (first - block * height) * length
            numbers = _random_bytes(key, offset, (last - first) * length).reshape(-1, width)
            columns = never[first - start : last - start].flatten(0, 1).numpy()
            parts.append(_mark_others(numbers, k, columns, offset, seed).reshape(last - first, views, -1))
    return torch.from_numpy(np.concatenate(parts)).transpose(0, 1)


def _random_bytes(key: list[int], start: int, count: int) -> Any:
    """``count`` random bytes of the sequence ``key``, from the one with the index ``start`` on."""
    skipped = start // 8  # of the generator's steps, which give eight bytes each
    drawn = np.random.PCG64(key).advance(skipped).random_raw(-(-(start + count) // 8) - skipped)
    return drawn.view(np.uint8)[start - 8 * skipped :][:count]


def _mark_others(numbers: Any, k: int, own_columns: Any, offset: int, seed: int) -> Any:
    """Mark, packed [r, ceil(C / 8)], the columns of a part of a block that are not among the ``k`` smallest.

    Args:
        numbers: [r, C] random bytes, which are changed.
        own_columns: [r, n] columns that are never chosen.
        offset: index of the first number in its block, which with ``seed`` decides between equal bytes.
    """
    rows, width = np.arange(len(numbers))[:, None], numbers.shape[1]
    numbers[rows, own_columns] = 255
    largest = np.sort(numbers, axis=1, kind="stable")[:, k - 1 : k]  # a radix sort: faster than any selection
    chosen, equal = numbers < largest, numbers == largest
    equal[rows, own_columns] = False
    missing = k - chosen.view(np.uint8).sum(1, dtype=np.uint32).astype(np.int64)  # of bytes: numpy adds them faster
    index = np.flatnonzero(equal)
    row = index // width
    # The equal bytes of each row, which stand together, in a random order: the row and a random number in one integer.
    order = np.argsort(row << 40 | (_hashed(index.astype(np.uint64) + np.uint64(offset), seed) >> 24).astype(np.int64))
    rank = np.arange(len(row)) - np.searchsorted(row, rows[:, 0])[row]  # among those of the same row
    chosen.reshape(-1)[index[order[rank < missing[row]]]] = True
    return np.packbits(~chosen, axis=1, bitorder="little")


def _hashed(index: Any, seed: int) -> Any:
    """A random number of 64 bits for each index n: the n-th output of SplitMix64 (Steele, Lea and Flood 2014)."""
    z = index * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)


def _sort(x: Tensor) -> Tensor:
    """Sort along the last dimension."""
    return torch.from_numpy(np.sort(x.numpy(), axis=-1)) if bits.in_numpy(x.device) else x.sort(-1).values


def _smallest(x: Tensor, k: int) -> Tensor:
    """The ``k`` smallest values along the last dimension, in any order."""
    if bits.in_numpy(x.device):
        return torch.from_numpy(np.partition(x.numpy(), k - 1, axis=-1))[..., :k]
    return x.topk(k, largest=False, sorted=False).values
