"""The output of ``ssl-bench status``: experiments, runs, the remaining time; and the output of a run at its end."""

from __future__ import annotations

import socket
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from ssl_bench.errors import command_line, printable
from ssl_bench.evaluate.metric import Metric, heading
from ssl_bench.record import printing
from ssl_bench.record.printing import Sheet, SheetEntry
from ssl_bench.record.runs import Progress, Run, read_results
from ssl_bench.record.terminal import clock, texts_of
from ssl_bench.results import table as runs_table
from ssl_bench.results.table import STATES

if TYPE_CHECKING:
    from pandas import DataFrame, Series
    from rich.text import Text

COLOURS = dict(zip(STATES, ("cyan", "red", "red", "red", "yellow", "yellow", "dim", "green"), strict=True))
WORDS = ("experiment", "states", "run", "settings", "state")  # columns of text, not of numbers
TARGETS = {"_raw": "raw pixels", "_init": "random initialisation", "": "pre-trained"}
SPARED = ("images/s", "loss", "watched kNN", "epoch")  # left out by a narrow terminal, one after another

Metrics = Mapping[str, tuple[str, Metric, dict[Any, float]]]  # of each experiment, as `main_metrics` has them
ToGo = Mapping[int | str, float]  # remaining seconds of busy runs, by place in a table, and of experiments, by name


def screen(table: DataFrame, listed: bool, now: float, width: int, live: bool = False) -> Text:
    """The experiments if there are several, the runs if they are ``listed``, and the number of runs in each state.

    The reason of its failure and its warnings stand below a single run.

    Args:
        now: in seconds of the epoch.
        live: print the numbers of runs and the most urgent runs first, since the end may be cut off; list busy runs in
            any case.
    """
    from rich.text import Text

    to_go, metrics, parts = time_left(table, now), main_metrics(table), list[str]()
    last = (_states(table["state"]) or "there are no runs to show") + ("" if listed else "; --runs lists the runs")
    last += f"; about {clock(total)} to go" if (total := whole_time(to_go)) is not None else ""
    if len(table) and (table["experiment"].nunique() > 1 or not listed):
        parts.append("\n".join(printing.lines(experiments(table, to_go, metrics), width)))
    shown = table if listed else table[(table["state"] == "busy") & live]
    shown = shown.sort_values("state", key=lambda of: of.map(STATES.index), kind="stable") if live else shown
    if len(shown):
        parts.append("\n".join(printing.lines(list_of_runs(shown, to_go, metrics), width)))
    if len(table) == 1:
        row = table.iloc[0]
        sentences = [*filter(None, [row["reason"]]), *row["run"].warnings]
        parts += [textwrap.fill(printable(sentence), min(width, printing.WIDEST)) for sentence in sentences]
    last = textwrap.fill(last, min(width, printing.WIDEST))
    text = Text("\n\n".join([last, *parts] if live else [*parts, last]), no_wrap=True, overflow="ellipsis")
    for state, colour in (*COLOURS.items(), ("training", "cyan"), ("evaluating", "cyan")):
        text.highlight_words([state], colour)
    return text


def main_metrics(table: DataFrame) -> Metrics:
    """For each experiment its main metric (of most runs), the unit, and the values by the runs' places in the table."""
    metrics = dict[str, tuple[str, Metric, dict[Any, float]]]()
    for experiment, members in runs_table.by_experiment(table[["experiment", "run"]]).items():
        names, metric = runs_table.name_numbers(members["run"]), next(iter(runs_table.usual(members)), "")
        values = {place: runs_table.main(run, names).get(metric) for place, run in members["run"].items()}
        finite = {place: value for place, value in values.items() if value is not None}
        metrics[experiment] = metric, runs_table.meaning(members, metric), finite
    return metrics


def experiments(table: DataFrame, to_go: ToGo, metrics: Metrics) -> Sheet:
    """A row for each experiment, by the name of its folder, with the best value of the metric that most runs have."""
    rows = list[tuple[str, ...]]()
    for name, (metric, unit, values) in metrics.items():
        states = table["state"][table["experiment"] == name]
        best = max(values.values(), key=lambda one: unit.sign * one) if values and unit.sign else None
        text = "" if best is None else f"{heading(metric)} {unit.text(best)}"
        rows.append((str(name), str(len(states)), _states(states), clock(to_go[name]) if name in to_go else "", text))
    return _sheet(dict(zip(("experiment", "runs", "states", "ETA", "best"), zip(*rows, strict=True), strict=True)))


