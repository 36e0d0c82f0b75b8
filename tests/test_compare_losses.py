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
    """Cells and blocks of each kind by least squares, images; one pass over both kinds of verdicts."""
    random = np.random.default_rng(3)
    image = random.normal(0, 1, 400)
    kinds = {"A": "one", "B": "one", "C": "one", "E": "other", "F": "other"}
    shifts = {"A": 0.0, "B": 1.5, "C": 0.02, "E": -1.5, "F": -1.4}
    right = {
        name: (image + random.normal(0, 0.3, 400) + random.normal(0, 0.4, (8, 400)) + shift > 0).astype(int)
        for name, shift in shifts.items()
    }
    blocks = {"one": [0.0, 2.0], "other": [0.0, 1.0, -1.0, 0.5]}
    replicates = {
        name: [100 * bits[one::count].mean() + of for one, of in enumerate(blocks[kinds[name]])]
        for name, bits in right.items()
        if (count := len(blocks[kinds[name]]))
    }
    questions, rules = [Question(*pair) for pair in ("BA", "CA", "CD", "EA")], Rules(9, 0.05, 6)
    decided = tuned_twice.decide(questions, replicates, kinds, rules, right)
    parts = dict[str, tuple[float, float]]()  # mean squares of errors and of blocks
    for kind, names in {"one": "ABC", "other": "EF"}.items():
        table = np.array([replicates[name] for name in names])
        cells, count = table.shape
        x = np.array([[*np.eye(cells)[i], *np.eye(count)[j]] for i in range(cells) for j in range(count)])
        left = table.ravel() - x @ np.linalg.lstsq(x, table.ravel(), rcond=None)[0]
        between = ((table - table.mean(1, keepdims=True)) ** 2).sum() - (left**2).sum()
        parts[kind] = (left**2).sum() / (cells - 1) / (count - 1), between / (count - 1)
        assert decided.deviations[kind][0] == pytest.approx(math.sqrt(parts[kind][0]))
    assert decided.answers.keys() == {"B minus A", "C minus A", "E minus A"}  # D is not measured
    found = dict[str, tuple[float, float, float]]()
    for text, answer in decided.answers.items():
        joint, sides = 0.0, [right[text[0]], right["A"]]
        for bits in sides:
            rest = bits - bits.mean(1, keepdims=True) - bits.mean(0) + bits.mean()
            joint += (rest**2).sum() / (7 * 399) / 8
        images = 100**2 * ((sides[0].mean(0) - sides[1].mean(0)).var(ddof=1) - joint) / 400
        of = [(parts["one"][0], 2)]  # blocks cancel within a kind
        if text[0] == "E":  # the variance of a cell's mean is (blocks + (cells - 1) errors) / cells / replicates
            (own, block), (others, between) = parts["one"], parts["other"]
            of = [(own / 3, 2), (block / 6, 1), (others / 8, 3), (between / 8, 3)]
        variance = sum(part for part, _ in of)
        degrees = (variance + images) ** 2 / (sum(part**2 / free for part, free in of) + images**2 / 399)
        mean, error = np.mean(replicates[text[0]]) - np.mean(replicates["A"]), math.sqrt(variance + images)
        found[text] = float(mean), error, max(degrees, 1)
        assert images > 0 and answer.difference == pytest.approx(mean)
    verdicts = [rules.verdict(answer.low, answer.high) for answer in decided.answers.values()]
    assert verdicts[0] == "better" and verdicts[1].startswith("no ")
    for text, (mean, error, degrees) in found.items():
        half, answer = stats.t.isf(0.05 / 3 / 2, degrees) * error, decided.answers[text]
        bound = 9 if text == "C minus A" else math.inf
        assert answer.low == pytest.approx(max(mean - half, -bound))
        assert answer.high == pytest.approx(min(mean + half, bound))


