"""The suite itself: a test that kills its process fails by its name and all others run; where it is run."""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
import matrix

DEADLY = (0, 1, 5, 6, 7, 8, 9, 10, 11)  # more than pytest-xdist replaces by default: four for each of two workers
PLANTED = f"""
import os
import pytest

@pytest.mark.parametrize("number", range(16))
def test_planted(number: int) -> None:
    if number in {DEADLY}:
        os.abort()
"""


def test_tests_that_kill_their_process_fail_by_name_and_the_others_run(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parents[1] / "pyproject.toml", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_planted.py").write_text(PLANTED)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # a worker starts in a fraction of the time
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "pytest_timeout"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=150)
    failed = re.findall(r"^FAILED tests/test_planted.py::test_planted\[(\d+)\] - worker", done.stdout, re.MULTILINE)
    assert sorted(map(int, failed)) == list(DEADLY), done.stdout
    assert re.search(r"^9 failed, 7 passed in ", done.stdout, re.MULTILINE) and done.returncode == 1


def test_the_standard_cells_have_every_value_twice_and_others_are_refused() -> None:
    cells = [matrix.Cell.parse(text) for text in matrix.STANDARD]
    values = [{"3.11", "3.13"}, {"2.6", "2.11", "newest"}, {"default", "avx2"}, {"1", "2"}, {"1", "all"}]
    for found, wanted in zip(zip(*cells, strict=True), values, strict=True):
        assert set(found) == wanted and min(Counter(found).values()) >= 2
    assert matrix.Cell.parse("3.12:2.8.1:4") == ("3.12", "2.8.1", "default", "4", "all")
    for text in ("3.12", "3.12:2", "3.12:2.8:avx", "3.12:2.8:0", "3.12:2.8:1:1:1", "2.7:2.8"):
        with pytest.raises(argparse.ArgumentTypeError, match=rf"^{text} is not PYTHON:TORCH\[:ISA\]"):
            matrix.Cell.parse(text)
