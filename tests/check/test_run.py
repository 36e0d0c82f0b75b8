"""The command ``ssl-bench check``: what a crash, a hang or an error of a section leaves, and how the command ends."""

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from ssl_bench.check import run
from ssl_bench.check.answer import Answer, Section, Setting, Verdict
from ssl_bench.commands import check
from ssl_bench.signals import unblock
from tests.ranks import wait_for

SETTING = Setting(torch.device("cpu"), 1, Path())


def good(setting: Setting) -> Iterator[Answer]:
    yield Answer("first", str(setting.folder), Verdict.GOOD, values={"images_s": 1.5, "worst": float("nan")})


def crashes(setting: Setting) -> Iterator[Answer]:
    yield from good(setting)
    os.kill(os.getpid(), signal.SIGSEGV)


def exits(setting: Setting) -> Iterator[Answer]:
    yield from good(setting)
    print("no such kernel", file=sys.stderr, flush=True)
    os._exit(7)


def hangs(setting: Setting) -> Iterator[Answer]:
    yield from good(setting)
    Path("pid").write_text(str(os.getpid()))
    time.sleep(1000)


def fails(setting: Setting) -> Iterator[Answer]:
    yield from good(setting)
    raise RuntimeError("no kernel")


FAULTS: dict[Section, str] = {crashes: "SIGSEGV", exits: "no such kernel", hangs: "Timeout", fails: "no kernel"}


@pytest.mark.slow
@pytest.mark.parametrize("section", FAULTS)
def test_a_section_that_dies_hangs_or_fails_is_one_wrong_answer(section: Section) -> None:
    first, last = run.run(section, SETTING, limit=2.0 if section is hangs else 60.0)
    assert first.verdict is Verdict.GOOD and not Path(first.figure).exists()
    assert (last.name, last.verdict) == ("process", Verdict.WRONG) and FAULTS[section] in last.reason


def assert_its_process_has_ended() -> None:
    """The process of :func:`hangs` has ended, or is listed as one that nobody has waited for."""
    pid = int(Path("pid").read_text())
    wait_for(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, 20)


def main(*arguments: str) -> None:
    unblock()  # the server may be that of runs, which holds the signals back
    run.SECTIONS["machine"] = hangs
    sys.exit(check.main(arguments))


def test_a_signal_ends_the_processes_and_leaves_no_report() -> None:
    process = multiprocessing.get_context("forkserver").Process(target=main, args=("machine",))
    process.start()
    assert process.pid is not None
    wait_for(lambda: Path("pid").exists() and Path("pid").read_text(), 60)
    os.kill(process.pid, signal.SIGTERM)
    process.join(20)
    assert process.exitcode == -signal.SIGTERM  # 143 in a shell
    assert list(Path("outputs/checks").iterdir()) == []
    assert_its_process_has_ended()


def test_the_command_writes_check_json_and_its_code_says_if_something_is_wrong(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(run.SECTIONS, "machine", good)
    monkeypatch.setitem(run.SECTIONS, "speed", exits)
    assert check.main(["machine", "paths.outputs=right"]) == 0
    capfd.readouterr()
    assert check.main(["speed", "--json"]) == 1
    captured = capfd.readouterr()
    content = json.loads(captured.out)
    (folder,) = Path("outputs/checks").iterdir()
    assert json.loads((folder / "check.json").read_text()) == content
    assert content["command"] == "ssl-bench check speed --json"
    first, _, died = content["findings"]
    assert first["values"] == {"images_s": 1.5, "worst": "nan"} and (first["section"], first["verdict"]) == (
        "machine",
        "good",
    )
    assert died["verdict"] == "wrong" and died["reason"] in captured.err
    assert str(folder / "check.json") in captured.err


WRONG = {
    "nothing": "SECTION=nothing: set SECTION to one of machine, steps, ranks, resume, methods, speed",
    "device=gpu": "device=gpu",
    "paths.outputs=": "paths.outputs=: set paths.outputs to a folder",
    "path.outputs=x": "there is no key path.outputs (did you mean paths.outputs?)",
    "paths.outputs=file": "file/checks: ",
    "--quick": "--quick",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_arguments_are_refused_with_the_key(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").touch()
    try:
        assert check.main(line.split()) == 2
    except SystemExit as end:
        assert end.code == 2
    assert WRONG[line] in capsys.readouterr().err
    assert not Path("outputs").exists()
