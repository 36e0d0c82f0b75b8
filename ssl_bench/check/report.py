"""The report of a check: lines on the terminal, and ``checks/<host>-<time>/check.json``."""

import datetime
import math
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.check.answer import Verdict
from ssl_bench.check.run import CheckRequest, CheckResult

COLUMNS = (11, 22, 52)  # characters of section, name and figure


def lines(result: CheckResult) -> list[str]:
    """An answer on the terminal: one line, and one below it if there is a reason or an advice."""
    answer = result.answer
    texts = (result.section, answer.name, answer.figure)
    first = "  ".join(f"{text:<{width}}" for text, width in zip(texts, COLUMNS, strict=True))
    second = " -> ".join(filter(None, (answer.reason, answer.advice)))
    return [f"{first}  {answer.verdict.value}", *([f"{'':<{COLUMNS[0]}}    {second}"] if second else [])]


def summary(results: Sequence[CheckResult], seconds: float) -> str:
    """Number of answers of each verdict."""
    counts = {verdict: sum(result.answer.verdict is verdict for result in results) for verdict in Verdict}
    listed = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items() if count)
    return f"{len(results)} checks in {seconds:.0f} s: {listed or 'none'}"


def record(
    request: CheckRequest, command: str, started: datetime.datetime, seconds: float, results: Sequence[CheckResult]
) -> dict[str, Any]:
    """The content of ``check.json``."""
    facts = next((dict(r.answer.values) for r in results if r.answer.name == "versions"), {})
    device = str(facts.get("device", "an unknown processor"))
    return {
        "host": socket.gethostname(),
        "machine": f"{request.gpus} x {device}" if request.gpus else f"{facts.get('cores', '?')} cores of {device}",
        "command": command,
        "started": started.astimezone(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "level": "quick" if request.quick else "default",
        "sections": list(request.sections),
        "devices": request.devices,
        "gpus": request.gpus,
        "environment": facts,
        "findings": [
            {"section": result.section, **vars(result.answer), "verdict": result.answer.verdict.value}
            | {"values": {name: _plain(value) for name, value in result.answer.values.items()}}
            | {"seconds": round(result.seconds, 2)}
            for result in results
        ],
    }


def _plain(value: Any) -> Any:
    """``value`` as JSON can hold it: NaN and infinity as text."""
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def save(outputs: Path, content: Mapping[str, Any], started: datetime.datetime) -> Path:
    """Write ``check.json`` into a new folder of ``outputs/checks``; return its path.

    Raises:
        OSError: it cannot be written.
    """
    folder = outputs / "checks" / f"{content['host']}-{started.astimezone(datetime.UTC):%Y%m%d-%H%M%S}"
    folder.mkdir(parents=True)
    files.write_json(folder / "check.json", content)
    return folder / "check.json"
