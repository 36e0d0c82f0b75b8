"""The report of a check: lines on the terminal, and ``check.json`` and ``check.md`` in ``checks/<host>-<time>/``."""

import datetime
import math
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.check.finding import Verdict
from ssl_bench.check.run import CheckRequest, CheckResult

COLUMNS = (11, 22, 52)  # characters of section, name and figure


def lines(result: CheckResult) -> list[str]:
    """A finding on the terminal: one line, and one below it if there is a reason or an advice."""
    found = result.finding
    texts = (result.section, found.name, found.figure)
    first = "  ".join(f"{text:<{width}}" for text, width in zip(texts, COLUMNS, strict=True))
    second = " -> ".join(filter(None, (found.reason, found.advice)))
    return [f"{first}  {found.verdict.value}", *([f"{'':<{COLUMNS[0]}}    {second}"] if second else [])]


def summary(results: Sequence[CheckResult], seconds: float) -> str:
    """Number of findings of each verdict."""
    counts = {verdict: sum(each.finding.verdict is verdict for each in results) for verdict in Verdict}
    listed = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items() if count)
    return f"{len(results)} checks in {seconds:.0f} s: {listed or 'none'}"


def record(
    request: CheckRequest, command: str, started: datetime.datetime, seconds: float, results: Sequence[CheckResult]
) -> dict[str, Any]:
    """The content of ``check.json``.

    Args:
        command: the command line.
        started: with a time zone.
        seconds: of the whole check.
    """
    facts = next((dict(each.finding.values) for each in results if each.finding.name == "versions"), {})
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
            {"section": each.section, **vars(each.finding), "verdict": each.finding.verdict.value}
            | {"values": {name: _plain(value) for name, value in each.finding.values.items()}}
            | {"seconds": round(each.seconds, 2)}
            for each in results
        ],
    }


def _plain(value: Any) -> Any:
    """``value`` as JSON can hold it: NaN and infinity as text."""
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def markdown(content: Mapping[str, Any], results: Sequence[CheckResult]) -> str:
    """The report as one pastes it into an issue: what the terminal has shown, and the versions."""
    versions = ", ".join(f"{name} {value}" for name, value in content["environment"].items() if value is not None)
    shown = "\n".join(line.rstrip() for each in results for line in lines(each))
    return f"""# Check of {content["machine"]}

* {summary(results, content["seconds"])}
* `{content["command"]}` on {content["host"]}, {content["started"]}
* {versions or "no process could start"}

```text
{shown}
```
"""


def save(outputs: Path, content: Mapping[str, Any], started: datetime.datetime, results: Sequence[CheckResult]) -> Path:
    """Write both files into a new folder of ``outputs/checks``; return it.

    Raises:
        OSError: it cannot be written.
    """
    folder = outputs / "checks" / f"{content['host']}-{started.astimezone(datetime.UTC):%Y%m%d-%H%M%S}"
    folder.mkdir(parents=True)
    files.write_json(folder / "check.json", content)
    files.write_text(folder / "check.md", markdown(content, results))
    return folder
