"""A number is a value with what made it: each reader prints exactly those that were put into a folder, or refuses.

The folders are made by drawing settings, states and evaluations from a seed, or trained and then acted upon.
"""

import csv
import io
import json
import math
import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
import yaml

import ssl_bench
from ssl_bench.commands.grid_end import show
from ssl_bench.errors import ConfigError
from ssl_bench.papers import tables
from ssl_bench.papers.cell_runs import Results
from ssl_bench.record.drawing import MARKERS
from ssl_bench.record.printing import FORMS
from ssl_bench.results.table import FINISHED, STATES
from tests.door.door import Answer, enter
from tests.results import grids
from tests.results.folders import LOST, fail, make_grid

Kind = tuple[str, int]  # of a number: its metric and its k
Group = tuple[tuple[str, Any], ...]  # the settings of runs that differ in their seed only
Values = dict[Group, dict[int, float]]  # in percent, by settings and seed
GONE, ALL_CELLS = ("failed", "diverged"), "all cells"
NUMBER = re.compile(r"(-?[\d.]+)(?: ± ([\d.]+))? \((\d+)\)")


@dataclass(frozen=True)
class Made:
    """A run in the folder, without a directory if it has not begun; its number of each kind, in [0, 1]."""

    folder: str
    experiment: str
    state: str
    seed: int
    settings: Group
    numbers: Mapping[Kind, float]


@dataclass(frozen=True)
class Case:
    """Words, the runs that they select, and the commands that are given these words."""

    runs: list[Made]
    words: Sequence[str]
    random: np.random.Generator
    capfd: pytest.CaptureFixture[str]

    def enter(self, command: str, usual: Sequence[str] = ()) -> Answer:
        return enter(" ".join([command, *(f"'{word}'" for word in self.words or usual)]), self.capfd)

    def answer(self, command: str) -> str:
        found = self.enter(command)
        assert found.code == 0, (command, self.words, found)
        return found.out

    @property
    def where(self) -> dict[str, Any] | None:
        """The words as Python has them; None if it cannot."""
        names = [word for word in self.words if word.isalpha()]
        conditions = [re.split("(!=|[<>=])", word, maxsplit=1) for word in self.words if not word.isalpha()]
        found = {key: value.split(",") if sign == "=" else f"{sign}{value}" for key, sign, value in conditions}
        return found | ({"experiment": names} if names else {}) if len(found) == len(conditions) else None


def accuracies(folder: Path | str) -> dict[Kind, float]:
    """The accuracies by kNN in the files of a run after its last epoch."""
    path = Path(folder) / "results.json"
    content = json.loads(path.read_text()) if folder and path.exists() else {"evaluations": []}
    own = (e for e in content["evaluations"] if e["epochs"] == content["config"]["epochs"] and "k" in e["settings"])
    return {(m, entry["settings"]["k"]): v for entry in own for m, v in entry["metrics"].items() if "/top" in m}


# ---- folders whose numbers are chosen


