"""Markdown tables of what the benchmarks have measured, made without torch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Rows = Sequence[Mapping[str, Any]]  # as timing.result_rows makes them


def markdown(head: Iterable[Any], *rows: Iterable[Any]) -> str:
    """A table of a head and rows of cells."""
    lines = [[str(cell).replace("|", "/") for cell in row] for row in (head, *rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def by_column(rows: Rows, column: str, title: str) -> str:
    """A table with a line per name and a column per value of the key ``column``.

    A cell has the median in ms and, in brackets, its ratio to that of the first name, or why there is no median.
    """
    cells = {(row["name"], row[column]): row for row in rows}
    columns = sorted({row[column] for row in rows})
    names = list(dict.fromkeys(row["name"] for row in rows))

    def cell(name: str, value: Any) -> str:
        row, first = cells.get((name, value), {}), cells.get((names[0], value), {})
        if "median_ms" not in row:
            return str(row.get("missing", "")).partition(":")[0]
        ratio = f" ({row['median_ms'] / first['median_ms']:.2f}x)" if first.get("median_ms") else ""
        return f"{row['median_ms']:{',.0f' if row['median_ms'] >= 100 else '.3g'}}{ratio}"

    lines = ([name, *(cell(name, value) for value in columns)] for name in names)
    return markdown([title, *(f"{value:,}" for value in columns)], *lines)


def of_steps(rows: Rows) -> str:
    """The rows of benchmark_step.py: a table for each precision, with a column for each batch size."""
    return "\n\n".join(
        by_column([row for row in rows if row["precision"] == name], "batch", f"ms of a step, {name}, by batch size")
        for name in dict.fromkeys(row["precision"] for row in rows)
    )


def of_kernels(rows: Rows, most: int = 15) -> str:
    """The first rows of a file of benchmark_step.py --kernels, and the sum of all."""
    lines = [(row["kernel"][:80], row["launches"], row["us"], row["share"]) for row in rows[:most]]
    lines.append((f"all {len(rows)}", *(sum(row[key] for row in rows) for key in ("launches", "us", "share"))))
    cells = ([name, f"{launches:g}", f"{us:,.0f}", f"{share:.1%}"] for name, launches, us, share in lines)
    return markdown(["kernel of a replayed step", "launches", "microseconds", "share"], *cells)
