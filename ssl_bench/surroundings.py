"""The environment variables that the program sets in its process, and why.

No other file sets one, but for ``cli.py`` (those of every command) and ``config/plugins.py`` (the list of plugins).
"""

import os
import sys
from collections.abc import Mapping


def without_gpus() -> None:
    """Hide the GPUs from this process, which must not have used CUDA yet, and from the processes that it starts."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def of_wandb(mode: str) -> None:
    """Keep W&B quiet unless the user's variables say otherwise, and set its mode (``tracking.mode``)."""
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ |= {"WANDB_MODE": mode, "WANDB_DISABLED": "false"}


def stay_on_this_machine() -> None:
    """Let the sockets of this process's groups listen on the loopback interface only."""
    loopback = "lo" if sys.platform == "linux" else "lo0"
    os.environ |= {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback}


def register_no_graphs() -> None:
    """Keep NCCL from registering the memory of CUDA graphs where the allocator remaps it (``expandable_segments``).

    A replayed collective would access memory that is gone. What the user has set stays.
    """
    allocator = "".join(os.environ.get(name, "") for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"))
    if "expandable_segments:True" in allocator:
        os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")


def become(environment: Mapping[str, str]) -> None:
    """Give this process, which was forked from a server, the environment of the process that asked for it."""
    os.environ.clear()
    os.environ.update(environment)
