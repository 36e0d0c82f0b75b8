"""Checkpoint files: the whole state of a run in one file, replaced atomically, with the previous one kept.

``last.pt`` holds everything that the next step depends on: a run that was killed and started again under the same
conditions ends with the same bits as one that was not. A training goes on from ``previous.pt`` if ``last.pt`` cannot
be read (:func:`load`); whatever reads a run takes ``last.pt`` or nothing (:func:`final`). After :func:`prune` a
finished run has only ``last.pt``, with networks and without moments: it is read as before, and cannot be trained on.
"""

import hashlib
import io
import logging
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ssl_bench import files
from ssl_bench.errors import RunError
from ssl_bench.record import results

log = logging.getLogger(__name__)


def save(folder: Path, state: dict[str, Any]) -> None:
    """Write ``state`` to ``last.pt`` in ``folder``, and rename the former ``last.pt`` to ``previous.pt``."""
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()  # torch.save to a file hides the reason of a failure such as a full disk
    torch.save(state, buffer)
    last = folder / "last.pt"
    fresh = folder / "next.pt"
    files.write(fresh, lambda file: file.write(buffer.getbuffer()))
    if last.exists():
        os.replace(last, folder / "previous.pt")
    os.replace(fresh, last)


def load(folder: Path, run_id: str) -> dict[str, Any] | None:
    """The newest readable state in ``folder``; None if the run has no checkpoint yet.

    Raises:
        RunError: no checkpoint can be read, or one belongs to another run.
    """
    refused = []
    for path in (folder / "last.pt", folder / "next.pt", folder / "previous.pt"):  # next.pt: killed before its renaming
        if not os.path.lexists(path):
            continue
        try:
            state = read(path)
        except ValueError as error:
            refused.append(f"{path} {error}")
            continue
        owner = state["run_id"]
        if owner != run_id:
            raise RunError(f"{path} belongs to run {owner}, not to {run_id}: remove it to start again")
        if refused:
            log.warning("%s; resuming from %s", refused[0], path)
        return state
    if refused:
        raise RunError(f"{'; '.join(refused)}: remove {folder} to start again")
    return None


def prune(run: Path, dry: bool) -> int:
    """Remove what only further steps need of a finished run: moments of optimiser and gradients, and earlier states.

    Args:
        dry: only count.

    Returns:
        The bytes that this frees.

    Raises:
        RunError: as :func:`final`; nothing is removed then.
    """
    state, last = final(run), run / "checkpoints" / "last.pt"
    earlier = [path for path in map(last.with_name, ("next.pt", "previous.pt")) if path.exists()]
    freed, buffer = sum(path.stat().st_size for path in earlier), io.BytesIO()
    if not state.get("pruned"):
        empty = {"optimizer": {**state["optimizer"], "state": {}}, **({"snr": {}} if "snr" in state else {})}
        torch.save(state | empty | {"pruned": True}, buffer)
        freed += last.stat().st_size - buffer.tell()
    if freed <= 0 or dry:
        return max(freed, 0)
    if buffer.tell():
        files.write_bytes(last, buffer.getvalue())
    for path in earlier:
        path.unlink()
    return freed


def final(run: Path) -> dict[str, Any]:
    """The last state of the run in the directory ``run``, for all that read a run and do not train it.

    An earlier state never takes its place, and of a run with results it is the state that they were measured on.

    Raises:
        RunError: there is no such state; the sentence says what trains the run again.
    """
    path, run_id, content = run / "checkpoints" / "last.pt", run.resolve().name, results.read(run)
    finished = content is not None and content["run_id"] == run_id  # those of another run are no results of this one
    again = f"remove {run / results.NAME}, and start its training again" if finished else "start its training again"
    if not os.path.lexists(path):
        raise RunError(f"{run} has no checkpoints/last.pt: {again}")
    try:
        state = read(path)
    except ValueError as error:
        raise RunError(f"{path} {error}: {again}") from error
    if state["run_id"] != run_id:
        raise RunError(f"{path} belongs to run {state['run_id']}, not to {run_id}: remove it, and {again}")
    step = measured = state.get("step")
    if content is not None and finished:
        measured = content.get("facts", {}).get("steps", step)
    if step != measured:
        further = type(step) is type(measured) is int and step > measured
        remedy = "start its training again, which goes on" if further else again
        raise RunError(f"{path} is of step {step}, and the results of the run are of step {measured}: {remedy}")
    return state


def backbone(run: Path) -> tuple[dict[str, Tensor], str]:
    """The backbone of the last state of a run, and ten hexadecimal digits for its names, shapes and bytes.

    Raises:
        RunError: as :func:`final`.
    """
    parts = ((name.partition("encoder.backbone."), value) for name, value in final(run)["method"].items())
    weights = {name: value for (_, prefix, name), value in parts if prefix}
    content = hashlib.sha256()
    for name, value in sorted(weights.items()):
        content.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        content.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return weights, content.hexdigest()[:10]


def read(path: Path) -> dict[str, Any]:
    """The state in one file, as :func:`save` wrote it: tensors and plain values, never code.

    The checksums are compared, which ``torch.load`` does not do.

    Raises:
        ValueError: it cannot be read; the message goes on after the file's name.
    """
    try:
        with files.open_regular(path) as file:
            files.compare_checksums(file)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                state: Any = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror or error})") from error
    except Exception as error:  # zipfile and torch raise many kinds of errors; torch's advise to run the file's code
        raise ValueError("cannot be read (it is cut short, damaged or no checkpoint)") from error
    if not isinstance(state, dict) or not isinstance(state.get("run_id"), str):
        raise ValueError("cannot be read (it has no run_id)")
    return state
