"""Run the sections of ``ssl-bench check`` one after another, each in a process of its own.

A section can crash, hang or use up the memory: what it found until then is kept, and the others go on. Its process is
the leader of a process group, so that it can be ended together with all processes that it has started.
"""

import contextlib
import faulthandler
import importlib
import math
import multiprocessing
import multiprocessing.util
import os
import shutil
import signal
import sys
import time
from collections.abc import Generator, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NoReturn

from ssl_bench.check.finding import Check, Finding, Level, Setting, Verdict, findings
from ssl_bench.launch.processes import die_with
from ssl_bench.signals import held_in_children, release

# The module of each section. A module is imported in the process of its section only.
SECTIONS = {
    name: f"ssl_bench.check.{name}"
    for name in ("environment", "networks", "exact", "speed", "input", "accuracy", "plan")
}
SHARES = {"exact": 0.3, "speed": 0.4, "input": 0.1, "accuracy": 0.4}  # of the time of all sections
# At every level, and far more than they take: imports can be slow, and the first plan composes 826 configurations: 25 s
# on two cores.
SECONDS = {"environment": 20.0, "networks": 30.0, "plan": 180.0}
OVERRUN, START = 1.5, 60.0  # a process may take OVERRUN times the section's time, and START seconds for its start
LEAVE = 5.0  # seconds between SIGTERM and SIGKILL
LONGEST = 400  # characters of a reason


@dataclass(frozen=True)
class CheckRequest:
    """The sections, level and devices of a check.

    Attributes:
        sections: names, in the order of SECTIONS.
        devices: number of processes for checks of several ranks.
        gpus: how many GPUs are used; 0 on a CPU.
    """

    sections: tuple[str, ...]
    level: Level
    devices: int
    gpus: int
    data: Path
    outputs: Path


@dataclass(frozen=True)
class CheckResult:
    """The finding of one check.

    Attributes:
        name: of the check.
        seconds: how long it took.
    """

    section: str
    name: str
    finding: Finding
    seconds: float


def section_seconds(name: str, level: Level) -> float:
    """Time that a section has. Of a full check the accuracy takes 0.4, and the other sections share the rest."""
    rest = 1 - SHARES["accuracy"] if level is Level.FULL and name != "accuracy" else 1.0
    return SECONDS.get(name, level.seconds * rest * SHARES.get(name, 0.1))


def run(
    request: CheckRequest,
    work: Path,
    facts: MutableMapping[str, Any],
    sections: Mapping[str, str] = SECTIONS,
) -> Generator[CheckResult, None, None]:
    """Run the requested sections; yield each finding as soon as it is there. Closing it ends the section's processes.

    Args:
        work: an empty folder for the sections, on the file system of ``request.outputs``.
        facts: is filled with versions and hardware by the process of the first section that starts.
        sections: module of each section.
    """
    earlier: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name in request.sections:
        with contextlib.closing(_run_section(request, name, sections[name], work, facts, earlier)) as results:
            for result in results:
                earlier.setdefault(name, {})[result.name] = result.finding.values
                yield result


