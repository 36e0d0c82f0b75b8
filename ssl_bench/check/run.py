"""The sections of ``ssl-bench check``, each in a process of its own: one may crash or hang, and the others go on."""

import contextlib
import faulthandler
import multiprocessing
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from ssl_bench.check import machine, methods, ranks, runs, speed
from ssl_bench.check.answer import REPORT, Answer, Section, Setting, Verdict
from ssl_bench.launch.processes import end_with_parent

# What only this machine can tell comes first.
SECTIONS: dict[str, Section] = {
    "machine": machine.section,
    "steps": runs.steps,
    "ranks": ranks.section,
    "resume": runs.resume,
    "methods": methods.section,
    "speed": speed.section,
}
LIMIT = 300.0  # seconds of a section: many times what it takes
LONGEST = 400  # characters of a reason


def run(section: Section, setting: Setting, limit: float = LIMIT) -> Iterator[Answer]:
    """Run a section in a process of its own, and yield its answers; the last one says if it failed, died or hung."""
    context = multiprocessing.get_context("spawn")
    answers, sender = context.Pipe(duplex=False)
    with TemporaryDirectory(prefix="ssl-bench-", ignore_cleanup_errors=True) as place, answers:
        folder = Path(place)
        (folder / "work").mkdir()
        arguments = (section, replace(setting, folder=folder / "work"), limit, folder / "log", sender)
        process = context.Process(target=_work, args=arguments)
        process.start()
        sender.close()
        try:
            with contextlib.suppress(EOFError):
                while True:
                    yield answers.recv()
            process.join()
        finally:
            process.kill()
        if code := process.exitcode:
            how = f"exited with code {code}" if code > 0 else f"was killed by {signal.Signals(-code).name}"
            reason = ": ".join([f"the section's process {how}", *_last_words(folder / "log")])
            yield Answer("process", "", Verdict.WRONG, reason[:LONGEST], REPORT)


def _last_words(log: Path) -> list[str]:
    """The last words of a process: by faulthandler the error and the call in which it happened, or its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith(("Fatal Python error", "Timeout"))]
    return fatal[:1] + [line for line in lines if line.startswith("File ")][:1] if fatal else lines[-1:]


def _work(section: Section, setting: Setting, limit: float, log: Path, sender: Connection) -> None:
    end_with_parent(signal.SIGKILL)
    for stream in (1, 2):  # of this process, its libraries and its children
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), stream)
    faulthandler.enable()
    faulthandler.dump_traceback_later(limit, exit=True)  # also in a call that does not return
    for answer in section(setting):
        sender.send(answer)
