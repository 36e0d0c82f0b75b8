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

from ssl_bench.check import run
from ssl_bench.check.answer import Answer, Section, Setting, Verdict
from ssl_bench.check.run import CheckRequest, CheckResult
from ssl_bench.commands import check
from ssl_bench.signals import unblock
from tests.ranks import wait_for


def good(setting: Setting) -> Iterator[Answer]:
    yield Answer("first", "1", Verdict.GOOD, values={"images_s": 1.5, "worst": float("nan")})


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


def ends(setting: Setting) -> Iterator[Answer]:
    (setting.folder / "left").write_text("x")
    yield Answer("folder", str(setting.folder))


FAULTS: dict[str, Section] = {"crashes": crashes, "exits": exits, "hangs": hangs, "fails": fails, "ends": ends}


@pytest.mark.slow
def test_a_section_that_dies_hangs_or_fails_is_one_wrong_answer_and_the_others_go_on() -> None:
    request = CheckRequest(tuple(FAULTS), True, 1, 0, Path("outputs"))
    results = list(run.run(request, FAULTS, limit=2.0))
    by_section: dict[str, list[CheckResult]] = {name: [r for r in results if r.section == name] for name in FAULTS}
    *planted, (last,) = by_section.values()
    assert all([r.answer.name for r in section] == ["first", "process"] for section in planted)
    assert all(section[-1].answer.verdict is Verdict.WRONG for section in planted)
    reasons = {name: section[-1].answer.reason for name, section in by_section.items()}
    crash = "the section's process was killed by SIGSEGV: Fatal Python error: Segmentation fault: File "
    assert reasons["crashes"].startswith(crash) and reasons["crashes"].endswith("in crashes")
    assert reasons["exits"] == "the section's process exited with code 7: no such kernel"
    assert reasons["hangs"].startswith("the section's process exited with code 1: Timeout (0:00:02)!: File ")
    assert reasons["hangs"].endswith("in hangs")  # where it was
    assert reasons["fails"] == "the section's process failed: RuntimeError: no kernel"
    assert not Path(last.answer.figure).exists()
    assert_its_process_has_ended()


def assert_its_process_has_ended() -> None:
    """The process of :func:`hangs` has ended, or is listed as one that nobody has waited for."""
    pid = int(Path("pid").read_text())
    wait_for(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, 2)


def main(*arguments: str) -> None:
    unblock()  # the server may be that of runs, which holds the signals back
    with open("printed", "w") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    run.SECTIONS["environment"] = hangs
    sys.exit(check.main(arguments))


def test_a_signal_ends_the_processes_and_leaves_no_report() -> None:
    process = multiprocessing.get_context("forkserver").Process(target=main, args=("--only", "environment"))
    process.start()
    assert process.pid is not None
    wait_for(lambda: Path("pid").exists() and Path("pid").read_text(), 60)
    os.kill(process.pid, signal.SIGTERM)
    process.join(20)
    assert process.exitcode == 128 + signal.SIGTERM
    assert Path("printed").read_text() == "interrupted: there is no report of this check\n"
    assert list(Path("outputs/checks").iterdir()) == []
    assert_its_process_has_ended()


def test_the_command_writes_check_json_and_its_code_says_if_something_is_wrong(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(run.SECTIONS, "environment", good)
    monkeypatch.setitem(run.SECTIONS, "speed", exits)
    assert check.main(["--only", "environment", "paths.outputs=right"]) == 0
    capfd.readouterr()
    assert check.main(["--quick", "--only", "speed", "--json", "devices=1"]) == 1
    captured = capfd.readouterr()
    content = json.loads(captured.out)
    (folder,) = Path("outputs/checks").iterdir()
    assert json.loads((folder / "check.json").read_text()) == content
    assert content["command"] == "ssl-bench check --quick --only speed --json devices=1"
    assert (content["level"], content["sections"], content["devices"]) == ("quick", ["environment", "speed"], 1)
    first, _, died = content["findings"]
    assert first["values"] == {"images_s": 1.5, "worst": "nan"} and first["verdict"] == "good"
    assert died["verdict"] == "wrong" and died["reason"] in captured.err
    lines = captured.err.splitlines()
    assert [lines[n].split() for n in (0, 2)] == [["environment", "first", "1", "good"], ["speed", "process", "wrong"]]
    assert lines[-1].startswith("3 checks in ") and lines[-1].endswith(f"outputs/checks/{folder.name}/check.json")


SECTIONS = "environment, graph, fp16, ranks, resume, methods, speed"  # the decisive ones first
WRONG = {
    "--only nothing": f"--only=nothing: set --only to one of {SECTIONS}",
    "--only speed,sped": f"--only=sped: set --only to one of {SECTIONS}",
    "devices=0": "devices=0: set devices to an integer from 1 to ",
    "devices=99999": "devices=99999: set devices to an integer from 1 to ",
    "devices=two": "devices=two: set devices to an integer from 1 to ",
    "paths.outputs=": "paths.outputs=: set paths.outputs to a folder",
    "path.outputs=x": "there is no key path.outputs (did you mean paths.outputs?): device, devices, paths.outputs are",
    "paths.outputs=file": "file/checks: Not a directory; set paths.outputs to a folder that can be written",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_arguments_are_refused_with_the_key(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").touch()
    assert check.main(line.split()) == 2
    assert capsys.readouterr().err.startswith(f"ssl-bench: {WRONG[line]}")
    assert not Path("outputs").exists()
