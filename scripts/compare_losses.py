"""The comparison of losses, each tuned twice from nothing. The head of compare_losses.yaml is its protocol.

    python scripts/compare_losses.py show                # the tables and verdicts of the committed numbers
    python scripts/compare_losses.py pilot               # an hour: how long the trainings are to be; then set epochs
    python scripts/compare_losses.py run --dry-run       # the commands of what is missing
    python scripts/compare_losses.py run --at-once 2     # train it; compare_losses.json is written after 8 runs each
    python scripts/compare_losses.py simulate            # how often the procedure errs

``run`` asks the numbers what is missing, so that another machine goes on where the last one stopped; what a machine has
trained itself is in ``outputs/losses``. Settings of a machine follow as overrides: ``paths.outputs=DIR``, ``device=cpu``.
"""

import argparse
import base64
import json
import math
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tuned_twice
import yaml
from tables import markdown
from tuned_twice import PLACES, REPLICATES, TRIALS, Decided, Question, Rules

from ssl_bench import files
from ssl_bench.commands.arguments import in_sentences, show_progress, taken_outputs
from ssl_bench.commands.train_grid import train_grid
from ssl_bench.config.asked import Asked
from ssl_bench.config.compositions import compositions
from ssl_bench.config.identity import recipe_id
from ssl_bench.errors import ConfigError
from ssl_bench.launch.outcome import DIVERGED
from ssl_bench.launch.plan import Plan, Strategy
from ssl_bench.launch.run import Run
from ssl_bench.papers.cells import flat, merge
from ssl_bench.record import evaluations, hits, results
from ssl_bench.results.runs import RunFolder, finished

DESIGN = Path(__file__).with_suffix(".yaml")
TUNED, TESTED = "knn_val", "knn"  # what settings are chosen by, and what is compared
SEEDS = {"a": (10, 11, 12, 13), "b": (14, 15, 16, 17)}  # of the optimum of a replicate
LESS_THAN_1 = "framework.momentum"  # whose axis is the logarithm of what it is below 1
VERSIONS = ("device", "threads", "ssl_bench", "python", "torch", "numpy")  # of a machine


@dataclass(frozen=True)
class Wanted:
    """A run that the design asks for.

    Attributes:
        words: its overrides without those of all runs and without the seed.
        images: the numbers have which test images it has right.
    """

    words: tuple[str, ...]
    seed: int
    images: bool = False

    @property
    def text(self) -> str:
        """What names it in the file of numbers."""
        return " ".join((*self.words, f"seed={self.seed}"))


@dataclass(frozen=True)
class Cell:
    """A loss in a setting."""

    part: str
    loss: str
    setting: str

    @property
    def name(self) -> str:
        """As it is printed."""
        return f"{self.loss}, {self.setting}"


