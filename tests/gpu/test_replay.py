"""Steps of several GPUs: captured and replayed with their collectives, with the values of eager ones under DDP."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.gpu.test_steps import compared, right

METHODS = [
    ["loss=infonce"],
    ["loss=sogclr"],
    ["loss=vicreg", "negatives=none"],
    ["framework=moco_v2", "negatives.k=64"],
    ["framework=moco_v2", "negatives.k=64", "framework.groups=4"],
]


def test_ranks_replay_steps_with_the_values_of_eager_ones(gpu: Callable[..., Any]) -> None:
    found = gpu(compared, METHODS, True, ranks=2)
    print(found)
    assert [{name: each for name, each in rank.items() if not right(each)} for rank in found] == [{}, {}]
