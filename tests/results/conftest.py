"""``ssl-bench status`` in the process of the test."""

from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from ssl_bench.commands import status as command

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
