"""Fused batch norms in trainings: launches, values, graphs, and when a run takes them."""

import contextlib
import itertools
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch

from ssl_bench.distributed import rank
from ssl_bench.errors import RunError
from ssl_bench.seeding import rng_state
from ssl_bench.training import fusing
from ssl_bench.training.graph import GraphedStepper
from tests.gpu.conftest import REAL
from tests.gpu.runs import Log, launches, training
from tests.gpu.test_steps import distance, trained

RESNET = ["backbone=resnet18_cifar", "precision=bf16"]


def started(*overrides: str) -> dict[str, Any]:
    """Launches of the last of some steps, and what the product says of its graph and its batch norms."""
    log, run, counts = Log(), training(*RESNET, *overrides), list[int]()
    with patch.object(GraphedStepper, "_compared", lambda *_: []), patch.object(fusing, "close", lambda *_: True):
        step = run.stepper()
        for _ in range(6):
            launched = launches()
            step(False)
            counts.append(launches() - launched)
    return {"launches": counts[-1], "replayed": log.about("as a CUDA graph"), "fused": log.about("batch norms")}


def started_with_both(graph: str) -> list[dict[str, Any]]:
    return [started(f"graph={graph}", f"fused_norm={fused}") for fused in ("false", "true")]


@pytest.mark.skipif(REAL, reason="only the fake GPU counts launches")
def test_launches(gpu: Callable[..., Any]) -> None:
    for graph in ("false", "true"):
        print(gpu(started_with_both, graph, values=False))
    assert 0
