"""The report of a check: lines on the terminal, and ``check.json`` and ``check.md`` in ``checks/<host>-<time>/``."""

import datetime
import math
import os
import shutil
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
            {
                "section": each.section,
                "name": each.finding.name,
                "figure": each.finding.figure,
                "verdict": each.finding.verdict.value,
                "reason": each.finding.reason,
                "advice": each.finding.advice,
                "values": {name: _plain(value) for name, value in each.finding.values.items()},
                "seconds": round(each.seconds, 2),
            }
            for each in results
        ],
    }


def _plain(value: Any) -> Any:
    """``value`` as JSON can hold it: NaN and infinity as text."""
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def markdown(content: Mapping[str, Any]) -> str:
    """The report as one pastes it into an issue."""
    versions = ", ".join(f"{name} {value}" for name, value in content["environment"].items() if value is not None)
    findings: list[Mapping[str, Any]] = content["findings"]
    counts = {v.value: sum(each["verdict"] == v.value for each in findings) for v in Verdict}
    text = [
        f"# Check of {content['machine']}",
        "",
        f"* {', '.join(f'{count} {verdict}' for verdict, count in counts.items() if count) or 'nothing was checked'}",
        f"* `{content['command']}` on {content['host']}, {content['started']}, {content['seconds']:.0f} s",
        f"* {versions or 'no process could start'}",
    ]
    for section in dict.fromkeys(each["section"] for each in findings):
        chosen = [each for each in findings if each["section"] == section]
        text += ["", f"## {section} ({sum(each['seconds'] for each in chosen):.0f} s)", ""]
        text += ["| check | measured | verdict |", "|---|---|---|"]
        for each in chosen:
            verdict = f"**{each['verdict']}**" if each["verdict"] in ("slow", "wrong") else each["verdict"]
            text.append(f"| {_cell(each['name'])} | {_cell(each['figure'])} | {verdict} |")
        notes = [each for each in chosen if each["reason"] or each["advice"]]
        if notes:
            text.append("")
        for each in notes:
            reason = " -> ".join(filter(None, (each["reason"], each["advice"])))
            text.append(f"* {each['name']}, {each['verdict']}: {' '.join(reason.split())}")
    return "\n".join(text) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def save(outputs: Path, content: Mapping[str, Any], started: datetime.datetime) -> Path:
    """Write both files into a new folder of ``outputs/checks``, which appears with both or not at all; return it.

    Raises:
        OSError: it cannot be written.
    """
    checks = outputs / "checks"
    name = f"{content['host']}-{started.astimezone(datetime.UTC):%Y%m%d-%H%M%S}"
    unfinished = checks / f".{name}.{os.getpid()}"
    try:
        unfinished.mkdir(parents=True)
        files.write_json(unfinished / "check.json", content)
        files.write_text(unfinished / "check.md", markdown(content))
        os.rename(unfinished, checks / name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return checks / name
