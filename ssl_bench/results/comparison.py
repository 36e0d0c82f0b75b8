"""Is A better than B? Runs that differ in one setting and the seed, paired by seed, by what else varies.

Two runs are a pair if their configurations are equal in all that their weights depend on but the named setting, and
they have one seed. What else varies splits the pairs into cells. The first comparison is that over all cells; then each
cell has its own. A mean difference has an interval over seeds and, where the runs have recorded which images are right,
over images (:mod:`ssl_bench.results.statistics`). The verdicts of the cells hold together with an error of 5% (Holm
1979), and so do those over all cells; an interval is that of the question which its verdict answers.
"""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ssl_bench.config import identity
from ssl_bench.config.build import near
from ssl_bench.errors import ConfigError, printable
from ssl_bench.evaluate.metric import Metric
from ssl_bench.record import evaluations, hits, results
from ssl_bench.results import statistics
from ssl_bench.results.compared import ALL_CELLS, Comparison, Comparisons
from ssl_bench.results.differing import SIZE, check_hashed, described, value_of
from ssl_bench.results.numbers import Key, Numbers, single
from ssl_bench.results.runs import RunFolder, SharedConfig, entries, settings_of

Seeds = dict[int | None, RunFolder]  # runs that differ in nothing but the seed, by seed
UNNAMED = results.ENVIRONMENT | results.SETTINGS | {"git": "versions of the code"}


def compare(
    runs: Sequence[RunFolder],
    by: str | Sequence[str],
    to: str | None = None,
    metric: str | None = None,
    margin: float | None = None,
    numbers: Numbers | None = None,
) -> Comparisons:
    """Compare runs that differ in one setting.

    Args:
        runs: those that are not finished are left out.
        by: the setting, such as ``loss``, or several; all keys of a group go with it.
        to: the value that the others are compared with; None: the one that most runs have.
        metric: the name of a number; None: the main one of most runs.
        margin: a smaller difference does not matter; None: do not ask.
        numbers: of a larger set, whose names ``metric`` has.

    Raises:
        ConfigError: there are no such runs, results do not depend on ``by``, or ``to`` is not one thing.
    """
    by = ["batch_size" if name == SIZE else name for name in ([by] if isinstance(by, str) else by)]
    for name in by:
        check_hashed("--by", name)
    done = [run for run in runs if run.done]
    if not done:
        raise ConfigError("there are no finished runs to compare: train them, or choose others")
    numbers = numbers or Numbers(done)
    name, chosen = numbers.choose("--metric", metric, done)
    finite = (run for run in done if math.isfinite(numbers.value(name, run) or 0.0))
    runs = single(filter(_agrees, finite), name, numbers)
    variants = _variants(runs, by)
    if len(variants) < 2:
        raise ConfigError(f"--by {' '.join(by)}: all of these runs have one value of it: name a setting that differs")
    reference = _reference(variants, by, to)
    conditions = _conditions(runs, by)
    pairs = [
        (sides[value], sides[reference], value)
        for sides in conditions
        if reference in sides
        for value in sides
        if value != reference
    ]
    settings = _settings([next(iter(of.values())).shared for of, _, _ in pairs], by)
    groups = {group for run in runs for group in run.shared.groups}
    meaning = numbers.meaning(name)
    gap = gap_of([meaning.scale * (numbers.value(name, run) or 0.0) for run in runs])
    cells = dict[str, list[_Cell]]()  # by the value that is compared with the reference
    for (of, to_runs, value), where in zip(pairs, described(settings, (), groups), strict=True):
        comparison = Comparison(where, variants[value][0], variants[reference][0])
        cells.setdefault(value, []).append(_cell(comparison, of, to_runs, numbers.key(name), meaning, gap))
    over = [overall for of_value in cells.values() if (overall := _over_cells(of_value)) is not None]
    _decide(over, meaning, margin)
    of_cells = [cell.comparison for of_value in cells.values() for cell in of_value]
    _decide(of_cells, meaning, margin)
    paired = {id(run) for of, to_runs, _ in pairs for run in (*of.values(), *to_runs.values())}
    unpaired = sum(id(run) not in paired for sides in conditions for seeds in sides.values() for run in seeds.values())
    return Comparisons(by, name, meaning, margin, [*over, *of_cells], unpaired, chosen)


