"""The runs of a results folder as plain data, which the page of the report shows."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ssl_bench import files
from ssl_bench.errors import printable
from ssl_bench.record import results, units
from ssl_bench.record.follow import find_mark
from ssl_bench.record.index import METRICS, RESULTS
from ssl_bench.report import curves, pictures, verdicts
from ssl_bench.results.differing import FACTS, differing, labels
from ssl_bench.results.former_select import pick
from ssl_bench.results.grids import GridFolder, axes
from ssl_bench.results.numbers import Numbers
from ssl_bench.results.runs import RunFolder
from ssl_bench.results.scan import Entry, Scan

T = TypeVar("T")
LOG = "train.log"
POINTS, LEAST_POINTS, MOST_POINTS = 40_000, 16, 400  # points of a curve times runs; limits of the points of a curve
LINES, WIDTH, TAIL = 12, 240, 2**13  # lines of a log's tail, characters of a line, bytes that are read for it


@dataclass(frozen=True)
class RunFiles:
    """Settings, curves and log of a run, from its files.

    Attributes:
        facts, environment: of ``results.json``; empty for an unfinished run.
        curves: by name, as :mod:`ssl_bench.report.curves` makes them.
        steps_per_epoch: None if no row has both.
        log: the last lines of its log.
        pictures: file names.
    """

    facts: Mapping[str, Any]
    environment: Mapping[str, Any]
    curves: Mapping[str, Any]
    steps_per_epoch: float | None
    log: str
    pictures: list[str]


NO_FILES = RunFiles({}, {}, {}, None, "", [])


class Collector:
    """Collects the data of a report; each later call reads only the runs whose files changed.

    Args:
        outputs: the results folder.
        words: that select runs; none are all runs.
    """

    def __init__(self, outputs: Path, words: Sequence[str] = ()) -> None:
        self.outputs, self._words = outputs, words
        self._names = [word.removeprefix(f"{outputs}/").strip("/") for word in words]
        self._scan = Scan(outputs)
        self._made: dict[tuple[str, str], tuple[object, Any]] = {}  # parts of the report, with what they were made of

    def refusals(self) -> list[str]:
        """Say in a sentence what could not be read, if there is any."""
        return self._scan.refusals()

    def collect(self, start: Path) -> dict[str, Any]:
        """The data of the report.

        Args:
            start: the folder of the report; pictures that have no room in it are links from there.

        Raises:
            ConfigError: there is no run of a name.
        """
        now = time.time()
        entries, left = self._scan.update(now)
        entries = [entry for entry, _ in pick(entries, self.outputs, self._words)] if self._words else entries
        most = max(LEAST_POINTS, min(MOST_POINTS, POINTS // max(1, len(entries))))
        read = [self._read(entry.run, most) if entry.run else NO_FILES for entry in entries]
        settings = differing(entries, [of_run.facts for of_run in read])
        pictured = zip(map(_path, entries), (of_run.pictures for of_run in read), strict=True)
        shown = pictures.listed(self.outputs, pictured, start)
        columns = zip(labels(entries), settings.values, shown, strict=True)
        numbers = Numbers(entry.run for entry in entries if entry.run)
        runs = [
            _run(entry, of_run, numbers) | {"label": label, "values": values, "pictures": its_pictures}
            for entry, of_run, (label, values, its_pictures) in zip(entries, read, columns, strict=True)
        ]
        its_runs = [entry.run for entry in entries if entry.run]
        names = dict.fromkeys(name for of_run in read for name in of_run.curves)
        groups = _groups(entries, self._names)
        for group in groups:
            members = [run for place in group["runs"] if (run := entries[place].run) and run.done]
            by = [n for n in settings.shown if n != "seed" and len({run.setting(n) for run in members}) > 1]
            in_group = [entries[place] for place in group["runs"]]
            group["matters"], group["verdicts"] = self._compare(group["key"], in_group, members, by, numbers)
            group["seeds"] = self._over_seeds(group["key"], in_group, most)
        ranked = _ranked(numbers, its_runs)
        return {
            "outputs": printable(str(self.outputs)),
            "made": round(now),
            "left": left,
            "keys": settings.names,
            "shown": settings.shown,
            "facts": list(FACTS),
            "common": settings.common,
            "metrics": ranked,
            "meanings": _meanings(numbers, its_runs, [*ranked, *names]),
            "groups": groups,
            "whole": bool(self._words),
            "runs": runs,
            "curves": [of_run.curves for of_run in read],
        }

    def _kept(self, part: tuple[str, str], of: object, make: Callable[[], T]) -> T:
        """A part of the report, from an earlier call of ``--watch`` if what it is made ``of`` has not changed."""
        if self._made.get(part, (None, None))[0] != of:
            self._made[part] = of, make()
        made: T = self._made[part][1]
        return made

    def _read(self, run: RunFolder, most: int) -> RunFiles:
        """The files of a run."""

        def read() -> RunFiles:
            content = (results.read(run.folder) if run.done else None) or {}
            its_curves, steps = curves.read(run.folder / METRICS, most, run.config)
            facts, environment = content.get("facts", {}), content.get("environment", {})
            return RunFiles(facts, environment, its_curves, steps, _tail(run.folder / LOG), pictures.names(run.folder))

        marks = most, [find_mark(str(run.folder / name)) for name in (RESULTS, METRICS, LOG, pictures.FOLDER)]
        return self._kept(("files", run.path), marks, read)

    def _compare(
        self,
        group: str,
        entries: Sequence[Entry],
        runs: Sequence[RunFolder],
        settings: Sequence[str],
        numbers: Numbers,
    ) -> Any:
        """What matters in an experiment, and its comparisons."""
        state = [(entry.state, entry.run and entry.run.marks) for entry in entries], settings, numbers.names

        def make() -> Any:
            return verdicts.matters(entries, numbers), verdicts.of_runs(runs, settings, numbers)

        return self._kept(("verdicts", group), state, make)

    def _over_seeds(self, group: str, entries: Sequence[Entry], most: int) -> Any:
        """The curves of an experiment over its seeds."""
        runs = [entry.run for entry in entries if entry.run]
        names = dict.fromkeys(["loss", *Numbers(runs).usual(runs)])
        marks = [find_mark(str(run.folder / METRICS)) for run in runs]
        return self._kept(("seeds", group), marks, lambda: curves.over_seeds(entries, names, most))


def _run(entry: Entry, read: RunFiles, numbers: Numbers) -> dict[str, Any]:
    run, owner = entry.run, entry.run.owner if entry.run else None
    environment = read.environment
    metrics = numbers.of(run)
    ranks = environment.get("ranks")
    return {
        "id": printable(_path(entry)),
        "folder": printable(str(run.folder)) if run else None,
        "state": entry.state.value,
        "metrics": {name: value for name, value in metrics.items() if math.isfinite(value)},
        "not_finite": [name for name, value in metrics.items() if not math.isfinite(value)],
        "steps_per_epoch": read.steps_per_epoch,
        "epoch": run.epoch if run else None,
        "epochs": run.end if run else None,
        "speed": run.speed if run else None,
        "seconds": run.seconds if run and run.done else run.trained if run else None,
        "left": entry.left,
        "began": run.began if run else None,
        "command": None if entry.command is None else printable(entry.command),
        "reason": entry.reason,
        "warnings": [printable(sentence) for sentence in entry.warnings],
        "host": printable(owner.host) if owner else None,
        "hardware": f"{ranks} x {environment['device']}" if ranks and "device" in environment else None,
        "versions": {name: str(value) for name, value in environment.items() if name not in ("device", "ranks")},
        "log": read.log,
    }


def _path(entry: Entry) -> str:
    """Where an entry's run is, or will be, below the results folder: its name in the report."""
    if entry.run:
        return entry.run.path
    assert entry.grid is not None
    return f"{entry.grid.path}/{entry.index}"


