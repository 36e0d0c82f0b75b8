"""Configurations of tests that are not about composing: each combination of groups is composed once in a process.

``tests/config`` compares them with Hydra's own.
"""

from collections.abc import Sequence
from typing import Any

from ssl_bench.config.compose import load_of_many


def load(overrides: Sequence[str] = ()) -> dict[str, Any]:
    """As :func:`ssl_bench.config.compose.load`."""
    return load_of_many(overrides)
