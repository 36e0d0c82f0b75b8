"""A finished run on one screen, and the runs of a grid beside each other."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from ssl_bench import files

SUBJECTS = {"_raw": "raw pixels", "_init": "random initialisation", "": "pre-trained"}


def report(folder: Path) -> None:
    """Prints accuracies beside the baselines, where they are, and how to look at them again."""
    from rich.console import Console
    from rich.table import Column, Table

    results: dict[str, Any] = files.read_json(folder / "results.json")
    metrics: dict[str, float] = results["metrics"]
    console = Console(highlight=False)
    columns = _accuracies(results)
    if columns:
        table = Table("", *(Column(column, overflow="fold") for column in columns))
        for suffix, subject in SUBJECTS.items():
            names = [column.replace("/", f"{suffix}/", 1) for column in columns]
            if any(name in metrics for name in names):
                table.add_row(subject, *(f"{100 * metrics[n]:.1f}%" if n in metrics else "" for n in names))
        console.print(table)
    elif "evaluate" not in results["config"]:
        console.print("  ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
    print(f"{results['seconds']:.0f} s, {folder}")
    if "evaluate" in results["config"]:
        print(f"look at it again: ssl-bench evaluate {folder}")


def compare(cells: Mapping[str, Sequence[Path]]) -> None:
    """Prints a line for each cell of a grid, over the runs that are finished, which differ in their seed.

    That is the mean and, of several runs, the standard deviation of a sample. Beside an accuracy stands that of the
    network before its training (``_init``), where it is known.
    """
    from rich.console import Console
    from rich.table import Column, Table

    found = {cell: [files.read_json(folder / "results.json") for folder in folders] for cell, folders in cells.items()}
    columns: dict[str, None] = {}
    for results in (results for runs in found.values() for results in runs):
        probed = "evaluate" in results["config"]
        top1 = [name for name in _accuracies(results) if name.endswith("/top1")]
        both = [name for one in top1 for name in (one, one.replace("/", "_init/", 1)) if name in results["metrics"]]
        columns |= dict.fromkeys(both if probed else results["metrics"])
    if not columns:
        return
    table = Table(*(Column(name, overflow="fold") for name in ("", "runs", *columns)))
    for cell, runs in found.items():
        values = [[run["metrics"][name] for run in runs if name in run["metrics"]] for name in columns]
        table.add_row(cell, str(len(runs)), *map(_spread, values, columns))
    Console(highlight=False, width=None if sys.stdout.isatty() else 2**16).print(
        table
    )  # a file is as wide as it must be


def _accuracies(results: Mapping[str, Any]) -> list[str]:
    """The metrics of any probe that are top-1 accuracies: knn/top1, linear/digit20/top1."""
    return [
        name
        for evaluator in results["config"].get("evaluate", ())
        for name in results["metrics"]
        if name.startswith(f"{evaluator}/") and name.endswith(("/top1", "/projection_top1"))
    ]


def _spread(values: Sequence[float], name: str) -> str:
    if not values:
        return ""
    scale, digits, unit = (100, 1, "%") if name.endswith("/top1") else (1, 4, "")
    over = f" ± {scale * stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{scale * mean(values):.{digits}f}{over}{unit}"


def headline(folder: Path) -> str:
    """A finished run in a line."""
    results: dict[str, Any] = files.read_json(folder / "results.json")
    top1 = [f"{k} {100 * v:.1f}%" for k, v in results["metrics"].items() if k in ("knn/top1", "linear/top1")]
    return ", ".join([*top1, f"{results['seconds']:.0f} s", str(folder)])
