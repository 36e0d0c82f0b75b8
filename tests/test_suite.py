"""The suite itself: a test that kills its process fails by its name and all others run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

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
