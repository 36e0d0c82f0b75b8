"""Sections run in processes of their own: what a crash, a hang or an error leaves, and how the command ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from ssl_bench.check import run
from ssl_bench.check.finding import Level, Verdict
from ssl_bench.check.run import CheckRequest, CheckResult
from ssl_bench.commands import check

HEAD = """
import os, signal, subprocess, sys, time
from ssl_bench.check.finding import Check, Finding, Verdict

def good():
    return Finding("1", Verdict.GOOD, values={"images_s": 1.5})

def section(setting):
    yield Check("first", good)
"""
PLANTED = {
    "crash": "    yield Check('second', lambda: os.kill(os.getpid(), signal.SIGSEGV))",
    "exits": "    yield Check('second', lambda: print('no such kernel', file=sys.stderr) or os._exit(7))",
    "hangs": "    child = subprocess.Popen(['sleep', '1000'])\n"
    "    (setting.data / 'pid').write_text(str(child.pid))\n"
    "    yield Check('second', lambda: time.sleep(1000))",
    "raises": "    raise RuntimeError('no checks')",
    "asks": "    yield Check('second', lambda: Finding(repr(setting.earlier['crash']['first']['images_s'])))\n"
    "    (setting.folder / 'left').write_text('x')",
}


def planted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Modules of sections with faults; a missing one too."""
    for name, body in PLANTED.items():
        (folder / f"planted_{name}.py").write_text(f"{HEAD}{body}\n")
    monkeypatch.syspath_prepend(folder)
    return {"missing": "planted_missing", **{name: f"planted_{name}" for name in PLANTED}}


def request(*sections: str, data: Path = Path("data")) -> CheckRequest:
    return CheckRequest(sections, Level.QUICK, 1, 0, data, Path("outputs"))


@pytest.mark.slow
def test_a_section_that_dies_hangs_or_raises_is_one_wrong_finding_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections = planted(tmp_path, monkeypatch)
    monkeypatch.setitem(run.SECONDS, "hangs", 4.0)
    monkeypatch.setattr(run, "START", 10.0)
    facts: dict[str, object] = {}
    work = tmp_path / "work"
    results = list(run.run(request(*sections, data=tmp_path), work, facts, sections))
    found: dict[str, list[CheckResult]] = {name: [r for r in results if r.section == name] for name in sections}
    assert all([r.name for r in found[name]] == ["first", "process"] for name in ("crash", "exits", "hangs", "raises"))
    assert [r.name for r in found["missing"]] == ["process"] and [r.name for r in found["asks"]] == ["first", "second"]
    reasons = {name: found[name][-1].finding.reason for name in sections}
    assert "was ended by SIGSEGV in the check 'second': Fatal Python error: Segmentation fault" in reasons["crash"]
    assert "ended with exit code 7 in the check 'second': no such kernel" in reasons["exits"]
    assert (
        "took longer than" in reasons["hangs"] and "(timeout) and was ended in the check 'second'" in reasons["hangs"]
    )
    assert reasons["raises"] == "the section's process failed with RuntimeError: no checks"
    assert "failed with ModuleNotFoundError: No module named 'planted_missing'" in reasons["missing"]
    assert all(found[name][-1].finding.verdict is Verdict.WRONG for name in sections if name != "asks")
    assert found["asks"][-1].finding.figure == "1.5"  # what an earlier section found, though it died
    assert facts["torch"] and facts["cores"]
    assert not any(path.is_dir() for path in work.iterdir())  # the folders of the sections
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_processes_and_leaves_no_report(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "planted_hangs.py").write_text(f"{HEAD}{PLANTED['hangs']}\n")
    code = "from ssl_bench.check import run; from ssl_bench.commands import check; import sys;"
    code += "run.SECTIONS['plan'] = 'planted_hangs'; sys.exit(check.main(['--only', 'plan', 'paths.data=.']))"
    (tmp_path / "main.py").write_text(f"if __name__ == '__main__':\n    {code}\n")
    command = [sys.executable, "main.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line.split() == ["plan", "first", "1", "good"]
        pid = _number(tmp_path / "pid")
        process.send_signal(number)
        assert process.wait(20) == 128 + number
        assert process.stderr.read() == "interrupted: there is no report of this check\n"
    assert not list((tmp_path / "outputs" / "checks").iterdir())
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]


