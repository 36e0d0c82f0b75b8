"""The runs of results folders as plain data, which the page of the report shows."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssl_bench import files
from ssl_bench.errors import printable
from ssl_bench.evaluate.metric import Metric
from ssl_bench.record import evaluations
from ssl_bench.record.runs import Key, Run
from ssl_bench.report import curves, pictures, verdicts
from ssl_bench.results import status
from ssl_bench.results import table as runs_table
from ssl_bench.results.table import STATES, repr_of

if TYPE_CHECKING:
    from pandas import DataFrame

LOG = "train.log"
ALL_POINTS, LEAST_POINTS, MOST_POINTS = 40_000, 16, 400  # points of one name in all runs; limits of those of a curve
LOG_LINES, LINE_LENGTH, LOG_BYTES = 12, 240, 2**13  # of the end of a log; bytes are read, of which lines are shown
# Numbers of results.json that may be the axis of a plot.
FACTS = ("negatives_per_anchor", "negatives_per_anchor_at_end", "steps", "lr", "parameters", "train_images")


def collect(words: Sequence[str], outputs: Path | None, start: Path) -> dict[str, Any]:
    """The data of the report.

    Args:
        words: names and conditions that select runs; empty: all runs.
        outputs: ``paths.outputs``; None: the usual results folder.
        start: the folder in which the report will lie: links to pictures start there.

    Raises:
        ConfigError: a word selects nothing.
    """
    table = runs_table.chosen(words, outputs).reset_index(drop=True)
    all_runs, labels, to_go = list[Run](table["run"]), runs_table.labels(table), status.time_left(table, time.time())
    root = _results_folder(all_runs, outputs or files.usual_outputs())
    drawn = [curves.read(run, _points_of_a_curve(len(all_runs))) for run in all_runs]
    keys, values, common, shown = _settings(table)
    names, usual = runs_table.name_numbers(all_runs), runs_table.usual(table)
    others = sorted({*runs_table.numbers(table)} - {*usual}, key=lambda name: (evaluations.is_baseline(name), name))
    columns = {
        "id": [_id(run, label, root) for run, label in zip(all_runs, labels, strict=True)],
        "state": table["state"],
        "reason": table["reason"],
        "label": labels,
        "values": values,
        "left": [to_go.get(place) for place in table.index],
        "steps_per_epoch": [steps for _, steps in drawn],
        "pictures": pictures.of(all_runs, start),
    }
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    meanings = _meanings(table, [of_run for of_run, _ in drawn]).items()
    return {
        "outputs": printable(str(root)),
        "made": round(time.time()),
        "left": status.whole_time(to_go),
        "states": STATES,
        "keys": keys,
        "shown": shown,
        "facts": FACTS,
        "common": common,
        "metrics": usual + others,
        "meanings": {
            name: {"share": metric.unit == "share", "better": metric.sign, "usual": name in usual}
            for name, metric in meanings
        },
        "groups": _groups(table, {word.removeprefix(f"{root}/").strip("/") for word in words}, names, to_go),
        "whole": bool(words),
        "runs": [row | _run(run, names) for row, run in zip(rows, all_runs, strict=True)],
        "curves": [of_run for of_run, _ in drawn],
    }


def _points_of_a_curve(runs: int) -> int:
    """The largest number of points of a curve in a report of so many runs."""
    return max(LEAST_POINTS, min(MOST_POINTS, ALL_POINTS // max(1, runs)))


def _results_folder(all_runs: Sequence[Run], outputs: Path) -> Path:
    """The results folder of the runs; of runs in several results folders the folder that contains these."""
    places = {run.folder.parents[run.experiment.count("/") + 1] for run in all_runs if run.folder}
    if len(places) > 1:
        return Path(os.path.commonpath([*map(os.path.abspath, places)]))
    return places.pop() if places else outputs


def _id(run: Run, label: str, root: Path) -> str:
    """The name of a run in the report: its folder below the results folder, before its start its settings."""
    return printable(os.path.relpath(run.folder, root) if run.folder else f"{run.experiment}/{label or run.command}")


def _settings(table: DataFrame) -> tuple[list[str], list[list[Any]], dict[str, Any], list[str]]:
    """Names of the settings that vary, their values in each run, all other settings, and those of the names to show.

    The last are the settings on which results depend. The numbers of FACTS count as settings.
    """
    all_runs = list[Run](table["run"])
    columns = {name: list(table[name]) for name in ("seed", *runs_table.settings(table))}
    facts = [{n: v for n, v in run.results.get("facts", {}).items() if type(v) in (int, float)} for run in all_runs]
    columns |= {name: [of_run.get(name) for of_run in facts] for name in FACTS}
    configured = [bool(run.config) for run in all_runs]
    vary = dict[str, bool]()
    for name, values in columns.items():
        texts = {
            repr_of(v) for v, of in zip(values, configured, strict=True) if repr_of(v) or (of and name not in FACTS)
        }
        vary[name] = len(texts) > 1
    shown = [name for name in (*runs_table.varying(table), "seed") if vary[name]]
    keys = list(dict.fromkeys([*shown, *(name for name in (*FACTS, *columns) if vary[name])]))
    rows = [[_json_value(columns[name][place]) for name in keys] for place in range(len(all_runs))]
    firsts = {name: next(filter(repr_of, values), None) for name, values in columns.items() if name not in keys}
    return keys, rows, {name: _json_value(value) for name, value in firsts.items() if repr_of(value)}, shown


def _json_value(value: Any) -> Any:
    """A value that JSON can hold: infinity and NaN are texts."""
    return value if not isinstance(value, float) or math.isfinite(value) else json.dumps(value)


def _meanings(table: DataFrame, drawn: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """For each metric and each curve its unit, and whether a high or a low value is better."""
    units, names, of = dict[str, Metric](), runs_table.name_numbers(table["run"]), evaluations.metric_of
    for run, of_run in zip(table["run"], drawn, strict=True):
        units |= {names[key]: of(key[0], run.results.get("units")) for key in run.numbers if names[key] not in units}
        units |= {name: of(name, run.results.get("units")) for name in of_run if name not in units}
    return units


def _run(run: Run, names: Mapping[Key, str]) -> dict[str, Any]:
    ranks, device = run.environment.get("ranks"), run.environment.get("device")
    metrics = {names[key]: value for key, value in run.numbers.items()}
    return {
        "folder": printable(str(run.folder)) if run.folder else None,
        "metrics": {name: value for name, value in metrics.items() if math.isfinite(value)},
        "not_finite": [name for name, value in metrics.items() if not math.isfinite(value)],
        "epoch": run.progress.epoch,
        "epochs": run.end,
        "speed": run.progress.speed,
        "seconds": run.seconds,
        "began": run.began or None,
        "command": printable(run.command) or None,
        "warnings": [printable(sentence) for sentence in run.warnings],
        "host": printable(run.owner.host) if run.owner else None,
        "hardware": f"{ranks} x {device}" if ranks and device else None,
        "versions": {name: str(of) for name, of in run.environment.items() if name not in ("device", "ranks")},
        "log": _tail(run.folder / LOG) if run.folder else "",
    }


def _groups(table: DataFrame, named: set[str], names: Mapping[Key, str], to_go: status.ToGo) -> list[dict[str, Any]]:
    """The experiments by the time at which they started, each with the numbers of its runs in the table.

    An experiment has the runs in its folder, and those that its grids reused from other experiments. Beside the
    ``named`` experiments there are only those with a run that no named experiment has.
    """
    members = dict[str, list[int]]()
    for place, run in enumerate(table["run"]):
        for name in sorted({run.experiment, *run.listed_in}):
            members.setdefault(name, []).append(place)
    of_named = {place for name in named & members.keys() for place in members[name]}
    groups = list[dict[str, Any]]()
    for name, places in members.items():
        if name not in named and of_named.issuperset(places):
            continue
        part = runs_table.with_numbers(table.loc[places])
        counts = {key: len({*map(repr_of, part[key])} - {""}) for key in (*runs_table.varying(part), "seed")}
        axes = [f"{key} x{count}" for key, count in counts.items() if count > 1]
        commands = {run.grid for run in part["run"]}
        group = {
            "key": printable(name),
            "name": printable(f"{name}/ {', '.join(axes)}".strip()),
            "runs": places,
            "started": min((run.began for run in part["run"] if run.began), default=time.time()),
            "left": to_go.get(name),
            "command": printable(commands.pop()) or None if len(commands) == 1 else None,
            "seeds": curves.over_seeds(part, _points_of_a_curve(len(table))),
        }
        groups.append(group | verdicts.of(part, names))
    return sorted(groups, key=lambda group: group["started"])


def _tail(path: Path) -> str:
    try:
        with files.open_regular(files.of_run(path)) as file:
            file.seek(max(0, file.seek(0, 2) - LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()[-LOG_LINES:]
    except OSError:
        return ""
    return "\n".join(printable(line)[:LINE_LENGTH] for line in lines)