def _run_section(
    request: CheckRequest,
    name: str,
    module: str,
    work: Path,
    facts: MutableMapping[str, Any],
    earlier: Mapping[str, Mapping[str, Mapping[str, Any]]],
) -> Generator[CheckResult, None, None]:
    """Start a section's process and yield what it finds; a process that dies or hangs is one more, wrong finding."""
    folder, log = work / name, work / f"{name}.log"
    folder.mkdir(parents=True)
    seconds = section_seconds(name, request.level)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    arguments = (theirs, request, module, folder, log, seconds, earlier, os.getpid())
    process = context.Process(target=_work, args=arguments)
    started = time.monotonic()
    end = started + OVERRUN * seconds + START
    checking, failure, over = "", "", False
    try:
        with held_in_children():
            process.start()
        theirs.close()
        while not over:
            ready = wait([ours, process.sentinel], max(0.0, end - time.monotonic()))
            if not ready or time.monotonic() > end:
                failure = f"took longer than {time.monotonic() - started:.0f} s (timeout) and was ended"
                break
            if ours not in ready and not ours.poll():
                break
            try:
                kind, content = ours.recv()
            except (EOFError, OSError):  # the process has ended
                wait([process.sentinel], LEAVE)
                break
            if kind == "facts":
                facts.update({} if facts else content)
            elif kind == "check":
                checking = content
            elif kind == "failed":
                failure = content
            elif kind == "finding":
                checking = ""
                yield CheckResult(name, content[0], content[1], content[2])
            over = kind == "over"
    finally:
        code = _end(process)
        ours.close()
        shutil.rmtree(folder, ignore_errors=True)
    if not over and not failure:
        failure = _ended(code)
    if failure:
        where = f" in the check {checking!r}" if checking else ""
        words = _last_words(log) if not over else ""
        reason = f"the section's process {failure}{where}{f': {words}' if words else ''}"
        advice = "report this finding with check.md"
        finding = Finding("", Verdict.WRONG, reason[:LONGEST], advice)
        yield CheckResult(name, "process", finding, time.monotonic() - started)


def _ended(code: int | None) -> str:
    """How a process ended."""
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    why = " (is the memory full?)" if code == -signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-code).name}{why}"


def _end(process: SpawnProcess) -> int | None:
    """End a process and all processes that it has started; return its exit code."""
    if process.pid is None:  # it was never started
        return None
    for number in (signal.SIGTERM, signal.SIGKILL):
        for kill in (os.killpg, os.kill):  # the former finds nothing before the process leads a group
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(process.pid, number)
        wait([process.sentinel], LEAVE)
    process.join(LEAVE)
    return process.exitcode


def _last_words(log: Path) -> str:
    """The sentence in which a process that died said why, from its standard error."""
    with contextlib.suppress(OSError):
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        for place, line in enumerate(lines):
            if line.startswith("Fatal Python error"):  # of faulthandler, which then lists the calls
                call = next((each for each in lines[place:] if each.startswith("File ")), "")
                return f"{line}, {call}" if call else line
        return lines[-1] if lines else ""
    return ""


# ---- in the section's process


def _work(
    connection: Connection,
    request: CheckRequest,
    module: str,
    folder: Path,
    log: Path,
    seconds: float,
    earlier: Mapping[str, Mapping[str, Mapping[str, Any]]],
    parent: int,
) -> NoReturn:
    """Run a section and send what it finds: pairs of a kind and a content."""
    os.setsid()  # a group of its own, which Ctrl-C in the terminal does not reach: the parent ends it
    _redirect(log)
    release()
    die_with(parent)
    try:
        from ssl_bench.hardware import available_cores, local_device
        from ssl_bench.record.environment import environment

        device = local_device(0)
        connection.send(("facts", environment(device) | {"cores": available_cores()}))
        section = importlib.import_module(module).section
        until = time.monotonic() + seconds
        setting = Setting(device, request.devices, request.level, folder, request.data, until, earlier)

        def announced(setting: Setting) -> Iterator[Check]:
            for check in section(setting):
                connection.send(("check", check.name))
                yield check

        for name, finding, took in findings(announced, setting):
            connection.send(("finding", (name, replace(finding, values=plain(finding.values)), took)))
    except Exception as error:  # whatever the section raises: the parent reports it
        connection.send(("failed", " ".join(f"failed with {type(error).__name__}: {error}".split())[:LONGEST]))
    connection.send(("over", None))
    connection.close()
    sys.stdout.flush()
    sys.stderr.flush()
    multiprocessing.util._run_finalizers()  # type: ignore[attr-defined]  # remove semaphores; otherwise the parent warns of them
    os._exit(0)  # without the clean-up of CUDA and of libraries, which may wait for processes that have failed


def _redirect(log: Path) -> None:
    """Write standard output and error of this process, its libraries and its children to a file."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    faulthandler.enable()


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: numbers of torch and NumPy as Python's, NaN and infinity as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(each) for each in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    return plain(value.tolist()) if hasattr(value, "tolist") else str(value)
