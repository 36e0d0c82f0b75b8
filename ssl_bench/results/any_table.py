"""Any table as one of runs: an export of W&B, Trackio or MLflow, or one's own, with a row for each run.

A column is a setting, but for the number, the seed, and what is none here either: other numbers, whose names have a
slash, and keys on which results do not depend, such as ``name`` and ``devices``. Which test images a run has right is
not in it, so that intervals are of other seeds only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssl_bench.config import identity
from ssl_bench.config.ranges import near
from ssl_bench.errors import ConfigError, in_one_line, require
from ssl_bench.evaluate.metric import ACCURACIES, NUMBER, declared
from ssl_bench.record.evaluations import evaluator_of
from ssl_bench.record.runs import Run, as_value
from ssl_bench.results import table as runs_table

if TYPE_CHECKING:
    from pandas import DataFrame


class Row(Run):
    """A row of a table, whose recipe is its settings."""

    def without(self, names: Sequence[str]) -> tuple[str, str]:
        """Some settings, with all keys below each, and the others, as texts."""
        parts = dict[str, str](), dict[str, str]()
        for name, value in self.settings.items():
            parts[not any(f"{name}.".startswith(f"{one}.") for one in names)][name] = runs_table.repr_of(value)
        return identity.text(parts[0]), identity.text(parts[1])


def runs_of(frame: DataFrame | str, metric: str | None, seed: str) -> DataFrame:
    """The table of runs (:mod:`ssl_bench.results.table`) of the rows of another one, or of a CSV file.

    A number that is named like an accuracy, as knn/top1, is one if all lie in [0, 1]; of others it is not known what is
    better. An empty number is that of a run which has none.

    Raises:
        ConfigError: there is no such column, a row has no number in it, or the file is none.
    """
    from pandas import read_csv, to_numeric

    try:
        frame = read_csv(frame) if isinstance(frame, str) else frame
    except ValueError as error:
        raise ConfigError(f"{frame} is no CSV file: {in_one_line(error)}") from error
    for flag, name in (("--metric", metric), ("--seed", seed)):
        there = [*map(str, frame)]
        require(name in there, flag, name, f"a column of numbers, of {', '.join(there)}{near(str(name), there)}")
        numbers = to_numeric(frame[name], errors="coerce")
        wrong = frame[name][numbers.isna() & frame[name].notna() if name == metric else numbers % 1 != 0]
        require(not len(wrong), flag, name, f"a column of {'whole ' * (name == seed)}numbers: it has {[*wrong][:3]}")
        frame = frame.assign(**{str(name): numbers})
    columns = [n for n in frame if n not in (metric, seed) and "/" not in str(n) and identity.is_hashed(str(n))]
    share = declared(ACCURACIES, str(metric)) is not None and frame[metric].dropna().between(0, 1).all()
    evaluator, found = evaluator_of(str(metric)), list[Run]()
    results: Any = {"config": {}, "units": {} if share else {evaluator: {"*": vars(NUMBER)}}}
    for number, row in enumerate(frame.astype(object).to_dict("records"), 1):
        found.append(run := Row(Path(f"row {number}"), {"seed": int(row[seed]), "choices": {}}, results))
        run.settings, run.command = {str(name): as_value(row[name]) for name in columns}, ""
        run.evaluations = [{"evaluator": evaluator, "id": "", "settings": {}, "metrics": {metric: row[metric]}}]
    return runs_table.of(found)
