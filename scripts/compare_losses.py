"""The comparison of losses, each tuned several times from nothing. The head of compare_losses.yaml is its protocol.

    python scripts/compare_losses.py show                # the tables and verdicts of the committed numbers
    python scripts/compare_losses.py run --dry-run       # the commands of what is missing
    python scripts/compare_losses.py run --at-once 2     # train it; compare_losses.json is written after 8 runs each
    python scripts/compare_losses.py simulate            # how often the procedure errs

``run`` asks the numbers what is missing, so that another machine goes on where the last one stopped. Settings of a
machine follow as overrides: ``paths.outputs=DIR``, ``device=cpu``.
"""

import argparse
import itertools
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tuned_twice
from loss_design import DESIGN, TUNED, Cell, Design, Numbers, Wanted, at_place
from tuned_twice import PLACES, POINTS, TRIALS, Decided

import ssl_bench
from ssl_bench.commands.arguments import in_sentences
from ssl_bench.errors import RunError
from ssl_bench.papers.cells import merge
from ssl_bench.record import runs


@dataclass(frozen=True)
class Machine:
    """Where the runs are trained: how many at a time, and overrides; with ``dry`` they are only printed."""

    at_once: int
    overrides: tuple[str, ...]
    dry: bool = False

    def train(self, design: Design, numbers: Numbers, wanted: Sequence[Wanted]) -> None:
        """Train what is missing, the seeds of a setting in one call, and write the numbers after each."""
        wanted, calls = numbers.missing(wanted), dict[tuple[str, ...], list[Wanted]]()
        for one in wanted:
            calls.setdefault(tuple(merge(design.train, one.words, self.overrides)), []).append(one)
        for words, of in calls.items():
            if self.dry:
                print("\n".join(shlex.join(["ssl-bench", "train", *words, f"seed={one.seed}"]) for one in of))
            else:
                self._call(words, numbers, of)

    def _call(self, words: Sequence[str], numbers: Numbers, wanted: Sequence[Wanted]) -> None:
        """Train the seeds of a setting, and add their numbers; one that diverges is an answer."""
        jobs, seeds = min(self.at_once, len(wanted)), ",".join(str(one.seed) for one in wanted)
        on_gpu = [f"launcher.runs_per_gpu={jobs}"] * (jobs > 1)
        try:
            table = ssl_bench.train([*words, f"seed={seeds}", *on_gpu], jobs=jobs)
        except RunError as error:
            if runs.DIVERGED not in str(error):
                raise
            if len(wanted) == 1:
                numbers.add(wanted[0], None)
            for one in wanted if len(wanted) > 1 else ():  # all have failed, for reasons of their own
                self._call(words, numbers, [one])
            return numbers.write()
        states = {int(row["seed"]): (row["state"], Path(row["path"])) for row in table.to_dict("records")}
        for one in wanted:
            state, path = states[one.seed]
            if state in ("finished", "diverged"):
                numbers.add(one, runs.read(path) if state == "finished" else None)
        numbers.write()


def run(design: Design, numbers: Numbers, machine: Machine) -> int:
    """Train what is missing, in the order of the design: points, then fresh seeds at the optima that they give."""
    machine.train(design, numbers, [design.controls])
    for group in design.groups:
        points = [point for cell in group for of in design.points(cell).values() for point in of]
        machine.train(design, numbers, points)
        if not numbers.missing(points):
            choose(design, numbers, group)
        tests = [design.tests(cell, numbers.optima) for cell in group]
        machine.train(design, numbers, [test for each in tests for of in each.values() for test in of])
        if not all(tests):
            print(f"# then the seeds at the optima of {'; '.join(cell.name for cell in group)}")
    every = [one for cell in design.cells for of in design.tests(cell, numbers.optima).values() for one in of]
    return int(not machine.dry and bool(numbers.missing(every)))