def drawn(random: np.random.Generator) -> list[Made]:
    """Write grids of a few settings, in which runs have any state, and return what is there."""
    losses = random.permutation(["infonce", "dcl", "eqco"])[: random.integers(1, 4)].tolist()
    varied, others = {"loss": losses}, {"negatives.k": [4, 16], "temperature.tau": [0.1, 0.5], "batch_size": [32, 64]}
    varied |= {name: others[name] for name in random.permutation([*others])[: random.integers(0, 3)].tolist()}
    varied |= {"dataset": ["mnist", "scattered_digits"]} if random.random() < 0.4 else {}
    edited, own_k, several = random.random() < 0.5, random.random() < 0.3, random.random() < 0.4
    runs, clock = list[Made](), grids.Clock()
    for experiment in ["one", "two"][: random.integers(1, 3)]:
        commands, begun = list[str](), dict[int, Path]()
        for values in product(*varied.values()):
            group = tuple(zip(varied, values, strict=True))
            for seed in random.permutation(4)[: random.integers(1, 5)].tolist():
                state = str(random.choice([FINISHED, *STATES[1:3], *STATES[4:7]], p=[0.7, *[0.06] * 5]))
                lr = [0.9, 0.001][random.integers(2)] if edited else None
                settings = (*group, ("optimizer.lr", lr if state != "not begun" else None))
                k, again = [] if own_k else ["evaluate.knn.k=20"], list[str]()
                if several and random.random() < 0.5:  # both, or another one alone
                    k, again = (k, ["evaluate.knn.k=1"]) if random.random() < 0.5 else (["evaluate.knn.k=1"], [])
                if any((run.settings, run.seed) == (settings, seed) for run in runs):
                    continue  # a training is in one folder, but for copies
                typed = [f"{n}={v}".replace("batch_size", "batch_size.size") for n, v in group]
                commands.append(shlex.join([*typed, f"name={experiment}", f"seed={seed}"]))
                folder = Path()
                if state != "not begun":
                    folder = write([f"name={experiment}", *k], dict(settings), seed, state, again)
                    clock.tick(folder)
                    begun[len(commands) - 1] = folder
                if state == FINISHED and random.random() < 0.05:
                    path = folder / "results.json"
                    path.write_text(re.sub(r'(/top1": )[\d.]+', r"\1NaN", path.read_text()))
                place = str(folder) if folder.name else ""
                runs.append(Made(place, experiment, state, seed, settings, accuracies(place)))
        if commands:
            make_grid("1", commands, begun, clock.now)
    # A copied grid asks for what has not begun, too: such runs are in it by its name, and by their experiment are not.
    if random.random() < 0.3 and all(run.folder for run in runs if run.experiment == "one"):
        shutil.copytree("outputs/one", "outputs/copy")
        copied = [run for run in runs if run.experiment == "one" and run.folder]
        runs += [replace(r, folder=r.folder.replace("/one/", "/copy/"), experiment="copy") for r in copied]
    return runs


def write(words: list[str], settings: dict[str, Any], seed: int, state: str, again: list[str]) -> Path:
    """Write a run; ``again`` are words of a later evaluation. The rate is that of an option whose file was edited."""
    options = {"dataset": "scattered_digits", "negatives": "random_k", "backbone": "resnet_digits"}
    options |= {name: settings[name] for name in ("loss", "dataset") if name in settings}
    words += [
        *(word for word in grids.SHORT if not word.startswith("dataset")),
        *(f"{n}={v}" for n, v in options.items()),
    ]
    own = {n.replace("batch_size", "batch_size.size"): v for n, v in settings.items() if v and n not in options}
    changes = {name.replace(".", "__"): value for name, value in own.items()}
    config = grids.configuration(*words, seed=seed, **changes)
    typed = [*words, *(f"{name}={value}" for name, value in own.items() if name != "optimizer.lr")]
    folder = grids.begin(config, typed, {"diverged": 1, "failed": 1, "interrupted": 2}.get(state, 3))
    if state in GONE:
        fail(folder, LOST if state == "diverged" else "out of memory")
    if state == FINISHED:
        others = [grids.configuration(*words, *again, seed=seed, **changes)] if again else []
        grids.finish(folder, config, lambda entry: grids.accuracy(config, entry), *others)
    return folder


def selections(runs: list[Made], random: np.random.Generator) -> Iterator[tuple[list[str], list[Made]]]:
    """Words, and the runs that they select."""
    one = str(random.choice(sorted({run.experiment for run in runs})))
    settings = {name: {dict(run.settings)[name] for run in runs} - {None} for name in dict(runs[0].settings)}
    name = str(random.choice([name for name, values in settings.items() if values]))
    value = str(random.choice(sorted(settings[name])))
    having = [text(dict(run.settings)[name]) == value for run in runs]
    yield [], runs
    yield [one], [run for run in runs if run.experiment == one]
    yield [f"{name}={value}"], [run for run, has in zip(runs, having, strict=True) if has]
    others = [run for run, has in zip(runs, having, strict=True) if run.experiment == one and not has]
    yield [one, f"{name}!={value}"], others
    yield ["seed<2", f"state={FINISHED}"], [run for run in runs if run.seed < 2 and run.state == FINISHED]
    if len(named(runs)) == len({metric for run in runs for metric, _ in run.numbers}):
        yield ["knn/top1>57"], [r for r in runs if any(m == "knn/top1" and v > 0.57 for (m, _), v in r.numbers.items())]


# ---- what is right


def names(runs: Iterable[Made]) -> dict[Kind, str]:
    """The name of each number among some runs: with its k where the runs of a data set have several."""
    ks = dict[tuple[str, Any], set[int]]()
    for run in runs:
        for metric, k in run.numbers:
            ks.setdefault((metric, dict(run.settings).get("dataset")), set()).add(k)
    several = {metric for (metric, _), of in ks.items() if len(of) > 1}
    kinds = sorted({(metric, k) for (metric, _), of in ks.items() for k in of})
    return {(m, k): re.sub(r"^(knn(_val)?)", rf"\1[k={k}]", m) if m in several else m for m, k in kinds}


