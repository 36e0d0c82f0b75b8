"""Errors of a file system that pass: no run is taken from its owner, no result is lost, and no file is half written."""

import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ssl_bench.record import checkpoint
from tests.conftest import SMALL, only_run
from tests.disk.faulty import FaultyFolder

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
import kill_runs

# Counts in a file under a lock, and prints each number. What it does not know it tries again.
COUNTER = """
import os, time
from pathlib import Path
from ssl_bench import files
from ssl_bench.disk import patience
from ssl_bench.launch import lock
patience.PAUSES = (0.001, 0.002, 0.004, 0.008)
lock.time.sleep = lambda seconds: None
folder, left = Path("disk/run").absolute(), 25
while left:
    try:
        with lock.locked(folder, wait=True):
            count = files.read_json(folder / "count.json", int) or 0
            files.write_json(folder / "count.json", count + 1)
            left -= 1
            files.append(folder / "turns.txt", f"{count + 1}\\n")
    except patience.NoAnswer as error:
        assert "its file system does not answer" in str(error)
    except OSError as error:
        assert error.errno in patience.NO_ANSWER, error
"""


def test_two_processes_count_in_turn_and_lose_no_number(tmp_path: Path) -> None:
    disk = FaultyFolder(tmp_path, 16)
    counters = [disk.start(seed, "-c", COUNTER) for seed in (1, 2)]
    printed = [counter.communicate(timeout=120)[0] for counter in counters]
    assert [counter.returncode for counter in counters] == [0, 0], printed
    turns = [int(turn) for turn in (disk.path / "run" / "turns.txt").read_text().split()]
    assert sorted(set(turns)) == turns and turns[-1] == int((disk.path / "run" / "count.json").read_text()) >= 50
    assert not list(disk.path.rglob("*.tmp"))
    counted = Counter(disk.failed())
    assert counted.total() >= 40 and {"stat", "open", "rename", "opendir", "fsync"} <= counted.keys()