def choose(design: Design, numbers: Numbers, group: Sequence[Cell]) -> None:
    """Choose the optima of cells whose points have run; those that are chosen stay."""
    for number, replicate in enumerate(design.seeds(group[0])):
        if all(replicate in numbers.optima.get(cell.name, {}) for cell in group):
            continue
        points = [design.points(cell)[replicate] for cell in group]
        values = np.array([[numbers.value(point, TUNED) for point in of] for of in points])
        places = tuned_twice.optima(values, PLACES[POINTS * number :][:POINTS], design.rules.floor)
        for cell, place in zip(group, places, strict=True):
            numbers.optima.setdefault(cell.name, {}).setdefault(replicate, at_place(design.axes(cell), place))
    numbers.write()


Tested = Mapping[Cell, Mapping[str, Sequence[float]]]  # accuracies of each replicate


def measured(design: Design, numbers: Numbers, third: bool = False) -> Tested:
    """The accuracies of the cells all of whose fresh seeds have run, or of those of the third edition."""
    found = {cell: numbers.of_tests(design.tests(cell, numbers.optima, third)) for cell in design.cells}
    return {cell: of for cell, of in found.items() if of}


def show(design: Design, numbers: Numbers) -> str:
    """The tables in Markdown."""
    points = {cell: [one for of in design.points(cell).values() for one in of] for cell in design.cells}
    asked = [design.controls, *itertools.chain.from_iterable(points.values())]
    tested, controls = measured(design, numbers), numbers.controls(design)
    tests = sum(len(of) for cell in design.cells for of in design.seeds(cell).values())
    done = sum(len(of) for both in tested.values() for of in both.values())
    machines = "; ".join(", ".join(f"{name} {of}" for name, of in one.items()) for one in numbers.machines)
    epochs, chosen = design.content["epochs"], len(asked) - len(numbers.missing(asked))
    text = [
        f"{chosen} of {len(asked)} runs that choose settings and {done} of {tests} at what was chosen, of {epochs} "
        f"epochs; {sum('diverged' in of for of in numbers.runs.values())} diverged; machines: {machines or 'none'}.",
        f"All have {epochs} epochs: a batch of 32 takes four times the steps of one of 128, and 512 a quarter.",
        *(["; ".join(f"{name} {value:.2f}" for name, value in controls.items()) + "."] if controls else []),
    ]
    if earlier := measured(design, numbers, third=True):
        text += ["Third edition, seeds 18 to 25:", _cells(numbers, earlier)]
    if tested:
        text += ["Fourth edition:", _cells(numbers, tested)]
    text += _compared(design, numbers, tested, decide(design, numbers, tested), _obstacle(design, tested, controls))
    run = {cell: numbers.of_points([p for p in of if p.text in numbers.runs]) for cell, of in points.items()}
    best = {cell: tuned_twice.expected(*of).values() for cell, of in run.items() if len(of[0]) >= 2 * POINTS}
    if best:
        rows = ([cell.name, *(f"{value:.2f}" for value in of)] for cell, of in best.items())
        text.append(markdown(["expected best of n points", *TRIALS], *rows))
    return "\n\n".join(text) + "\n"


def decide(design: Design, numbers: Numbers, tested: Tested) -> Decided:
    """Answer the questions by the cells whose replicates are all whole."""
    means = {cell.name: [float(np.mean(of)) for of in both.values()] for cell, both in tested.items()}
    right = {cell.name: numbers.right(design.tests(cell, numbers.optima)) for cell in tested}
    known = {name: of for name, of in right.items() if of is not None}
    whole = known if len(known) == len(right) else None
    return tuned_twice.decide(design.questions, means, design.kinds, design.rules, whole)


def _obstacle(design: Design, tested: Tested, controls: Mapping[str, float]) -> str:
    """Why nothing is decided; empty if it is."""
    reference = next((both for cell, both in tested.items() if cell.name == design.reference), None)
    if not controls or reference is None:
        return "raw pixels, random weights or the reference are not measured"
    height = float(np.mean([*reference.values()]))
    near = [name for name in ("raw pixels", "random weights") if height - controls[name] < design.gap]
    return f"{' and '.join(near)} not {design.gap:g} below {design.reference}" if near else ""


