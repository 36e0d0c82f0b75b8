"""``ssl-bench``: the table of commands, help texts, unknown commands and closed pipes."""

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ssl_bench import __version__
from ssl_bench.cli import COMMANDS

Cli = Callable[..., Any]


def test_usage_lists_the_commands_and_an_unknown_command_is_refused(cli: Cli) -> None:
    assert "ssl-bench <command>" in cli().stdout and cli("--help").returncode == 0
    unknown = cli("trian")
    assert unknown.returncode == 2 and "there is no command 'trian'" in unknown.stderr
    groups = cli("train", "--help")
    assert groups.returncode == 0 and "batch_size: b1000, b1024, b1120" in groups.stdout


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"train", "mi", "weight"}))
def test_every_command_has_help_and_refuses_an_unknown_flag(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The other three commands leave their flags to Hydra."""
    main = import_module(f"ssl_bench.commands.{command}").main
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0 and f"usage: ssl-bench {command}" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        main(["--no-such-flag"])
    refusal = capsys.readouterr().err
    assert stop.value.code == 2 and refusal.startswith("ssl-bench: ") and refusal.count("\n") == 1
    assert f"; flags of ssl-bench {command} are --help" in refusal


def test_a_closed_pipe_is_no_error() -> None:
    for i in range(3):
        folder = Path(f"outputs/{i}/0123456789")
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("{}")
    piped = f"{sys.executable} -m ssl_bench status | true"
    done = subprocess.run(["bash", "-c", piped], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_a_command_ends_without_reports_of_leaks() -> None:
    """Triton prints what is not collected at the end of the process."""
    code = "import sys, triton; sys.argv = ['ssl-bench', '--version']; from ssl_bench.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"ssl-bench {__version__}\n", "")