class Design:
    """What the YAML file asks for."""

    def __init__(self, path: Path = DESIGN) -> None:
        self.path, self.content = path, yaml.safe_load(files.read_bytes(path).decode())
        self.rules, self.gap = Rules(self.content["rules"]["margin"], self.content["rules"]["floor"]), 0.0
        self.gap, self.train = float(self.content["rules"]["gap"]), flat(self.content["train"])
        self.reference, self.at = self.content["reference"], self.content["at"]
        parts = self.content["parts"].items()
        self.cells = [Cell(part, loss, at) for part, of in parts for at, losses in of.items() for loss in losses]

    @property
    def epochs(self) -> int:
        """Length of a training.

        Raises:
            ConfigError: nobody has chosen it yet.
        """
        if not isinstance(epochs := self.content["epochs"], int):
            raise ConfigError(f"{self.path}: epochs: set epochs to what `compare_losses.py pilot` chooses")
        return epochs

    @property
    def controls(self) -> Wanted:
        """The run of the labels, which measures raw pixels and random weights as well."""
        return Wanted((*self.content["controls"], f"epochs={self.epochs}"), 0)

    def points(self, cell: Cell) -> list[Wanted]:
        """The 16 points of a cell, of which the first half is replicate a."""
        axes = self.content["losses"][cell.loss]["over"]
        return [Wanted(self._words(cell, at_place(axes, place)), 0) for place in PLACES.tolist()]

    def tests(self, cell: Cell, replicate: str, optimum: Sequence[str]) -> list[Wanted]:
        """The fresh seeds at the optimum of a replicate."""
        return [Wanted(self._words(cell, optimum), seed, images=True) for seed in SEEDS[replicate]]

    def _words(self, cell: Cell, point: Sequence[str]) -> tuple[str, ...]:
        setting = self.content["settings"][cell.setting]
        longer = setting.get("longer", 1)
        slower = [f"optimizer.warmup_epochs={longer / 2:g}"] if longer > 1 else []
        of_loss = self.content["losses"][cell.loss]["set"]
        return (*of_loss, *setting["set"], *slower, *point, f"epochs={longer * self.epochs}")

    def groups(self, part: str = "") -> list[list[Cell]]:
        """The cells of a part that share a kernel, those of one batch; without a part, of all."""
        groups = dict[tuple[str, str], list[Cell]]()
        for cell in self.cells:
            if part in ("", cell.part):
                batch = next(word for word in self.content["settings"][cell.setting]["set"] if "batch_size" in word)
                groups.setdefault((cell.part, batch), []).append(cell)
        return list(groups.values())

    @cached_property
    def questions(self) -> list[Question]:
        """All that are planned."""
        names, at, to = {cell.name for cell in self.cells}, self.at, self.reference
        asked = list[Question]()
        for cell in self.cells:
            other = f"{to if cell.setting == at else cell.loss}, {at}"
            if cell.name != other:
                asked.append(Question(f"{cell.name} less {other}", {cell.name: 1, other: -1}))
        for one, other in self.content["ends"]:
            for loss in self.content["losses"]:
                signs = {f"{loss}, {one}": 1, f"{to}, {one}": -1, f"{loss}, {other}": -1, f"{to}, {other}": 1}
                if loss != to and signs.keys() <= names:
                    asked.append(Question(f"{loss} less {to}, {one} less {other}", signs))
        return asked


def at_place(axes: Mapping[str, Sequence[float]], place: Sequence[float]) -> list[str]:
    """The overrides of a place in the unit square, even over the logarithms of two keys."""
    words = list[str]()
    for (key, ends), share in zip(axes.items(), place, strict=True):
        low, high = (1 - end for end in ends) if key == LESS_THAN_1 else ends
        value = low * (high / low) ** share
        words.append(f"{key}={1 - value:.4g}" if key == LESS_THAN_1 else f"{key}={value:.3g}")
    return words