def _conditions(runs: Sequence[RunFolder], by: Sequence[str]) -> list[dict[str, Seeds]]:
    """The runs by all else than the named settings and the seed, then by these settings as JSON, then by seed."""
    conditions: dict[str, dict[str, Seeds]] = {}
    for run in runs:
        value, rest = _divided(run.shared, tuple(by))
        conditions.setdefault(rest, {}).setdefault(value, {})[run.seed] = run
    return list(conditions.values())


@lru_cache(4096)
def _divided(config: SharedConfig, by: tuple[str, ...]) -> tuple[str, str]:
    """What a run's weights depend on without the seed, as JSON: the named settings, and all others."""
    node = {**identity.hashed(config.content), "epochs": config.content.get("epochs")}
    node.pop("seed", None)
    named = [_pop(node, name) for name in by]
    return json.dumps(named, sort_keys=True, default=str), json.dumps(node, sort_keys=True, default=str)


def _pop(node: dict[str, Any], name: str) -> Any:
    """Remove a setting from a configuration and return it."""
    group, _, rest = name.partition(".")
    if not rest:
        return node.pop(group, None)
    if not isinstance(inner := node.get(group), dict):
        return None
    node[group] = dict(inner)
    return _pop(node[group], rest)


def _variants(runs: Sequence[RunFolder], by: Sequence[str]) -> dict[str, tuple[str, int]]:
    """The values of the named settings: by their configuration a name, and how many runs have it."""
    first, counts = dict[str, RunFolder](), Counter[str]()
    for run in runs:
        value, _ = _divided(run.shared, tuple(by))
        first.setdefault(value, run)
        counts[value] += 1
    rows = [
        {name: _plain(name, text) for name, text in settings.items() if _below_any(name, by)}
        for settings in settings_of([run.shared for run in first.values()])
    ]
    names = described(rows, by, by)
    short = [name.removeprefix(f"{by[0]}=") if len(by) == 1 and " " not in name else name for name in names]
    return {value: (name, counts[value]) for value, name in zip(first, short, strict=True)}


def _below_any(name: str, settings: Sequence[str]) -> bool:
    """Whether a name is that of a setting or of a key below one."""
    return any(name == setting or name.startswith(f"{setting}.") for setting in settings)


def _reference(variants: Mapping[str, tuple[str, int]], by: Sequence[str], to: str | None) -> str:
    """The configuration of ``to``."""
    if to is None:
        return max(variants, key=lambda key: variants[key][1])
    words = {to, _plain(by[0], to), f"{by[0]}={_plain(by[0], to)}"}
    first = [value for value, (name, _) in variants.items() if name in words or name.split(" ")[0] in words]
    exact = [value for value in first if variants[value][0] in words] or first
    names = [name for name, _ in variants.values()]
    if len(exact) != 1:
        several = "several of these are that" if exact else f"no run is that{near(to, names)}"
        raise ConfigError(f"--to {to}: {several}; set it to one of {', '.join(names)}")
    return exact[0]


def _settings(configs: Sequence[SharedConfig], by: Sequence[str]) -> list[dict[str, str]]:
    """The settings that may distinguish comparisons."""
    every = [settings.items() for settings in settings_of(configs)]
    return [{n: _plain(n, text) for n, text in items if n != "seed" and not _below_any(n, by)} for items in every]


def _plain(name: str, text: str) -> str:
    """The text of a setting; the size of an option of ``batch_size``."""
    return str(value_of(text)) if name == "batch_size" else text


@dataclass
class _Cell:
    """A comparison with what its verdict rests on.

    Attributes:
        differences: of the pairs, by their seed.
        bits: which images only one of a pair has right, as :func:`ssl_bench.results.statistics.paired` takes them.
        step: as of it.
    """

    comparison: Comparison
    differences: dict[int, float]
    step: float
    bits: np.ndarray | None = None


def gap_of(values: Sequence[float]) -> float:
    """The smallest difference between two numbers of runs. Raises ConfigError if all are equal."""
    gap = statistics.smallest_gap(values)
    if not gap:
        raise ConfigError("all runs have the same number: nothing to compare")
    return gap


