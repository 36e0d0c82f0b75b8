"""What the readers of a results folder say, with and without one of its runs."""

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.commands import compare, status, table


class Screen(io.StringIO):
    """An output that is a terminal."""

    def isatty(self) -> bool:
        return True


def asked(command: Callable[..., Any], *words: str, out: io.StringIO | None = None) -> tuple[int, str, str]:
    """What a command answers: its code and what it prints."""
    out, err = out or io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = command(list(words))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return code, out.getvalue(), err.getvalue()


def numbers() -> tuple[dict[str, Any], str]:
    """The records of ``status --json`` by the names of the runs' directories, and what it says beside them.

    Without the labels, which say what distinguishes a run from the others.
    """
    files.SAID.clear()
    code, out, said = asked(status.main, "outputs", "--json")
    assert code == 0
    records = [{**record, "label": ""} for record in json.loads(out) if record["folder"]]
    return {Path(record["folder"]).name: record for record in records}, said


def means() -> dict[str, tuple[float, int]]:
    """The mean of each loss in the tables of ``table``, in percent, and the number of its runs."""
    code, out, said = asked(table.main, "seed=0,1", "--rows", "loss", "--format", "json")
    assert code == 0, said
    tables, of_loss = json.loads(out), dict[str, tuple[float, int]]()
    for row in [row for one in (tables if isinstance(tables, list) else [tables]) for row in one["rows"]]:
        mean, count = of_loss.get(row["loss"], (0.0, 0))
        both = count + row["n"]
        of_loss[row["loss"]] = (mean * count + row["mean"] * row["n"]) / both, both
    return of_loss


def pairs() -> list[tuple[list[int], float]]:
    """The seeds and the differences of ``compare``."""
    code, out, said = asked(compare.main, "--by", "loss", "seed=0,1", "--metric", "knn/top1", "--format", "json")
    assert code == 0, said
    return [(cell["seeds"], abs(cell["difference"])) for cell in json.loads(out)["cells"]]
