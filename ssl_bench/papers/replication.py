"""``ssl-bench reproduce CLAIM --committed``: committed numbers measured again, on another machine.

The runs of the committed seeds are trained unless they are there; each number is compared with the committed one, and
``replications/<who>.json`` keeps both, to be sent to the project.

Numbers are equal if their six digits are. On a processor or under a torch that rounds otherwise a training is another
draw of its seed: then a number agrees if it lies within SPREAD times a deviation over committed seeds. :func:`bound`
says whose: of a cell with one seed they are those of other cells. A network that is not trained is no other draw, so
its accuracy has the bound UNTRAINED.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ssl_bench import files
from ssl_bench.errors import ConfigError, require
from ssl_bench.papers import measurements, tables
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import Cell, Table
from ssl_bench.papers.claims import PaperClaim, verdict
from ssl_bench.papers.plan import Request
from ssl_bench.papers.selection import Selection
from ssl_bench.record import results as finished_run

SPREAD = 5.0
FLOOR, LEAST = 1e-5, 1e-9  # the least bound, relative and absolute: some claims are about rounding errors
POINTS, PART = 1.5, 0.02  # the deviation if no seeds tell it: of an accuracy in points, of another number relative
UNTRAINED = 0.2  # points


class Committed(Selection):
    """A selection of the cells and seeds that have a committed number."""

    def cells(self, table: Table) -> list[Cell]:
        """The selected cells that have committed numbers, each with their seeds.

        Raises:
            ConfigError: the table has none.
        """
        chosen, asked = list[Cell](), self.setting("seed")
        for cell in super().cells(table):
            committed = measurements.values(table, cell)
            seeds = tuple(seed for seed in committed if asked is None or str(seed) in asked.split(","))
            chosen += [replace(cell, seeds=seeds)] if seeds and cell.available else []
        if not chosen:
            parts = [part for path in tables.paths(self.papers).values() for part in tables.read(path)]
            names = ", ".join(sorted(one.name for part in parts for one in part if measurements.read(one)))
            raise ConfigError(f"{table.name}: no committed number is selected; there are numbers of {names}")
        return chosen


@dataclass(frozen=True)
class Number:
    """A committed number beside the one that was found; None: there is no run of it.

    Attributes:
        bound: how far they may be apart.
        rests: on what the bound rests, in words.
    """

    cell: Cell
    seed: int
    committed: float
    measured: float | None
    bound: float
    rests: str

    @property
    def equal(self) -> bool:
        """Whether the six digits that are committed are the same."""
        return self.measured is not None and f"{self.measured:.6g}" == f"{self.committed:.6g}"

    @property
    def agrees(self) -> bool:
        """Whether they are equal, or rounding explains the difference."""
        return self.equal or (self.measured is not None and abs(self.measured - self.committed) <= self.bound)

    def record(self) -> dict[str, Any]:
        """As plain data."""
        place = {"row": self.cell.label, "column": self.cell.column, "metric": self.cell.metric, "seed": self.seed}
        numbers = {"committed": self.committed, "found": self.measured, "equal": self.equal}
        bounded = {"agrees": self.agrees, "bound": self.bound, "rests": self.rests}
        return place | numbers | ({} if self.equal else bounded)


class Spread(NamedTuple):
    """A cell with several committed seeds, and their variance."""

    table: str
    cell: Cell
    variance: float


def spreads(some: Iterable[Table]) -> list[Spread]:
    """The cells of some tables that have several committed seeds."""
    cells = ((table, cell, measurements.values(table, cell)) for table in some for cell in table.cells)
    return [Spread(table.name, cell, statistics.variance(by.values())) for table, cell, by in cells if len(by) > 1]


def bound(table: Table, cell: Cell, committed: float, others: Sequence[Spread]) -> tuple[float, str]:
    """How far a number of a cell may be from the committed one, and on what that rests, in words.

    It is SPREAD times the deviation over the seeds of the cell, or of the table's cells with the same metric if that
    is larger. Where all of these have one seed, other tables' cells with the metric and the data set count, and else
    those with any accuracy on the data set; POINTS or PART where there are none.

    Args:
        others: of this table and of others.
    """
    if cell.share and re.search("_(raw|init)/", cell.metric):
        return UNTRAINED, "no training"
    on_data = [one for one in others if one.cell.settings.get("dataset") == cell.settings.get("dataset")]
    pools = (
        [one for one in others if one.table == table.name and one.cell.metric == cell.metric],
        [one for one in on_data if one.cell.metric == cell.metric],
        [one for one in on_data if one.cell.share and cell.share],
    )
    if pool := next(filter(None, pools), []):
        pooled = statistics.fmean(one.variance for one in pool)
        for one in pool:
            same = (one.table, one.cell.label, one.cell.column) == (table.name, cell.label, cell.column)
            if same and one.variance >= pooled:
                return SPREAD * math.sqrt(one.variance), "its seeds"
        cells = f"{len(pool)} cell{'s' * (len(pool) != 1)} of {', '.join(sorted({one.table for one in pool}))}"
        return SPREAD * math.sqrt(pooled), f"the seeds of {cells}"
    if cell.share:
        return SPREAD * POINTS, f"no seeds: a deviation of {POINTS} points"
    return SPREAD * PART * abs(committed), f"no seeds: a deviation of {PART:.0%}"


def compared(table: Table, cells: Sequence[Cell], results: Results, others: Sequence[Spread]) -> list[Number]:
    """The committed numbers of some cells beside those of the runs in a results folder."""
    numbers = list[Number]()
    for cell in cells:
        committed, ours = measurements.values(table, cell), results.values(cell)
        for seed in cell.seeds:
            room, rests = bound(table, cell, committed[seed], others)
            least = max(room, FLOOR * abs(committed[seed]), LEAST)
            numbers.append(Number(cell, seed, committed[seed], ours.get(seed), least, rests))
    return numbers


def record(table: Table, numbers: Sequence[Number], results: Results) -> dict[str, Any]:
    """The record of a table: its commit, what the numbers were measured with here, and the numbers."""
    runs = {run.run_id: run for number in numbers for run in results.of_cell(number.cell) if run.seed == number.seed}
    environments = [files.read_json(run.folder / finished_run.NAME).get("environment", {}) for run in runs.values()]
    kept = sorted({key for one in environments for key in one if not key.startswith("peak")})
    here = {key: "; ".join(sorted({str(one.get(key)) for one in environments})) for key in kept}
    content = {"committed": measurements.read(table).get("commit"), "environment": here}
    content |= {"seconds": round(sum(run.seconds or 0.0 for run in runs.values()))}
    if isinstance(table, PaperClaim):
        content["verdict"] = verdict(table.findings(results.values)).value
        committed = table.findings(lambda cell: measurements.values(table, cell))
        content["verdict_committed"] = verdict(committed).value
    return content | {"numbers": [number.record() for number in numbers]}


def check(request: Request, who: str) -> Request:
    """The request for the committed seeds.

    Raises:
        ConfigError: a setting changes what is measured, or ``who`` cannot name a file.
    """
    require(re.fullmatch(r"[\w@-][\w.@-]*", who) is not None, "--who", who, "letters, digits and any of . _ @ -")
    if request.scale != "full":
        raise ConfigError(f"{' '.join(request.overrides)}: leave it out: it changes what is measured")
    return replace(request, seeds=())


def report(selection: Selection, who: str) -> int:
    """Print how many numbers agree with the committed ones, and add all to the record of ``who``.

    Returns:
        0: all agree. 1: one does not.
    """
    selected = [(table, selection.cells(table)) for table in selection.tables()]
    results = Results(selection.outputs, [cell for _, cells in selected for cell in cells], folder=selection.folder)
    files_of_papers = tables.paths(selection.papers).values()
    every = [table for path in files_of_papers for kind in tables.read(path) for table in kind]
    others = spreads({table.name: table for table in (*every, *selection.tables())}.values())
    content, agree = dict[str, Any](), True
    for table, asked in selected:
        numbers = compared(table, asked, results, others)
        content[table.name] = record(table, numbers, results)
        equal, agreeing = (sum(getattr(number, name) for number in numbers) for name in ("equal", "agrees"))
        rests = {number.rests: None for number in numbers if number.agrees and not number.equal}
        rest = f", {agreeing - equal} within the bound ({'; '.join(rests)})" * bool(rests)
        print(f"{table.name}: {equal} of {len(numbers)} equal{rest}")
        for number in numbers:
            if not number.agrees:
                place = f"{number.cell.label} | {number.cell.column} | {number.cell.metric}, seed {number.seed}"
                measured = "not measured" if number.measured is None else f"{number.measured:.6g} measured"
                bounded = f"bound {number.bound:.2g} ({number.rests})"
                print(f"  {place}: {number.committed:.6g} committed, {measured}, {bounded}")
        if "verdict" in content[table.name]:
            verdicts = "verdict here: {verdict}; by the committed numbers: {verdict_committed}"
            print(f"  {verdicts.format(**content[table.name])}")
        agree &= agreeing == len(numbers)
    path = Path("replications", f"{who}.json")
    _write(path, who, content)
    print(path)
    return int(not agree)


def _write(path: Path, who: str, content: dict[str, Any]) -> None:
    """Write what was found about some tables, by name, into the record of ``who``; others stay in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content_before: Any = files.read_json(path)
    former = content_before.get("tables") if isinstance(content_before, dict) else None
    files.write_json(path, {"who": who, "tables": {**(former if isinstance(former, dict) else {}), **content}})
