"""The design of the comparison of losses, from compare_losses.yaml, and the numbers that are there."""

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from tuned_twice import PLACES, POINTS, Question, Rules

from ssl_bench import files
from ssl_bench.config.identity import recipe_id
from ssl_bench.papers.cells import flat
from ssl_bench.record import evaluations
from ssl_bench.record.runs import Run

DESIGN = Path(__file__).with_name("compare_losses.yaml")
TUNED, TESTED = "knn_val", "knn"  # what settings are chosen by, and what is compared
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
        """Its name in the file of numbers."""
        return " ".join((*self.words, f"seed={self.seed}"))


@dataclass(frozen=True)
class Cell:
    """A loss in a setting."""

    loss: str
    setting: str

    @property
    def name(self) -> str:
        """As it is printed."""
        return f"{self.loss}, {self.setting}"


class Design:
    """The design that the YAML file asks for.

    Attributes:
        groups: cells whose surfaces share a kernel, in the order in which they run.
        kinds: that of each cell by its name.
        questions: that are asked.
    """

    def __init__(self, path: Path = DESIGN) -> None:
        self.path, self.content = path, yaml.safe_load(files.read_bytes(path).decode())
        self.rules, self.gap = Rules(**self.content["rules"]), float(self.content["gap"])
        self.train, self.reference = flat(self.content["train"]), str(self.content["reference"])
        self.groups = [[Cell(loss, of["at"]) for loss in of["losses"]] for of in self.content["cells"]]
        self.cells = [cell for group in self.groups for cell in group]
        kinds = [*self.content["kinds"]]
        self.kinds = {cell.name: kinds["temperature.tau" not in self.axes(cell)] for cell in self.cells}
        self.questions = [Question(of.pop("of"), of.pop("minus"), **of) for of in self.content["questions"]]

    @property
    def controls(self) -> Wanted:
        """The run of the labels, which measures raw pixels and random weights as well."""
        return Wanted((*self.content["controls"], f"epochs={self.content['epochs']}"), 0)

    def axes(self, cell: Cell) -> Mapping[str, Sequence[float]]:
        """The two keys that a cell is tuned over, with the ends of their ranges."""
        ranges: Mapping[str, Sequence[float]] = self.content["losses"][cell.loss]["over"]
        return ranges

    def seeds(self, cell: Cell) -> Mapping[str, Sequence[int]]:
        """The fresh seeds of each replicate of a cell."""
        of: Mapping[str, Sequence[int]] = self.content["kinds"][self.kinds[cell.name]]
        return of

    def points(self, cell: Cell) -> dict[str, list[Wanted]]:
        """The points of each replicate of a cell."""
        at = {name: PLACES[POINTS * number :][:POINTS].tolist() for number, name in enumerate(self.seeds(cell))}
        words = {name: [self._words(cell, at_place(self.axes(cell), place)) for place in of] for name, of in at.items()}
        return {name: [Wanted(point, 0) for point in of] for name, of in words.items()}

    def tests(self, cell: Cell, optima: Mapping[str, Mapping[str, Sequence[str]]], third: bool = False) -> Any:
        """The fresh seeds at the optimum of each replicate, by its name; empty before they are all chosen.

        Args:
            third: those of the third edition.
        """
        chosen, seeds = optima.get(cell.name, {}), self.content["third"] if third else self.seeds(cell)
        if not seeds.keys() <= chosen.keys():
            return {}
        return {n: [Wanted(self._words(cell, chosen[n]), s, images=True) for s in of] for n, of in seeds.items()}

    def _words(self, cell: Cell, point: Sequence[str]) -> tuple[str, ...]:
        of_loss, of_setting = self.content["losses"][cell.loss]["set"], self.content["settings"][cell.setting]
        return (*of_loss, *of_setting, *point, f"epochs={self.content['epochs']}")


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
        """The wanted runs that have not run."""
        return [one for one in wanted if one.text not in self.runs]

    def add(self, wanted: Wanted, run: Run | None) -> None:
        """Add a run that has its results; None: it diverged."""
        if run is None:
            self.runs[wanted.text] = {"diverged": True}
            return
        machine = {name: run.environment.get(name) for name in VERSIONS}
        if machine not in self.machines:
            self.machines.append(machine)
        metrics = run.results["metrics"].items()
        self.runs[wanted.text] = {
            "values": {name.partition("/")[0]: round(100 * of, 4) for name, of in metrics if name.endswith("/top1")},
            "run_id": recipe_id(run.config),
            "seconds": round(run.results["seconds"]),
            "machine": self.machines.index(machine),
            "commit": str(run.environment.get("git") or "")[:7],
        }
        if wanted.images:
            for entry in run.results["evaluations"]:
                if (bits := evaluations.read_hits(run.folder, entry, f"{TESTED}/top1")) is not None:
                    self.runs[wanted.text]["right"] = base64.b64encode(np.packbits(bits).tobytes()).decode()

    def of_points(self, points: Sequence[Wanted]) -> tuple[np.ndarray, np.ndarray]:
        """The values to choose points by, and those to compare [points]; one that diverged has the lowest."""
        tuned, tested = (np.array([self.value(point, name) for point in points]) for name in (TUNED, TESTED))
        return np.nan_to_num(tuned, nan=-math.inf), np.nan_to_num(tested, nan=float(np.nanmin(tested)))

    def diverged(self, tests: Mapping[str, Sequence[Wanted]]) -> bool:
        """Whether a run at what was chosen for a cell diverged, which then answers no question."""
        return any(self.runs.get(test.text, {}).get("diverged") for of in tests.values() for test in of)

    def of_tests(self, tests: Mapping[str, Sequence[Wanted]]) -> dict[str, list[float]]:
        """The accuracies of each replicate of a cell; empty as long as one is missing, or if one diverged."""
        if self.diverged(tests) or self.missing(test for of in tests.values() for test in of):
            return {}
        return {replicate: [self.value(test, TESTED) for test in of] for replicate, of in tests.items()}

    def right(self, tests: Mapping[str, Sequence[Wanted]]) -> np.ndarray | None:
        """Which test images the runs of a cell have right [runs, M]; None: it is not known of all."""
        runs = [self.runs[test.text] for of in tests.values() for test in of]
        if not all("right" in run for run in runs):
            return None
        return np.stack([np.unpackbits(np.frombuffer(base64.b64decode(run["right"]), dtype=np.uint8)) for run in runs])

    def controls(self, design: Design) -> dict[str, float]:
        """Accuracies of raw pixels, random weights and a network that is trained with the labels; empty before."""
        if self.missing([design.controls]):
            return {}
        names = {"raw pixels": f"{TESTED}_raw", "random weights": f"{TESTED}_init", "labels": TESTED}
        return {words: self.value(design.controls, name) for words, name in names.items()}
