"""Numbers that were measured with this package and are committed in ``measured/``, one JSON file for each table.

``python -m ssl_bench.papers.measurements TABLE ... [paths.outputs=FOLDER]`` writes the file of a table from its
finished runs: every number with its seed and run_id, the command, and the commit, hardware, versions and seconds of the
runs. The ``note`` of a file that is there is kept.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.errors import ConfigError
from ssl_bench.papers import tables
from ssl_bench.papers.cells import Cell, Table
from ssl_bench.papers.runs import Results
from ssl_bench.papers.selection import Selection
from ssl_bench.record import results as finished_run

VERSIONS = ("ssl_bench", "python", "torch", "torchvision", "timm", "numpy")


def path_of(table: Table) -> Path:
    """The file of a table, which need not exist."""
    return tables.directory() / "measured" / f"{table.name.replace('/', '_')}.json"


def read(table: Table) -> dict[str, Any]:
    """The content of a table's file; empty without one."""
    path = path_of(table)
    return _read(path, path.stat().st_mtime_ns) if path.exists() else {}


@lru_cache(maxsize=64)
def _read(path: Path, changed: int) -> dict[str, Any]:
    content = files.read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("cells"), list):
        raise ConfigError(f"{path} has no measurements: write it anew or delete it")
    return content


def values(table: Table, cell: Cell) -> dict[int, float]:
    """The committed numbers of a cell by seed, accuracies in percent."""
    wanted = cell.label, cell.column, cell.metric
    found = (each for each in read(table).get("cells", []) if (each["row"], each["column"], each["metric"]) == wanted)
    return {int(each["seed"]): float(each["value"]) for each in found}


def record(table: Table, results: Results, note: Sequence[str] = ()) -> dict[str, Any]:
    """The content of a table's file from its finished runs.

    Raises:
        ConfigError: no cell has a finished run.
    """
    cells: list[dict[str, Any]] = []
    runs: dict[str, dict[str, Any]] = {}
    for cell in table.cells:
        by_seed = {run.seed: run for run in results.of_cell(cell)}
        for seed, number in results.values(cell).items():
            run = by_seed[seed]
            runs[run.run_id] = content = runs.get(run.run_id) or files.read_json(run.folder / finished_run.NAME)
            place = {"row": cell.label, "column": cell.column, "metric": cell.metric}
            cells.append(place | {"value": _short(number), "seed": seed, "run_id": run.run_id})
            cells[-1]["seconds"] = round(content["seconds"])
    if not cells:
        raise ConfigError(f"{table.name}: no cell has a finished run: train them with ssl-bench reproduce {table.name}")
    environments = [content.get("environment", {}) for content in runs.values()]
    return {
        "table": table.name,
        "command": f"ssl-bench reproduce {table.name}",
        "commit": _one(str(each.get("git"))[:7] for each in environments),
        "hardware": _one(f"{each.get('device')}, threads of a run: {each.get('threads')}" for each in environments),
        **{name: _one(str(each.get(name)) for each in environments) for name in VERSIONS},
        "seconds": round(sum(content["seconds"] for content in runs.values())),
        "note": list(note),
        "cells": cells,
    }


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a table's file, one cell a line."""
    head = json.dumps({key: value for key, value in content.items() if key != "cells"}, indent=1)[:-2]
    lines = ",\n".join("  " + json.dumps(cell) for cell in content["cells"])
    path.parent.mkdir(exist_ok=True)
    files.write_text(path, f'{head},\n "cells": [\n{lines}\n ]\n}}\n')


def _one(texts: Iterable[str]) -> str:
    """The different texts, in order."""
    return "; ".join(sorted(set(texts)))


def _short(number: float) -> float:
    """A number with six significant digits."""
    return float(f"{number:.6g}")


def main(arguments: Sequence[str]) -> None:
    """Write the files of the named tables."""
    names = [argument for argument in arguments if "=" not in argument]
    selection = Selection.read(names, False, [argument for argument in arguments if "=" in argument])
    chosen = selection.tables()
    results = Results(selection.outputs, [cell for table in chosen for cell in table.cells])
    for table in chosen:
        try:
            write(path_of(table), record(table, results, read(table).get("note", [])))
        except ConfigError as error:
            print(error, file=sys.stderr)
        else:
            print(path_of(table))


if __name__ == "__main__":
    main(sys.argv[1:])
