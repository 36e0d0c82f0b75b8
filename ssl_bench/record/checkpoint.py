"""Checkpoint files: the whole state of a run in one file, ``checkpoints/last.pt``, which is replaced atomically.

It holds everything that the next step depends on: a run that was killed and started again under the same conditions
ends with the same bits as one that was not. After the last step of a run, before its ``results.json``, it is written
with what networks need and without what only steps need: it can be evaluated, loaded and exported, and not be trained
on. A run that can go on to more epochs (``identity.extensible``) keeps all of it.

Only the process that carries out a run replaces the file (``launch/lease.py``).
"""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ssl_bench import files
from ssl_bench.errors import RunError, command_line
from ssl_bench.networks import unpickler
from ssl_bench.record import runs

FILE = "checkpoints/last.pt"  # in the directory of a run


def save(run: Path, state: dict[str, Any]) -> None:
    """Write ``state`` as the last one of the run in the directory ``run``."""
    files.make_folder((run / FILE).parent)
    files.write_bytes(run / FILE, unpickler.packed(state))


def anew(run: Path) -> str:
    """End a refusal with the remedy: which files to remove so that the same command trains the run from the start."""
    there = [str(path) for path in (run / FILE, run / runs.RESULTS) if files.exists(path)]
    remove = f"`{command_line(['rm', *there])}`, then " if there else ""
    return f"to train it from the start: {remove}the same command again"


def load(run: Path, run_id: str) -> dict[str, Any] | None:
    """The last state of the run ``run_id`` in the directory ``run``, tensors and plain values; None if it has none yet.

    The checksums are compared, which ``torch.load`` does not do.

    Raises:
        RunError: it cannot be read, or belongs to another run; the sentence says what trains the run again.
        FileSystemUnavailable: the file system does not answer.
    """
    path = run / FILE
    if not files.exists(path):
        return None
    try:
        state: dict[str, Any] = files.read_with(path, unpickler.unpacked)
        if not all(isinstance(state[key], of) for key, of in (("run_id", str), ("step", int), ("method", dict))):
            raise ValueError
    except files.FileSystemUnavailable:
        raise
    except Exception as error:  # zipfile and torch raise many kinds of errors; torch's advise to run the file's code
        wrong = getattr(error, "strerror", None) or "it is cut short, damaged or no checkpoint"
        raise RunError(f"{path} cannot be read ({wrong}); {anew(run)}") from None
    if state["run_id"] != run_id:
        raise RunError(f"{path} belongs to run {state['run_id']}, not to {run_id}; {anew(run)}")
    return state


def final(run: Path) -> dict[str, Any]:
    """The last state of the run in the directory ``run``, for all that read a run and do not train it.

    Of a run with results it is the state that they were measured on.

    Raises:
        RunError: there is no such state; the sentence says what trains the run again.
    """
    state, content = load(run, run.resolve().name), runs.read_results(run)
    if state is None:
        raise RunError(f"{run} has no {FILE}; {anew(run)}")
    step = measured = state["step"]
    if content and content["run_id"] == state["run_id"]:
        measured = content.get("facts", {}).get("steps", step)
    if step != measured:
        what = f"{run / FILE} is of step {step}, and the results of the run are of step {measured}"
        raise RunError(f"{what}; start its training again, which goes on, or {anew(run)}")
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
