"""``ssl-bench check``: a small self-test of this machine, for right results and for speed.

``--quick`` takes half a minute on two cores. ``--only methods,speed`` runs these sections only. Every answer is a
line: section, name, figure and verdict, with a reason and advice below it if it is not good. All of it is kept in
``<paths.outputs>/checks/<host>-<time>/check.json``.
"""

import datetime
import shlex
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ssl_bench.commands.arguments import Parser, in_sentences
from ssl_bench.config.build import near, one_of
from ssl_bench.disk.patience import unwritable
from ssl_bench.errors import ConfigError, require
from ssl_bench.files import given_path, usual_outputs
from ssl_bench.signals import Interrupted
from ssl_bench.surroundings import without_gpus

if TYPE_CHECKING:
    from ssl_bench.check.run import CheckRequest

KEYS = ("device", "devices", "paths.outputs")


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Check this machine.

    Returns:
        0: nothing is wrong; 1: something is; 2: wrong arguments; 128 + n: stopped by signal n, without a report.
    """
    parser = Parser("check", "A small self-test of this machine: is it right, and how fast is it?")
    parser.add_argument("--quick", action="store_true", help="measure speeds with small batches, without compiling")
    parser.add_argument("--only", action="append", default=[], metavar="NAME[,NAME]", help="only these sections")
    parser.add_argument("--json", action="store_true", help="print check.json, and the lines to standard error")
    parser.epilog = """devices=N: processes for the section ranks (default: all GPUs; on a CPU two, if it has two
        cores). device=cpu: use no GPU. paths.outputs: the results folder."""
    options = parser.read(arguments)
    request = _request(options)
    try:
        (request.outputs / "checks").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(error) from error
    return _check(request, shlex.join(["ssl-bench", "check", *arguments]), options.json)


def _request(options: Any) -> "CheckRequest":
    """Read the command line."""
    from ssl_bench.check.run import SECTIONS, CheckRequest

    settings: dict[str, str] = dict(override.partition("=")[::2] for override in options.overrides)
    for key in settings.keys() - KEYS:
        raise ConfigError(f"there is no key {key}{near(key, KEYS)}: {', '.join(KEYS)} are what can be set here")
    outputs = settings.get("paths.outputs", str(usual_outputs()))
    require(outputs != "", "paths.outputs", outputs, "a folder")
    chosen = [name.strip() for names in options.only for name in names.split(",")]
    for name in chosen:
        one_of("--only", name, tuple(SECTIONS))
    device = settings.get("device", "auto")
    one_of("device", device, ("auto", "cpu"))
    if device == "cpu":
        without_gpus()
    devices, gpus = _devices(settings.get("devices"))
    return CheckRequest(
        sections=tuple(name for name in SECTIONS if not chosen or name in [*chosen, "environment"]),
        quick=options.quick,
        devices=devices,
        gpus=gpus,
        outputs=given_path(outputs),
    )


def _devices(asked: str | None) -> tuple[int, int]:
    """Number of processes, and of GPUs that they use."""
    from torch.cuda import device_count

    from ssl_bench.hardware import available_cores

    gpus, cores = device_count(), available_cores()
    most = gpus or cores
    if asked is None:
        return gpus or min(2, cores), gpus
    possible = asked.isdecimal() and 1 <= int(asked) <= most
    require(possible, "devices", asked, f"an integer from 1 to {most}, the {'GPUs' if gpus else 'CPU cores'} here")
    return int(asked), int(asked) if gpus else 0


def _check(request: "CheckRequest", command: str, as_json: bool) -> int:
    from ssl_bench.check import report
    from ssl_bench.check.answer import Verdict
    from ssl_bench.check.run import CheckResult, run

    output = sys.stderr if as_json else sys.stdout
    started, start = datetime.datetime.now(datetime.UTC), time.monotonic()
    results: list[CheckResult] = []
    try:
        for result in run(request):
            results.append(result)
            print(*report.lines(result), sep="\n", file=output, flush=True)
    except Interrupted as stop:
        print("interrupted: there is no report of this check", file=sys.stderr)
        return stop.exit_code
    seconds = time.monotonic() - start
    content = report.record(request, command, started, seconds, results)
    path = report.save(request.outputs, content, started)
    print(f"{report.summary(results, seconds)}; {path}", file=output)
    if as_json:
        print(path.read_text(), end="")
    return int(any(result.answer.verdict is Verdict.WRONG for result in results))
