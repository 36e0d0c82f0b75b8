"""Write ``measured/README.md`` and its figures from the committed measurements: ``python -m ssl_bench.papers.page``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ssl_bench import files
from ssl_bench.papers import measurements, tables, verdicts
from ssl_bench.papers.cells import Table
from ssl_bench.papers.claims import PaperClaim
from ssl_bench.papers.figure import draw, panels
from ssl_bench.papers.fill import Filled, fill, spread
from ssl_bench.papers.runs import Results

PLACE = {"row", "column", "metric", "value", "seed", "run_id", "seconds"}  # of a committed number
HEAD = """# Measured with this package

Numbers of runs that are committed beside this page: the JSON files have each with its seed, and the command, commit,
hardware and versions. `ssl-bench table` and `ssl-bench figure` show them as "project".

`python -m ssl_bench.papers.measurements TABLE ...` writes the file of a table from its runs, and
`python -m ssl_bench.papers.page` this page and its figures from the files. [How claims are
judged](../README.md#claims).
"""


def write(folder: Path) -> None:
    """Write the page and a figure for each measured table into a folder."""
    for table in measured():
        if table.x:
            _draw(table, folder / f"{_stem(table)}.png")
    files.write_text(folder / "README.md", text())


def measured() -> list[Table]:
    """The claims and tables of all papers that have committed numbers."""
    everything = [t for paper in tables.papers() for t in (*tables.claims(paper), *tables.load(paper))]
    return [table for table in everything if measurements.read(table)]


def text() -> str:
    """The page in Markdown."""
    return re.sub(r"\n{3,}", "\n\n", HEAD + _claims() + "".join(_section(table) for table in measured()))


def _claims() -> str:
    """The verdicts on all claims, those that were not run included."""
    judged = [verdicts.judge(claim, _none()) for claim in verdicts.named([])]
    return f"\n## Claims\n\n{verdicts.formatted('md', judged)}" if judged else ""


def _section(table: Table) -> str:
    """A measured table: its numbers, and its figure, notes and command."""
    content = measurements.read(table)
    lines = [f"\n## {table.name}: {table.title}\n"]
    if isinstance(table, PaperClaim):
        lines += ["\n".join(verdicts.judge(table, _none()).lines()), ""]
    if table.x:
        lines += [f"![{table.title}]({_stem(table)}.png)", ""]
    lines += [*_numbers(table), ""]
    lines += [f"{paragraph}\n" for paragraph in [table.note, *content.get("note", [])] if paragraph]
    hours = content["seconds"] / 3600
    time = f"{hours:.1f} hours" if hours >= 1 else f"{content['seconds'] / 60:.0f} minutes"
    versions = f"torch {content['torch']}, commit {content['commit']}"
    lines += [f"`{content['command']}`: {time}, summed over the runs, on {content['hardware']}; {versions}.", ""]
    return "\n".join(lines)


def _numbers(table: Table) -> Iterator[str]:
    """Rows of the paper's numbers and of ours, and of further metrics that were measured with the same runs."""
    columns = table.columns()
    yield f"| | {' | '.join(columns)} |"
    yield "|---" * (1 + len(columns)) + "|"
    committed = measurements.read(table)["cells"]
    for label in dict.fromkeys(each["row"] for each in committed):
        cells = {cell.column: cell for cell in table.cells if cell.label == label}
        filled = {column: Filled(cell, [], [], "", _values(table, cell)) for column, cell in cells.items()}
        if any(cell.paper is not None for cell in cells.values()):
            yield _row(f"{label}: paper", [cells[column].reported for column in columns])
        yield _row(label, [filled[column].project for column in columns])
        own = [each for each in committed if each["row"] == label]
        for further in sorted({key for each in own for key in each} - PLACE):
            numbers = {each["column"]: each[further] for each in own if further in each}
            yield _row(f"{label}: {further}", [spread(numbers.get(c), None, 1, 2) for c in columns])


def _values(table: Table, cell: measurements.Cell) -> list[float]:
    return list(measurements.values(table, cell).values())


def _row(name: str, entries: list[str]) -> str:
    return f"| {name} | {' | '.join(entries)} |"


def _draw(table: Table, path: Path) -> None:
    filled = fill(table, table.cells, _none())
    figure = draw(
        list(panels(table, [each for each in filled if each.measured or each.cell.paper is not None], _none()))
    )
    files.write(path, lambda file: figure.savefig(file, format="png", dpi=110))


def _none() -> Results:
    """No runs: only committed numbers count."""
    return Results(Path("/nonexistent"), [])


def _stem(table: Table) -> str:
    return measurements.path_of(table).stem


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else tables.directory() / "measured")
