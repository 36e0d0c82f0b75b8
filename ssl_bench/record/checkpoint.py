"""Checkpoints: the whole state of a run in one file, replaced atomically, with the one before kept.

``last.pt`` holds everything that the next step depends on, so that a run that was killed and started again ends in the
same bits as one that was not. ``previous.pt`` stands in for it should it be unreadable.
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
    """Writes ``state`` as ``last.pt`` in ``folder`` and keeps the former one as ``previous.pt``."""
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()  # torch hides what went wrong with a file, such as a full disk; writing the bytes does not
    torch.save(state, buffer)
    last = folder / "last.pt"
    fresh = folder / "next.pt"
    files.write(fresh, lambda file: file.write(buffer.getbuffer()))
    if last.exists():
        os.replace(last, folder / "previous.pt")
    os.replace(fresh, last)


def load(folder: Path, run_id: str) -> dict[str, Any] | None:
    """The newest readable state in ``folder``, or None where a run has none yet.

    Raises:
        RunError: there are checkpoints and none can be used, or one belongs to another run.
    """
    refused = []
    for path in (folder / "last.pt", folder / "previous.pt"):
        if not path.exists():
            continue
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            owner = state["run_id"]
        except Exception as error:  # the reader raises many kinds for a damaged file
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
