"""Checkpoint files: the whole state of a run in one file, replaced atomically, with the previous one kept.

``last.pt`` holds everything that the next step depends on: a run that was killed and started again under the same
conditions ends with the same bits as one that was not. A training goes on from ``previous.pt`` if ``last.pt`` cannot
be read (:func:`load`); whatever reads a run takes ``last.pt`` or nothing (:func:`final`). After :func:`prune` a
finished run has only ``last.pt``, with networks and without moments: it is read as before, and cannot be trained on.

Only the owner of a run replaces ``last.pt`` (``claim.py``). One that finds its run taken over writes its state to
``taken-<claim>-<step>.pt``, with the rows of metrics since its last checkpoint. The next start goes on from there if no
other state is further, and a checkpoint of that step or a later one removes the file.
"""

import contextlib
import hashlib
import io
import logging
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ssl_bench import files
from ssl_bench.disk import temporary
from ssl_bench.disk.patience import NoAnswer, answer, exists, make_folder, patiently
from ssl_bench.errors import RunError
from ssl_bench.networks import torch_files
from ssl_bench.record import results
from ssl_bench.record.claim import Claim, Taken

log = logging.getLogger(__name__)


def save(folder: Path, state: dict[str, Any], claim: Claim | None = None, rows: Sequence[str] = ()) -> None:
    """Write ``state`` to ``last.pt`` in ``folder``, and keep the former ``last.pt`` as ``previous.pt``.

    Args:
        claim: on this run; None: no other process can have it.
        rows: of metrics since the last checkpoint.

    Raises:
        Taken: another process has the run: the state was set aside, with the rows.
    """
    make_folder(folder)
    content = torch_files.packed(state)
    last, previous = folder / "last.pt", folder / "previous.pt"
    spare = temporary.beside(previous)

    def keep_former() -> None:
        files.remove(spare)
        if exists(last):
            _link(last, spare)
        if claim is not None:
            claim.require()
        if exists(spare):
            patiently(lambda: os.replace(spare, previous))

    try:
        files.write_bytes(last, content, keep_former)
    except (Taken, FileNotFoundError):  # the latter: a new owner has removed the temporary files
        if claim is None or not claim.lost_to():
            raise
        files.write_bytes(folder / _aside(claim, state["step"]), torch_files.packed(state | {"rows": list(rows)}))
        raise Taken(takeover(claim, state["step"])) from None
    finally:
        files.remove(spare)
    for step, path in _set_aside(folder):
        if step <= state["step"]:
            files.remove(path)


def takeover(claim: Claim, step: int) -> str:
    """Say who has the run of a claim now, and where its state at a step is; empty while the claim is valid."""
    if not (owner := claim.lost_to()):
        return ""
    goes_on = "from which the same command goes on if that process ends before it"
    return f"{claim.folder.parent} was taken over by {owner}: step {step} is in {_aside(claim, step)}, {goes_on}"


def _aside(claim: Claim, step: int) -> str:
    return f"taken-{claim.number}-{step}.pt"


def _link(path: Path, copy: Path) -> None:
    try:
        os.link(path, copy)
    except OSError:  # a file system without links
        shutil.copyfile(path, copy)


def _set_aside(folder: Path) -> Iterator[tuple[int, Path]]:
    """The states that former owners have set aside, with their steps, the furthest one first."""
    listed = answer(folder, lambda: os.listdir(folder))
    names = (re.fullmatch(r"taken-(\d+)-(\d+)\.pt", name) for name in listed)
    for step, name in sorted(((int(name[2]), name[0]) for name in names if name), reverse=True):
        yield step, folder / name


def load(folder: Path, run_id: str) -> dict[str, Any] | None:
    """The newest readable state in ``folder``; None if the run has no checkpoint yet.

    Raises:
        RunError: no checkpoint can be read, or one belongs to another run.
        NoAnswer: the file system does not answer.
    """
    refused, newest = list[str](), None
    for path in (folder / "last.pt", folder / "previous.pt"):
        if not exists(path):
            continue
        try:
            newest = read(path)
        except ValueError as error:
            refused.append(f"{path} {error}")
            continue
        owner = newest["run_id"]
        if owner != run_id:
            raise RunError(f"{path} belongs to run {owner}, not to {run_id}: remove it to start again")
        if refused:
            log.warning("%s; resuming from %s", refused[0], path)
        break
    for step, path in _set_aside(folder) if exists(folder) else ():
        with contextlib.suppress(ValueError):
            if (newest is None or step > newest["step"]) and (state := read(path))["run_id"] == run_id:
                log.info("resuming from %s, of a process from which the run was taken over", path)
                return state
    if newest is None and refused:
        raise RunError(f"{'; '.join(refused)}: remove {folder} to start again")
    return newest


def prune(run: Path, dry: bool) -> int:
    """Remove what only further steps need of a finished run: moments of optimiser and gradients, and earlier states.

    Args:
        dry: only count.

    Returns:
        The bytes that this frees; 0 where there is no last state.

    Raises:
        RunError: as :func:`final`; nothing is removed then.
    """
    last = run / "checkpoints" / "last.pt"
    if not exists(last):
        return 0
    state = final(run)
    earlier = [path for path in last.parent.iterdir() if path.suffix == ".pt" and path != last]
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
    again = f"move {run / results.NAME} elsewhere, and start its training again"
    again = again if finished else "start its training again"
    if not exists(path):
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
        NoAnswer: the file system does not answer.
    """
    try:
        state: Any = files.read_with(path, torch_files.unpacked)
    except NoAnswer:
        raise
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror or error})") from error
    except Exception as error:  # zipfile and torch raise many kinds of errors; torch's advise to run the file's code
        raise ValueError("cannot be read (it is cut short, damaged or no checkpoint)") from error
    if not isinstance(state, dict) or not isinstance(state.get("run_id"), str):
        raise ValueError("cannot be read (it has no run_id)")
    return state
