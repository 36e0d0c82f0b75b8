"""Command lines: their exit codes, help, and what fails outside of a command."""

import os
import sys
from pathlib import Path

import pytest

from ssl_bench import __version__
from ssl_bench.commands import table
from tests.door.door import enter, refuses

Capture = pytest.CaptureFixture[str]

# A command with --help, and words of its first lines.
HELP = {
    "": "usage: ssl-bench <command>",
    "help status": "usage: ssl-bench status",
    "train --help": "ssl-bench train [group=option]",
    "train experiment=growing_k --cfg job": "name: ",
    "--version": f"ssl-bench {__version__}\n",
}


@pytest.mark.parametrize("command", HELP)
def test_help_and_configurations_are_printed_and_nothing_is_written(command: str, capfd: Capture) -> None:
    answer = enter(command, capfd)
    assert (answer.code, answer.err) == (0, "") and HELP[command] in answer.out
    assert not list(Path().iterdir())


def test_the_folder_of_config_dir_has_options_of_its_own(capfd: Capture) -> None:
    """An equals sign in its name is none of an override."""
    Path("a=b/experiment").mkdir(parents=True)
    Path("a=b/experiment/mine.yaml").write_text("# @package _global_\nseed: 7\nname: '1e5'\n")
    for command in ("train --config-dir a=b experiment=mine", "train experiment=mine --config-dir=a=b"):
        answer = enter(f"{command} --cfg job", capfd)
        assert answer.code == 0 and "\nseed: 7\n" in answer.out and "name: '1e5'\n" in answer.out


def test_errors_outside_a_command_are_sentences(capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(error: BaseException) -> None:
        def main(arguments: object) -> int:
            raise error

        monkeypatch.setattr(table, "main", main)

    fails(PermissionError(13, "Permission denied", "x"))
    refuses("table", "x", capfd, 1)
    fails(OSError(28, "No space left on device"))
    refuses("table", "output", capfd, 1)
    fails(KeyboardInterrupt())
    answer = enter("table", capfd)
    assert answer.code == 130 and answer.err.count("\n") == 1
    fails(KeyError("a fault of the program keeps its traceback"))
    with pytest.raises(KeyError), monkeypatch.context() as patched:
        patched.setattr(sys, "argv", ["ssl-bench", "table"])
        from ssl_bench import cli

        cli.main()


def test_a_job_that_slurm_refuses_is_one_sentence(
    capfd: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("srun", "sbatch"):
        (tmp_path / name).write_text("#!/bin/sh\necho sbatch: error: invalid partition: nope >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    answer = enter("train -m launcher=slurm launcher.partition=nope seed=0,1", capfd)
    line = answer.err.splitlines()[-1]
    assert answer.code == 2 and "nope" in line and "launcher.<key>" in line, answer
