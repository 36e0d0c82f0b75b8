"""The report of a check: lines on the terminal, and ``check.json`` and ``check.md`` in ``checks/<host>-<time>/``.

``python -m ssl_bench.check.report`` prints README's table of speeds, made from the reports of machines that are kept in
``ssl_bench/papers/measured/machines/``; ``--write README.md`` puts it between the two comments ``<!-- speed -->``.
"""

import argparse
import datetime
import os
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.check.finding import Verdict
from ssl_bench.check.run import CheckRequest, CheckResult
from ssl_bench.papers.cost import MEASURED

MACHINES = Path(__file__).parents[1] / "papers" / "measured" / "machines"
MARK = "<!-- speed -->"
COLUMNS = (11, 28, 52)  # characters of section, name and figure


def lines(result: CheckResult) -> list[str]:
    """A finding on the terminal: one line, and one below it if there is a reason."""
    found = result.finding
    texts = (result.section, result.name, found.figure)
    first = "  ".join(f"{text:<{width}}" for text, width in zip(texts, COLUMNS, strict=True))
    return [f"{first}  {found.verdict.value}", *(f"{'':<{COLUMNS[0]}}    {text}" for text in _reason(result))]


def _reason(result: CheckResult) -> list[str]:
    found = result.finding
    return [" -> ".join(filter(None, (found.reason, found.advice)))] if found.reason or found.advice else []


def summary(results: Sequence[CheckResult], seconds: float) -> str:
    """Number of findings of each verdict."""
    counts = {verdict: sum(each.finding.verdict is verdict for each in results) for verdict in Verdict}
    listed = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items() if count)
    return f"{len(results)} checks in {seconds:.0f} s: {listed or 'none'}"


def record(
    request: CheckRequest,
    command: str,
    started: datetime.datetime,
    seconds: float,
    facts: Mapping[str, Any],
    results: Iterable[CheckResult],
) -> dict[str, Any]:
    """The content of ``check.json``.

    Args:
        command: the command line.
        started: with a time zone.
        seconds: of the whole check.
        facts: versions and hardware.
    """
    device = str(facts.get("device", "an unknown processor"))
    return {
        "host": socket.gethostname(),
        "machine": f"{request.gpus} x {device}" if request.gpus else f"{facts.get('cores', '?')} cores of {device}",
        "command": command,
        "started": started.astimezone(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "level": request.level.name.lower(),
        "sections": list(request.sections),
        "devices": request.devices,
        "gpus": request.gpus,
        "environment": dict(facts),
        "findings": [
            {
                "section": each.section,
                "name": each.name,
                "figure": each.finding.figure,
                "verdict": each.finding.verdict.value,
                "reason": each.finding.reason,
                "advice": each.finding.advice,
                "values": dict(each.finding.values),
                "seconds": round(each.seconds, 2),
            }
            for each in results
        ],
    }


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


# ---- README's table


def machines(folder: Path = MACHINES) -> list[dict[str, Any]]:
    """The kept reports, by file name."""
    contents = (files.read_json(path) for path in sorted(folder.glob("*.json")))
    return [content for content in contents if isinstance(content, dict)]


def speed_table(contents: Iterable[Mapping[str, Any]]) -> str:
    """Markdown table with a row for each machine and a column for each network of ``papers.cost.MEASURED``."""
    titles = [name.replace("resnet", "ResNet-").replace("px", " px") for name in MEASURED]
    text = [f"| images/s, one device | torch | {' | '.join(titles)} |", "|---|---|" + "---|" * len(titles)]
    for content in contents:
        speed = {each["name"]: each["values"] for each in content["findings"] if each["section"] == "speed"}
        rates = [_rate(speed.get(name, {})) for name in MEASURED]
        torch = content["environment"].get("torch", "")
        text.append(f"| {content['machine']}, {content['started'][:10]} | {torch} | {' | '.join(rates)} |")
    return "\n".join(text) + "\n"


def _rate(values: Mapping[str, Any]) -> str:
    """Images per second with what they were measured with; empty if they were not."""
    rate = values.get("images_s")
    if not isinstance(rate, int | float):
        return ""
    number = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
    return f"{number} ({values.get('precision')}, batch {values.get('batch')}, {values.get('mode')})"


def between_marks(text: str, table: str) -> str:
    """``text`` with ``table`` between its two marks.

    Raises:
        ValueError: there are not exactly two marks.
    """
    before, _, after = text.split(MARK)
    return f"{before}{MARK}\n\n{table}\n{MARK}{after}"


def _arguments(words: Sequence[str] | None) -> Iterator[Path]:
    parser = argparse.ArgumentParser("python -m ssl_bench.check.report", description="Make README's table of speeds.")
    parser.add_argument("--write", type=Path, metavar="README.md", help=f"replace what stands between two {MARK}")
    if (path := parser.parse_args(words).write) is not None:
        yield path


def main(words: Sequence[str] | None = None) -> int:
    """Print the table, or write it into a file."""
    table = speed_table(machines())
    written = False
    for path in _arguments(words):
        files.write_text(path, between_marks(path.read_text(), table))
        written = True
    if not written:
        print(table, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
