"""Processes whose file system fails now and then, by the library that ``faults.c`` makes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("faults.c")


class FaultyFolder:
    """A folder in which calls of the processes that are started here fail by chance.

    Args:
        folder: the folder of the test; below ``folder / "disk"`` calls fail.
        one_in: one in so many calls fails.
    """

    def __init__(self, folder: Path, one_in: int) -> None:
        if sys.platform != "linux" or shutil.which("gcc") is None:
            pytest.skip("needs Linux and gcc")
        self.path, self._log, self._library = folder / "disk", folder / "calls.txt", folder / "faults.so"
        self.path.mkdir()
        compiled = ["gcc", "-std=gnu11", "-w", "-O1", "-fPIC", "-shared", str(SOURCE), "-o", str(self._library), "-ldl"]
        subprocess.run(compiled, check=True)
        self._environment = {"FAULTS_BELOW": str(self.path), "FAULTS_ONE_IN": str(one_in)}
        self._environment |= {"FAULTS_LOG": str(self._log), "LD_PRELOAD": str(self._library)}

    def start(self, seed: int, *arguments: str) -> "subprocess.Popen[str]":
        """Start Python with these arguments."""
        environment = os.environ | self._environment | {"FAULTS_SEED": str(seed)}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        command = [sys.executable, *arguments]
        return subprocess.Popen(command, **streams, text=True, cwd=self.path.parent, env=environment)  # type: ignore[call-overload,no-any-return]

    def failed(self) -> list[str]:
        """The names of the calls that have failed, such as ``open``."""
        text = self._log.read_text() if self._log.exists() else ""
        return re.findall(r"^\d+ failed (\w+) ", text, re.M)

    def writers(self, path: Path) -> list[str]:
        """The process ids that have replaced or opened a file, in that order; consecutive equal ids count once."""
        found = re.findall(rf"^(\d+) did \w+ {re.escape(str(path))}$", self._log.read_text(), re.M)
        return [pid for number, pid in enumerate(found) if number == 0 or pid != found[number - 1]]
