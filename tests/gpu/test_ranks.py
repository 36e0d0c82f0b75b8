"""Several GPUs: what is sent between the ranks in a step, and the values of one GPU."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ssl_bench.distributed import average_gradients, has_groups, rank
from tests.gpu.conftest import REAL
from tests.gpu.runs import launches, training

EXACT = ["precision=fp64", "optimizer.lr=0.01"]


def observed(log: str, cases: list[list[str]]) -> list[dict[str, Any]]:
    """The losses of four steps of some runs, the collectives of the last one, and the bytes of the gradients.

    In the first three, DDP settles the order of the gradients.
    """
    os.environ["FAKE_NCCL_LOG"] = log
    file, found = Path(f"{log}.{rank()}"), list[dict[str, Any]]()
    for overrides in cases:
        run = training(*overrides)
        step, losses, lines = run.stepper(), [], list[str]()
        for _ in range(4):
            before = len(file.read_text()) if file.exists() else 0
            step(False)
            lines = file.read_text()[before:].splitlines() if file.exists() else []
            losses.append(run.state.meter.read()[0])
        trained = [p for p in run.state.method.parameters() if p.requires_grad]
        gradients = sum(p.numel() * p.element_size() for p in trained)
        found.append({"sent": lines, "gradients": gradients, "losses": losses})
    return found


QUEUE = ["framework=moco_v2", "negatives.k=64"]
CASES = {
    "simclr": [],
    "memory_bank": ["negatives=memory_bank", "negatives.k=40"],
    "queue": QUEUE,
    "shuffled": [*QUEUE, "framework.groups=8"],
    "chunks": ["batch_size.chunk=8"],
    "npid_cld": ["framework=npid_cld", "framework.clusters=8"],
    "byol": ["framework=byol", "framework.predictor=32", "head.hidden=32"],
    "densecl": ["framework=densecl", "negatives.k=64"],
}
# Of batch normalisation over all images: two float64 numbers for each channel, forward and backward. Those of the
# backward pass have a communicator of their own, for they must not wait for the gradients.
NORMS = [2 * 8 * channels for channels in (8, 8, 8, 16, 16, 16, 32, 32, 32)]  # of the backbone
HEAD = [512, 256]  # of simclr's head, from 32 channels to 16
BATCH, WIDTH, VIEWS = 32, 16, 2
VECTORS = 8 * BATCH * WIDTH  # bytes of the embeddings of a view, on all ranks
IDS = 8 * BATCH


def collectives(name: str, bytes_: list[int]) -> Counter[str]:
    return Counter(f"{name} {count}" for count in bytes_)


def expected(name: str, gradients: int, ranks: int) -> Counter[str]:
    """Return what each of some ranks sends in a step."""
    both = collectives("all_reduce", [gradients])
    if name in ("simclr", "memory_bank"):
        both += collectives("all_gather", [*NORMS, *HEAD]) + collectives("split_all_reduce", [*NORMS, *HEAD])
        # Embeddings, negatives at once or in the bank, and which images they are of.
        both += collectives("all_gather", [IDS // ranks, VIEWS * VECTORS // ranks])
    if name == "simclr":  # gradients of the negatives
        both += collectives("reduce_scatter", [VIEWS * VECTORS])
    if name == "queue":  # without a norm in its head; keys have no gradient
        both += collectives("all_gather", [*NORMS, *NORMS, VECTORS // ranks]) + collectives("split_all_reduce", NORMS)
    if name == "shuffled":
        # Images to other ranks, keys back, keys into the queue; then the running averages of both encoders.
        images = 8 * BATCH // ranks * 20 * 20
        both += collectives("all_to_all", [images, VECTORS // ranks])
        both += collectives("all_gather", [VECTORS // ranks]) + collectives("all_reduce", [2 * sum(NORMS)])
    return both


@pytest.mark.slow
def test_two_gpus_send_what_a_step_needs_and_have_the_loss_of_one(gpu: Callable[..., Any], tmp_path: Path) -> None:
    cases = [[*EXACT, *overrides] for overrides in CASES.values()]
    alone = gpu(observed, "", [["graph=false", *case] for case in cases])
    ranks = gpu(observed, str(tmp_path / "sent"), cases, ranks=2)
    for name, one, *two in zip(CASES, alone, *ranks, strict=True):
        for each in two:
            assert each["losses"] == pytest.approx(one["losses"], rel=1e-9), name
        if REAL:
            continue
        check_sent(name, two, one["gradients"])


def check_sent(name: str, ranks: list[dict[str, Any]], gradients: int) -> None:
    """Assert that all ranks send the same in the same order, and only what a step needs."""
    sent = ranks[0]["sent"]
    assert all(each["sent"] == sent for each in ranks), name
    lines = [line.split() for line in sent]
    assert {line[0] for line in lines} <= {
        "all_gather",
        "reduce_scatter",
        "all_reduce",
        "split_all_reduce",
        "all_to_all",
    }, name
    if name in ("simclr", "memory_bank", "queue", "shuffled"):
        assert Counter(sent) == expected(name, gradients, len(ranks)), name
    else:
        reduced = [int(count) for kind, count in lines if kind == "all_reduce"]
        assert sum(reduced) == gradients, name


@pytest.mark.slow
@pytest.mark.skipif(REAL, reason="only the fake GPU says what is sent")
def test_eight_gpus_send_what_a_step_needs(gpu: Callable[..., Any], tmp_path: Path) -> None:
    cases = [[*EXACT, *overrides] for overrides in CASES.values()]
    ranks = gpu(observed, str(tmp_path / "sent"), cases, ranks=8, values=False)
    for name, *eight in zip(CASES, *ranks, strict=True):
        check_sent(name, eight, eight[0]["gradients"])


def variable(name: str) -> str | None:
    return os.environ.get(name)


@pytest.mark.slow
@pytest.mark.parametrize("allocator", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_nccl_leaves_graphs_in_expandable_segments_alone(gpu: Callable[..., Any], allocator: str) -> None:
    settings = {allocator: "garbage_collection_threshold:0.8,expandable_segments:True"}
    assert gpu(variable, "NCCL_GRAPH_REGISTER", ranks=2, values=False, **settings) == ["0", "0"]
    assert gpu(variable, "NCCL_GRAPH_REGISTER", ranks=2, values=False) == [None, None]


@pytest.mark.slow
def test_eight_gpus_agree(gpu: Callable[..., Any], tmp_path: Path) -> None:
    ranks = gpu(observed, str(tmp_path / "sent"), [EXACT], ranks=8)
    assert all(each == ranks[0] for each in ranks)
    assert ranks[0][0]["losses"] == pytest.approx(gpu(observed, "", [["graph=false", *EXACT]])[0]["losses"], rel=1e-9)


# ---- the mean of the gradients


def averaged(log: str) -> dict[str, Any]:
    """What the mean of gradients of two types starts, sends and gives."""
    os.environ["FAKE_NCCL_LOG"] = log
    network = training("backbone=resnet18_cifar").state.method
    network.other = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64).to("cuda"))
    for parameter in network.parameters():  # copied from the host: the fake GPU's kernels do nothing
        parameter.grad = torch.full(parameter.shape, rank() + 1.0).to(parameter)
    started = launches()
    average_gradients(network)
    ended = launches()
    gradients = [p.grad.cpu() for p in network.parameters() if p.grad is not None]
    return {
        "launches": ended - started,
        "sent": Path(f"{log}.{rank()}").read_text().splitlines(),
        "means": sorted({value for gradient in gradients for value in gradient.unique().tolist()}),
        "has_groups": has_groups(),
        "bytes": [sum(g.nbytes for g in gradients if g.dtype == kind) for kind in (torch.float64, torch.float32)],
    }


@pytest.mark.skipif(REAL, reason="only the fake GPU counts launches")
@pytest.mark.parametrize("ranks", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_the_mean_of_all_gradients_is_one_launch_for_a_type(
    ranks: int, gpu: Callable[..., Any], tmp_path: Path
) -> None:
    found = gpu(averaged, str(tmp_path / "sent"), ranks=ranks, values=False)
    sent = [f"all_reduce {count}" for count in found[0]["bytes"]]
    assert found[0]["bytes"][1] > 4 * 10**7 and all(each["sent"] == sent for each in found)
    if found[0]["has_groups"]:
        assert all(each["launches"] == 2 and each["means"] == [(ranks + 1) / 2] for each in found)
    else:  # they are put together and divided by kernels, which do nothing on the fake GPU
        assert all(each["launches"] == 8 for each in found)


# ---- DDP


def take_steps(*overrides: str) -> None:
    step = training("graph=false", *overrides).stepper()
    for _ in range(3):
        step(False)


@pytest.mark.parametrize("precision", ["bf16", pytest.param("fp64", marks=pytest.mark.slow)])
def test_ddp_finds_gradients_with_the_strides_of_its_buckets(
    precision: str, gpu: Callable[..., Any], tmp_path: Path
) -> None:
    """Else it prints three lines on each rank: of weights of 1 x 1 pixels in float64, and of one channel in others."""
    gpu(take_steps, f"precision={precision}", ranks=2, values=False)
    printed = [path.read_text() for path in tmp_path.glob("*.out?")]
    assert len(printed) == 2 and not any("strides" in text for text in printed)