def _number(path: Path) -> int:
    """The number in a file that may not be there yet."""
    end = time.monotonic() + 10
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return int(path.read_text())


@pytest.mark.slow
def test_the_command_writes_both_files_and_its_code_says_if_something_is_wrong(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections = planted(tmp_path, monkeypatch)
    monkeypatch.setitem(run.SECTIONS, "plan", sections["crash"])
    left = tmp_path / "outputs" / "checks" / f".{os.uname().nodename}-work-999999999"
    left.mkdir(parents=True)
    assert check.main(["--quick", "--only", "plan", "--json", "paths.data=d"]) == 1
    captured = capfd.readouterr()
    content = json.loads(captured.out)
    (folder,) = (tmp_path / "outputs" / "checks").iterdir()  # without the folder of a process that was killed
    assert json.loads((folder / "check.json").read_text()) == content
    assert content["command"] == "ssl-bench check --quick --only plan --json paths.data=d"
    assert (content["level"], content["sections"], content["gpus"]) == ("quick", ["plan"], 0)
    first, died = content["findings"]
    assert first["values"] == {"images_s": 1.5} and first["verdict"] == "good" and died["verdict"] == "wrong"
    assert "was ended by SIGSEGV" in (folder / "check.md").read_text()
    lines = captured.err.splitlines()
    assert lines[0].split() == ["plan", "first", "1", "good"] and lines[1].split() == ["plan", "process", "wrong"]
    assert lines[-1].startswith("2 checks in ") and lines[-1].endswith(f"outputs/checks/{folder.name}/check.md")


WRONG = {
    "--only nothing": "--only=nothing: set --only to one of environment, networks, exact, speed, input, accuracy, plan",
    "--only plan,sped": "--only=sped: set --only to one of environment, networks, exact, speed, input, accuracy, plan",
    "devices=0": "devices=0: set devices to an integer from 1 to ",
    "devices=99999": "devices=99999: set devices to an integer from 1 to ",
    "devices=two": "devices=two: set devices to an integer from 1 to ",
    "paths.data=": "paths.data=: set paths.data to a folder",
    "path.data=x": "there is no key path.data (did you mean paths.data?): devices, paths.data, paths.outputs are what",
    "paths.outputs=file": "file: File exists; set paths.outputs to a folder that can be written",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_arguments_are_refused_with_the_key(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").touch()
    assert check.main(line.split()) == 2
    assert capsys.readouterr().err.startswith(f"ssl-bench: {WRONG[line]}")
    assert not Path("outputs").exists()


def test_quick_and_full_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        check.main(["--quick", "--full"])
    assert "--full: not allowed with argument --quick" in capsys.readouterr().err


def test_sections_and_their_times() -> None:
    names = tuple(run.SECTIONS)
    assert names == ("environment", "networks", "exact", "speed", "input", "accuracy", "plan")
    shared = ("exact", "speed", "input")
    assert [round(run.section_seconds(name, Level.QUICK)) for name in shared] == [36, 48, 12]
    assert [round(run.section_seconds(name, Level.DEFAULT)) for name in shared] == [180, 240, 60]
    assert [round(run.section_seconds(name, Level.FULL)) for name in (*shared, "accuracy")] == [270, 360, 90, 600]


def test_values_become_plain() -> None:
    values = {
        "a": torch.tensor(1.5),
        "b": np.float32(0.5),
        "c": (1, float("nan")),
        "d": torch.arange(2),
        "e": Path("p"),
    }
    assert run.plain(values) == {"a": 1.5, "b": 0.5, "c": [1, "nan"], "d": [0, 1], "e": "p"}
    assert run.plain({"x": None, "y": True, "z": np.int64(3)}) == {"x": None, "y": True, "z": 3}
