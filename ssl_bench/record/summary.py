"""Summaries on the terminal: one finished run, or the finished runs of a grid in a table."""

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from ssl_bench.errors import printable
from ssl_bench.evaluate.metric import Metric, heading
from ssl_bench.record import evaluations, units
from ssl_bench.record.printing import Sheet, SheetEntry, text_of
from ssl_bench.record.results import conditions, mixed, read

# Directory and epochs of runs: the numbers of a run are those after so many epochs. None: it trains nothing.
Groups = Mapping[str, Sequence[tuple[Path, int | None]]]
TARGETS = {"_raw": "raw pixels", "_init": "random initialisation", "": "pre-trained"}


def targets(config: Mapping[str, Any]) -> dict[str, str]:
    """The networks of a run in words, by the suffix of their metrics."""
    given = {"_init" if config.get("epochs") else "": "weights of init"} if config.get("init") else {}
    return TARGETS | ({} if config.get("epochs", 1) else {"": TARGETS["_init"]}) | given


def print_run(folder: Path, config: Mapping[str, Any], timed: bool = True) -> None:
    """Print the accuracies of a finished run beside its baselines, its directory and the next command.

    Args:
        config: what asks for the evaluations that are shown.
        timed: say how long the run took when it was trained.
    """
    results = read(folder)
    if results is None:  # removed or damaged meanwhile
        print(folder)
        return
    evaluated = "evaluate" in config
    metrics = evaluations.of(results["evaluations"], config) if evaluated else results["metrics"]
    if sheet := _of_networks(metrics, results.get("units"), config) if evaluated else None:
        print(text_of([sheet], "rich"))
    elif metrics:
        print("  ".join(f"{name} {value:.4g}" for name, value in metrics.items()))
    print(_end(results, config, folder, timed))
    if evaluated:
        print(f"evaluate it again: {printable(shlex.join(['ssl-bench', 'evaluate', str(folder)]))}")


def _of_networks(metrics: Mapping[str, float], recorded: Any, config: Mapping[str, Any]) -> Sheet | None:
    """The main metrics of each network of a run, the trained one and its baselines; None if there are no such metrics.

    Args:
        recorded: the units of ``results.json``.
    """
    main = units.main(metrics, recorded, config["evaluate"])
    columns = [name for one in main for name in (one, one.replace("/", "/projection_", 1)) if name in metrics]
    sheet = Sheet(["", *columns])
    for suffix, target in targets(config).items():
        names = [column.replace("/", f"{suffix}/", 1) for column in columns]
        meanings = (units.metric(name, recorded, config["evaluate"]) for name in names)
        texts = [meaning.text(metrics[n]) if n in metrics else "" for n, meaning in zip(names, meanings, strict=True)]
        sheet.rows += [[SheetEntry(target), *map(SheetEntry, texts)]] * any(texts)
    return sheet if columns else None


def print_grid(groups: Groups) -> None:
    """Print a table with a line for each group of runs that differ in their seed only.

    The numbers are those after the epochs that a group names; where several evaluations made one metric, columns say
    which. The group with the best first accuracy comes first. A line has the mean and, for several runs, the sample
    standard deviation. Beside each accuracy stands that of the network at initialisation (``_init``), if it was
    evaluated. The best of each accuracy is bold. Footnotes say what a mean mixes and what its runs warn of.

    Args:
        groups: the runs by what else distinguishes them.
    """
    results = {name: [content for run in runs if (content := _after(*run))] for name, runs in groups.items()}
    results = {name: contents for name, contents in results.items() if contents}
    shown = [content for contents in results.values() for content in contents]
    for content, metrics in zip(shown, evaluations.told_apart([c["evaluations"] for c in shown]), strict=True):
        content["metrics"] = metrics
    columns, ranked = _columns(shown)
    if not columns:
        return
    values = {
        name: {column: [c["metrics"][column] for c in contents if column in c["metrics"]] for column in columns}
        for name, contents in results.items()
    }

    def rank(name: str, column: str) -> float:
        return columns[column].sign * mean(values[name][column]) if values[name][column] else -math.inf

    best = {column: max(rank(name, column) for name in results) for column in ranked if len(results) > 1}
    order = sorted(results, key=lambda name: rank(name, ranked[0]), reverse=True) if ranked else list(results)
    sheet = Sheet(["", "runs", *columns])
    for name in order:
        row = [SheetEntry(name), SheetEntry(str(len(results[name])), sheet.numbers(_notes(results[name])))]
        for column, metric in columns.items():
            is_best = column in best and rank(name, column) == best[column]
            row.append(SheetEntry(_mean_and_deviation(values[name][column], metric), best=is_best))
        sheet.rows.append(row)
    print(text_of([sheet], "rich"), end="")


def _columns(contents: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Metric], list[str]]:
    """The metrics that a table of some results has, with their meaning, and those of them by which it is ranked."""
    columns, ranked = dict[str, Metric](), dict[str, None]()
    for content in contents:
        metrics, recorded, evaluate = content["metrics"], content.get("units"), content["config"].get("evaluate")
        main = units.main(metrics, recorded, evaluate)
        both = [name for one in main for name in (one, one.replace("/", "_init/", 1)) if name in metrics]
        for name in both if "evaluate" in content["config"] else metrics:
            columns.setdefault(name, units.metric(name, recorded, evaluate))
        ranked |= dict.fromkeys(main)
    return columns, list(ranked)


def _notes(contents: Sequence[Mapping[str, Any]]) -> list[str]:
    """One sentence if the results come from different environments, then one for each warning of their runs."""
    notes = [mixed(conditions(content["config"], content.get("environment", {})) for content in contents)]
    notes += [f"seed {c['config'].get('seed')}: {sentence}" for c in contents for sentence in c.get("warnings", [])]
    return [note for note in notes if note]


def _after(folder: Path, epochs: int | None) -> dict[str, Any] | None:
    """The results of a run with the evaluations after ``epochs``, from which it may have gone on."""
    if (results := read(folder)) is None:
        return None
    end = results["config"].get("epochs") if epochs is None else epochs
    return {**results, "evaluations": evaluations.after(results["evaluations"], end)}


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
        metrics = evaluations.of(results["evaluations"], config)
        recorded, evaluate = results.get("units"), config.get("evaluate")
        main = units.main(metrics, recorded, evaluate)
        texts = {name: units.metric(name, recorded, evaluate).text(metrics[name]) for name in main}
        numbers = [f"{heading(name)} {text}" for name, text in texts.items()]
    return "  ".join([*numbers, f"{results['seconds']:.0f} s"])


def _end(results: Mapping[str, Any], config: Mapping[str, Any], folder: Path, timed: bool) -> str:
    """How long a run took when it was trained, where it is, and whether it has gone on from what ``config`` asks."""
    epochs = results["config"].get("epochs") or 0
    further = f", which has gone on to epoch {epochs}" if epochs > (config.get("epochs") or 0) else ""
    done = ("trained" if config.get("epochs", 1) else "evaluated") if "evaluate" in config else "computed"
    return f"{done} in {results['seconds']:.0f} s, " * timed + f"{folder}{further}"
