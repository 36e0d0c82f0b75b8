"""``ssl-bench check`` on a GPU: every section goes to its end, and where values are computed they are right."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from ssl_bench.check import methods
from ssl_bench.check.finding import Setting
from ssl_bench.check.run import SECTIONS
from ssl_bench.training.recording import CudaRecording
from tests.gpu.conftest import REAL

VALUES = ["graph", "resume", "kernels"]


def command(*arguments: str) -> dict[str, Any]:
    """The check.json of a whole command."""
    words = [sys.executable, "-m", "ssl_bench", "check", "--quick", "--json", *arguments]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.slow
def test_a_quick_check_goes_to_its_end(gpu: Callable[..., Any], tmp_path: Path) -> None:
    """Kernels do nothing on the fake GPU: what they find is wrong, and with such values not every training goes on."""
    names = [name for name in SECTIONS if REAL or name not in ("methods", "resume")]  # tested with values below
    settings = {} if REAL else {"FAKE_CUDA_DEVICES": "2"}
    found = gpu(command, "--only", ",".join(names), f"paths.outputs={tmp_path}", values=False, **settings)
    assert [each["section"] for each in found["findings"] if each["name"] == "process"] == [], found["findings"]
    assert list(dict.fromkeys(each["section"] for each in found["findings"])) == names
    assert [each["reason"] for each in found["findings"] if each["verdict"] == "skipped" and found["gpus"] > 1] == []
    assert found["seconds"] < 150


def verdicts(names: list[str], fault: bool = False) -> dict[str, str]:
    """The verdict of each check of some sections, in this process; ``fault``: replays from the eighth on do nothing."""
    methods.QUICK = ["byol"]
    replay, replays = CudaRecording.replay, 0

    def lazy(self: CudaRecording) -> None:
        nonlocal replays
        replays += 1
        if replays < 8:
            replay(self)

    found = {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder, patch.object(CudaRecording, "replay", lazy if fault else replay):
            for each in SECTIONS[name](Setting(torch.device("cuda", 0), 1, True, Path(folder))):
                found[f"{name}: {each.name}"] = each.verdict.value
    return found


@pytest.mark.slow
@pytest.mark.parametrize("names", [VALUES, ["networks", "methods"]])
def test_a_right_gpu_is_found_right(names: list[str], gpu: Callable[..., Any]) -> None:
    found = gpu(verdicts, names)
    assert len(found) >= len(names) and set(found.values()) == {"good"}, found


@pytest.mark.slow
def test_replays_that_do_nothing_are_found(gpu: Callable[..., Any]) -> None:
    assert gpu(verdicts, ["graph"], True) == {"graph: replayed steps": "wrong"}
