"""The comparison of losses: its points, optima, verdicts and tables, and how it goes on."""

import itertools
import json
import math
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from ssl_bench.config import schema
from ssl_bench.config.compositions import Composition, compositions
from ssl_bench.config.identity import recipe_id
from ssl_bench.papers.cells import merge

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
import compare_losses
import tuned_twice
from loss_design import Design, Numbers
from tuned_twice import Question, Rules


def test_the_best_of_n_points() -> None:
    """Of all samples, by brute force; the value is that of another metric."""
    random = np.random.default_rng(0)
    chosen, tested = random.normal(size=(2, 8))
    found = tuned_twice.expected(chosen, tested)
    assert found.keys() == {1, 2, 4, 8}
    for n, value in found.items():
        samples = [list(sample) for sample in itertools.combinations(range(8), n)]
        assert value == pytest.approx(np.mean([tested[s][np.argmax(chosen[s])] for s in samples]))


def test_verdicts_are_those_of_a_naive_computation() -> None:
    """Variances between replicates, pooled over cells of a kind, and of images; Holm over all that are planned."""
    random = np.random.default_rng(3)
    image = random.normal(0, 1, 400)
    right = {
        name: (image + random.normal(0, 0.3, 400) + random.normal(0, 0.4, (8, 400)) + shift > 0).astype(int)
        for name, shift in {"A": 0.0, "B": 0.5, "C": 0.02, "E": -0.5, "F": -0.5}.items()
    }
    replicates = {name: [100 * bits[:4].mean(), 100 * bits[4:].mean()] for name, bits in right.items()}
    kinds = {name: "one" if name in "ABC" else "other" for name in right}
    pairs = {"B less A": ("B", "A"), "C less A": ("C", "A"), "C less D": ("C", "D"), "E less A": ("E", "A")}
    questions = [Question(text, {one: 1, other: -1}) for text, (one, other) in pairs.items()]
    decided = tuned_twice.decide(questions, replicates, kinds, Rules(20, 0.05, 6), right)
    of_cell = {name: (one - other) ** 2 / 2 for name, (one, other) in replicates.items()}
    variances = {kind: np.mean([of_cell[name] for name in of_cell if kinds[name] == kind]) for kind in ("one", "other")}
    assert decided.deviations["one"] == pytest.approx((math.sqrt(variances["one"]), 3))
    assert decided.deviations["other"] == pytest.approx((math.sqrt(variances["other"]), 2))
    assert decided.answers.keys() == {"B less A", "C less A", "E less A"}  # D is not measured
    p, errors = dict[str, float](), dict[str, tuple[float, float, float]]()
    for text in decided.answers:
        sides = [right[name] for name in pairs[text]]
        joint = 0.0
        for bits in sides:
            rest = bits - bits.mean(1, keepdims=True) - bits.mean(0) + bits.mean()
            joint += (rest**2).sum() / (7 * 399) / 8
        images = 100**2 * ((sides[0].mean(0) - sides[1].mean(0)).var(ddof=1) - joint) / 400
        first, second = variances[kinds[text[0]]] / 2, variances["one"] / 2
        variance, count = first + second, 3
        if kinds[text[0]] == "other":
            count = variance**2 / (first**2 / 2 + second**2 / 3)
        degrees = (variance + images) ** 2 / (variance**2 / count + images**2 / 399)
        mean = float(np.mean(replicates[text[0]]) - np.mean(replicates["A"]))
        errors[text] = mean, math.sqrt(variance + images), degrees
        p[text] = 2 * stats.t.sf(abs(mean) / errors[text][1], degrees)
        assert images > 0 and decided.estimates[text] == pytest.approx(mean)
    assert p["B less A"] < 0.05 / 4 and p["E less A"] < 0.05 / 3 < p["C less A"]
    mean, error, degrees = errors["B less A"]
    assert decided.answers["B less A"].verdict.startswith("better")
    assert decided.answers["B less A"].low == pytest.approx(mean - stats.t.isf(0.05 / 4 / 2, degrees) * error)
    mean, error, degrees = errors["E less A"]  # of two kinds; the first of Holm's steps is that of B
    assert p["B less A"] < p["E less A"] and decided.answers["E less A"].verdict.startswith("worse")
    assert decided.answers["E less A"].high == pytest.approx(mean + stats.t.isf(0.05 / 3 / 2, degrees) * error)
    mean, error, degrees = errors["C less A"]
    assert decided.answers["C less A"].verdict.startswith("no ") and "20" in decided.answers["C less A"].verdict
    alone = tuned_twice.decide(questions[:3], replicates, kinds, Rules(0.01, 0.05, 6))  # without images
    assert [answer.verdict for answer in alone.answers.values()] == ["better", ""]
    half = stats.t.isf(0.05 / 2 / 2, 3) * math.sqrt(variances["one"])  # the second step of Holm, of two that are left
    assert (alone.answers["C less A"].high - alone.answers["C less A"].low) / 2 == pytest.approx(half)


