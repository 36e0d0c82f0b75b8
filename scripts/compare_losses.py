"""The comparison of losses, each tuned twice from nothing. The head of compare_losses.yaml is its protocol.

    python scripts/compare_losses.py show                # the tables and verdicts of the committed numbers
    python scripts/compare_losses.py run --dry-run       # the commands of what is missing
    python scripts/compare_losses.py run --at-once 2     # train it; compare_losses.json is written after 8 runs each
    python scripts/compare_losses.py simulate            # how often the procedure errs

``run`` asks the numbers what is missing, so that another machine goes on where the last one stopped. Settings of a
machine follow as overrides: ``paths.outputs=DIR``, ``device=cpu``.
"""

import argparse
import itertools
import math
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tuned_twice
from loss_design import DESIGN, KINDS, TUNED, Cell, Design, Numbers, Wanted, at_place
from tuned_twice import PLACES, REPLICATES, TRIALS, Decided

from ssl_bench.commands import grid_end
from ssl_bench.commands.arguments import in_sentences, show_progress, taken_outputs
from ssl_bench.config.command import Command
from ssl_bench.config.compositions import compositions
from ssl_bench.config.identity import recipe_id
from ssl_bench.errors import ConfigError
from ssl_bench.files import usual_outputs
from ssl_bench.launch.grid import Grid
from ssl_bench.launch.processes import DIVERGED
from ssl_bench.papers.cells import merge
from ssl_bench.record import runs

Configs = Mapping[Wanted, dict[str, Any]]


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
        for made in composed.values():
            if isinstance(made, ConfigError):
                raise made
        configs = {one: composed[words].config(one.seed) for one, words in requests.items()}
        self._collect(numbers, configs)
        if not (left := numbers.missing(wanted)):
            return 0
        launcher = [f"launcher.{key}={self.at_once}" for key in ("jobs", "runs_per_gpu")]
        command = Command.of([*self.overrides, "launcher=local", *launcher], None, True)
        code, size = 0, 8 * math.ceil(self.at_once / 8)
        while left and code < 128:  # a replicate, or as many as the machine trains at a time
            now, left = left[:size], left[size:]
            grid = Grid(command, shlex.join(["python", *sys.argv]))
            grid.runs = [grid.run((*requests[one], f"seed={one.seed}"), configs[one], one.text) for one in now]
            for refusal in grid.refused(grid.runs).values():
                raise refusal
            code = grid_end.train(grid)
            failed = {run.label: grid.ends[run.number].reason for run in grid.runs if run.number in grid.ends}
            numbers.add_diverged([label for label, reason in failed.items() if DIVERGED in reason])
            self._collect(numbers, configs)
        return code if code >= 128 else int(bool(numbers.missing(wanted)))  # one that diverged is an answer

    def _collect(self, numbers: Numbers, configs: Configs) -> None:
        """Add the runs that have their results to the numbers."""
        places = runs.folders(taken_outputs([*self.overrides]) or usual_outputs())
        done = {recipe_id(run.config): run for run in map(runs.read, places) if run.results}
        for one, config in configs.items():
            if one.text not in numbers.runs and (run := done.get(recipe_id(config))) is not None:
                numbers.add(one, run)
        numbers.write()


def run(design: Design, numbers: Numbers, machine: Machine) -> int:
    """Train what is missing, part by part: all points, then fresh seeds at the optima that they give."""
    for part in dict.fromkeys(cell.part for cell in design.cells):
        cells = [cell for cell in design.cells if cell.part == part]
        points = [point for cell in cells for point in design.points(cell)]
        controls = [design.controls] if cells[0] == design.cells[0] else []
        if code := machine.train(design, numbers, [*controls, *points]):
            return code
        if not (machine.dry or numbers.missing(points)):
            choose(design, numbers, part)
        tests = [test for cell in cells for of in design.tests(cell, numbers.optima).values() for test in of]
        if code := machine.train(design, numbers, tests):
            return code
        if not tests:
            print(f"# then 4 seeds at each of the {2 * len(cells)} optima of part {part}")
    return 0


