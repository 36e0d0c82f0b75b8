"""``ssl-bench``: the help texts of all commands, and the end of the process."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from ssl_bench.cli import COMMANDS


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"train"}))
def test_every_command_has_help_and_refuses_an_unknown_flag(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``train`` prints the help of a configuration."""
    main = import_module(f"ssl_bench.commands.{command}").main
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0 and f"usage: ssl-bench {command}" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        main(["--no-such-flag"])
    refusal = capsys.readouterr().err
    assert stop.value.code == 2 and refusal.startswith("ssl-bench: ") and refusal.count("\n") == 1
    assert "--help" in refusal


def test_a_command_ends_without_a_last_look_for_garbage() -> None:
    """With torch imported it takes a second of each command."""
    code = "import atexit, gc, sys; atexit.register(lambda: print(gc.get_freeze_count() > 0)); "
    code += "sys.argv = ['ssl-bench', 'train', '--cfg', 'job']; from ssl_bench.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0 and ended.stdout.splitlines()[-1] == "True", ended


@pytest.mark.parametrize("arguments", (["--version"], ["train", "seed=1"], []))
def test_windows_is_refused_in_a_sentence(arguments: list[str], tmp_path: Path) -> None:
    """In a Python without the modules and signals that Windows lacks."""
    lacking = "import signal, sys\nsys.platform = 'win32'\ndel signal.SIGHUP, signal.SIGUSR2, signal.pthread_sigmask\n"
    (tmp_path / "sitecustomize.py").write_text(f"{lacking}sys.modules |= dict.fromkeys(('fcntl', 'resource'))\n")
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    command = [sys.executable, "-m", "ssl_bench", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | {"PYTHONPATH": paths})
    said = "ssl-bench: it runs on Linux and macOS, and on Windows in WSL2: install it there\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", said)
