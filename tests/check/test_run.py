"""The command ``ssl-bench check``: sections that crash or hang, how it ends, its report, ``speed`` and ``machine``."""

import dataclasses
import datetime
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from ssl_bench import files
from ssl_bench.check import machine, report, run, speed
from ssl_bench.check.answer import Answer, Section, Setting, Verdict
from ssl_bench.commands import check
from ssl_bench.signals import unblock
from ssl_bench.training.step import Stepper
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


@pytest.mark.slow
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
    assert check.main(["speed", "--json"]) == 1
    captured = capfd.readouterr()
    content = json.loads(captured.out)
    (folder,) = Path("outputs/checks").iterdir()
    assert json.loads((folder / "check.json").read_text()) == content
    assert content["command"] == "ssl-bench check speed --json"
    first, _, died = content["findings"]
    assert first["values"] == {"images_s": 1.5, "worst": "nan"}
    assert (first["section"], first["verdict"]) == ("machine", "good")
    assert died["verdict"] == "wrong" and died["reason"] in captured.err
    assert str(folder / "check.json") in captured.err


# ---- the report

NOW = datetime.datetime(2026, 3, 4, 5, 6, 7, tzinfo=datetime.UTC)
FACTS = {"torch": "2.15.0", "device": "NVIDIA H100", "git": None, "cores": 16}
RESULTS = [
    ("machine", Answer("versions", "torch 2.15.0", values=FACTS)),
    ("methods", Answer("fp32", "1.2e-3", Verdict.WRONG, "1.2e-3, above 1e-6", "do not use it")),
]


@pytest.mark.parametrize(("gpus", "named"), [(2, "2 x NVIDIA H100"), (0, "16 cores of NVIDIA H100")])
def test_the_record_has_everything(gpus: int, named: str) -> None:
    made: Any = files.read_json(report.save(Path("kept"), "ssl-bench check", gpus, NOW, RESULTS))
    assert (made["machine"], made["started"], made["command"]) == (named, NOW.isoformat(), "ssl-bench check")
    versions, wrong = made["findings"]
    assert versions["values"] == FACTS and wrong["section"] == "methods" and wrong["advice"] == "do not use it"


# ---- speed and machine


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    """With a small network."""
    small = ["dataset=scattered_digits", "backbone.width=4", "head.out=16"]
    monkeypatch.setattr(speed, "NETWORKS", {"resnet18 32px": (small, 20, (64, 16))})
    monkeypatch.setattr(speed, "SECONDS", 0.1)
    return Setting(torch.device("cpu"), 2, tmp_path)


def test_a_batch_that_does_not_fit_says_what_to_set(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Stepper, "compute", full)
    answer = speed.step_answer("resnet18 32px", setting)
    assert (answer.figure, answer.verdict) == ("does not fit", Verdict.MEASURED)
    assert answer.advice == "set batch_size.chunk to 8 or less"


def test_the_versions_here_and_a_gpu_that_torch_was_not_built_for(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions, devices = machine.section(setting)
    assert versions.values["torch"] == torch.__version__.split("+")[0] and versions.values["cores"] >= 1
    assert devices.verdict is Verdict.MEASURED
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Tesla V100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90"])
    _, answer = machine.section(dataclasses.replace(setting, device=torch.device("cuda", 0), devices=1))
    assert answer.verdict is Verdict.WRONG and "Tesla V100" in answer.reason and "7.0" in answer.reason