def choose(design: Design, numbers: Numbers, part: str) -> None:
    """Choose the optima of a part whose points have run; those that are chosen stay."""
    for group in design.groups(part):
        if all(cell.name in numbers.optima for cell in group):
            continue
        values = np.array([[numbers.value(point, TUNED) for point in design.points(cell)] for cell in group])
        for replicate, of in REPLICATES.items():
            places = tuned_twice.optima(values[:, of], PLACES[of], design.rules.floor)
            for cell, place in zip(group, places, strict=True):
                numbers.optima.setdefault(cell.name, {})[replicate] = at_place(design.axes(cell), place)
    numbers.write()


def show(design: Design, numbers: Numbers) -> str:
    """The tables in Markdown."""
    points = {cell: design.points(cell) for cell in design.cells}
    asked = [design.controls, *(point for of in points.values() for point in of)]
    tested = {cell: of for cell in design.cells if (of := numbers.of_tests(design.tests(cell, numbers.optima)))}
    controls, decided = numbers.controls(design), decide(design, numbers, tested)
    done, tests = len(asked) - len(numbers.missing(asked)), 8 * len(design.cells)
    machines = "; ".join(", ".join(f"{name} {of}" for name, of in one.items()) for one in numbers.machines)
    text = [
        f"{done} of {len(asked)} runs that choose settings and {8 * len(tested)} of {tests} at what was chosen, of "
        f"{design.epochs} epochs; {sum('diverged' in of for of in numbers.runs.values())} diverged; "
        f"machines: {machines or 'none'}.",
        *(["; ".join(f"{name} {value:.2f}" for name, value in controls.items()) + "."] if controls else []),
    ]
    if tested:
        text += _compared(design, numbers, tested, decided, _obstacle(design, tested, controls))
    values = {cell: numbers.of_points(of) for cell, of in points.items() if not numbers.missing(of)}
    if values:
        best = {cell: tuned_twice.expected(*of).values() for cell, of in values.items()}
        rows = ([cell.name, *(f"{value:.2f}" for value in of)] for cell, of in best.items())
        text.append(markdown(["expected best of n points", *TRIALS], *rows))
    for settings in design.content["shares"]:
        text += _shares(design, settings, {(cell.loss, cell.setting): of[1] for cell, of in values.items()}, tested)
    return "\n\n".join(text) + "\n"


Tested = Mapping[Cell, Mapping[str, Sequence[float]]]  # accuracies of both replicates


def decide(design: Design, numbers: Numbers, tested: Tested) -> Decided:
    """Answer the questions by the cells whose replicates are both whole."""
    means = {cell.name: [float(np.mean(of)) for of in both.values()] for cell, both in tested.items()}
    right = {cell.name: numbers.right(design.tests(cell, numbers.optima)) for cell in tested}
    known = {name: of for name, of in right.items() if of is not None}
    whole = known if len(known) == len(right) else None
    return tuned_twice.decide(design.questions, means, design.kinds, design.rules, whole)


def _obstacle(design: Design, tested: Tested, controls: Mapping[str, float]) -> str:
    """Why nothing is decided; empty if it is."""
    reference = next((both for cell, both in tested.items() if cell.name == f"{design.reference}, {design.at}"), None)
    if not controls or reference is None:
        return "raw pixels, random weights or the reference are not measured"
    height = float(np.mean([*reference.values()]))
    near = [name for name in ("raw pixels", "random weights") if height - controls[name] < design.gap]
    return f"{' and '.join(near)} not {design.gap:g} below {design.reference}" if near else ""


