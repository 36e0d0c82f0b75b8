"""A grid on disk: the cells it has and what became of each, whichever launcher carries them out.

``<sweep>/grid.json``       {"command", "host", "pid", "started", "cells": [[override, ...], ...]}, at its start
``<sweep>/cells/<n>.json``  {"overrides", "folder", "state", "reason", "code"}, at the start and the end of each cell

States: running, done, done before, failed, interrupted (``code`` is 128 + the signal), held (another process has the
run).
"""

import os
import shlex
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from ssl_bench import files
from ssl_bench.record.summary import compare

WORDS = {"done": "trained", "done before": "done before", "failed": "failed"}
started: Path | None = None  # the folder of the grid that this process has started


class Grid(Callback):
    """Hydra's callback that writes ``grid.json``."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        global started
        given = [f"{key}={value}" for key, value in (config.hydra.sweeper.params or {}).items()]
        given += config.hydra.overrides.task
        parsed = OverridesParser.create().parse_overrides(given)
        cells = [list(cell) for batch in BasicSweeper.split_arguments(parsed, None) for cell in batch]
        started = Path(config.hydra.sweep.dir)
        (started / "cells").mkdir(parents=True, exist_ok=True)
        record: dict[str, Any] = {"command": shlex.join([*sys.argv[0].split(), *sys.argv[1:]])}
        record |= {"host": socket.gethostname(), "pid": os.getpid(), "started": time.time(), "cells": cells}
        files.write_json(started / "grid.json", record)


def record(sweep: Path, number: int, overrides: Sequence[str], outcome: Mapping[str, Any]) -> None:
    """Writes what became of a cell; ``outcome`` has at least ``state``."""
    known = {"folder": None, "reason": "", "code": 0} | {k: v for k, v in outcome.items() if k in ("state", *KEPT)}
    files.write_json(sweep / "cells" / f"{number}.json", {"overrides": list(overrides), **known})


KEPT = ("folder", "reason", "code")


def summary(sweep: Path) -> int:
    """Says how a grid went, each cell by what sets it apart, and how well; gives the exit code."""
    cells: list[list[str]] = files.read_json(sweep / "grid.json")["cells"]
    found = [files.read_json(sweep / "cells" / f"{number}.json") for number in range(len(cells))]
    lost: dict[str, Any] = {"state": "failed", "reason": "its process ended without a word", "code": 1}
    outcomes = [lost if cell is None or cell["state"] == "running" else cell for cell in found]
    states = [outcome["state"] for outcome in outcomes]
    counts = [f"{states.count(s)} {word}" for s, word in WORDS.items()]
    counts += [f"{states.count(s)} {s}" for s in ("interrupted", "held") if s in states]
    print(f"{len(cells)} cells: {', '.join(counts)}")
    shared = set.intersection(*(set(cell) for cell in cells))
    finished: dict[str, list[Path]] = {}  # of one name: the seeds of a cell
    for cell, outcome in zip(cells, outcomes, strict=True):
        apart = [override for override in cell if override not in shared]
        if outcome["state"] in ("failed", "held"):
            print(f"  {outcome['state']}: {' '.join(apart)}: {outcome['reason']}")
        elif outcome["state"] in ("done", "done before"):
            name = " ".join(override for override in apart if not override.startswith("seed="))
            finished.setdefault(name, []).append(Path(outcome["folder"]))
    if len(cells) > 1:
        compare(finished)
    stopped = [outcome["code"] for outcome in outcomes if outcome["state"] == "interrupted"]
    return stopped[0] if stopped else 1 if {"failed", "held"} & set(states) else 0