class Numbers:
    """The numbers of runs, and the optima that were chosen, in a file.

    Args:
        path: written; where it is not there yet, ``start`` is read.

    Attributes:
        runs: by the text of the wanted run: accuracies in percent by evaluator, ``diverged``, and how it was made.
        optima: of a cell by its name, then of a replicate: the overrides.
        machines: which runs name by their place.
    """

    def __init__(self, path: Path, start: Path) -> None:
        self.path = path
        content: dict[str, Any] = files.read_json(path) or files.read_json(start) or {}
        self.runs: dict[str, dict[str, Any]] = {run.pop("run"): run for run in content.get("runs", [])}
        self.optima: dict[str, dict[str, list[str]]] = content.get("optima", {})
        self.machines: list[dict[str, Any]] = content.get("machines", [])

    def write(self) -> None:
        """Write the file anew, a run a line."""
        head = json.dumps({"machines": self.machines, "optima": self.optima}, indent=1)[:-2]
        lines = ",\n".join("  " + json.dumps({"run": text, **run}) for text, run in self.runs.items())
        files.write_text(self.path, f'{head},\n "runs": [\n{lines}\n ]\n}}\n')

    def value(self, wanted: Wanted, name: str) -> float:
        """An accuracy in percent; NaN of a run that diverged.

        Raises:
            KeyError: it has not run.
        """
        run = self.runs[wanted.text]
        return math.nan if run.get("diverged") else float(run["values"][name])

    def missing(self, wanted: Iterable[Wanted]) -> list[Wanted]:
        """Those that have not run."""
        return [one for one in wanted if one.text not in self.runs]

    def add(self, wanted: Wanted, run: RunFolder) -> None:
        """Add a run that has ended."""
        if not run.done:
            self.runs[wanted.text] = {"diverged": True, "run_id": run.training}
            return
        content = results.read(run.folder) or {}
        environment = content["environment"]
        machine = {name: environment.get(name) for name in VERSIONS}
        if machine not in self.machines:
            self.machines.append(machine)
        metrics = content["metrics"].items()
        self.runs[wanted.text] = {
            "values": {name.partition("/")[0]: round(100 * of, 4) for name, of in metrics if name.endswith("/top1")},
            "run_id": run.training,
            "seconds": round(content["seconds"]),
            "machine": self.machines.index(machine),
            "commit": str(environment.get("git") or "")[:7],
        }
        if wanted.images:
            for entry in evaluations.entries(content):
                if (bits := hits.read(run.folder, entry, f"{TESTED}/top1")) is not None:
                    self.runs[wanted.text]["right"] = base64.b64encode(np.packbits(bits).tobytes()).decode()

    def right(self, wanted: Wanted) -> np.ndarray | None:
        """Which test images it has right [M]; None: it is not known."""
        packed = self.runs[wanted.text].get("right")
        return None if packed is None else np.unpackbits(np.frombuffer(base64.b64decode(packed), dtype=np.uint8))


# --- runs


@dataclass(frozen=True)
class Machine:
    """Where the runs are trained: how many at a time, and overrides; with ``dry`` they are only printed."""

    at_once: int
    overrides: tuple[str, ...]
    dry: bool = False

    def train(self, design: Design, numbers: Numbers, wanted: Sequence[Wanted]) -> int:
        """Train what is missing, in the order given, and write the numbers on the way; return the exit code."""
        wanted = numbers.missing(wanted)
        requests = {one: tuple(merge(design.train, one.words, self.overrides)) for one in wanted}
        if self.dry:
            for one, words in requests.items():
                print(shlex.join(["ssl-bench", "train", *words, f"seed={one.seed}"]))
            return 0
        composed = compositions(dict.fromkeys(requests.values()), show_progress)
        if errors := [one for one in composed.values() if isinstance(one, ConfigError)]:
            raise errors[0]
        configs = {one: composed[words].config(one.seed) for one, words in requests.items()}
        self._collect(numbers, configs)
        left = numbers.missing(wanted)
        if not left:
            return 0
        plan = Plan(Asked.of([*self.overrides, "hydra/launcher=local", f"hydra.launcher.n_jobs={self.at_once}"], None, True))
        runs = [plan.run((*requests[one], f"seed={one.seed}"), configs[one], one.text) for one in left]
        if refused := plan.refused(runs):
            raise next(iter(refused.values()))
        plan.begin(shlex.join(["python", *sys.argv]))
        plan.total = len(runs)
        code, _ = train_grid(plan, self._rounds(plan.add(runs), numbers, configs))
        self._collect(numbers, configs)
        return code if code >= 128 else int(bool(numbers.missing(wanted)))  # one that diverged is an answer

    def _rounds(self, runs: Sequence[Run], numbers: Numbers, configs: Mapping[Wanted, dict[str, Any]]) -> Strategy:
        """Train the runs of a replicate, or as many as the machine trains at a time, and write their numbers."""
        size = 8 * math.ceil(self.at_once / 8)
        for start in range(0, len(runs), size):
            yield runs[start : start + size]
            self._collect(numbers, configs)

    def _collect(self, numbers: Numbers, configs: Mapping[Wanted, dict[str, Any]]) -> None:
        """Add the runs that have ended to the numbers."""
        ended = {run.training: run for run in finished(taken_outputs([*self.overrides]), DIVERGED)}
        before = len(numbers.runs)
        for one, config in configs.items():
            if one.text not in numbers.runs and (run := ended.get(recipe_id(config))) is not None:
                numbers.add(one, run)
        if len(numbers.runs) > before:
            numbers.write()


