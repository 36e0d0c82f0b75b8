"""A finished run on one screen."""

from pathlib import Path
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
    columns = [
        name
        for evaluator in results["config"]["evaluate"]
        for name in (f"{evaluator}/top1", f"{evaluator}/projection_top1")
        if name in metrics
    ]
    if columns:
        table = Table("", *(Column(column, overflow="fold") for column in columns))
        for suffix, subject in SUBJECTS.items():
            names = [f"{column.split('/')[0]}{suffix}/{column.split('/')[1]}" for column in columns]
            if any(name in metrics for name in names):
                table.add_row(subject, *(f"{100 * metrics[n]:.1f}%" if n in metrics else "" for n in names))
        console.print(table)
    print(f"{results['seconds']:.0f} s, {folder}")
    print(f"look at it again: ssl-bench evaluate {folder}")
