"""The summary of a finished run on the terminal."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssl_bench.errors import printable
from ssl_bench.evaluate.metric import heading
from ssl_bench.record import evaluations, units
from ssl_bench.record.printing import Sheet, SheetEntry, text_of
from ssl_bench.record.results import read

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