def named(runs: Iterable[Made]) -> dict[str, list[Kind]]:
    """The numbers that have a name."""
    found = dict[str, list[Kind]]()
    for kind, name in names(runs).items():
        found.setdefault(name, []).append(kind)
    return found


def drawn_name(case: Case) -> tuple[str, list[Kind]]:
    every = named(case.runs)
    name = str(case.random.choice(sorted(every)))
    return name, every[name]


def stored(runs: Iterable[Made]) -> dict[str, dict[str, float]]:
    """The finite numbers by folder."""
    name = names(runs)
    return {r.folder: finite({name[kind]: v for kind, v in r.numbers.items()}) for r in runs if r.folder}


def finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The accuracies by kNN among numbers."""
    numbers = {name: float(v) for name, v in metrics.items() if re.match(r"knn.*/top", name) and v not in (None, "")}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def cells(runs: Iterable[Made], kinds: Sequence[Kind], *apart: str) -> Values:
    """The finite values by settings, and by what else is apart: each training counts once."""
    found = Values()
    for run in runs:
        more = tuple((axis, getattr(run, axis)) for axis in apart if axis in ("seed", "experiment"))
        for kind in kinds:
            if math.isfinite(value := run.numbers.get(kind, math.nan)):
                found.setdefault((*run.settings, *more), {})[run.seed] = 100 * value
    return found


def missing(runs: Iterable[Made], kinds: Sequence[Kind], name: str) -> Counter[str]:
    """How many runs have no finite number, by why."""
    values = [[run.numbers[kind] for kind in kinds if kind in run.numbers] for run in runs]
    lacking = [(run.state, of) for run, of in zip(runs, values, strict=True) if not any(map(math.isfinite, of))]
    return Counter("not finite" if of else f"without {name}" if state == FINISHED else state for state, of in lacking)


def text(value: Any) -> str:
    return "" if value is None else str(value)


def agrees(row: Mapping[str, Any], settings: Group) -> bool:
    return all(text(row[name]) == text(value) for name, value in settings if name in row)


def of_seeds(of: Mapping[int, float]) -> list[float]:
    return [fmean(of.values()), stdev(of.values()) if len(of) > 1 else -1.0, len(of)]


# ---- who reads


def status(case: Case) -> None:
    records = json.loads(case.answer("status --json"))
    assert Counter((r["folder"] or "", r["state"]) for r in records) == Counter((r.folder, r.state) for r in case.runs)
    assert {r["folder"]: finite(r["metrics"]) for r in records if r["folder"]} == stored(case.runs)
    rows = list(csv.DictReader(io.StringIO(case.answer("status --csv"))))
    assert {row["folder"]: finite(row) for row in rows if row["folder"]} == stored(case.runs)
    for row in rows:
        same = [run for run in case.runs if (run.folder, text(run.seed)) == (row["folder"], row["seed"])]
        assert any(agrees(row, tuple((n, v) for n, v in run.settings if v is not None)) for run in same)
    name, _ = drawn_name(case)
    for key, worst in ((name, -1.0), (f"-{name}", 2.0)):
        records = json.loads(case.answer(f"status --json --sort={key}"))
        values = [finite(record["metrics"]).get(name, worst) for record in records]
        assert values == sorted(values, reverse=key == name)


def python(case: Case) -> None:
    if case.where is not None:
        table = ssl_bench.runs(where=case.where, all=True)
        rows = table[table["path"].notna()].to_dict("records")
        assert {os.path.relpath(row["path"]): finite(row) for row in rows} == stored(case.runs)
        assert len(table) == len(case.runs)


def report(case: Case) -> None:
    data = json.loads(case.answer("report --json"))
    assert {run["folder"]: finite(run["metrics"]) for run in data["runs"] if run["folder"]} == stored(case.runs)
    assert Counter(run["state"] for run in data["runs"]) == Counter(run.state for run in case.runs)
    every = names(case.runs)
    for group in data["groups"]:
        members = [run for run in case.runs if run.experiment == group["key"]]
        if len(members) == len(group["runs"]):  # else its grid has asked for runs of another name
            for name, kinds in named(members).items():
                for verdict in group["verdicts"].get(every[kinds[0]], ()):
                    check_pairs(verdict, members, kinds, verdict["by"], name)


def means(case: Case) -> None:
    """Tables by two settings in all formats, and figures of the same."""
    axes = [name for name, _ in case.runs[0].settings if name not in ("optimizer.lr", "plugins.edited")]
    row, column = case.random.permutation([*axes, "seed", "experiment"])[:2].tolist()
    name, kinds = drawn_name(case)
    expected = cells(case.runs, kinds, row, column)
    wanted = sorted(map(of_seeds, expected.values()))
    for form in FORMS:
        flags = f"--rows {row} --columns {column} --metric {name} --format {form}"
        found = case.enter(f"table {flags}", ["outputs"])
        if found.code == 2:
            assert not expected or (len(expected) > 12 and "tables, more than" in found.err), (flags, case.words, found)
            return
        if form in ("csv", "json"):
            sheets = json.loads(found.out) if form == "json" else [{"rows": csv.DictReader(io.StringIO(found.out))}]
            rows = [row for sheet in (sheets if isinstance(sheets, list) else [sheets]) for row in sheet["rows"]]
            assert len(rows) == len(expected)
            for group, of in expected.items():
                (one,) = [row for row in rows if agrees(row, group)]
                shown = [-1.0 if one[key] in (None, "") else float(one[key]) for key in ("mean", "std", "n")]
                assert shown == pytest.approx(of_seeds(of))
        else:
            numbers = NUMBER.findall(found.out.replace("$\\pm$", "±"))
            printed = sorted([float(m), float(s or -1), int(n)] for m, s, n in numbers)
            rounded = sorted([round(m, 2), round(s, 2), n] for m, s, n in wanted)
            np.testing.assert_allclose(printed, rounded, atol=0.0101)
    if case.where is not None and "experiment" not in (row, column):
        heat, lines = ({"x": column, key: row, "metric": name, "where": case.where} for key in ("y", "lines"))
        points: list[Any] = [y for axis in ssl_bench.figure(**lines).axes for y in means_of(axis)]
        maps: list[Any] = [axis.images[0].get_array() for axis in ssl_bench.figure(**heat).axes if axis.images]
        for drawn in (points, maps):
            values = np.concatenate([*map(np.ravel, drawn)])
            np.testing.assert_allclose(sorted(values[np.isfinite(values)]), [mean for mean, *_ in wanted])


def means_of(axis: Any) -> list[Any]:
    """The heights of the lines in a panel, without the points of seeds and the ends of error bars."""
    return [line.get_ydata() for line in axis.lines if line.get_marker() in MARKERS]


def curves(case: Case) -> None:
    """A line of losses has the means of the seeds of its settings where all of them have a row."""
    groups = dict[Group, dict[int, dict[float, float]]]()
    for run in case.runs if case.where is not None else ():
        if run.folder:
            rows = map(json.loads, (Path(run.folder) / "metrics.jsonl").read_text().splitlines())
            groups.setdefault(run.settings, {})[run.seed] = {r["epoch"]: r["loss"] for r in rows if "loss" in r}
    wanted = list[list[float]]()
    for of in groups.values():
        shared = sorted(set[float].intersection(*map(set, of.values())))
        wanted.append([round(fmean(points[x] for points in of.values()), 9) for x in shared])
    if len(wanted) > 12:
        with pytest.raises(ConfigError, match="lines"):
            ssl_bench.figure(x="epoch", where=case.where, metric="loss")
    elif wanted:
        (axis,) = ssl_bench.figure(x="epoch", where=case.where, metric="loss").axes
        assert sorted([round(float(y), 9) for y in of] for of in means_of(axis)) == sorted(wanted)


def pairs(case: Case) -> None:
    name, kinds = drawn_name(case)
    for by, _ in case.runs[0].settings:
        lost = [r for r in case.runs if r.state in GONE or any(math.isnan(r.numbers.get(k, 0.0)) for k in kinds)]
        there = {dict(group)[by] for group in cells(case.runs, kinds)}
        if None in there:
            continue
        to = case.random.choice(sorted(map(text, there))) if there else ""
        found = case.enter(f"compare --format json --metric {name} --by {by} --to '{to}'")
        other_images = by == "dataset" and len({dict(run.settings)[by] for run in case.runs}) > 1
        numbers = {r.numbers[k] for r in case.runs if r.state not in GONE for k in kinds if k in r.numbers}
        equal = len({number for number in numbers if math.isfinite(number)}) < 2  # then there is nothing to compare
        if other_images or equal or len(there | {dict(run.settings)[by] for run in lost}) < 2:
            assert found.code == 2, (by, case.words, found)
        else:
            check_pairs(json.loads(found.out), case.runs, kinds, by, name, str(to))


def check_pairs(
    record: Mapping[str, Any], runs: list[Made], kinds: Sequence[Kind], by: str, name: str, to: str = ""
) -> None:
    """Compare a comparison with the differences of all pairs."""
    found, expected, paired = cells(runs, kinds), list[tuple[str, Group, Any, Any]](), set[Any]()
    to = to or record["cells"][0]["to"]
    for group, of in found.items():
        rest = tuple(pair for pair in group if pair[0] != by)
        for other, its in found.items():
            if text(dict(other)[by]) == to and group != other and {*rest} < {*other}:
                expected.append((text(dict(group)[by]), rest, of, its))
                paired |= {(group, seed) for seed in of} | {(other, seed) for seed in its}
    rows = [row | {"value": row["of"].rpartition("=")[2]} for row in record["cells"] if row["n"]]
    of_cells = [row for row in rows if row["where"] != ALL_CELLS]
    assert len(of_cells) == len(expected)
    for value, rest, of, its in expected:
        of_value = [row for row in of_cells if row["value"] == value]
        (row,) = [
            row
            for row in of_value
            if agrees(dict(w.split("=") for w in re.split(r" (?=[\w.]+=)", row["where"]) if w), rest)
        ]
        assert (row["n"], row["seeds"]) == (min(len(of), len(its)), sorted(of.keys() & its.keys()))
        if len({frozenset(seeds) for seeds in found.values()}) == 1:
            assert row["difference"] == pytest.approx(fmean(of.values()) - fmean(its.values()))
    for row in rows:
        of_arm = [(of, its) for value, _, of, its in expected if value == row["value"]]
        if row["where"] == ALL_CELLS:
            assert row["n"] == sum(min(map(len, sides)) for sides in of_arm)
    alone = Counter({"without a partner": sum(map(len, found.values())) - len(paired)})
    assert left_out(record) == missing(runs, kinds, name) + alone


def left_out(record: Mapping[str, Any]) -> Counter[str]:
    return Counter({one["why"]: len(one["runs"]) for one in record["left_out"]})


def what_matters(case: Case) -> None:
    """Differences are those of the cells if no combination is missing and all have the same seeds."""
    name, kinds = drawn_name(case)
    found, result = cells(case.runs, kinds), case.enter(f"compare --format json --metric {name}")
    levels = {key: {dict(group)[key] for group in found} for key, _ in case.runs[0].settings}
    if result.code == 2:
        vary = any(len(of) > 1 for key, of in levels.items() if key != "dataset")
        assert not vary or math.prod(map(len, levels.values())) != len(found), (case.words, result)
        return
    record = json.loads(result.out)
    assert (record["runs"], record["combinations"]) == (sum(map(len, found.values())), len(found))
    assert left_out(record) == missing(case.runs, kinds, name)
    if record["missing"] == 0 and len({frozenset(of) for of in found.values()}) == 1:
        for setting in record["settings"]:
            means = [
                fmean(fmean(of.values()) for group, of in found.items() if (setting["setting"], setting[end]) in group)
                for end in ("from", "to")
            ]
            assert setting["difference"] == pytest.approx(means[1] - means[0]), (name, setting)


READERS: list[Callable[[Case], None]] = [status, python, report, means, curves, pairs, what_matters]


def read_all(case: Case, readers: Sequence[Callable[[Case], None]], about: str) -> None:
    for read in readers:
        try:
            read(case)
        except Exception as error:
            error.add_note(f"{read.__name__} of {case.words} {about}")
            raise


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 20))])
def test_each_reader_shows_what_was_put_into_a_folder(seed: int, capfd: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(seed)
    runs = drawn(random)
    for words, chosen in selections(runs, random):
        if any(run.numbers for run in chosen):
            read_all(Case(chosen, words, random, capfd), READERS, f"of seed {seed}")


# ---- grids of many kinds, as they are written by a training

# The settings that vary in an experiment: several k of kNN, an edited plugin and an edited option, another
# name of the folder, two data sets of which each has its own k.
VARIED = {
    "ks": ["loss"],
    "plugin": ["loss", "plugins.edited"],
    "edited": ["temperature.tau", "optimizer.lr"],
    "renamed": ["loss"],
    "digits": ["loss", "dataset"],
}


def content_hashes(experiment: str) -> list[Made]:
    """The runs of an experiment, which have results, by their files."""
    runs = list[Made]()
    for path in sorted(Path("outputs", experiment).glob("*/results.json")):
        config, settings = json.loads(path.read_text())["config"], list[tuple[str, Any]]()
        for name in VARIED[experiment]:
            group, _, key = name.partition(".")
            settings.append((name, config["choices"][name] if not key else config[group].get(key)))
        asked = yaml.safe_load((path.parent / "config.yaml").read_text())["evaluate"]
        missing = asked["knn"]["k"] not in {k for _, k in accuracies(path.parent)}
        state = "evaluation missing" if missing else FINISHED
        place = str(path.parent)
        runs.append(Made(place, experiment, state, config["seed"], (*settings,), accuracies(place)))
    return runs


def end_of_a_grid(case: Case) -> None:
    """The tables below a grid of these runs, and below one with a seed."""
    for chosen in (case.runs, [run for run in case.runs if run.seed == 0]):
        case.capfd.readouterr()
        show({Path(run.folder): None for run in chosen})
        printed = case.capfd.readouterr().out
        for name, kinds in named(chosen).items():
            main = name.endswith("/top1") and not re.search("_(init|raw)/", name)
            assert not main or name in printed or name.removesuffix("/top1") in printed
            for of in cells(chosen, kinds).values() if name in printed else ():
                assert f"{fmean(of.values()):.2f}" in printed or f"{fmean(of.values()):.1f}" in printed


def plain_name(case: Case) -> None:
    """The plain name of several evaluations is refused with the list."""
    ks = {k for run in case.runs for metric, k in run.numbers if metric == "knn/top1"}
    found = case.enter("table --rows loss --metric knn/top1 --format md")
    if "knn/top1" in named(case.runs):  # also where each data set has its own k
        assert found.code == 0
    else:
        assert found.code == 2 and all(f"knn[k={k}]/top1" in found.err for k in ks)


def flat_metrics(case: Case) -> None:
    """W&B and TensorBoard get the flat metrics: plain names are those of the evaluation of the training."""
    for run in case.runs:
        content = json.loads((Path(run.folder) / "results.json").read_text())
        k = content["config"]["evaluate"]["knn"]["k"]
        for (metric, its), value in run.numbers.items():
            name = metric if its == k else re.sub(r"^(knn(_val)?)", rf"\1[k={its}]", metric)
            assert content["metrics"][name] == value


@pytest.mark.parametrize("experiment", VARIED)
def test_each_reader_shows_a_number_with_what_made_it(
    experiment: str, grids: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(grids)
    case = Case(content_hashes(experiment), [experiment], np.random.default_rng(0), capfd)
    read_all(case, [*READERS, end_of_a_grid, plain_name, flat_metrics], experiment)


OF_KS = [*grids.SHORT, "optimizer.weight_decay=0.002", "evaluate.baselines=[init,raw]"]


def test_cells_of_a_table_have_the_numbers_of_their_k(
    grids: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(grids)
    words = [word for word in OF_KS if not word.startswith(("tracking", "log_every"))]
    node: dict[str, Any] = {"title": "t", "metric": "knn/top1", "set": words, "seeds": [0, 1, 2]}
    node["rows"] = {loss: {"set": [f"loss={loss}"]} for loss in ("infonce", "dcl")}
    node["columns"] = {"20": ["evaluate.knn.k=20"], "1": ["evaluate.knn.k=1"]}
    (tmp_path / "own.yaml").write_text(json.dumps({"paper": "own", "cite": "me", "tables": {"t": node}}))
    (own,) = tables.find(str(tmp_path / "own.yaml"))
    results, runs = Results(Path("outputs"), own.cells), content_hashes("ks")
    for cell in own.cells:
        of_cell = [run for run in runs if ("loss", cell.row) in run.settings]
        kind = "knn/top1", int(cell.column)
        expected = {run.seed: 100 * run.numbers[kind] for run in of_cell if kind in run.numbers}
        assert results.values(cell) == pytest.approx(expected)
