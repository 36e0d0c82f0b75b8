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
    """All entries in one of W&B's directories. Waits for W&B's own process, which writes them a moment later."""
    deadline = time.monotonic() + 20
    while True:
        entries = [r for path in directory.glob("*.wandb") for r in _read(path.read_bytes())]
        if any(r.WhichOneof("record_type") == "exit" for r in entries) or time.monotonic() > deadline:
            return entries
        time.sleep(0.1)


def of_kind(entries: list[Any], kind: str) -> list[Any]:
    """The entries of one kind: ``run``, ``history``, ``summary``, ``exit`` ..."""
    return [getattr(r, kind) for r in entries if r.WhichOneof("record_type") == kind]


def history(entries: list[Any]) -> list[dict[str, Any]]:
    """The rows, with W&B's own step as ``_step``."""
    return [
        {i.key or i.nested_key[0]: json.loads(i.value_json) for i in row.item} | {"_step": row.step.num}
        for row in of_kind(entries, "history")
    ]


def summary(entries: list[Any]) -> dict[str, Any]:
    return {i.key or i.nested_key[0]: json.loads(i.value_json) for s in of_kind(entries, "summary") for i in s.update}


def wandb_config(entries: list[Any]) -> dict[str, Any]:
    (run,) = of_kind(entries, "run")
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
