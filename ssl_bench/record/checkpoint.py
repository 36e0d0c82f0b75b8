"""Checkpoint files: the whole state of a run in one file, replaced atomically, with the previous one kept.

``last.pt`` holds everything that the next step depends on: a run that was killed and started again ends with the same
bits as one that was not. ``previous.pt`` is used if ``last.pt`` cannot be read.
"""

import io
import logging
import os
from pathlib import Path
from typing import Any

import torch

from ssl_bench import files
from ssl_bench.errors import RunError

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
    for path in (folder / "last.pt", folder / "previous.pt"):
        if not path.exists():
            continue
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            owner = state["run_id"]
        except Exception as error:  # torch raises many kinds of errors for a damaged file
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            refused.append(f"{path} cannot be read ({reason})")
            continue
        if owner != run_id:
            raise RunError(f"{path} belongs to run {owner}, not to {run_id}: remove it to start again")
        if refused:
            log.warning("%s; resuming from %s", refused[0], path)
        return state
    if refused:
        raise RunError(f"{'; '.join(refused)}: remove {folder} to start again")
    return None
