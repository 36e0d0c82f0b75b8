"""Errors of a file system that pass: no run is taken from its owner, no result is lost, and no file is half written."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import SMALL, only_run
from tests.faulty import FaultyFolder

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
import kill_runs

# Counts in a file under a lease, and prints each number. What it does not know it tries again.
COUNTER = """
import os, time
from pathlib import Path
from ssl_bench import files
from ssl_bench.launch import lease
files.PAUSES = (0.001, 0.002, 0.004, 0.008, 0.0)
lease.time.sleep = lambda seconds: None
folder, left = Path("disk/run").absolute(), 25
while left:
    try:
        with lease.held(folder, wait=True):
            count = files.read_json(folder / "count.json", int) or 0
            files.write_json(folder / "count.json", count + 1)
            left -= 1
            files.append(folder / "turns.txt", f"{count + 1}\\n")
    except files.FileSystemUnavailable as error:
        assert "its file system does not answer" in str(error)
    except OSError as error:
        assert error.errno in files.OUT_OF_REACH, error
"""


def test_two_processes_count_in_turn_and_lose_no_number(tmp_path: Path) -> None:
    disk = FaultyFolder(tmp_path, 16)
    counters = [disk.start(seed, "-c", COUNTER) for seed in (1, 2)]
    printed = [counter.communicate(timeout=120)[0] for counter in counters]
    assert [counter.returncode for counter in counters] == [0, 0], printed
    turns = [int(turn) for turn in (disk.path / "run" / "turns.txt").read_text().split()]
    assert sorted(set(turns)) == turns and turns[-1] == int((disk.path / "run" / "count.json").read_text()) >= 50
    assert not list(disk.path.rglob("*.tmp"))
    assert disk.failed()


RUN = [*SMALL, "evaluate=knn", "epochs=8", "batch_size.size=512", "checkpoint.every=1", "evaluate.every=3"]
SENTENCES = ("does not answer", "after fixing that, the same command resumes")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_runs_end_with_the_bits_of_an_undisturbed_one(train: Callable[..., Any], tmp_path: Path) -> None:
    """Two processes start the same run, and again until it is done, through 200 errors and more."""
    assert train(*RUN, "paths.outputs=whole", small=False)[0] == 0
    end, disk, attempt = kill_runs.left_by(Path("whole")), FaultyFolder(tmp_path, 9), 0
    resumed, refused, reasons = 0, 0, list[str]()
    while len(disk.failed()) < 200:
        attempt += 1
        outputs, left = disk.path / str(attempt), True
        while left:
            (saved,) = [torch.load(path)["step"] for path in outputs.rglob("last.pt")] or [0]
            command = ["-m", "ssl_bench", "train", *RUN, f"paths.outputs={outputs}"]
            processes = [disk.start(10 * attempt + number, *command) for number in (1, 2)]
            printed = [process.communicate(timeout=300)[0] for process in processes]
            for process, text in zip(processes, printed, strict=True):
                assert process.returncode in (0, 1) and "Traceback" not in text, text
                assert process.returncode == 0 or any(sentence in text for sentence in SENTENCES), text
                refused += process.returncode
                reasons += text.splitlines()[-1:] if process.returncode else []
            steps = [int(step) for text in printed for step in re.findall(r"resuming at step (\d+) ", text)]
            assert not steps or saved in steps or not saved, (saved, printed)
            resumed += len(steps)
            left = any(process.returncode for process in processes)
        run = only_run(outputs)
        for path in (run / "checkpoints" / "last.pt", run / "metrics.jsonl"):  # nobody comes back: never two at once
            writers = disk.writers(path)
            assert writers and len(set(writers)) == len(writers), (path.name, writers)
        assert train(*RUN, f"paths.outputs={outputs}", small=False)[0] == 0  # which removes what could not be
        assert kill_runs.differences(end, kill_runs.left_by(outputs)) == []
    print(f"{len(disk.failed())} errors in {attempt} runs: {resumed} processes resumed, {refused} gave up: {reasons}")
