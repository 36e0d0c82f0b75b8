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
    columns = [  # of any probe: knn/top1, linear/digit20/top1
        name
        for evaluator in results["config"].get("evaluate", ())
        for name in metrics
        if name.startswith(f"{evaluator}/") and name.endswith(("/top1", "/projection_top1"))
    ]
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


def headline(folder: Path) -> str:
    """A finished run in a line."""
    results: dict[str, Any] = files.read_json(folder / "results.json")
    top1 = [f"{k} {100 * v:.1f}%" for k, v in results["metrics"].items() if k in ("knn/top1", "linear/top1")]
    return ", ".join([*top1, f"{results['seconds']:.0f} s", str(folder)])
