"""How far a run that is carried out again may be from what was recorded: what other rounding explains.

On the same processor, threads and torch everything has the same bits. What has others is computed once more from
weights that differ by a rounding: how far this ``twin`` goes is what rounding does to the run. ROOM times as much is
the bound, up to LIMIT. In float32 the losses of the first steps of a training can go ten times as far with each step;
those whose bound would be above LIMIT are not compared.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ssl_bench.check.recorded import Weights
from ssl_bench.evaluate.metric import ACCURACIES, declared

ROOM, FLOOR = 10.0, 1e-4  # times the twin's difference, and the least bound
LIMIT = {"loss": 0.2, "weights": 0.1}  # the largest bounds: of a loss, relative; of weights, as a share of their change
IMAGES, SHARE, LEAST = 2, 0.002, 1e-3  # bounds of an accuracy: test images, or a share of them; of others, relative
BY_IMAGES = " by its images"  # the end of the name of an accuracy for the images that were right
NO_WEIGHTS: Weights = {}
Losses = Mapping[int, float]  # by step


class Apart(NamedTuple):
    """How far two computations are apart in words, and whether that is within the bound."""

    words: str
    within: bool


def losses_apart(recorded: Losses, again: Losses, twin: Losses) -> Apart:
    """Compare recorded losses with those ``again``, up to the row that rounding alone changes too much."""
    compared, farthest, room, bound = 0, 0.0, FLOOR, FLOOR
    for step, loss in recorded.items():
        room = max(room, ROOM * _relative(twin[step], again[step]))
        if compared and room > LIMIT["loss"]:
            break
        bound, apart = min(room, LIMIT["loss"]), _relative(again[step], loss)
        if not apart <= bound:
            pair = f"{loss:.6g} recorded, {again[step]:.6g} now"
            return Apart(f"the loss of step {step} is {pair}, {apart:.1e} apart, bound {bound:.1e}", False)
        compared, farthest = compared + 1, max(farthest, apart)
    words = f"losses of {compared} rows at most {farthest:.1e} apart, bound {bound:.1e}"
    left = len(recorded) - compared
    return Apart(words + f"; {left} rows not compared, which rounding alone changes too much" * bool(left), True)


def _relative(one: float, other: float) -> float:
    return abs(one - other) / max(abs(other), 1e-3)


def weights_apart(
    recorded: Weights, again: Weights, twin: Weights, begin: Weights, noisy: Weights, parameters: Sequence[str]
) -> Apart:
    """Compare recorded weights with those ``again``, as a share of their change.

    The trained weights count together; a buffer, such as the statistics of a batch norm, counts by itself.

    Args:
        begin: the weights before the steps, and ``noisy`` those of the twin.
        parameters: names of the trained weights.
    """
    numbers = {n: v for n, v in again.items() if isinstance(v, Tensor) and v.is_floating_point()}
    if recorded.keys() != again.keys() or any(numbers[n].shape != getattr(recorded[n], "shape", None) for n in numbers):
        return Apart("other weights, or weights of other shapes", False)
    if others := [name for name in again if name not in numbers and not alike(recorded[name], again[name])]:
        return Apart(f"another {others[0]}, which no rounding changes", False)
    noise = {name: noisy[name] - begin[name] for name in parameters}
    shares = []
    for names in (parameters, *([name] for name in sorted(numbers.keys() - {*parameters}))):
        least = 1e-3 * math.hypot(*(float(numbers[n].norm()) for n in names)) if len(names) == 1 else 0.0
        change = max(_distance(numbers, begin, names), least, 1e-12)
        bound = min(LIMIT["weights"], FLOOR + ROOM * _distance(twin, numbers, names, noise) / change)
        shares.append((_distance(numbers, recorded, names) / change, bound))
    apart, bound = max(shares, key=lambda share: math.inf if share[0] != share[0] else share[0] / share[1])
    return Apart(f"weights {apart:.1e} of their change apart, bound {bound:.1e}", apart <= bound)


def _distance(one: Weights, other: Weights, names: Iterable[str], less: Weights = NO_WEIGHTS) -> float:
    """The norm of the difference of some tensors, less another difference."""
    parts = (one[n].double() - other[n].double() - (less[n].double() if n in less else 0.0) for n in names)
    return math.hypot(*(float(part.norm()) for part in parts))


def alike(one: Any, other: Any) -> bool:
    """Whether two states have the same bits."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(alike(value, other[key]) for key, value in one.items())
    return bool(one == other)


def number_bound(name: str, now: float, noise: float, images: int | None) -> float:
    """The bound of a number of an evaluation: some test images of an accuracy, a share of another number.

    Args:
        noise: what weights change that differ by a rounding.
        images: that were tested, if that is known.
    """
    accuracy = name.endswith(BY_IMAGES) or declared(ACCURACIES, name)
    least = max((IMAGES + 0.5) / images if images else SHARE, SHARE) if accuracy else LEAST * abs(now)
    return ROOM * noise + least