def run(design: Design, numbers: Numbers, machine: Machine) -> int:
    """Train what is missing, part by part: all points, then the optima that they give with fresh seeds."""
    for part in dict.fromkeys(cell.part for cell in design.cells):
        cells = [cell for cell in design.cells if cell.part == part]
        first = [design.controls] if cells[0] == design.cells[0] else []
        points = [point for cell in cells for point in design.points(cell)]
        if code := machine.train(design, numbers, [*first, *points]):
            return code
        if not numbers.missing(points):
            choose(design, numbers, part)
        tests = [
            test
            for cell in cells
            for replicate, optimum in numbers.optima.get(cell.name, {}).items()
            for test in design.tests(cell, replicate, optimum)
        ]
        if code := machine.train(design, numbers, tests):
            return code
        if machine.dry and not tests:
            print(f"# then 4 seeds at each of the {2 * len(cells)} optima of part {part}")
    return 0


def choose(design: Design, numbers: Numbers, part: str) -> None:
    """Choose the optima of a part whose points have run; those that are chosen stay."""
    for group in design.groups(part):
        if all(cell.name in numbers.optima for cell in group):
            continue
        values = np.array([[numbers.value(point, TUNED) for point in design.points(cell)] for cell in group])
        for replicate, of in REPLICATES.items():
            for cell, place in zip(group, tuned_twice.optima(values[:, of], PLACES[of], design.rules.floor), strict=True):
                axes = design.content["losses"][cell.loss]["over"]
                numbers.optima.setdefault(cell.name, {})[replicate] = at_place(axes, place)
    numbers.write()


def pilot(design: Design, numbers: Numbers, machine: Machine) -> int:
    """Train NT-Xent for either length, and print what the rule of the protocol chooses."""
    asked = design.content["pilot"]
    seeds, (low, middle, high) = asked["seeds"], asked["rates"]

    def wanted(epochs: int, rate: float, seed: int) -> Wanted:
        controls = ["evaluate.baselines=[raw,init]"] if (rate, seed) == (middle, seeds[0]) else []
        return Wanted((*asked["set"], *controls, f"optimizer.lr={rate}", f"epochs={epochs}"), seed)

    every = [
        wanted(epochs, rate, seed)
        for epochs in asked["epochs"]
        for rate, seed in [*((middle, seed) for seed in seeds), (low, seeds[0]), (high, seeds[0])]
    ]
    code = machine.train(design, numbers, every)
    if code or machine.dry:
        return code
    fits = dict[int, bool]()
    for epochs in asked["epochs"]:
        of_seeds = [numbers.value(wanted(epochs, middle, seed), TUNED) for seed in seeds]
        sides = [numbers.value(wanted(epochs, rate, seeds[0]), TUNED) for rate in (low, high)]
        first = wanted(epochs, middle, seeds[0])
        controls = [numbers.value(first, f"{TUNED}_{name}") for name in ("raw", "init")]
        height, deviation = float(np.mean(of_seeds)), float(np.std(of_seeds, ddof=1))
        cost, gap = height - float(np.mean(sides)), height - max(controls)
        fits[epochs] = deviation <= 0.5 and gap >= design.gap and cost >= 1.5
        seconds = numbers.runs[first.text]["seconds"]
        print(
            f"{epochs} epochs: {height:.2f}, deviation {deviation:.2f} (at most 0.5), {gap:.1f} above raw pixels and "
            f"random weights (at least {design.gap:g}), a factor of four in the rate costs {cost:.2f} (at least 1.5), "
            f"{seconds} s a run"
        )
    short, long = asked["epochs"]
    print(f"so epochs: {short if fits[short] else long}")
    return 0


# --- tables


@dataclass(frozen=True)
class Comparison:
    """What the numbers that are there say.

    Attributes:
        tested: of the cells that are measured whole, the accuracies of each replicate.
        decided: the questions; ``obstacle`` says why none is answered, empty if they are.
    """

    tested: dict[str, dict[str, list[float]]]
    decided: Decided
    obstacle: str


