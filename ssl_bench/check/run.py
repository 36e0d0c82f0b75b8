"""Run the sections of ``ssl-bench check`` one after another, each in a process of its own.

A section can crash, hang or use up the memory: what it found until then is kept, and the others go on.
"""

import contextlib
import faulthandler
import os
import pickle
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ssl_bench.check import environment, methods, ranks, runs, speed
from ssl_bench.check.answer import REPORT, Answer, Section, Setting, Verdict
from ssl_bench.disk import temporary
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.workers import RESUMES, call_in_workers
from ssl_bench.signals import Interrupted

# What only this machine can tell comes first.
SECTIONS: dict[str, Section] = {
    "environment": environment.section,
    "graph": runs.graph,
    "fp16": runs.fp16,
    "ranks": ranks.section,
    "resume": runs.resume,
    "methods": methods.section,
    "speed": speed.section,
}
LIMIT = 300.0  # seconds of a section: many times what it takes
LONGEST = 400  # characters of a reason


@dataclass(frozen=True)
class CheckRequest:
    """The sections and devices of a check.

    Attributes:
        sections: names, in the order of SECTIONS.
        quick: whether to measure speeds with small batches only.
        devices: number of processes for checks of several ranks.
        gpus: how many GPUs are used; 0 on a CPU.
        outputs: the results folder.
    """

    sections: tuple[str, ...]
    quick: bool
    devices: int
    gpus: int
    outputs: Path


@dataclass(frozen=True)
class CheckResult:
    """An answer with its section, and the seconds that it took."""

    section: str
    answer: Answer
    seconds: float


def run(
    request: CheckRequest, sections: Mapping[str, Section] = SECTIONS, limit: float = LIMIT
) -> Iterator[CheckResult]:
    """Run the requested sections; yield the answers of each when it ends.

    Raises:
        Interrupted: a signal has stopped this process; the section's has ended.
    """
    device = torch.device("cuda", 0) if request.gpus else torch.device("cpu")
    for name in request.sections:
        with temporary.folder() as folder:
            started = time.monotonic()
            (folder / "work").mkdir()
            for file in ("findings", "log"):
                (folder / file).touch()
            setting = Setting(device, request.devices, request.quick, folder / "work")
            outcome = call_in_workers(_work, {"the section's process": (sections[name], setting, folder, limit)})
            if outcome.state is State.INTERRUPTED:
                raise Interrupted(outcome.signal)
            yield from _results(name, folder / "findings")
            if not outcome.finished:
                said = [] if outcome.detail else _last_words(folder / "log")  # an exception says all itself
                reason = ": ".join([outcome.reason.removesuffix(RESUMES), *said])[:LONGEST]
                answer = Answer("process", "", Verdict.WRONG, reason, REPORT)
                yield CheckResult(name, answer, time.monotonic() - started)


def _results(name: str, path: Path) -> Iterator[CheckResult]:
    with open(path, "rb") as file, contextlib.suppress(EOFError):
        while True:
            yield CheckResult(name, *pickle.load(file))


def _last_words(log: Path) -> list[str]:
    """The last words of a process: by faulthandler the error and the call in which it happened, or its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith(("Fatal Python error", "Timeout", "File "))]
    return fatal[:2] or lines[-1:]


def _work(section: Section, setting: Setting, folder: Path, limit: float) -> Outcome:
    for stream in (1, 2):  # of this process, its libraries and its children
        os.dup2(os.open(folder / "log", os.O_WRONLY | os.O_APPEND), stream)
    sys.stdout, sys.stderr = (os.fdopen(stream, "w", 1, closefd=False) for stream in (1, 2))
    faulthandler.enable()
    faulthandler.dump_traceback_later(limit, exit=True)  # also in a call that does not return
    with open(folder / "findings", "ab", buffering=0) as file:
        last = time.monotonic()
        for answer in section(setting):
            now = time.monotonic()
            file.write(pickle.dumps((answer, now - last)))
            last = now
    return Outcome(State.DONE)