def test_the_committed_design_asks_for_runs_that_can_be_and_its_earlier_points_serve() -> None:
    """The first point of each cell composes, all are different runs, and the run_ids of the points are those asked."""
    design = Design()
    numbers = Numbers(*2 * [design.path.with_suffix(".json")])
    assert len(design.cells) == 16 and len(design.questions) == 20
    assert {cell.loss for cell in design.cells if design.kinds[cell.name] == "others"} == {"VICReg", "BYOL"}
    points = {cell.name: design.points(cell) for cell in design.cells}
    assert not numbers.missing(one for of in points.values() for name in "ab" for one in of[name])
    assert sum(len(of) for each in points.values() for name, of in each.items() if name > "b") == 32
    tests = [one for cell in design.cells for of in design.tests(cell, numbers.optima).values() for one in of]
    assert len(tests) == 16 * 16 and len({one.text for one in tests}) == len(tests)
    asked = [design.controls, tests[0], *(of[0] for each in points.values() for of in each.values())]
    requests = {one: tuple(merge(design.train, one.words)) for one in asked}
    composed, ids = compositions(requests.values()), list[str]()
    for one, words in requests.items():
        made = composed[words]
        assert isinstance(made, Composition), made
        schema.check(made.config(one.seed))
        ids.append(recipe_id(made.config(one.seed)))
        if one.text in numbers.runs:
            assert numbers.runs[one.text]["run_id"] == ids[-1], one.text
    assert len(set(ids)) == len(ids)


def test_the_documents_have_the_answers() -> None:
    """The answer that opens README, and the rows of papers/README, have each difference, interval and verdict."""
    design = Design()
    numbers = Numbers(*2 * [design.path.with_suffix(".json")])
    cells = compare_losses.measured(design, numbers, third=True)
    means = {cell.name: np.mean([*both.values()]) for cell, both in cells.items()}
    away = [abs(means[of.of] - means[of.minus] - of.third[0]) for of in design.questions if of.third]
    assert len(away) == 15 and max(away) < 0.00501
    answers = compare_losses.decide(design, numbers, compare_losses.measured(design, numbers)).answers
    words = {f"{of[0]:.2f} [{of[1]:.2f}, {of[2]:.2f}]": design.rules.verdict(*of[1:3]) for of in answers.values()}
    root, triple = Path(__file__).parents[1], re.compile(r"-?\d+\.\d+ \[.*?\]")
    for path, (head, count) in {"README.md": ("| changed", 10), "ssl_bench/papers/README.md": ("| what", 20)}.items():
        table = (root / path).read_text().partition(f"\n{head}")[2].partition("\n\n")[0]
        found = {text: line for line in table.splitlines() for text in triple.findall(line)}
        assert len(found) == count and all(words[text].partition(";")[0] in found[text] for text in found), path


def test_what_the_committed_numbers_lack_is_planned_and_what_they_have_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert compare_losses.main(["run", "--dry-run"]) == 0
    planned = capsys.readouterr().out.count("ssl-bench train name=losses ")
    numbers = json.loads(compare_losses.DESIGN.with_suffix(".json").read_text())
    optima = sum(len(of.keys() & {"c", "d"}) for of in numbers["optima"].values())  # of replicates that are new
    # The runs of three editions, tests at known optima, points of new replicates, and four tests at each new optimum.
    assert planned + len(numbers["runs"]) == 445 + 224 + 32 + 4 * optima
    assert compare_losses.main(["show"]) == 0
    shown = capsys.readouterr().out
    assert all(f"| {question.text} |" in shown for question in Design().questions)
    assert compare_losses.main(["simulate", "--worlds", "1", "--only", "0"]) == 0
    assert "nan" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_design_is_run_once_and_what_a_cut_file_lacks_is_collected_again(tmp_path: Path) -> None:
    path = Path(shutil.copy(Path(__file__).with_name("design.yaml"), tmp_path))
    words = ["run", "--at-once", "2", "--design", str(path), "paths.outputs=outputs"]
    assert compare_losses.main(words) == 0
    numbers = json.loads(path.with_suffix(".json").read_text())
    assert len(numbers["runs"]) == 1 + 16 + 5 and numbers["optima"].keys() == {"DCL, 64"}
    cut = numbers | {"runs": numbers["runs"][:9]}  # as if the machine had gone away
    path.with_suffix(".json").write_text(json.dumps(cut))
    assert compare_losses.main(words) == 0
    again = json.loads(path.with_suffix(".json").read_text())["runs"]
    assert {run["run"] for run in again} == {run["run"] for run in numbers["runs"]}
    assert len(list(Path("outputs/losses").glob("*/results.json"))) == 22
