"""Read the files that W&B writes for an offline run, as ``wandb sync`` would send them."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def wandb_directories(folder: Path) -> list[Path]:
    """W&B's directories in a run's directory, one for each process of the run, oldest first."""
    return sorted(folder.glob("wandb/offline-run-*"))


def records(directory: Path) -> list[Any]:
    """All records in one of W&B's directories. Waits for W&B's own process, which writes them a moment later."""
    deadline = time.monotonic() + 20
    while True:
        found = [r for path in directory.glob("*.wandb") for r in _read(path.read_bytes())]
        if any(r.WhichOneof("record_type") == "exit" for r in found) or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def of_kind(found: list[Any], kind: str) -> list[Any]:
    """The records of one kind: ``run``, ``history``, ``summary``, ``exit`` ..."""
    return [getattr(r, kind) for r in found if r.WhichOneof("record_type") == kind]


def history(found: list[Any]) -> list[dict[str, Any]]:
    """The rows, with W&B's own step as ``_step``."""
    return [
        {i.key or i.nested_key[0]: json.loads(i.value_json) for i in row.item} | {"_step": row.step.num}
        for row in of_kind(found, "history")
    ]


def summary(found: list[Any]) -> dict[str, Any]:
    return {i.key or i.nested_key[0]: json.loads(i.value_json) for s in of_kind(found, "summary") for i in s.update}


def wandb_config(found: list[Any]) -> dict[str, Any]:
    (run,) = of_kind(found, "run")
    return {u.key: json.loads(u.value_json) for u in run.config.update}


def _read(data: bytes) -> Iterator[Any]:
    """Decode LevelDB's log format (blocks of 32 kB, cut into chunks) around wandb's own messages."""
    from wandb.proto import wandb_internal_pb2

    at, message = 7, b""  # after wandb's header
    while at + 7 <= len(data):
        length, kind = struct.unpack_from("<4xHB", data, at)
        if kind == 0 or 32768 - at % 32768 < 7:  # the rest of the block is padding
            at += 32768 - at % 32768
            continue
        if at + 7 + length > len(data):
            return  # not written completely yet
        message += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole message, or the last part of one
            record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
            record.ParseFromString(message)
            message = b""
            yield record
