"""Trainings on a GPU by the classes of ``ssl_bench.training``, without the command line."""

import contextlib
import ctypes
import logging
from unittest.mock import patch

import torch

from ssl_bench.config.compose import load
from ssl_bench.distributed import rank
from ssl_bench.training.engine import Training
from tests.methods.test_contrastive import SMALL, OneLayer

TINY = ["backbone.width=8", "head.out=16", "batch_size.size=32", "epochs=4", "max_steps=14", "tracking=off"]
TINY += ["evaluate=[]", "evaluate.baselines=[]", "compile_views=false", "images_on=device"]


class Log(logging.Handler):
    """Keeps the lines that the package logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        logger = logging.getLogger("ssl_bench")
        logger.setLevel(logging.INFO)
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def recordings(self) -> int:
        """How many kinds of steps are replayed, with and without diagnostics."""
        return sum("are replayed as a CUDA graph" in line for line in self.lines)


def training(*overrides: str, one_layer: bool = False, cpu: bool = False) -> Training:
    """A run on the GPU of this rank, or on the CPU; ``one_layer``: with the smallest backbone and heads."""
    device = torch.device("cpu") if cpu else torch.device("cuda", rank())
    other = any(word.startswith("backbone=") for word in overrides)  # which has no width
    config = load([*TINY[other:], *overrides])
    with contextlib.ExitStack() as stack:
        if one_layer:
            stack.enter_context(patch("ssl_bench.networks.backbones.DigitsResNet", OneLayer))
            config["head"] |= {"hidden": 8} if config["head"]["hidden"] else {}
            config["framework"] |= {key: size for key, size in SMALL.items() if config["framework"].get(key)}
        return Training(config, device)


def waits() -> int:
    """How often the host has waited for the fake GPU so far."""
    return int(ctypes.CDLL(None).fake_cuda_waits())


def launches() -> int:
    """How many kernels, copies, fills and graphs the host has started on the fake GPU so far."""
    return int(ctypes.CDLL(None).fake_cuda_launches())
