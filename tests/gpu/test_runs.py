"""Whole runs on GPUs: resumed on another number of them, without enough memory, with a rank that dies."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from ssl_bench import files
from ssl_bench.config.compose import load
from ssl_bench.distributed import rank
from ssl_bench.errors import RunError
from ssl_bench.hardware import release_memory
from ssl_bench.signals import Interrupted
from ssl_bench.training.engine import train
from ssl_bench.training.step import Stepper
from tests.data.photos import arrays_in
from tests.gpu.conftest import REAL
from tests.gpu.runs import TINY
from tests.ranks import wait_for

EXACT = ["precision=fp64", "optimizer.lr=0.01", "max_steps=8", "log_every=1"]


def carried_out(folder: str, *overrides: str) -> str:
    """How a run ends on this rank: what stopped it, or an empty text."""
    device = torch.device("cuda", rank())
    release_memory(device)
    Path(folder).mkdir(exist_ok=True)
    config = load([*TINY, *overrides]) | {"devices": int(os.environ.get("WORLD_SIZE", 1))}
    try:
        train(config, "0123456789", Path(folder), device, "ssl-bench train")
    except (RunError, Interrupted) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def interrupted(folder: str, at: int, *overrides: str) -> str:
    """The same for a run whose first rank gets SIGTERM in a step."""
    compute = Stepper.compute

    def computed(self: Stepper, *arguments: Any) -> Any:
        if self.state.step == at and rank() == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return compute(self, *arguments)

    Stepper.compute = computed  # type: ignore[method-assign,assignment]
    return carried_out(folder, *overrides)


def losses(folder: Path) -> dict[int, float]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


@pytest.mark.parametrize("place", ["device", "host"])
def test_arrays_of_five_channels_of_floats_train_as_on_the_cpu(gpu: Callable[..., Any], place: str) -> None:
    arrays_in(Path("set"), (600, 30), dtype="float32", side=20)
    words = ["dataset=arrays", f"dataset.root={Path('set').absolute()}", "augment=digits"]
    words += ["backbone=resnet_digits", "optimizer=sgd", *EXACT, f"images_on={place}"]
    assert gpu(carried_out, "gpu", *words) == ""
    Path("cpu").mkdir()
    train(load([*TINY, *words]), "0123456789", Path("cpu"), torch.device("cpu"), "ssl-bench train")
    assert losses(Path("gpu")) == pytest.approx(losses(Path("cpu")), rel=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_run_goes_on_with_another_number_of_gpus(
    before: int, after: int, gpu: Callable[..., Any], tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    framework = ["framework=moco_v2", "negatives.k=64", "graph=false"]
    assert gpu(carried_out, str(whole), *EXACT, *framework) == ""
    stopped = gpu(interrupted, str(parts), 3, *EXACT, *framework, ranks=before)
    assert stopped == ["Interrupted: SIGTERM"] * before
    assert 4 <= max(losses(parts)) < 8
    assert gpu(carried_out, str(parts), *EXACT, *framework, ranks=after) == [""] * after
    assert losses(parts) == pytest.approx(losses(whole), rel=1e-9) and len(losses(whole)) == 8


def with_little_memory(folder: str) -> list[str]:
    """How runs end: a batch, the chunk that the sentence names, an evaluation, and that again with more memory."""
    large = ["batch_size.size=256", "backbone.width=32", "max_steps=1", "precision=fp32"]
    small = ["batch_size.size=4", "backbone.width=32", "max_steps=1", "precision=fp32"]
    carried_out(f"{folder}/small", *small)
    enough = torch.cuda.max_memory_reserved() / 2**20
    os.environ["FAKE_CUDA_MB"] = "300"
    said = [carried_out(f"{folder}/large", *large)]
    chunk = said[0].partition("batch_size.chunk=")[2].partition(",")[0]
    said += [carried_out(f"{folder}/chunk", *large, f"batch_size.chunk={chunk}")]
    for memory in (1.3 * enough, 16384):  # evaluated are 512 images at a time
        os.environ["FAKE_CUDA_MB"] = str(int(memory))
        said += [carried_out(f"{folder}/evaluated", *small, "evaluate=[knn,linear]")]
    return said


@pytest.mark.exhaustive
@pytest.mark.skipif(REAL, reason="the memory of a real GPU cannot be set")
def test_a_run_that_needs_more_memory_says_what_fits_and_goes_on_with_more(
    gpu: Callable[..., Any], tmp_path: Path
) -> None:
    batch, chunk, evaluation, more = gpu(with_little_memory, str(tmp_path))
    assert batch.startswith("RunError: the batch does not fit: this process used up to 0.") and chunk == ""
    assert evaluation.startswith("RunError: evaluate.knn needs more memory than the GPU has (")
    assert more == ""
    assert {"knn/top1", "linear/top1"} <= files.read_json(tmp_path / "evaluated" / "results.json")["metrics"].keys()
    rows = losses(tmp_path / "evaluated")
    assert list(rows) == [1]  # trained once


@pytest.mark.slow
def test_too_little_shared_memory_is_one_sentence(gpus: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    error = "Error while creating shared memory segment /dev/shm/nccl-a (size 9637888), error: No space left on device"
    command = [sys.executable, "-m", "ssl_bench", "train", *TINY, "devices=2", f"paths.outputs={tmp_path}"]
    done = subprocess.run(command, env=gpus(2, FAKE_NCCL_ERROR=error), capture_output=True, text=True, timeout=120)
    reason = f"NCCL cannot share memory between the ranks ({error})"
    remedy = "Docker has 64 MB for it: start the container with --shm-size=1g or --ipc=host"
    assert done.returncode == 1 and done.stderr.endswith(f"ssl-bench: {reason}: {remedy}\n"), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_run_with_a_sentence(gpus: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ssl_bench", "train", *TINY, "max_steps=1000000", "epochs=100000", "devices=2"]
    with subprocess.Popen(
        [*command, "checkpoint.every=100000", f"paths.outputs={tmp_path}"],
        env=gpus(2),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            wait_for(lambda: any(path.stat().st_size for path in tmp_path.glob("*/*/metrics.jsonl")))
            children = psutil.Process(process.pid).children(recursive=True)
            next(child for child in children if child.environ().get("RANK") == "1").kill()
            printed, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 1, printed
    assert "rank 1" in printed and "SIGKILL" in printed and "the same command resumes" in printed, printed
