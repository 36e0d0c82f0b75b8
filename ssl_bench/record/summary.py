"""Summaries on the terminal: one finished run, or the finished runs of a grid in a table."""

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from ssl_bench.evaluate.metric import Metric, heading
from ssl_bench.record import evaluations, units
from ssl_bench.record.results import mixed, read

SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
# Directory and epochs of runs: the numbers of a run are those after so many epochs. None: it trains nothing.
Groups = Mapping[str, Sequence[tuple[Path, int | None]]]
TARGETS = {"_raw": "raw pixels", "_init": "random initialisation", "": "pre-trained"}


def targets(config: Mapping[str, Any]) -> dict[str, str]:
    """The networks of a run in words, by the suffix of their metrics."""
    given = {"_init" if config.get("epochs") else "": "weights of init"} if config.get("init") else {}
    return TARGETS | ({} if config.get("epochs", 1) else {"": TARGETS["_init"]}) | given


def print_run(folder: Path, config: Mapping[str, Any]) -> None:
    """Print the accuracies of a finished run beside its baselines, its directory and the next command.

    Args:
        config: what asks for the evaluations that are shown.
    """
    from rich.console import Console
    from rich.table import Column, Table

    results = read(folder)
    if results is None:  # removed or damaged meanwhile
        print(folder)
        return
    evaluated = "evaluate" in config
    metrics = evaluations.of(evaluations.entries(results), config) if evaluated else results["metrics"]
    console = Console(highlight=False)
    told = results.get("units"), config.get("evaluate")
    main = units.main(metrics, *told) if evaluated else []
    columns = [name for each in main for name in (each, each.replace("/", "/projection_", 1)) if name in metrics]
    if columns:
        table = Table("", *(Column(column, overflow="fold") for column in columns))
        for suffix, target in targets(config).items():
            names = [column.replace("/", f"{suffix}/", 1) for column in columns]
            if any(name in metrics for name in names):
                table.add_row(target, *(units.metric(n, *told).text(metrics[n]) if n in metrics else "" for n in names))
        console.print(table)
    elif metrics:
        console.print("  ".join(f"{name} {value:.4g}" for name, value in metrics.items()))
    print(_end(results, config, folder))
    if evaluated:
        print(f"evaluate it again: {shlex.join(['ssl-bench', 'evaluate', str(folder)])}")


def print_grid(groups: Groups) -> None:
    """Print a line for each group of runs that differ in their seed only, the one with the best first accuracy first.

    A line has the mean and, for several runs, the sample standard deviation. Beside each accuracy stands that of the
    network at initialisation (``_init``), if it was evaluated. The best of each accuracy is bold. Footnotes say what a
    mean mixes and what its runs warn of.

    Args:
        groups: the runs by what else distinguishes them.
    """
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    read_runs = ((name, [found for run in runs if (found := _after(*run))]) for name, runs in groups.items())
    found = {name: runs for name, runs in read_runs if runs}
    columns, meant, ranked = dict[str, None](), dict[str, Metric](), dict[str, None]()
    for results in (results for runs in found.values() for results in runs):
        evaluated = "evaluate" in results["config"]
        told = results.get("units"), results["config"].get("evaluate")
        main = units.main(results["metrics"], *told)
        both = [name for one in main for name in (one, one.replace("/", "_init/", 1)) if name in results["metrics"]]
        columns |= dict.fromkeys(both if evaluated else results["metrics"])
        meant |= {name: units.metric(name, *told) for name in columns if name not in meant}
        ranked |= dict.fromkeys(main)
    if not columns:
        return
    table = Table(*(Column(name, overflow="fold") for name in ("", "runs", *columns)))
    values = {
        name: {column: [run["metrics"][column] for run in runs if column in run["metrics"]] for column in columns}
        for name, runs in found.items()
    }

    def rank(name: str, column: str) -> float:
        return meant[column].sign * mean(values[name][column]) if values[name][column] else -math.inf

    footnotes: dict[str, None] = {}
    best = {column: max(rank(name, column) for name in found) for column in ranked if len(found) > 1}
    for name in sorted(found, key=lambda name: rank(name, next(iter(ranked))), reverse=True) if ranked else found:
        texts = {column: _mean_and_deviation(values[name][column], meant[column]) for column in columns}
        bold = {column for column in best if rank(name, column) == best[column]}
        numbers = (Text(text, "bold" if column in bold else "") for column, text in texts.items())
        notes = [mixed(run.get("environment", {}) for run in found[name])]
        notes += [
            f"seed {run['config'].get('seed')}: {sentence}"
            for run in found[name]
            for sentence in run.get("warnings", [])
        ]
        footnotes |= dict.fromkeys(filter(None, notes))
        marks = " ".join(str(list(footnotes).index(note) + 1) for note in notes if note).translate(SUPERSCRIPT)
        table.add_row(Text(name), f"{len(found[name])}{marks}", *numbers)
    width = None if sys.stdout.isatty() else 2**16  # a file needs no line breaks
    console = Console(highlight=False, width=width)
    console.print(table)
    for number, note in enumerate(footnotes, 1):
        console.print(Text(f"{number} {note}"))


def _after(folder: Path, epochs: int | None) -> dict[str, Any] | None:
    """The results of a run with the metrics after ``epochs``, from which it may have gone on."""
    results = read(folder)
    if results is None or epochs in (None, results["config"].get("epochs")):
        return results
    return {**results, "metrics": evaluations.flat(evaluations.entries(results), epochs)}


def _mean_and_deviation(values: Sequence[float], metric: Metric) -> str:
    if len(values) < 2:
        return metric.text(values[0]) if values else ""
    return metric.spread(mean(values), stdev(values) if all(map(math.isfinite, values)) else math.nan)


def short(folder: Path, config: Mapping[str, Any]) -> str:
    """The numbers of a finished run, such as ``knn 64.2%  linear 81.0%  12 s``, by what ``config`` asks for."""
    results = read(folder)
    if results is None:  # removed or damaged meanwhile
        return str(folder)
    if "evaluate" not in config:
        numbers = [f"{name} {value:.4g}" for name, value in results["metrics"].items()]
    else:
        metrics = evaluations.of(evaluations.entries(results), config)
        told = results.get("units"), config.get("evaluate")
        main = {name: units.metric(name, *told).text(metrics[name]) for name in units.main(metrics, *told)}
        numbers = [f"{heading(name)} {text}" for name, text in main.items()]
    return "  ".join([*numbers, f"{results['seconds']:.0f} s"])


def _end(results: Mapping[str, Any], config: Mapping[str, Any], folder: Path) -> str:
    """How long a run took when it was trained, where it is, and whether it has gone on from what ``config`` asks."""
    epochs = results["config"].get("epochs") or 0
    further = f", which has gone on to epoch {epochs}" if epochs > (config.get("epochs") or 0) else ""
    done = ("trained" if config.get("epochs", 1) else "evaluated") if "evaluate" in config else "computed"
    return f"{done} in {results['seconds']:.0f} s, {folder}{further}"
