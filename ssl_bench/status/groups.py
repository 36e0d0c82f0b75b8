"""One line for each grid, and for the single runs of each directory: how far it is, and its best run."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from ssl_bench.status.entries import Entry, Status
from ssl_bench.status.grids import GridFolder
from ssl_bench.status.labels import labels

Best = tuple[str, float, Entry]  # metric, value, and the entry that has it


@dataclass(frozen=True)
class Summary:
    """A grid, or the single runs of a directory.

    Attributes:
        name: what distinguishes a grid from the others, and the settings that vary in it; or the directory.
        started: in seconds of the epoch.
        left: seconds until all its runs are done, if that is known.
        metric, value: of the best run; the metric is one in which more is better.
        label: of the best run.
    """

    name: str
    started: float
    counts: Counter[Status]
    left: float | None
    metric: str
    value: float | None
    label: str


def summaries(entries: Sequence[Entry]) -> list[Summary]:
    """The groups of ``entries``, sorted by start."""
    groups: dict[GridFolder | str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.grid or (entry.run.parent if entry.run else ""), []).append(entry)
    grids = [group for group in groups if isinstance(group, GridFolder)]
    shared = frozenset(grids[0].common).intersection(*(grid.common for grid in grids)) if len(grids) > 1 else None
    usual = Counter[str]()  # how many runs have each accuracy
    for metrics, count in Counter(tuple(entry.best) for entry in entries).items():
        usual.update({metric: count for metric in metrics if metric.endswith("/top1")})
    accuracies = [metric for metric, _ in usual.most_common()]
    found = []
    for group, members in groups.items():
        best = _best(members, accuracies)
        if isinstance(group, GridFolder):
            name, started, left = _name(group, shared), group.started, group.left
            label = _own(best[2].overrides or [], group.common) if best else ""
        else:
            name, started = f"{group}/" if group else "./", min(e.run.began or 0.0 for e in members if e.run)
            left = max((e.left for e in members if e.left is not None), default=None)
            label = dict(zip(map(id, members), labels(members), strict=True))[id(best[2])] if best else ""
        counts = Counter(entry.state for entry in members)
        metric, value = best[:2] if best else ("", None)
        found.append(Summary(name, started, counts, left, metric, value, label))
    return sorted(found, key=lambda summary: summary.started)


def _best(entries: Sequence[Entry], metrics: Sequence[str]) -> Best | None:
    """The best run by the first of ``metrics`` that a run has."""
    for metric in metrics:
        values = [
            (value, place) for place, entry in enumerate(entries) if (value := entry.best.get(metric)) is not None
        ]
        if values:
            value, place = max(values, key=lambda pair: pair[0])
            return metric, value, entries[place]
    return None


def _name(grid: GridFolder, shared: frozenset[str] | None) -> str:
    """A grid's settings that differ from those of the other grids, then how many values each other setting has."""
    keys = Counter(override.partition("=")[0] for override in dict.fromkeys(chain.from_iterable(grid.runs)))
    own = [
        o for o in (grid.runs[0] if grid.runs else []) if o in grid.common and shared is not None and o not in shared
    ]
    varying = [f"{key} x{count}" for key, count in keys.items() if count > 1]
    return ", ".join([*own, *varying]) or " ".join(grid.runs[0] if grid.runs else [])


def _own(overrides: Sequence[str], common: frozenset[str]) -> str:
    return " ".join([override for override in overrides if override not in common] or overrides)