def compare(design: Design, numbers: Numbers) -> Comparison:
    """Answer the questions by the cells whose replicates are both whole."""
    tested, right = dict[str, dict[str, list[float]]](), dict[str, np.ndarray | None]()
    for cell in design.cells:
        optimum = numbers.optima.get(cell.name, {})
        runs = {replicate: design.tests(cell, replicate, at) for replicate, at in optimum.items()}
        if runs and not numbers.missing(test for of in runs.values() for test in of):
            tested[cell.name] = {name: [numbers.value(test, TESTED) for test in of] for name, of in runs.items()}
            bits = [numbers.right(test) for of in runs.values() for test in of]
            right[cell.name] = np.array(bits) if all(of is not None for of in bits) else None
    known = {name: of for name, of in right.items() if of is not None}
    means = {name: [float(np.mean(values)) for values in of.values()] for name, of in tested.items()}
    whole = known if len(known) == len(right) else None
    decided = tuned_twice.decide(design.questions, means, design.rules.margin, whole)
    reference = f"{design.reference}, {design.at}"
    near = [f"{name} {of:.1f}" for name, of in controls(design, numbers).items() if name != "labels"]
    high = np.mean(means[reference]) - design.gap if reference in means else math.nan
    obstacle = "" if near else "raw pixels and random weights are not measured"
    if any(of > high for name, of in controls(design, numbers).items() if name != "labels"):
        obstacle = f"{' and '.join(near)} not {design.gap:g} below {reference}"
    return Comparison(tested, decided, obstacle)


def controls(design: Design, numbers: Numbers) -> dict[str, float]:
    """Accuracies of raw pixels, random weights and a network that is trained with the labels."""
    if numbers.missing([design.controls]):
        return {}
    names = {"raw pixels": f"{TESTED}_raw", "random weights": f"{TESTED}_init", "labels": TESTED}
    return {words: numbers.value(design.controls, name) for words, name in names.items()}


def show(design: Design, numbers: Numbers) -> str:
    """The tables in Markdown."""
    compared, text = compare(design, numbers), list[str]()
    asked = [*(point for cell in design.cells for point in design.points(cell)), design.controls]
    tests = 8 * len(design.cells)
    done = len(asked) - len(numbers.missing(asked)) + 8 * len(compared.tested)
    text.append(f"{done} of {len(asked) + tests} runs of {design.epochs} epochs, by whole cells; of {_machines(numbers)}.")
    if found := controls(design, numbers):
        text.append("; ".join(f"{name} {value:.2f}" for name, value in found.items()) + ".")
    rows = [
        [name, *(f"{' '.join(numbers.optima[name][one])}: {_spread(of)}" for one, of in replicates.items()), _mean(replicates)]
        for name, replicates in compared.tested.items()
    ]
    decided = compared.decided
    if rows:
        text.append(markdown(["cell", "replicate a", "replicate b", "mean"], *rows))
        text.append(
            f"Deviation between the replicates of a cell: {decided.deviation:.2f}, pooled over {decided.degrees} cells. "
            f"Margin: {design.rules.margin:g}. 5% error for all {len(design.questions)} that are planned."
        )
        text.append(markdown(["question", "difference", "interval", "verdict"], *_answers(design, compared)))
        text += [f"No verdict: {compared.obstacle}."] * bool(compared.obstacle)
    whole = {cell: design.points(cell) for cell in design.cells if not numbers.missing(design.points(cell))}
    values = {cell: [np.array([numbers.value(p, of) for p in points]) for of in (TUNED, TESTED)] for cell, points in whole.items()}
    if whole:
        lowest = min(float(np.nanmin(tested)) for _, tested in values.values())
        values = {cell: [np.nan_to_num(tuned, nan=-math.inf), np.nan_to_num(tested, nan=lowest)] for cell, (tuned, tested) in values.items()}
        best = [[cell.name, *(f"{of:.2f}" for of in tuned_twice.expected(*both).values())] for cell, both in values.items()]
        text.append(markdown(["expected best of n points", *TRIALS], *best))
    for settings in design.content["shares"]:
        text += _shares(design, settings, {cell: tested for cell, (_, tested) in values.items()}, compared)
    return "\n\n".join(text) + "\n"


