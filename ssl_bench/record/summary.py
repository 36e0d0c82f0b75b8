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
    further = ""
    if (results := read(folder)) is not None:  # not removed or damaged meanwhile
        main, texts = _texts(results, config)
        columns = [name for one in main for name in (one, one.replace("/", "/projection_", 1)) if name in texts]
        sheet = Sheet(["", *columns])
        for suffix, target in targets(config).items() if "evaluate" in config else [("", "")]:
            row = [texts.get(name.replace("/", f"{suffix}/", 1), "") for name in columns]
            sheet.rows += [[SheetEntry(text) for text in (target, *row)]] * any(row)
        took = f"{'trained' if config.get('epochs', 1) else 'done'} in {results['seconds']:.0f} s, " * timed
        plain = "  ".join(f"{name} {text}" for name, text in texts.items())  # of numbers that rank nothing
        print(f"{text_of([sheet], 'rich') if columns else plain}\n" * bool(texts) + took, end="")
        epochs = results["config"].get("epochs") or 0
        further = f", which has gone on to epoch {epochs}" * (epochs > (config.get("epochs") or 0))
    print(f"{folder}{further}")
    if "evaluate" in config:
        print(f"evaluate it again: {printable(shlex.join(['ssl-bench', 'evaluate', str(folder)]))}")


def short(folder: Path, config: Mapping[str, Any]) -> str:
    """The numbers of a finished run, such as ``knn 64.2%  linear 81.0%  12 s``, by what ``config`` asks for."""
    if (results := read(folder)) is None:  # removed or damaged meanwhile
        return str(folder)
    main, texts = _texts(results, config)
    return "  ".join([*(f"{heading(name)} {texts[name]}" for name in main), f"{results['seconds']:.0f} s"])


def _texts(results: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """The names of the main metrics, and the text of each metric, of the evaluations that ``config`` asks for."""
    if "evaluate" not in config:
        return [*results["metrics"]], {name: f"{value:.4g}" for name, value in results["metrics"].items()}
    metrics, of = evaluations.of(results["evaluations"], config), results.get("units")
    return units.main(metrics, of), {name: units.metric(name, of).text(value) for name, value in metrics.items()}
