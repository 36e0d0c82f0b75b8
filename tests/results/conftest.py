"""``ssl-bench status`` in the process of the test, and a folder with grids of all kinds."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from ssl_bench.commands import status as command
from tests.results.grids import make

Status = Callable[..., CompletedProcess[str]]


@pytest.fixture
def status(capfd: pytest.CaptureFixture[str]) -> Status:
    """Function that runs ``ssl-bench status`` with its output to a pipe."""

    def run(*arguments: str) -> CompletedProcess[str]:
        capfd.readouterr()
        try:
            code = command.main(arguments)
        except SystemExit as stop:  # argparse
            code = int(stop.code or 0)
        return CompletedProcess(arguments, code, *capfd.readouterr())

    return run


@pytest.fixture(scope="session")
def grids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of :mod:`tests.results.grids`, which tests read and do not write: they copy what they change."""
    folder = tmp_path_factory.mktemp("grids") / "here"
    make(folder)
    return folder