def _machines(numbers: Numbers) -> str:
    return "; ".join(", ".join(f"{name} {of}" for name, of in machine.items()) for machine in numbers.machines) or "no machine"


def _spread(values: Sequence[float]) -> str:
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f} ({len(values)})"


def _mean(replicates: Mapping[str, Sequence[float]]) -> str:
    return f"{np.mean([*replicates.values()]):.2f}"


def _answers(design: Design, compared: Comparison) -> Iterator[list[str]]:
    """A row for each question."""
    for question in design.questions:
        answer = compared.decided.answers.get(question.text)
        if answer is None:
            yield [question.text, "", "", "not run"]
            continue
        verdict = "no verdict" if compared.obstacle else answer.verdict or "undecided"
        difference = compared.decided.estimates[question.text]
        yield [question.text, f"{difference:+.2f}", f"[{answer.low:.2f}, {answer.high:.2f}]", verdict]


def _shares(
    design: Design, settings: Sequence[str], values: Mapping[Cell, np.ndarray], compared: Comparison
) -> Iterator[str]:
    """The shares of variance among the cells of settings, of the losses that have all points in each of them."""
    of = {(cell.loss, cell.setting): tested for cell, tested in values.items()}
    losses = [loss for loss in design.content["losses"] if all((loss, at) in of for at in settings)]
    if len(losses) < 2:
        return
    cells = [(loss, at) for loss in losses for at in settings]
    points = np.array([of[cell] for cell in cells])
    seeds = [np.var(run, ddof=1) for both in compared.tested.values() for run in both.values()]
    noise = (float(np.mean(seeds)), 3 * len(seeds)) if seeds else (0.0, 0)
    levels = {"loss": [loss for loss, _ in cells], "setting": [at for _, at in cells]}
    both = [tuned_twice.shares(levels, of_points, *noise) for of_points in (tuned_twice.clipped(points, design.rules.floor), points)]
    head = [f"share of the variance in percent, {' and '.join(settings)}", f"cut off {design.rules.floor:g} below the best", "all"]
    yield markdown(head, *([name, one, both[1][name]] for name, one in both[0].items()))


def simulated(design: Design, worlds: int) -> str:
    """How often the procedure errs, in Markdown: after part a, and after all parts."""
    rows = list[list[str]]()
    for parts in ("a", "".join(design.content["parts"])):
        groups = [[cell.name for cell in group] for part in parts for group in design.groups(part)]
        for roughness in (0.4, 0.7):
            told = tuned_twice.simulate(groups, design.questions, roughness, design.rules, worlds)
            rows.append([parts, f"{roughness}", *(f"{value:.3f}" for value in told.values())])
    return markdown(["parts", "roughness", *told], *rows)


@in_sentences
def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["show", "pilot", "run", "simulate"])
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the machine, such as paths.outputs=DIR")
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="runs at a time, of one thread each")
    parser.add_argument("--dry-run", action="store_true", help="print the commands of what is missing")
    parser.add_argument("--design", type=Path, default=DESIGN, metavar="FILE", help="the YAML file")
    parser.add_argument("--numbers", type=Path, metavar="FILE", help="written instead of the JSON file beside it")
    parser.add_argument("--worlds", type=int, default=300, help="of the simulation")
    options = parser.parse_intermixed_args(arguments)
    design = Design(options.design)
    beside = options.design.with_suffix(".json")
    numbers = Numbers(options.numbers or beside, beside)
    machine = Machine(options.at_once, ("threads=1", f"runs_per_gpu={options.at_once}", *options.overrides), options.dry_run)
    if options.command in ("run", "pilot"):
        return {"run": run, "pilot": pilot}[options.command](design, numbers, machine)
    print(show(design, numbers) if options.command == "show" else simulated(design, options.worlds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
