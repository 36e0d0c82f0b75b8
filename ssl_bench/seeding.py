"""Random numbers that depend on what they are for, not on what was drawn before.

The order of an epoch and the parameters of a step's views come from their own seeds, so they are the same on any number
of ranks, after any interruption, and on whatever else a run computes in between.
"""

import hashlib
import random
from typing import Any

import numpy as np
import torch


def stream(*key: int | str) -> int:
    """A seed in [0, 2^63) for the purpose that ``key`` names."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "big") >> 1


def seed_everything(seed: int) -> None:
    """Seeds the global generators, which weights and stochastic layers draw from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def rng_state() -> dict[str, Any]:
    """The states of the global generators in types that a weights-only load accepts."""
    name, keys, *rest = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (name, np.asarray(keys).tolist(), *rest),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Puts back what :func:`rng_state` gave."""
    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
