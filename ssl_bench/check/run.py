"""Run the sections of ``ssl-bench check`` one after another, each in a process of its own.

A section can crash, hang or use up the memory: what it found until then is kept, and the others go on. Its process is
the leader of a process group, so that it can be ended together with all processes that it has started.
"""

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import torch

from ssl_bench.check import environment, kernels, methods, networks, ranks, runs, speed
from ssl_bench.check.finding import REPORT, Finding, Section, Setting, Verdict
from ssl_bench.launch.processes import die_with

# What only this machine can tell comes first.
SECTIONS: dict[str, Section] = {
    "environment": environment.section,
    "graph": runs.graph,
    "fp16": runs.fp16,
    "ranks": ranks.section,
    "resume": runs.resume,
    "networks": networks.section,
    "kernels": kernels.section,
    "methods": methods.section,
    "speed": speed.section,
}
LIMIT = 300.0  # seconds of a section: many times what it takes
LEAVE = 5.0  # seconds that an ended process may take
LONGEST = 400  # characters of a reason
OVER = "over"  # what a section says at its end


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
    """A finding with its section, and the seconds that it took."""

    section: str
    finding: Finding
    seconds: float


def run(
    request: CheckRequest, sections: Mapping[str, Section] = SECTIONS, limit: float = LIMIT
) -> Generator[CheckResult, None, None]:
    """Run the requested sections; yield each finding as soon as it is there. Closing it ends the section's process.

    This process must leave CUDA alone, so that it can be forked.
    """
    for name in request.sections:
        with tempfile.TemporaryDirectory(prefix="ssl-bench-check-", ignore_cleanup_errors=True) as folder:
            yield from _run_section(request, name, sections[name], Path(folder), limit)


def _run_section(
    request: CheckRequest, name: str, section: Section, folder: Path, limit: float
) -> Generator[CheckResult, None, None]:
    """Start a section's process and yield what it finds; a process that dies or hangs is one more, wrong finding."""
    context: Any = multiprocessing.get_context(ranks.METHOD)
    log, work = folder / "log", folder / "work"
    work.mkdir()
    device = torch.device("cuda", 0) if request.gpus else torch.device("cpu")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=_work, args=(theirs, section, Setting(device, request.devices, request.quick, work), log, os.getpid())
    )
    started = last = time.monotonic()
    process.start()
    theirs.close()
    content: Finding | str | None = None
    try:
        while ours.poll(max(0.0, started + limit - time.monotonic())):
            try:
                content = ours.recv()
            except EOFError:
                process.join(LEAVE)
                content = _died(process.exitcode, log)
            if not isinstance(content, Finding):
                break
            now = time.monotonic()
            yield CheckResult(name, content, now - last)
            last = now
        else:
            content = f"took longer than {limit:.0f} s and was ended"
    finally:  # end the process and all that it has started
        for kill in (os.killpg, os.kill):  # the former finds nothing before the process leads a group
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(process.pid, signal.SIGKILL)
        process.join(LEAVE)
        ours.close()
    if content != OVER:
        reason = f"the section's process {content}"[:LONGEST]
        yield CheckResult(name, Finding("process", "", Verdict.WRONG, reason, REPORT), time.monotonic() - last)


def _died(code: int | None, log: Path) -> str:
    """How a process ended, and what it said last: with faulthandler, the error and the call in which it happened."""
    how = f"was ended by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith(("Fatal Python error", "File "))]
    return ": ".join([how, *(fatal[:2] or lines[-1:])])


# ---- in the section's process


def _work(connection: Connection, section: Section, setting: Setting, log: Path, parent: int) -> NoReturn:
    """Run a section and send what it finds, then ``OVER`` or how it failed."""
    os.setsid()  # a group of its own, which Ctrl-C in the terminal does not reach: the parent ends it
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    for stream in (1, 2):  # of this process, its libraries and its children
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), stream)
    sys.stdout, sys.stderr = (os.fdopen(stream, "w", 1, closefd=False) for stream in (1, 2))
    faulthandler.enable()
    die_with(parent)
    end = OVER
    try:
        for finding in section(setting):
            connection.send(finding)
    except Exception as error:  # whatever the section raises: the parent reports it
        end = " ".join(f"failed with {type(error).__name__}: {error}".split())
    connection.send(end)
    os._exit(0)  # without the clean-up of CUDA and of libraries, which may wait for processes that have failed
