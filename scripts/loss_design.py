"""The design of the comparison of losses, from compare_losses.yaml, and the numbers that are there."""

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from tuned_twice import PLACES, Question, Rules

from ssl_bench import files
from ssl_bench.config.identity import recipe_id
from ssl_bench.papers.cells import flat
from ssl_bench.record import evaluations
from ssl_bench.record.runs import Run

DESIGN = Path(__file__).with_name("compare_losses.yaml")
TUNED, TESTED = "knn_val", "knn"  # what settings are chosen by, and what is compared
SEEDS = {"a": (18, 19, 20, 21), "b": (22, 23, 24, 25)}  # of the optimum of a replicate
KINDS = ("losses with a temperature", "others")
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

    part: str
    loss: str
    setting: str

    @property
    def name(self) -> str:
        """As it is printed."""
        return f"{self.loss}, {self.setting}"


class Design:
    """The design that the YAML file asks for."""

    def __init__(self, path: Path = DESIGN) -> None:
        self.path, self.content = path, yaml.safe_load(files.read_bytes(path).decode())
        self.rules, self.gap = Rules(**self.content["rules"]), float(self.content["gap"])
        self.epochs: int = self.content["epochs"]
        self.train = flat(self.content["train"])
        self.reference, self.at = self.content["reference"], self.content["at"]
        parts = self.content["parts"].items()
        self.cells = [Cell(part, loss, at) for part, of in parts for at, losses in of.items() for loss in losses]

    @property
    def controls(self) -> Wanted:
        """The run of the labels, which measures raw pixels and random weights as well."""
        return Wanted((*self.content["controls"], f"epochs={self.epochs}"), 0)

    def points(self, cell: Cell) -> list[Wanted]:
        """The 16 points of a cell, of which the first half is replicate a."""
        return [Wanted(self._words(cell, at_place(self.axes(cell), place)), 0) for place in PLACES.tolist()]

    def axes(self, cell: Cell) -> Mapping[str, Sequence[float]]:
        """The two keys that a cell is tuned over, with the ends of their ranges."""
        ranges: Mapping[str, Sequence[float]] = self.content["losses"][cell.loss]["over"]
        return ranges

    @cached_property
    def kinds(self) -> dict[str, str]:
        """That of each cell by its name."""
        return {cell.name: KINDS["temperature.tau" not in self.axes(cell)] for cell in self.cells}

    def tests(self, cell: Cell, optima: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[str, list[Wanted]]:
        """The fresh seeds at the optimum of each replicate; empty before they are chosen."""
        return {
            name: [Wanted(self._words(cell, optimum), seed, images=True) for seed in SEEDS[name]]
            for name, optimum in optima.get(cell.name, {}).items()
        }

    def _words(self, cell: Cell, point: Sequence[str]) -> tuple[str, ...]:
        setting = self.content["settings"][cell.setting]
        longer = setting.get("longer", 1)
        slower = [f"optimizer.warmup_epochs={longer / 2:g}"] if longer > 1 else []
        of_loss = self.content["losses"][cell.loss]["set"]
        return (*of_loss, *setting["set"], *slower, *point, f"epochs={longer * self.epochs}")

    def groups(self, part: str) -> list[list[Cell]]:
        """The cells of a part that share a kernel: those of one batch."""
        groups = dict[str, list[Cell]]()
        for cell in self.cells:
            if cell.part == part:
                words = self.content["settings"][cell.setting]["set"]
                groups.setdefault(next(word for word in words if word.startswith("batch_size=")), []).append(cell)
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

    def add(self, wanted: Wanted, run: Run) -> None:
        """Add a run that has its results."""
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

    def add_diverged(self, texts: Iterable[str]) -> None:
        """Add runs that became not finite."""
        self.runs |= {text: {"diverged": True} for text in texts}

    def of_points(self, points: Sequence[Wanted]) -> tuple[np.ndarray, np.ndarray]:
        """The values to choose points by, and those to compare [points]; one that diverged has the lowest."""
        tuned, tested = (np.array([self.value(point, name) for point in points]) for name in (TUNED, TESTED))
        return np.nan_to_num(tuned, nan=-math.inf), np.nan_to_num(tested, nan=float(np.nanmin(tested)))

    def diverged(self, tests: Mapping[str, Sequence[Wanted]]) -> bool:
        """Whether a run at what was chosen for a cell diverged, which then answers no question."""
        return any(self.runs.get(test.text, {}).get("diverged") for of in tests.values() for test in of)

    def of_tests(self, tests: Mapping[str, Sequence[Wanted]]) -> dict[str, list[float]]:
        """The accuracies of both replicates of a cell; empty as long as one is missing, or if one diverged."""
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