def _compared(design: Design, numbers: Numbers, tested: Tested, decided: Decided, obstacle: str) -> Iterator[str]:
    """The tables of cells and of questions."""

    def told(cell: Cell, replicate: str, of: Sequence[float]) -> str:
        at = " ".join(re.sub(r"^[a-z_]+\.", "", word) for word in numbers.optima[cell.name][replicate])
        return f"{np.mean(of):.2f} ± {np.std(of, ddof=1):.2f} at {at}"

    rows = [
        [cell.name, *(told(cell, name, of) for name, of in both.items()), f"{np.mean([*both.values()]):.2f}"]
        for cell, both in tested.items()
    ]
    yield markdown(["cell", "replicate a", "replicate b", "mean"], *rows)
    deviations = (f"{of:.2f}, pooled over {cells} cells of {kind}" for kind, (of, cells) in decided.deviations.items())
    yield (
        f"Deviation between the replicates of a cell: {'; '.join(deviations)}. "
        f"Margin: {design.rules.margin:g}. An error of {design.rules.error:.0%} for all "
        f"{len(design.questions)} questions that are planned."
    )
    rows = []
    diverged = {cell.name for cell in design.cells if numbers.diverged(design.tests(cell, numbers.optima))}
    for question in design.questions:
        if (answer := decided.answers.get(question.text)) is None:
            rows.append([question.text, "", "", "diverged" if diverged & question.cells.keys() else "not run"])
            continue
        difference, interval = f"{decided.estimates[question.text]:+.2f}", f"[{answer.low:.2f}, {answer.high:.2f}]"
        rows.append([question.text, difference, interval, "no verdict" if obstacle else answer.verdict or "undecided"])
    yield markdown(["question", "difference", "interval", "verdict"], *rows)
    if obstacle:
        yield f"No verdict: {obstacle}."


def _shares(
    design: Design, settings: Sequence[str], values: Mapping[tuple[str, str], np.ndarray], tested: Tested
) -> Iterator[str]:
    """The shares of variance among the cells of settings, of the losses that have all points in each of them."""
    losses = [loss for loss in design.content["losses"] if all((loss, at) in values for at in settings)]
    if len(losses) < 2:
        return
    cells = [(loss, at) for loss in losses for at in settings]
    points, floor = np.array([values[cell] for cell in cells]), design.rules.floor
    of_seeds = [np.var(of, ddof=1) for both in tested.values() for of in both.values()]
    noise = (float(np.mean(of_seeds)), 3 * len(of_seeds)) if of_seeds else (0.0, 0)
    levels = {"loss": [loss for loss, _ in cells], "setting": [at for _, at in cells]}
    cut, whole = (tuned_twice.shares(levels, of, *noise) for of in (tuned_twice.clipped(points, floor), points))
    head = f"share of the variance in percent: {', '.join(losses)} at {', '.join(settings)}"
    yield markdown(
        [head, f"cut off {floor:g} below the best", "all"], *([name, cut[name], whole[name]] for name in cut)
    )


def simulated(design: Design, worlds: int) -> str:
    """How often the procedure errs if it stops after each part, in Markdown."""
    rows, parts = list[list[str]](), [*design.content["parts"]]
    for until in (parts[: count + 1] for count in range(len(parts))):
        groups = [[cell.name for cell in group] for part in until for group in design.groups(part)]
        for rough in itertools.product((0.4, 0.7), (0.7, 1.5)):
            roughness = dict(zip(KINDS, rough, strict=True))
            told = tuned_twice.simulate(groups, design.questions, design.kinds, roughness, design.rules, worlds)
            which = " to ".join(dict.fromkeys((until[0], until[-1])))
            rows.append([which, *map(str, rough), *(f"{of:.3f}" for of in told.values())])
    return markdown(["parts", *(f"roughness of {kind}" for kind in KINDS), *told], *rows)


def markdown(head: Iterable[object], *rows: Iterable[object]) -> str:
    """A table of a head and rows of cells."""
    lines = [[str(cell).replace("|", "/") for cell in row] for row in (head, *rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@in_sentences
def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["show", "run", "simulate"])
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the machine, such as paths.outputs=DIR")
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="runs at a time, of one thread each")
    parser.add_argument("--dry-run", action="store_true", help="print the commands of what is missing")
    parser.add_argument("--design", type=Path, default=DESIGN, metavar="FILE", help="the YAML file")
    parser.add_argument("--numbers", type=Path, metavar="FILE", help="written instead of the JSON file beside it")
    parser.add_argument("--worlds", type=int, default=300, help="of the simulation")
    options = parser.parse_intermixed_args(arguments)
    design, beside = Design(options.design), options.design.with_suffix(".json")
    numbers = Numbers(options.numbers or beside, beside)
    of_machine = ("threads=1", *options.overrides)
    if options.command == "run":
        return run(design, numbers, Machine(options.at_once, of_machine, options.dry_run))
    print(show(design, numbers) if options.command == "show" else simulated(design, options.worlds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
