"""The report of a check: a line of each answer, and ``checks/<host>-<time>/check.json``."""

import datetime
import socket
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.check.answer import Answer
from ssl_bench.record.printing import plain

COLUMNS = (8, 22, 52)  # characters of section, name and figure
SectionAnswer = tuple[str, Answer]  # an answer with its section


def text(result: SectionAnswer) -> str:
    """An answer on the terminal: one line, and one below it if there is a reason or an advice."""
    section, answer = result
    words = zip((section, answer.name, answer.figure), COLUMNS, strict=True)
    first = "  ".join([*(f"{word:<{width}}" for word, width in words), answer.verdict.value])
    second = " -> ".join(filter(None, (answer.reason, answer.advice)))
    return f"{first}\n{'':<{COLUMNS[0]}}    {second}" if second else first


def summary(results: Sequence[SectionAnswer]) -> str:
    """Number of answers of each verdict."""
    counts = Counter(answer.verdict.value for _, answer in results)
    return f"{len(results)} checks: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}"


def findings(results: Sequence[SectionAnswer]) -> list[dict[str, Any]]:
    """The answers as JSON can hold them: NaN and infinity as text."""
    rows = list[dict[str, Any]]()
    for section, answer in results:
        values = {name: str(x) if x != plain(x) else x for name, x in answer.values.items()}
        rows.append({"section": section, **vars(answer), "verdict": answer.verdict.value, "values": values})
    return rows


def save(outputs: Path, command: str, gpus: int, started: datetime.datetime, results: Sequence[SectionAnswer]) -> Path:
    """Write ``check.json`` into a new folder of ``outputs/checks``; return its path.

    Raises:
        OSError: it cannot be written.
    """
    facts = next((dict(answer.values) for _, answer in results if answer.name == "versions"), {})
    device = str(facts.get("device", "an unknown processor"))
    content = {
        "host": socket.gethostname(),
        "machine": f"{gpus} x {device}" if gpus else f"{facts.get('cores', '?')} cores of {device}",
        "command": command,
        "started": started.isoformat(timespec="seconds"),
        "findings": findings(results),
    }
    folder = outputs / "checks" / f"{content['host']}-{started:%Y%m%d-%H%M%S}"
    folder.mkdir(parents=True)
    files.write_json(folder / "check.json", content)
    return folder / "check.json"
