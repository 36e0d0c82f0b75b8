"""Is A better than B? Runs that differ in one setting and the seed, paired by seed, by what else varies.

Two runs are a pair if their configurations are equal in all that their weights depend on but the named setting, and
they have one seed. What else varies splits the pairs into cells. The first comparison is that over all cells; then each
cell has its own. A mean difference has an interval over seeds and, where the runs have recorded which images are right,
over images (:mod:`ssl_bench.results.statistics`). The verdicts of the cells hold together with an error of 5% (Holm
1979), and so do those over all cells; an interval is that of the question which its verdict answers.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ssl_bench.config.build import near
from ssl_bench.errors import ConfigError, InvalidValue, printable
from ssl_bench.evaluate.metric import Metric
from ssl_bench.record import results, runs
from ssl_bench.record.runs import Run
from ssl_bench.results import statistics
from ssl_bench.results import table as runs_table
from ssl_bench.results.compared import ALL_CELLS, Comparison, Comparisons, Measured
from ssl_bench.results.table import repr_of, text_of, words_of

if TYPE_CHECKING:
    from pandas import DataFrame

Seeds = dict[int, Run]  # runs that differ in nothing but the seed, by seed
UNNAMED = (*results.ENVIRONMENT, *results.SETTINGS, "git")
ALONE = "without a partner"


def compare(
    table: DataFrame,
    by: str | Sequence[str],
    to: str | None = None,
    metric: str | None = None,
    margin: float | None = None,
) -> Comparisons:
    """Compare runs that differ in one setting.

    Args:
        table: of runs (:mod:`ssl_bench.results.table`); those without the number are counted.
        by: the setting, such as ``loss``, or several; all keys of a group go with it.
        to: the value that the others are compared with; None: the one that most runs have.
        metric: the name of a number; None: the main one of most runs.
        margin: a smaller difference does not matter; None: do not ask.

    Raises:
        ConfigError: there are no such runs, results do not depend on ``by``, or ``to`` is not one thing.
    """
    by = [
        _setting(table, "batch_size" if name == runs.SIZE else name) for name in ([by] if isinstance(by, str) else by)
    ]
    measured = Measured(table, metric)
    arms = _Arms(table, measured, by)
    reference = arms.find(to)
    both = [(rest, sides) for rest, sides in arms.conditions.items() if sides.get(reference)]
    others = ((arm, rest, sides) for rest, sides in both for arm in sides if arm != reference and sides[arm])
    pairs = [(arm, rest, sides[arm], sides[reference]) for arm, rest, sides in others]
    where = _where(table, {rest: next(iter(to_runs.values())) for _, rest, _, to_runs in pairs}, by)
    gap, cells = measured.gap if pairs else 0.0, dict[str, list[Comparison]]()  # by the arm compared with the reference
    for arm, rest, of, to_runs in pairs:
        cell = Comparison(where[rest], arms.names[arm], arms.names[reference], step=gap)
        cells.setdefault(arm, []).append(cell)
        _measure(cell, of, to_runs, measured)
    over = [overall for of_arm in cells.values() if (overall := _over_cells(of_arm)) is not None]
    of_cells = [cell for of_arm in cells.values() for cell in of_arm]
    for together in (over, of_cells):
        _decide(together, measured.metric, margin)
    gone = [arm for arm in arms.names if not arms.counts[arm]]
    without = [arm for arm in arms.names if arm != reference and (arm in gone or reference in gone)]
    rows = [*over, *of_cells, *(Comparison("", arms.names[arm], arms.names[reference]) for arm in without)]
    paired = {side[seed] for _, _, of, its in pairs for seed in of.keys() & its.keys() for side in (of, its)}
    alone = measured.runs.index[[run not in paired for run in measured.runs["run"]]]
    measured.missing |= {ALONE: measured.labels(alone)} if len(alone) else {}
    full = {arm: name if "=" in name else f"{' '.join(by)}={name}" for arm, name in arms.names.items()}
    measured.said += [f"{full[a]} has no number: its {len(arms.lost[a])} runs have failed or diverged." for a in gone]
    uneven = [arm for arm in arms.names if arms.lost[arm] != arms.lost[reference] and arm != reference]
    if uneven:
        lost = ", ".join(f"{full[arm]} ({len(arms.lost[arm])} runs)" for arm in (*uneven, reference))
        measured.said.append(f"Failed or diverged: {lost}. Verdicts are about the runs that are left.")
    return Comparisons(by, measured, margin, rows, len(alone), bool(uneven))


def _setting(table: DataFrame, wanted: str) -> str:
    """The full name of a setting; it is refused if its values have other images."""
    columns = [column for column in runs_table.settings(table) if _below(column, [wanted])]
    images = dict[tuple[str, ...], set[str]]()  # by the values of the setting
    for run in table["run"] if wanted.partition(".")[0] == "dataset" else ():
        images.setdefault(tuple(repr_of(run.settings.get(n)) for n in columns), set()).add(run.images)
    if any(one.isdisjoint(other) for one in images.values() for other in images.values()):
        what = "its values have other test images, so that their numbers are not compared"
        raise ConfigError(f"--by {wanted}: {what}; set --by to a setting that varies within each, such as loss")
    return "batch_size" if wanted == runs.SIZE else runs_table.setting(table, "--by", wanted, groups=True)


def _below(name: str, settings: Sequence[str]) -> bool:
    """Whether a name is that of one of some settings or of a key below one."""
    return any(name == setting or name.startswith(f"{setting}.") for setting in settings)


class _Arms:
    """The runs of a table by the values of the named settings.

    Attributes:
        names: of the arms, by the named settings as a text.
        counts: of the runs of each that are compared.
        conditions: these runs by all else that their weights depend on, then by arm, then by seed.
        lost: of each arm the runs that have failed or diverged, as what else they depend on and their seed.
    """

    def __init__(self, table: DataFrame, measured: Measured, by: Sequence[str]) -> None:
        self._by, first = by, dict[str, Any]()  # of an arm the place of its first run
        self.counts, self.conditions = Counter[str](), dict[str, dict[str, Seeds]]()
        for place, run in measured.runs["run"].items():
            arm, rest = run.without(by)
            first.setdefault(arm, place)
            self.counts[arm] += 1
            of_arm = self.conditions.setdefault(rest, {}).setdefault(arm, {})
            if run.seed is not None:
                of_arm[run.seed] = run
        self.lost = dict[str, set[tuple[str, Any]]]()
        for place, run in measured.lost["run"].items():
            arm, rest = run.without(by)
            if not run.config:  # it failed before it began: its overrides say what it is
                arm = next((key for key, at in first.items() if _fits(run, table["run"][at], by)), arm)
            first.setdefault(arm, place)
            if run.seed not in self.conditions.get(rest, {}).get(arm, {}):  # or it has ended well in another folder
                self.lost.setdefault(arm, set()).add((rest, run.seed))
        self.names = dict(zip(first, _names(table.loc[[*first.values()]], by), strict=True))
        self.lost = {arm: self.lost.get(arm, set()) for arm in first}

    def find(self, to: str | None) -> str:
        """The arm that the others are compared with."""
        if len(self.names) < 2:
            remedy = "a setting that differs: all of these runs have one value of it"
            raise InvalidValue("--by", " ".join(self._by), remedy)
        if to is None:
            return max(self.names, key=lambda arm: self.counts[arm])
        plain = to.removeprefix("b") if self._by[0] == "batch_size" else to
        words = {to, plain, f"{self._by[0]}={plain}"}
        found = [arm for arm, name in self.names.items() if name in words]
        found = found or [arm for arm, name in self.names.items() if name.split(" ")[0] in words]
        if len(found) != 1:
            names = [*self.names.values()]
            raise InvalidValue("--to", to, f"one of {', '.join(names)}{near(to, names)}")
        return found[0]


def _fits(run: Run, other: Run, by: Sequence[str]) -> bool:
    """Whether the overrides of a run that has not begun give it the named settings of another one."""
    given = {name: value for name, value in run.settings.items() if _below(name, by)}
    return bool(given) and all(repr_of(other.settings.get(n)) == repr_of(value) for n, value in given.items())


def _names(first: DataFrame, by: Sequence[str]) -> list[str]:
    """The names of arms by the settings in which their first runs differ, such as ``dcl``."""
    shown = [name for name in runs_table.varying(first) if _below(name, by)]
    if any(not any(map(repr_of, row)) for row in first[shown].to_numpy().tolist()):  # one has none of these settings
        shown = [*(name for name in by if name in first and name not in shown), *shown]
    rows = first[shown].to_dict("records")
    if shown == [*by][:1]:
        return [text_of(row[shown[0]]) for row in rows]
    return [words_of(row, shown) for row in rows]


def _where(table: DataFrame, first: Mapping[str, Run], by: Sequence[str]) -> dict[str, str]:
    """What distinguishes conditions from each other, by a run of each."""
    of_runs = table[table["run"].isin(first.values())]
    names = [name for name in runs_table.varying(of_runs) if not _below(name, by)]
    return {key: words_of(run.settings, names) for key, run in first.items()}


def _measure(cell: Comparison, of: Seeds, to: Seeds, measured: Measured) -> None:
    """Set all of a comparison but its verdict; its step is the smallest gap between the numbers of all runs."""
    seeds, scale = sorted(of.keys() & to.keys()), measured.metric.scale
    sides = [[runs[seed] for seed in seeds] for runs in (of, to)]
    cell.n, cell.seeds = len(seeds), seeds
    conditions = [run.conditions | {"git": run.environment.get("git")} for run in (*sides[0], *sides[1])]
    cell.differ = results.different(conditions, UNNAMED)
    values = np.array([[measured.values[run] for run in side] for side in sides])
    cell.differences = dict(zip(seeds, (values[0] - values[1]).tolist(), strict=True))
    cell.test_images = next(iter(of.values())).images
    if seeds:
        cell.mean, cell.to_mean = values.mean(1).tolist()
        cell.difference = cell.mean - cell.to_mean
    if len(seeds) < 2:
        cell.commands = _commands(of, to, seeds)
    bits = [measured.bits(run) for side in sides for run in side]
    recorded = [run_bits for run_bits in bits if run_bits is not None]
    if seeds and len(recorded) == len(bits) and len({len(run_bits) for run_bits in recorded}) == 1:
        right = np.array(recorded, dtype=np.int8).reshape(2, len(seeds), -1)
        cell.bits, cell.step = scale * (right[0] - right[1]).astype(np.float32), scale / right.shape[2]
    if len(seeds) > 1:
        cell.bound(statistics.paired(values[0] - values[1], cell.bits, cell.step), cell.bits is not None)


def _over_cells(cells: Sequence[Comparison]) -> Comparison | None:
    """The comparison over all cells; None of fewer than two cells, or if none has two pairs."""
    cells = [cell for cell in cells if cell.differences]
    if len(cells) < 2:
        return None
    bits = [cell.bits for cell in cells if cell.bits is not None]
    counts = {(cell.test_images, cell.bits.shape[1]) for cell in cells if cell.bits is not None}
    images = [cell.test_images for cell in cells]
    known = len(bits) == len(cells) and len(counts) == len({*images})
    step = max(cell.step for cell in cells)
    over = statistics.over_cells([cell.differences for cell in cells], bits if known else None, step, images)
    if over is None:
        return None
    seeds = sorted({seed for cell in cells for seed in cell.seeds})
    comparison = Comparison(ALL_CELLS, cells[0].of, cells[0].to, sum(cell.n for cell in cells), seeds)
    comparison.mean, comparison.to_mean = np.mean([(cell.mean, cell.to_mean) for cell in cells], axis=0).tolist()
    comparison.difference, comparison.vary, comparison.cells = float(over.estimate.mean), over.vary, len(cells)
    comparison.bound(over.estimate, known)
    comparison.by_seed = over.by_seed
    return comparison


def _decide(comparisons: Sequence[Comparison], metric: Metric, margin: float | None) -> None:
    """Set the verdicts and the intervals, which hold together."""
    asked = [(row, row.estimate) for row in comparisons if row.estimate is not None]
    if not asked:
        return
    up, down = ("better", "worse")[:: metric.sign] if metric.sign else ("higher", "lower")
    together = statistics.stacked([estimate for _, estimate in asked])
    answers = statistics.answers(together, margin, len(asked), up=up, down=down)
    for (comparison, estimate), answer in zip(asked, answers, strict=True):
        comparison.verdict, comparison.low, comparison.high = answer.verdict or "undecided", answer.low, answer.high
        if not answer.verdict:
            error = statistics.ERROR / len(asked)
            comparison.more = statistics.seeds_to_decide(estimate, comparison.n // comparison.cells, margin, error)


def _commands(of: Seeds, to: Seeds, seeds: Sequence[int]) -> list[str]:
    """The commands that train what two pairs lack, as far as the commands of the runs were recorded."""
    trained = sorted(of.keys() | to.keys())
    candidates = [*seeds, *trained, *(seed for seed in range(len(trained) + 2) if seed not in trained)]
    commands, wanted = list[str](), list(dict.fromkeys(candidates))[:2]
    for side in (of, to):
        command = next((run.command for run in side.values() if run.command), "")
        words = [word for word in shlex.split(command) if not word.startswith("seed=")]
        commands += [printable(shlex.join([*words, f"seed={seed}"])) for seed in wanted if words and seed not in side]
    return commands