def _cell(comparison: Comparison, of: Seeds, to: Seeds, key: Key, metric: Metric, gap: float) -> _Cell:
    """Set all of a comparison but its verdict; ``gap`` is the smallest one between the numbers of all runs."""
    seeds = sorted(seed for seed in of.keys() & to.keys() if seed is not None)
    sides = [[runs[seed] for seed in seeds] for runs in (of, to)]
    comparison.n, comparison.seeds = len(seeds), seeds
    conditions = [run.conditions | {"git": run.environment.get("git")} for run in (*sides[0], *sides[1])]
    comparison.differ = results.different(conditions, UNNAMED)
    values = np.array([[metric.scale * run.numbers[key[1]][key[0]] for run in side] for side in sides])
    cell = _Cell(comparison, dict(zip(seeds, (values[0] - values[1]).tolist(), strict=True)), gap)
    if seeds:
        comparison.mean, comparison.to_mean = values.mean(1).tolist()
        comparison.difference = comparison.mean - comparison.to_mean
    if len(seeds) < 2:
        comparison.commands = _commands(of, to, seeds)
    bits = [bits_of(run, key) for side in sides for run in side]
    recorded = [run_bits for run_bits in bits if run_bits is not None]
    if seeds and len(recorded) == len(bits) and len({len(run_bits) for run_bits in recorded}) == 1:
        right = np.array(recorded, dtype=np.int8).reshape(2, len(seeds), -1)
        cell.bits, cell.step = metric.scale * (right[0] - right[1]).astype(np.float32), metric.scale / right.shape[2]
    if len(seeds) > 1:
        comparison.bound(statistics.paired(values[0] - values[1], cell.bits, cell.step), cell.bits is not None)
    return cell


def _over_cells(cells: Sequence[_Cell]) -> Comparison | None:
    """The comparison over all cells; None of fewer than two cells, or if none has two pairs."""
    cells = [cell for cell in cells if cell.differences]
    if len(cells) < 2:
        return None
    images = {cell.bits.shape[1] for cell in cells if cell.bits is not None}
    bits = [cell.bits for cell in cells if cell.bits is not None]
    known = len(bits) == len(cells) and len(images) == 1
    step = max(cell.step for cell in cells)
    over = statistics.over_cells([cell.differences for cell in cells], bits if known else None, step)
    if over is None:
        return None
    rows = [cell.comparison for cell in cells]
    seeds = sorted({seed for row in rows for seed in row.seeds})
    comparison = Comparison(ALL_CELLS, rows[0].of, rows[0].to, sum(row.n for row in rows), seeds)
    comparison.mean = math.fsum(row.mean for row in rows) / len(rows)
    comparison.to_mean = math.fsum(row.to_mean for row in rows) / len(rows)
    comparison.difference, comparison.vary, comparison.cells = float(over.estimate.mean), over.vary, len(rows)
    comparison.bound(over.estimate, known)
    comparison.by_seed = over.by_seed
    return comparison


def _agrees(run: RunFolder) -> bool:
    """Whether the bits of a run's accuracies still give them, as when its results were read; they are named if not."""
    return not (run.folder / hits.FOLDER).is_dir() or bool(entries(run))


def bits_of(run: RunFolder, key: Key) -> np.ndarray | None:
    """Which test images an accuracy of a run counts as right [M]; None: that was not recorded."""
    metric, value = key[0], run.numbers[key[1]][key[0]]
    made_by = evaluations.as_key(run.evaluations[key[1]])
    for entry in reversed(entries(run)) if (run.folder / hits.FOLDER).is_dir() else ():  # the last epochs first
        if entry["metrics"].get(metric) == value and evaluations.as_key(evaluations.made_by(entry)) == made_by:
            return hits.read(run.folder, entry, metric)
    return None


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
    trained = sorted(seed for seed in of.keys() | to.keys() if seed is not None)
    candidates = [*seeds, *trained, *(seed for seed in range(len(trained) + 2) if seed not in trained)]
    commands, wanted = list[str](), list(dict.fromkeys(candidates))[:2]
    for side in (of, to):
        command = next((run.command for run in side.values() if run.command), "")
        words = [word for word in shlex.split(command) if not word.startswith("seed=")]
        commands += [printable(shlex.join([*words, f"seed={seed}"])) for seed in wanted if words and seed not in side]
    return commands
