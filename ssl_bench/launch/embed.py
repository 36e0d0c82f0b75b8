"""Write the features of many images to a folder, on one process or several of this machine.

The folder has ``features.npy``, float32 [N, D]; ``images.csv`` with the place, the label and the split of each row;
``neighbours.png`` and ``map.png``; and ``embed.json``, which says of which network and images they are.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ssl_bench import files
from ssl_bench.disk.patience import make_folder
from ssl_bench.errors import RunError, require
from ssl_bench.evaluate.embedding import BATCH, FEATURES, FeatureFile
from ssl_bench.evaluate.target import SplitName
from ssl_bench.hardware import check_devices, cores_per_process, local_device, move, visible_gpus
from ssl_bench.launch import ranks
from ssl_bench.launch.lock import locked, remove_locks
from ssl_bench.launch.nodes import under_torchrun
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.workers import call_in_workers
from ssl_bench.record.feature_plots import write_pictures
from ssl_bench.record.progress import PAUSE, clock
from ssl_bench.signals import Interrupt
from ssl_bench.training.embedding import RECORD, Embedding, open_embedding
from ssl_bench.training.precision import set_matmul_options


def embed(config: Mapping[str, Any], run: Path | None, splits: Sequence[SplitName], out: Path) -> Outcome:
    """Write the features that ``out`` lacks, and the pictures of them.

    Args:
        config, run, splits: as of :func:`ssl_bench.training.embedding.open_embedding`; ``devices`` processes.
        out: the folder, which is made.

    Raises:
        ConfigError: the network, the images or the folder cannot be used; nothing is written.
        RunError: the run has no checkpoint that can be read, or another process writes to the folder.
    """
    count = config["devices"]
    remedy = "devices=N, by which this command starts its own processes, in place of torchrun"
    require(not under_torchrun(), "devices", count, remedy)
    check_devices(count, config["device"])
    set_matmul_options(config["tf32"])
    device = torch.device("cuda", 0) if visible_gpus(config["device"]) else torch.device("cpu")
    embedding = open_embedding(config, run, splits, device)

    def fill(file: FeatureFile, missing: Sequence[int]) -> Outcome:
        if count == 1:
            here = local_device(0, config["device"])
            return _outcome(lambda: _write(embedding, file, missing, 1), here)
        calls, environments = dict[str, Any](), dict[str, Any]()
        for number in range(count):
            name = f"process {number}"
            calls[name] = config, run, splits, file, missing[number::count], number
            environments[name] = {"RANK": str(number), "LOCAL_WORLD_SIZE": str(count)}
        return call_in_workers(_in_worker, calls, environments)

    outcome = write(embedding, out, "--out", fill)
    if outcome.finished:
        for sentence in write_pictures(out / FEATURES, embedding.images, embedding.label, config["seed"]):
            print(sentence)
    return outcome


def write(embedding: Embedding, out: Path, key: str, fill: Callable[[FeatureFile, Sequence[int]], Outcome]) -> Outcome:
    """Write the features and the list of their images to a folder, unless they are there.

    Args:
        key: names the folder in a refusal.
        fill: writes batches of a file, given by their numbers.

    Raises:
        InvalidValue: the folder has other features.
        RunError: another process writes to it.
    """
    embedding.require_folder(out, key)
    make_folder(out)
    with locked(out, wait=False) as lock:
        if lock.other is not None:
            raise RunError(f"{out} is being written by {lock.other}: wait for its end")
        outcome = Outcome(State.DONE_BEFORE)
        if not (out / FEATURES).exists():
            files.write_json(out / RECORD, embedding.record())
            file = FeatureFile(out, len(embedding.images), embedding.width)
            outcome = fill(file, file.begin())
            if outcome.finished:
                embedding.write_images(out / "images.csv")
                file.finish()
    remove_locks(out)
    return outcome


def _in_worker(
    config: Mapping[str, Any],
    run: Path | None,
    splits: Sequence[SplitName],
    file: FeatureFile,
    which: Sequence[int],
    number: int,
) -> Outcome:
    """Write the share of one of several processes."""
    device, count = local_device(number, config["device"]), config["devices"]
    torch.set_num_threads(cores_per_process())
    set_matmul_options(config["tf32"])

    def work() -> None:
        _write(open_embedding(config, run, splits, device), file, which, count if number == 0 else 0)

    return _outcome(work, device)


def _outcome(work: Callable[[], None], device: torch.device) -> Outcome:
    return ranks.outcome_of(work, device, "Set device=cpu, or precision to bf16")


def _write(embedding: Embedding, file: FeatureFile, which: Sequence[int], shown: int) -> None:
    """Write the features of some batches.

    Args:
        shown: so many processes do as much as this one, which says how far they are; 0: it says nothing.
    """
    move(embedding.network, embedding.device)
    began = printed = time.monotonic()
    with Interrupt(lambda number: number) as interrupt:
        interrupt.saved = True
        for done, (batch, features) in enumerate(zip(which, embedding.features(which), strict=True), 1):
            file.write(batch, features)
            now = time.monotonic()
            if shown and now - printed >= PAUSE:
                printed, left = now, (now - began) / done * (len(which) - done)
                images = min(len(embedding.images), shown * done * BATCH)
                print(f"{images:,} images, {images / (now - began):,.0f} a second, {clock(left)} left", flush=True)