def _cells(numbers: Numbers, tested: Tested) -> str:
    """The table of cells."""

    def told(cell: Cell, replicate: str, of: Sequence[float]) -> str:
        at = " ".join(re.sub(r"^[a-z_]+\.", "", word) for word in numbers.optima[cell.name][replicate])
        return f"{np.mean(of):.2f} ± {np.std(of, ddof=1):.2f} at {at}"

    names = [*max((both for both in tested.values()), key=len)]
    rows = list[list[str]]()
    for cell, both in tested.items():
        replicates = [told(cell, name, both[name]) if name in both else "" for name in names]
        rows.append([cell.name, *replicates, f"{np.mean([np.mean(of) for of in both.values()]):.2f}"])
    return markdown(["cell", *(f"replicate {name}" for name in names), "mean"], *rows)


def _compared(design: Design, numbers: Numbers, tested: Tested, decided: Decided, obstacle: str) -> Iterator[str]:
    """The table of questions, and what its intervals are of."""
    rules, rows = design.rules, list[list[str]]()
    diverged = {cell.name for cell in design.cells if numbers.diverged(design.tests(cell, numbers.optima))}

    def told(answer: Sequence[float] | None) -> list[str]:
        if answer is None:
            return ["", ""]
        return [f"{answer[0]:+.2f} [{answer[1]:.2f}, {answer[2]:.2f}]", rules.verdict(answer[1], answer[2])]

    for of in design.questions:
        row = told(decided.answers.get(of.text))
        if not row[0]:
            row[1] = "diverged" if {of.of, of.minus} & diverged else "not run"
        elif obstacle:
            row[1] = "no verdict"
        rows.append([of.text, *told(of.third), *row, "" if of.paper is None else f"{of.paper:+g}"])
    yield markdown(["question", "third edition", "verdict", "fourth edition", "verdict", "the paper's own"], *rows)
    for kind, (error, block, cells) in decided.deviations.items():
        beside = f"beside cell and block, a block by {block:.2f} ({cells} cells)"
        yield f"{kind[0].upper()}{kind[1:]}: a replicate deviates by {error:.2f} {beside}."
    yield f"Margin: {rules.margin:g}, error of all verdicts: {rules.error:.2g}. {design.content.get('simulated', '')}"
    if obstacle and tested:
        yield f"No verdict: {obstacle}."


def simulated(design: Design, worlds: int, only: int | None) -> str:
    """The error rates of the procedure, in Markdown; ``only``: the number of one of the four roughnesses, None: all."""
    groups = [[cell.name for cell in group] for group in design.groups]
    seeds = {kind: [*map(len, of.values())] for kind, of in design.content["kinds"].items()}
    rows, told = list[list[str]](), dict[str, float]()
    for rough in [*itertools.product((0.4, 0.7), (0.7, 1.5))][slice(*([only, only + 1] if only is not None else [4]))]:
        roughness = dict(zip(seeds, rough, strict=True))
        told = tuned_twice.simulate(groups, design.questions, design.kinds, seeds, roughness, design.rules, worlds)
        rows.append([*map(str, rough), *(f"{of:.3f}" for of in told.values())])
    return markdown([*(f"roughness of {kind}" for kind in seeds), *told], *rows)


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
    parser.add_argument("--worlds", type=int, default=200, help="of the simulation")
    parser.add_argument("--only", type=int, metavar="ROW", help="of the simulation, 0 to 3")
    options = parser.parse_intermixed_args(arguments)
    design, beside = Design(options.design), options.design.with_suffix(".json")
    numbers = Numbers(options.numbers or beside, beside)
    if options.command == "run":
        return run(design, numbers, Machine(options.at_once, ("threads=1", *options.overrides), options.dry_run))
    text = show(design, numbers) if options.command == "show" else simulated(design, options.worlds, options.only)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