def _ranked(numbers: Numbers, runs: Sequence[RunFolder]) -> list[str]:
    """The names of the numbers in the order of a list: first the main ones of the runs, last the baselines."""
    place = {name: n for n, name in enumerate(numbers.usual(runs))}
    return sorted(numbers.names, key=lambda name: (place.get(name, len(place)), units.baseline(name)))


def _meanings(numbers: Numbers, runs: Sequence[RunFolder], names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Units of the numbers and of curves, and what is better, as the page asks for them."""
    usual, meanings = numbers.usual(runs), {name: numbers.meaning(name) for name in names}
    return {
        name: {"share": metric.unit == "share", "better": metric.sign, "usual": name in usual}
        for name, metric in meanings.items()
    }


def _groups(entries: Sequence[Entry], names: Sequence[str]) -> list[dict[str, Any]]:
    """The experiments, sorted by start, each with the places of its entries.

    An experiment is the runs of one folder, which ``name`` sets, with those that its grids have still to make and those
    that they found done under another name. Of others than those of ``names`` there are only those with more entries.
    """
    members: dict[str, list[int]] = {}
    by_grid: dict[GridFolder, list[int]] = {}
    for place, entry in enumerate(entries):
        if entry.run:
            members.setdefault(entry.run.parent, []).append(place)
        if entry.grid:
            by_grid.setdefault(entry.grid, []).append(place)
    grids: dict[str, list[GridFolder]] = {}
    for grid, places in by_grid.items():
        name = _name([entries[place] for place in places])
        grids.setdefault(name, []).append(grid)
        members.setdefault(name, []).extend(places)
    made = {name: _group(name, sorted({*places}), entries, grids.get(name, ())) for name, places in members.items()}
    named = {place for name in names if name in made for place in made[name]["runs"]}
    shown = (group for name, group in made.items() if name in names or not named.issuperset(group["runs"]))
    return sorted(shown, key=lambda group: group["started"])


def _name(entries: Sequence[Entry]) -> str:
    """The name of a grid: that its runs set, or else the folder that most of them are in."""
    given = dict(override.partition("=")[::2] for override in entries[0].overrides or ()).get("name")
    folders = Counter(entry.run.parent for entry in entries if entry.run).most_common(1)
    return given or (folders[0][0] if folders else "default")


def _group(name: str, places: Sequence[int], entries: Sequence[Entry], grids: Sequence[GridFolder]) -> dict[str, Any]:
    """An experiment with the grids that have its name; another grid may have found one of its runs done."""
    alone = [e.run for e in (entries[place] for place in places) if e.run and e.grid not in grids]
    left = [grid.left for grid in grids if grid.left is not None]
    return {
        "key": printable(name),
        "name": printable(f"{name or '.'}/ {', '.join(axes(grids[0])) if len(grids) == 1 else ''}".strip()),
        "runs": places,
        "started": min([*(grid.started for grid in grids), *(run.began for run in alone)]),
        "left": max(left, default=None),
        "command": printable(grids[0].command) if len(grids) == 1 else None,
    }


def _tail(path: Path) -> str:
    try:
        with files.open_regular(files.of_run(path)) as file:
            file.seek(max(0, file.seek(0, 2) - TAIL))
            lines = file.read().decode(errors="replace").splitlines()[-LINES:]
    except OSError:
        return ""
    return "\n".join(printable(line)[:WIDTH] for line in lines)
