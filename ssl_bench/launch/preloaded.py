"""Import what runs need: the server of ``processes.py`` imports this module once for all processes.

Nothing here may start a thread or ask CUDA for GPUs, after which a fork could not use them.
"""

import contextlib
import importlib
import os
import signal

from ssl_bench.launch.processes import die_with
from ssl_bench.signals import STOPS

PRELOADED = (
    "ssl_bench.launch.ranks",
    "torch._dynamo",  # DDP, compiled views and optimisers import it
    "wandb",
    "wandb.sdk.launch",  # wandb.init imports it
    "matplotlib.style",  # and the next two for the learning curves
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
)

signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # until a process can answer them
die_with(os.getppid())
for module in PRELOADED:
    with contextlib.suppress(Exception):  # the run that needs the module reports it
        importlib.import_module(module)
with contextlib.suppress(Exception):
    importlib.import_module("ssl_bench.record.environment").commit()  # of what was imported here
