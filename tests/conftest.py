"""One thread per test process, no spinning threads, no trace in the folder that the tests were started from."""

import os

os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background jobs, and every process they start
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A run of a second: scattered digits at batch 64 on a very small network, three optimiser steps.
SMALL = ["backbone.width=4", "head.out=16", "optimizer=sgd", "optimizer.lr=0.3"]
SMALL += ["tracking=off", "log_every=1", "evaluate=[]", "evaluate.baselines=[]"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cli() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs ``ssl-bench`` in a process of its own, in the current folder."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ssl_bench", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | environment)

    return run


@pytest.fixture
def train(capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs ``ssl-bench train`` on the small cell in this process; gives the exit code and what was printed."""
    from ssl_bench.train import main

    def run(*arguments: str, small: bool = True) -> tuple[int, str]:
        capfd.readouterr()
        code = main([*(SMALL if small else []), *arguments])
        out, err = capfd.readouterr()
        return code, out + err

    return run


def only_run(outputs: Path = Path("outputs")) -> Path:
    """The one run directory under a results folder."""
    (config,) = outputs.glob("*/*/config.yaml")
    return config.parent
