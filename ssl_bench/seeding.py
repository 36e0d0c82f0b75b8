"""Random numbers that depend on their purpose, not on what was drawn before.

The order of an epoch and the parameters of a step's views have seeds of their own. They are therefore the same on any
number of ranks and after any interruption.
"""

import hashlib
import random
from typing import Any

import torch


def stream(*key: int | str) -> int:
    """Seed in [0, 2^63) for the purpose named by ``key``."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "big") >> 1


def seed_everything(seed: int) -> None:
    """Seed the global generators, from which weights and stochastic layers are drawn."""
    import numpy as np

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def rng_state() -> dict[str, Any]:
    """States of the global generators, in types that a weights-only load accepts."""
    import numpy as np

    name, keys, *rest = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (name, np.asarray(keys).tolist(), *rest),
    }
    if torch.cuda.is_initialized():  # not in a run on the CPU of a machine with GPUs
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore the states that :func:`rng_state` returned."""
    import numpy as np

    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    if "cuda" in state and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(state["cuda"])
