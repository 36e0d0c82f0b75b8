"""``ssl-bench check``: measure what this machine can do and whether it does it right.

``--quick`` takes two minutes, the default ten and ``--full`` 25. ``--only speed,plan`` runs these sections only. Every
finding is a line: section, name, figure and verdict, with a reason and advice below it if it is not good. All of it is
kept in ``<paths.outputs>/checks/<host>-<time>/``: ``check.json``, and ``check.md`` for an issue report.
"""

import contextlib
import datetime
import os
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssl_bench.commands.arguments import Parser, refuse
from ssl_bench.config.build import near, one_of
from ssl_bench.errors import ConfigError, InvalidValue, unwritable

if TYPE_CHECKING:
    from ssl_bench.check.run import CheckRequest

KEYS = ("devices", "paths.data", "paths.outputs")


def main(arguments: Sequence[str]) -> int:
    """Check this machine.

    Returns:
        0: nothing is wrong; 1: something is; 2: wrong arguments; 128 + n: stopped by signal n, without a report.
    """
    parser = Parser("check", "Measure what this machine can do and whether it does it right.")
    levels = parser.add_mutually_exclusive_group()
    levels.add_argument("--quick", action="store_true", help="two minutes instead of ten")
    levels.add_argument("--full", action="store_true", help="25 minutes, with a training to an accuracy")
    parser.add_argument("--only", action="append", default=[], metavar="NAME[,NAME]", help="only these sections")
    parser.add_argument("--json", action="store_true", help="print check.json, and the lines to standard error")
    parser.epilog = (
        "devices=N: processes for checks of several ranks (default: all GPUs; on a CPU two, if it has two cores). "
        "paths.data, paths.outputs: folders."
    )
    options = parser.read(arguments)
    try:
        request = _request(options)
        request.outputs.mkdir(parents=True, exist_ok=True)
        work = _work_folder(request.outputs)
    except ConfigError as error:
        return refuse(error)
    except OSError as error:
        return refuse(unwritable(error))
    return _check(request, work, shlex.join(["ssl-bench", "check", *arguments]), options.json)


def _request(options: Any) -> "CheckRequest":
    """Read the command line.

    Raises:
        ConfigError: naming the flag or key that is wrong.
    """
    from ssl_bench.check.finding import Level
    from ssl_bench.check.run import SECTIONS, CheckRequest

    settings: dict[str, str] = {}
    for override in options.overrides:
        key, _, value = override.partition("=")
        if key not in KEYS:
            raise ConfigError(f"there is no key {key}{near(key, KEYS)}: {', '.join(KEYS)} are what can be set here")
        if not value:
            raise InvalidValue(key, "", "a number" if key == "devices" else "a folder")
        settings[key] = value
    level = Level.QUICK if options.quick else Level.FULL if options.full else Level.DEFAULT
    chosen = [name.strip() for names in options.only for name in names.split(",")]
    for name in chosen:
        one_of("--only", name, tuple(SECTIONS))
    wanted = chosen or [name for name in SECTIONS if name != "accuracy" or level is Level.FULL]
    devices, gpus = _devices(settings.get("devices"))
    return CheckRequest(
        sections=tuple(name for name in SECTIONS if name in wanted),
        level=level,
        devices=devices,
        gpus=gpus,
        data=Path(settings.get("paths.data") or os.environ.get("SSL_BENCH_DATA", "data")).absolute(),
        outputs=Path(settings.get("paths.outputs", "outputs")),
    )


def _devices(asked: str | None) -> tuple[int, int]:
    """Number of processes, and of GPUs that they use.

    Raises:
        ConfigError: the machine has fewer, or it is no number.
    """
    import torch

    from ssl_bench.hardware import available_cores

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    cores = available_cores()
    most = gpus or cores
    if asked is None:
        return gpus or min(2, cores), gpus
    if not asked.isdecimal() or not 1 <= int(asked) <= most:
        found = (
            f"this machine shows {gpus} GPUs" if gpus else f"there is no GPU and {cores} CPU core{'s' * (cores > 1)}"
        )
        raise InvalidValue("devices", asked, f"an integer from 1 to {most}: {found}")
    return int(asked), int(asked) if gpus else 0


def _work_folder(outputs: Path) -> Path:
    """Make an empty folder for the sections, and remove those of processes of this host that were killed."""
    prefix = f".{socket.gethostname()}-work-"
    checks = outputs / "checks"
    checks.mkdir(exist_ok=True)
    for left in checks.glob(f"{prefix}*"):
        pid = left.name.removeprefix(prefix)
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(left, ignore_errors=True)
    work = (checks / f"{prefix}{os.getpid()}").absolute()
    work.mkdir(exist_ok=True)
    return work


def _check(request: "CheckRequest", work: Path, command: str, as_json: bool) -> int:
    """Run the sections, print what they find and write the report."""
    from ssl_bench.check import report
    from ssl_bench.check.finding import Verdict
    from ssl_bench.check.run import CheckResult, run
    from ssl_bench.signals import Interrupt, Interrupted

    output = sys.stderr if as_json else sys.stdout
    started, start = datetime.datetime.now(datetime.UTC), time.monotonic()
    facts: dict[str, Any] = {}
    results: list[CheckResult] = []
    content: Mapping[str, Any] = {}
    try:
        with Interrupt() as interrupt:
            try:
                interrupt.at_once = True
                with contextlib.closing(run(request, work, facts)) as found:
                    for result in found:
                        results.append(result)
                        print(*report.lines(result), sep="\n", file=output, flush=True)
            finally:
                interrupt.at_once = False  # what follows takes no time, and must not be left half done
                shutil.rmtree(work, ignore_errors=True)
            seconds = time.monotonic() - start
            content = report.record(request, command, started, seconds, facts, results)
            folder = report.save(request.outputs, content, started)
            if interrupt.number:
                return 128 + interrupt.number
    except Interrupted as stop:
        print("interrupted: there is no report of this check", file=sys.stderr)
        return stop.exit_code
    except OSError as error:
        return refuse(error, 1)
    print(f"{report.summary(results, seconds)}; {folder / 'check.md'}", file=output)
    if as_json:
        print((folder / "check.json").read_text(), end="")
    return int(any(each.finding.verdict is Verdict.WRONG for each in results))
