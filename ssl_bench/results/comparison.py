"""Is A better than B? Runs that differ in one setting and the seed, paired by seed, by what else varies.

Two runs are a pair if their configurations are equal in all that their weights depend on but the named setting, and
they have one seed. What else varies splits the pairs into cells. In each the mean difference has a 95% interval over
seeds and, where the runs have recorded which images are right, over images (:mod:`ssl_bench.results.statistics`). A
verdict holds for all cells together with an error of 5% (Holm 1979).
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ssl_bench.config.build import near
from ssl_bench.config.identity import NOT_IN_RUN_ID, NOT_IN_RUN_ID_OF
from ssl_bench.errors import ConfigError
from ssl_bench.evaluate.metric import Metric
from ssl_bench.record import evaluations, hits, results, units
from ssl_bench.results import statistics
from ssl_bench.results.compared import Cell, Comparison
from ssl_bench.results.differing import SIZE, described, value_of
from ssl_bench.results.metrics import metric_of, usual
from ssl_bench.results.runs import Run

UNNAMED = results.CONDITIONS | {"git": "versions of the code"}  # of a run's environment


def compare(
    runs: Sequence[Run],
    by: str | Sequence[str],
    to: str | Run | None = None,
    metric: str | None = None,
    margin: float | None = None,
) -> Comparison:
    """Compare runs that differ in one setting.

    Args:
        runs: those that are not finished are left out.
        by: the setting, such as ``loss``, or several; all keys of a group go with it.
        to: the value that the others are compared with, or a run that has it; None: the one that most runs have.
        metric: None: the one that most runs are told by.
        margin: a smaller difference does not matter; None: do not ask.

    Raises:
        ConfigError: there are no such runs, or ``to`` is not one thing.
    """
    by = ["batch_size" if name == SIZE else name for name in ([by] if isinstance(by, str) else by)]
    done = [run for run in runs if run.done]
    names = usual(done)
    chosen = metric or next(iter(names), "")
    having = [run for run in done if math.isfinite(run.metrics.get(chosen, math.nan))]
    if not having:
        known = dict.fromkeys(name for run in done for name in run.metrics)
        raise ConfigError(
            f"--metric {chosen}: no finished run of these has it{near(chosen, known)}; set it to {', '.join(known)}"
            if done
            else "there are no finished runs to compare: train them, or choose others"
        )
    variants = _variants(having, by)
    if len(variants) < 2:
        raise ConfigError(f"--by {' '.join(by)}: all of these runs have one value of it: name a setting that differs")
    reference = _value(to, by) if isinstance(to, Run) else _reference(variants, by, to)
    cells: dict[str, dict[str, dict[int | None, Run]]] = {}
    for run in having:
        node = _recipe(run, chosen)
        own = json.dumps([_pop(node, name) for name in by], sort_keys=True, default=str)
        cells.setdefault(json.dumps(node, sort_keys=True, default=str), {}).setdefault(own, {}).setdefault(
            run.seed, run
        )
    pairs = [
        (of[key], of[reference], key) for of in cells.values() if reference in of for key in of if key != reference
    ]
    places = [_settings(next(iter(of.values())), by) for of, _, _ in pairs]
    groups = {group for run in having for group in run.shared.groups}
    meaning = metric_of(chosen, having)
    found = [
        _cell(of, its, (where, variants[key][0], variants[reference][0]), chosen, meaning)
        for (of, its, key), where in zip(pairs, described(places, (), groups), strict=True)
    ]
    _decide(found, meaning, margin)
    used = {id(run) for of, its, _ in pairs for run in (*of.values(), *its.values())}
    alone = sum(id(run) not in used for of in cells.values() for its in of.values() for run in its.values())
    return Comparison(by, chosen, meaning, margin, [cell for cell, _ in found], alone)


def _recipe(run: Run, metric: str) -> dict[str, Any]:
    """The configuration without its seed and what has no influence on the metric."""
    config = run.config
    node = {name: value for name, value in config.items() if name not in NOT_IN_RUN_ID and name != "seed"}
    for name, keys in NOT_IN_RUN_ID_OF.items():
        if isinstance(value := node.get(name), Mapping):
            node[name] = {key: each for key, each in value.items() if key not in keys}
    evaluate = config.get("evaluate")
    if isinstance(evaluate, Mapping):
        node["evaluate"] = {key: evaluate.get(key) for key in (units.evaluator_of(metric), "on")}
    return node


def _pop(node: dict[str, Any], name: str) -> Any:
    """Remove a setting from a configuration and return it."""
    group, _, rest = name.partition(".")
    if not rest:
        return node.pop(group, None)
    if not isinstance(inner := node.get(group), dict):
        return None
    node[group] = dict(inner)
    return _pop(node[group], rest)


def _value(run: Run, by: Sequence[str]) -> str:
    """The named settings of a run, as JSON."""
    node = _recipe(run, "")
    return json.dumps([_pop(node, name) for name in by], sort_keys=True, default=str)


def _variants(runs: Sequence[Run], by: Sequence[str]) -> dict[str, tuple[str, int]]:
    """The values of the named settings: by their configuration a name, and how many runs have it."""
    found, counts = dict[str, Run](), dict[str, int]()
    for run in runs:
        key = _value(run, by)
        found.setdefault(key, run)
        counts[key] = counts.get(key, 0) + 1
    own = [
        {name: _plain(name, text) for name, text in run.shared.settings.items() if any(_below(name, n) for n in by)}
        for run in found.values()
    ]
    names = described(own, by, by)
    short = [name.removeprefix(f"{by[0]}=") if len(by) == 1 and " " not in name else name for name in names]
    return {key: (name, counts[key]) for key, name in zip(found, short, strict=True)}


def _below(name: str, setting: str) -> bool:
    return name == setting or name.startswith(f"{setting}.")


def _reference(variants: Mapping[str, tuple[str, int]], by: Sequence[str], to: str | None) -> str:
    """The configuration of ``to``."""
    if to is None:
        return max(variants, key=lambda key: variants[key][1])
    words = {to, _plain(by[0], to), f"{by[0]}={_plain(by[0], to)}"}
    found = [key for key, (name, _) in variants.items() if name in words or name.split(" ")[0] in words]
    exact = [key for key in found if variants[key][0] in words] or found
    names = [name for name, _ in variants.values()]
    if len(exact) != 1:
        several = "several of these are that" if exact else f"no run is that{near(to, names)}"
        raise ConfigError(f"--to {to}: {several}; set it to one of {', '.join(names)}")
    return exact[0]


def _settings(run: Run, by: Sequence[str]) -> dict[str, str]:
    """The settings that may distinguish a cell."""
    items = run.shared.settings.items()
    return {n: _plain(n, text) for n, text in items if n != "seed" and not any(_below(n, each) for each in by)}


def _plain(name: str, text: str) -> str:
    """The text of a setting; the size of an option of ``batch_size``."""
    return str(value_of(text)) if name == "batch_size" else text


Runs = Mapping[int | None, Run]


def _cell(
    of: Runs, its: Runs, words: tuple[str, str, str], name: str, metric: Metric
) -> tuple[Cell, statistics.Estimate | None]:
    """A cell without its verdict, and the difference."""
    seeds = sorted(seed for seed in of.keys() & its.keys() if seed is not None)
    cell = Cell(*words, n=len(seeds), seeds=seeds, differ=_unnamed([of[s] for s in seeds], [its[s] for s in seeds]))
    if seeds:
        numbers = np.array([[metric.scale * side[seed].metrics[name] for seed in seeds] for side in (of, its)])
        cell.mean, cell.to_mean = numbers.mean(1).tolist()
        cell.difference = cell.mean - cell.to_mean
    if len(seeds) < 2:
        cell.commands = _commands(of, its, seeds)
        return cell, None
    found = statistics.paired(numbers[0] - numbers[1])
    bits = [[_bits(str(side[seed].folder), name, side[seed].marks) for seed in seeds] for side in (of, its)]
    known = [each for side in bits for each in side if each is not None]
    cell.varies = "seeds only"
    if len(known) == 2 * len(seeds) and len({len(each) for each in known}) == 1:
        right = np.array(bits, dtype=np.int8)
        images = statistics.paired(numbers[0] - numbers[1], metric.scale * (right[0] - right[1]).astype(np.float32))
        found, cell.varies = images, "images" if images.images > images.seeds else "seeds"
    cell.low, cell.high = (float(end) for end in found.interval())
    return cell, found


@lru_cache(4096)
def _bits(folder: str, name: str, marks: str) -> np.ndarray | None:
    """Which test images an accuracy of a run counts as right; ``marks`` are those of its files."""
    content = results.read(Path(folder))
    if content is None:
        return None
    entries = evaluations.entries(content)
    own = [entry for entry in entries if entry["epochs"] == content["config"].get("epochs")]
    for entry in own:
        for each in entry["metrics"]:
            if evaluations.named(each, entry, own) == name:
                return hits.read(Path(folder), entry, each)
    return None


def _decide(found: Sequence[tuple[Cell, statistics.Estimate | None]], metric: Metric, margin: float | None) -> None:
    """Set the verdicts, which hold together."""
    asked = [(cell, estimate) for cell, estimate in found if estimate is not None]
    if not asked:
        return
    up, down = ("better", "worse")[:: metric.sign] if metric.sign else ("higher", "lower")
    together = statistics.stacked([each for _, each in asked])
    words = statistics.decided(together, margin, len(asked), up=up, down=down)
    for (cell, estimate), told in zip(asked, words, strict=True):
        cell.verdict = told or "undecided"
        if not told:
            cell.more = statistics.seeds_to_decide(estimate, cell.n, margin, statistics.ERROR / len(asked))


def _unnamed(of: Sequence[Run], its: Sequence[Run]) -> list[str]:
    """The differences between the environments of runs, in words."""
    found = []
    for name, words in UNNAMED.items():
        on_gpu = name in results.OF_CPUS and any(run.environment.get("cuda") for run in (*of, *its))
        values = {str(run.environment.get(name)) for run in (*of, *its)} - {"None"}
        found += [f"{words} ({', '.join(sorted(values))})"] if len(values) > 1 and not on_gpu else []
    return found


def _commands(of: Runs, its: Runs, seeds: Sequence[int]) -> list[str]:
    """The commands that train what two pairs lack, as far as the commands of the runs were recorded."""
    known = sorted(seed for seed in of.keys() | its.keys() if seed is not None)
    wanted = [*seeds, *(seed for seed in known if seed not in seeds)]
    wanted = [*wanted, *(seed for seed in range(len(known) + 2) if seed not in known)][:2]
    found = []
    for side in (of, its):
        command = next((run.command for run in side.values() if run.command), None)
        words = [word for word in shlex.split(command or "") if not word.startswith("seed=")]
        found += [shlex.join([*words, f"seed={seed}"]) for seed in wanted if words and seed not in side]
    return found
