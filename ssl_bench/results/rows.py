"""A row is a run: all its settings flat, all its metrics flat, its seed, state, environment and warnings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ssl_bench.results.differing import MAIN_GROUPS, differing, overrides_of, rank, requested, value_of
from ssl_bench.results.numbers import Numbers
from ssl_bench.results.runs import settings_of
from ssl_bench.results.scan import Entry


def rows(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """A flat row for each entry, all with the same keys; what an entry does not have is None.

    The keys are the options of groups, the seed, the other settings, the metrics, then ``state``, ``seconds``,
    ``warnings``, ``environment.<name>``, ``path`` and ``run_id``.
    """
    shared = {entry.run.shared.key: entry.run.shared for entry in entries if entry.run}
    texts = zip(shared, settings_of(list(shared.values())), strict=True)
    values = {key: {name: value_of(text) for name, text in of_config.items()} for key, of_config in texts}
    groups = {group for config in shared.values() for group in config.groups}
    settings = [values[entry.run.shared.key] if entry.run else _asked(entry) for entry in entries]
    distinct = {id(of_entry): of_entry for of_entry in settings}  # runs share them
    names = dict.fromkeys(name for of_entry in distinct.values() for name in of_entry)
    ordered = sorted(names | {"seed": None}, key=lambda n: (n not in groups, n != "seed", n.count(".") > 0, rank(n)))
    numbers = Numbers(entry.run for entry in entries if entry.run)
    facts = dict.fromkeys(name for entry in entries if entry.run for name in entry.run.environment)
    table = list[dict[str, Any]]()
    for entry, of_entry in zip(entries, settings, strict=True):
        run = entry.run
        row = {name: of_entry.get(name) for name in ordered}
        row["seed"] = run.seed if run else of_entry.get("seed")
        if run and "name" in row:
            row["name"] = run.name
        row |= dict.fromkeys(numbers.names) | numbers.of(run)
        row |= {"state": entry.state.value, "seconds": (run.seconds if run.done else run.trained) if run else None}
        row |= {"warnings": "; ".join(entry.warnings)}
        row |= {f"environment.{name}": run.environment.get(name) if run else None for name in facts}
        table.append(row | {"path": str(run.folder) if run else None, "run_id": run.folder.name if run else None})
    return table


def first_columns(entries: Sequence[Entry], asked: Iterable[str] = ()) -> list[str]:
    """The keys of :func:`rows` that a person looks for: what identifies a run, what varies, the main metrics.

    Args:
        asked: further keys.
    """
    from ssl_bench.results.arrange import dividing  # with numpy

    runs = [entry.run for entry in entries if entry.run]
    names = ["run_id", "name", *MAIN_GROUPS, *dividing(differing(entries), requested(entries)), "seed"]
    names += [*Numbers(runs).usual(runs), *asked, "state", "seconds", "warnings", "path"]
    return list(dict.fromkeys(names))


def _asked(entry: Entry) -> dict[str, Any]:
    return {name: value_of(text) for name, text in overrides_of(entry.overrides or ()).items()}
