"""The table of runs from a table of another program: of W&B, Trackio, MLflow or a user, with a row for each run.

Every column is a setting, but for the number, the seed, other numbers (their names have a slash) and keys on which
results do not depend, such as ``name`` and ``devices``. Such a table does not say which test images are classified
correctly, so that intervals cover other seeds only.
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
    """The table of runs (:mod:`ssl_bench.results.table`) from the rows of another table, or of a CSV file.

    A number with the name of an accuracy, such as knn/top1, is an accuracy if all values lie in [0, 1]; of any other
    number it is not known whether high or low is better. An empty cell means that a run does not have the number.

    Raises:
        ConfigError: there is no such column, a cell of it is no number, or the file is no CSV file.
    """
    from pandas import read_csv, to_numeric

    try:
        frame = read_csv(frame) if isinstance(frame, str) else frame
    except ValueError as error:
        raise ConfigError(f"{frame} is no CSV file: {in_one_line(error)}") from error
    for flag, name in (("--metric", metric), ("--seed", seed)):
        names = [*map(str, frame)]
        require(name in names, flag, name, f"a column of numbers, of {', '.join(names)}{near(str(name), names)}")
        numbers = to_numeric(frame[name], errors="coerce")
        wrong = frame[name][numbers.isna() & frame[name].notna() if name == metric else numbers % 1 != 0]
        require(not len(wrong), flag, name, f"a column of {'whole ' * (name == seed)}numbers: it has {[*wrong][:3]}")
        frame = frame.assign(**{str(name): numbers})
    columns = [n for n in frame if n not in (metric, seed) and "/" not in str(n) and identity.is_hashed(str(n))]
    share = declared(ACCURACIES, str(metric)) is not None and frame[metric].dropna().between(0, 1).all()
    evaluator, members = evaluator_of(str(metric)), list[Run]()
    results: Any = {"config": {}, "units": {} if share else {evaluator: {"*": vars(NUMBER)}}}
    for number, row in enumerate(frame.astype(object).to_dict("records"), 1):
        members.append(run := Row(Path(f"row {number}"), {"seed": int(row[seed]), "choices": {}}, results))
        run.settings, run.command = {str(name): as_value(row[name]) for name in columns}, ""
        run.evaluations = [{"evaluator": evaluator, "id": "", "settings": {}, "metrics": {metric: row[metric]}}]
    return runs_table.of(members)