def list_of_runs(table: DataFrame, to_go: ToGo, metrics: Metrics) -> Sheet:
    """A row for each run, with the main metric of its experiment; columns that would be empty are left out."""
    texts = dict[Any, tuple[str, str]]()  # the name and the value of each run's
    for metric, unit, values in metrics.values():
        texts |= {place: (heading(metric), unit.text(value)) for place, value in values.items()}
    heads = {texts[place][0] for place in table.index if place in texts}
    several, members = table["experiment"].nunique() > 1, list(table["run"])
    busy = [run.progress if run.owner else Progress() for run in members]
    columns = {
        "run": [f"{run.experiment}/" * several + (run.folder.name if run.folder else "") for run in members],
        "settings": runs_table.labels(table),
        "state": [_state(*pair) for pair in zip(members, table["state"], strict=True)],
        "epoch": [_epoch(run) for run in members],
        "images/s": [_number(at.speed, ".1f") for at in busy],
        "ETA": [clock(to_go[place]) if place in to_go else "" for place in table.index],
        "loss": [_number(at.loss, ".4g") for at in busy],
        "watched kNN": [_number(at.watched, ".1%") for at in busy],
    }
    one = len(heads) == 1
    columns[heads.pop() if one else "metric"] = [" ".join(texts.get(place, ())[one:]) for place in table.index]
    return _sheet(columns)


def doing(run: Run) -> str:
    """``training`` or ``evaluating``; empty unless it is busy."""
    return ("evaluating" if run.share >= 1 else "training") if run.owner else ""


def time_left(table: DataFrame, now: float) -> ToGo:
    """Remaining seconds of each busy run, by its place in the table, and of each experiment, by its name, if known.

    A run goes on at its mean speed so far; a run without a row takes as long as the other runs of its experiment do on
    average. An experiment takes as long as the longest of its busy runs, or as the remaining time of all of its runs,
    also of runs that are not begun, divided by the number of busy runs.
    """
    to_go = dict[int | str, float]()
    for name, members in runs_table.by_experiment(table[["experiment", "run", "state"]]).items():
        busy = {place: run for place, run in members["run"].items() if run.owner}
        shares = [(run.seconds, 1.0 if run.finished else run.share) for run in members["run"] if run.folder]
        whole = [time / share for time, share in shares if time and share]
        usual = mean(whole) if whole else None
        seconds = {place: of for place, run in busy.items() if (of := _to_go(run, usual, now)) is not None}
        to_go |= seconds
        if busy and len(seconds) == len(busy):
            rest = (members["state"] == "not begun").sum() * (usual or 0.0)
            to_go[str(name)] = max(*seconds.values(), (sum(seconds.values()) + float(rest)) / len(busy))
    return to_go


def whole_time(to_go: ToGo) -> float | None:
    """Remaining seconds of all experiments with busy runs together; None if they are not known for any."""
    return max((seconds for key, seconds in to_go.items() if isinstance(key, str)), default=None)


def _to_go(run: Run, usual: float | None, now: float) -> float | None:
    """Remaining seconds of a busy run; None if they are not known, as during the evaluation after the training."""
    at = run.progress
    if run.share >= 1:
        return None
    if at.seconds and run.share:
        return max(0.0, at.seconds / run.share - at.seconds - max(0.0, now - max(at.changed, run.began)))
    return None if usual is None or at.seconds else max(0.0, usual - max(0.0, now - run.began))


def _states(states: Series) -> str:
    """How many runs are in each state."""
    counts = Counter(states)
    return ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])


def _state(run: Run, state: str) -> str:
    """The state, of a busy run training or evaluating, with another machine's name; ``!`` if the run has warnings."""
    where = f" on {run.owner.host}" if run.owner and run.owner.host != socket.gethostname() else ""
    return (doing(run) or state) + where + " !" * bool(run.warnings)


def _epoch(run: Run) -> str:
    epoch = run.end if run.finished else run.progress.epoch
    return _number(epoch, ".5g") if run.end is None else f"{round(epoch or 0, 2):g}/{round(run.end, 2):g}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _sheet(columns: Mapping[str, Sequence[str]]) -> Sheet:
    columns = {name: texts for name, texts in columns.items() if any(texts)}
    rows = [[SheetEntry(text) for text in row] for row in zip(*columns.values(), strict=True)]
    return Sheet([*columns], rows, words=WORDS, spared=SPARED)


# ---- a run at its end


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
    results: Any = read_results(folder)
    main, texts = texts_of(results, config)
    columns = [name for one in main for name in (one, one.replace("/", "/projection_", 1)) if name in texts]
    sheet = Sheet(["", *columns])
    for suffix, target in targets(config).items():
        row = [texts.get(name.replace("/", f"{suffix}/", 1), "") for name in columns]
        sheet.rows += [[SheetEntry(text) for text in (target, *row)]] * any(row)
    took = f"{'trained' if config.get('epochs', 1) else 'done'} in {results['seconds']:.0f} s, " * timed
    plain = "  ".join(f"{name} {text}" for name, text in texts.items())  # of numbers that rank nothing
    print(f"{printing.text_of([sheet], 'rich') if columns else plain}\n" * bool(texts) + took, end="")
    epochs = results["config"].get("epochs") or 0
    print(f"{folder}{f', which has gone on to epoch {epochs}' * (epochs > (config.get('epochs') or 0))}")
    print(f"evaluate it again: {command_line(['ssl-bench', 'evaluate', str(folder)])}")