def test_the_committed_design_asks_for_runs_that_can_be_and_its_earlier_points_serve() -> None:
    """The first point of each cell composes, all are different runs, and the run_ids of the points are those asked."""
    design = Design()
    assert len(design.cells) == 20 and len(design.questions) == 22
    others = {cell.loss for cell in design.cells if design.kinds[cell.name] == "others"}
    assert others == {"VICReg", "BYOL", "spectral", "alignment and uniformity"}
    numbers = Numbers(*2 * [design.path.with_suffix(".json")])
    points = {cell.name: design.points(cell) for cell in design.cells}
    earlier = [points[f"{loss}, 128"] for loss in ("NT-Xent", "DCL", "EqCo")]
    assert not numbers.missing(itertools.chain.from_iterable(earlier))
    asked = [design.controls, *(of[0] for of in points.values()), *(of[9] for of in earlier)]
    requests = {one: tuple(merge(design.train, one.words)) for one in asked}
    composed = compositions(requests.values())
    ids = list[str]()
    for one, words in requests.items():
        made = composed[words]
        assert isinstance(made, Composition), made
        schema.check(made.config(0))
        ids.append(recipe_id(made.config(0)))
        if one.text in numbers.runs:
            assert numbers.runs[one.text]["run_id"] == ids[-1], one.text
    assert len(set(ids)) == len(ids)
    assert {len({point.text for point in of}) for of in points.values()} == {16}


def test_the_documents_have_the_verdicts_of_the_committed_numbers() -> None:
    """The answer that opens README, and the rows of papers/README, have each difference, interval and verdict."""
    design = Design()
    numbers = Numbers(*2 * [design.path.with_suffix(".json")])
    tested = {cell: of for cell in design.cells if (of := numbers.of_tests(design.tests(cell, numbers.optima)))}
    decided = compare_losses.decide(design, numbers, tested)
    answers = {
        text: (decided.estimates[text], of.low, of.high)
        for text, of in decided.answers.items()
        if text.count(" less ") == 1 and "," in text.partition(" less ")[0]
    }
    assert len(answers) == 15
    root, triple = Path(__file__).parents[1], re.compile(r"(-?\d+\.\d\d) \[(-?\d+\.\d\d), (-?\d+\.\d\d)\]")
    tables = {"README.md": ("| what was changed", 7), "ssl_bench/papers/README.md": ("| seeds 18", 15)}
    for path, (head, count) in tables.items():
        table = (root / path).read_text().partition(f"\n{head}")[2].partition("\n\n")[0]
        found = list[str]()
        for line in table.splitlines()[2:]:
            loss, *means = re.split(r" *\| *", line.partition(": ")[2] or line[2:])[:4]
            height = {cell.name: [*map(np.mean, both.values())] for cell, both in tested.items() if cell.loss == loss}
            for number in triple.findall(line):
                values = pytest.approx([float(value) for value in number], abs=0.00501)
                (text,) = (text for text, of in answers.items() if of == values)
                if path != "README.md":  # a row is a cell
                    a, b = height[text.partition(" less ")[0]]
                    assert [float(mean) for mean in means] == pytest.approx([a, b, (a + b) / 2], abs=0.00501), line
                assert (decided.answers[text].verdict or "undecided") in re.split(r" *\| *", line), line
                found.append(text)
        assert len(set(found)) == len(found) == count, path


def test_what_the_committed_numbers_lack_is_planned_and_what_they_have_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert compare_losses.main(["run", "--dry-run"]) == 0
    assert "ssl-bench train name=losses " in capsys.readouterr().out
    assert compare_losses.main(["show"]) == 0
    shown = capsys.readouterr().out
    assert all(f"| {question.text} |" in shown for question in Design().questions)


@pytest.mark.slow
def test_a_design_is_run_once_and_what_a_cut_file_lacks_is_collected_again(tmp_path: Path) -> None:
    path = Path(shutil.copy(Path(__file__).with_name("design.yaml"), tmp_path))
    words = ["run", "--at-once", "2", "--design", str(path), "paths.outputs=outputs"]
    assert compare_losses.main(words) == 0
    numbers = json.loads(path.with_suffix(".json").read_text())
    assert len(numbers["runs"]) == 1 + 16 + 8 and numbers["optima"].keys() == {"DCL, 64"}
    cut = numbers | {"runs": numbers["runs"][:9]}  # as if the machine had gone away
    path.with_suffix(".json").write_text(json.dumps(cut))
    assert compare_losses.main(words) == 0
    again = json.loads(path.with_suffix(".json").read_text())["runs"]
    assert {run["run"] for run in again} == {run["run"] for run in numbers["runs"]}
    assert len(list(Path("outputs/losses").glob("*/results.json"))) == 25
