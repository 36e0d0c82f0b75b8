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
from ssl_bench.check.answer import Setting
from ssl_bench.check.run import SECTIONS
from ssl_bench.training.graph import CudaRecording
from tests.gpu.conftest import REAL

VALUES = ["steps", "resume"]


def command(*arguments: str) -> dict[str, Any]:
    """The check.json of a whole command."""
    words = [sys.executable, "-m", "ssl_bench", "check", "--json", *arguments]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.slow
def test_a_check_goes_to_its_end(gpu: Callable[..., Any], tmp_path: Path) -> None:
    """Kernels do nothing on the fake GPU: what they find is wrong, and with such values not every training goes on."""
    names = [name for name in SECTIONS if REAL or name not in ("methods", "resume")]  # tested with values below
    settings = {} if REAL else {"FAKE_CUDA_DEVICES": "2"}
    content = gpu(command, *names, f"paths.outputs={tmp_path}", values=False, **settings)
    answers = content["findings"]
    assert [answer["section"] for answer in answers if answer["name"] == "process"] == [], answers
    assert list(dict.fromkeys(answer["section"] for answer in answers)) == names
    assert content["machine"].startswith("1 x ") or "skipped" not in {answer["verdict"] for answer in answers}


def verdicts(names: list[str], fault: bool = False) -> dict[str, str]:
    """The verdict of each check of some sections, in this process; ``fault``: replays from the eighth on do nothing."""
    methods.cases = lambda: iter([["framework=byol"], ["loss=dcl"]])
    replay, replays = CudaRecording.replay, 0

    def lazy(self: CudaRecording) -> None:
        nonlocal replays
        replays += 1
        if replays < 8:
            replay(self)

    by_name = {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder, patch.object(CudaRecording, "replay", lazy if fault else replay):
            for answer in SECTIONS[name](Setting(torch.device("cuda", 0), 1, Path(folder))):
                by_name[f"{name}: {answer.name}"] = answer.verdict.value
    return by_name


@pytest.mark.slow
@pytest.mark.parametrize("names", [VALUES, ["methods"]])
def test_a_right_gpu_is_found_right(names: list[str], gpu: Callable[..., Any]) -> None:
    by_name = gpu(verdicts, names)
    assert len(by_name) >= len(names) and set(by_name.values()) == {"good"}, by_name


@pytest.mark.slow
def test_replays_that_do_nothing_are_found(gpu: Callable[..., Any]) -> None:
    assert gpu(verdicts, ["steps"], True) == {"steps: replayed steps": "wrong"}
