"""The comparison of losses: its points, optima, verdicts and tables, and how it goes on."""

import base64
import itertools
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats

from ssl_bench.config import schema
from ssl_bench.config.compositions import Composition, compositions
from ssl_bench.config.identity import recipe_id
from ssl_bench.papers.cells import merge
from tests.conftest import SMALL

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
import compare_losses
import tuned_twice
from loss_design import Design, Numbers, Wanted, at_place
from tuned_twice import PLACES, REPLICATES, SOBOL, Question, Rules

Output = pytest.CaptureFixture[str]
TRAIN = [["name=losses", "dataset=scattered_digits", "max_steps=2", "evaluate.baselines=[]"]]
TRAIN += [[o for o in SMALL if not o.startswith("evaluate")], ["evaluate=[knn_val,knn]"]]
OVER = {"optimizer.lr": [0.1, 1], "temperature.tau": [0.1, 1]}
DESIGN: dict[str, Any] = {
    "epochs": 1,
    "rules": {"margin": 1.5, "error": 0.03, "floor": 6},
    "gap": 10,
    "reference": "NT-Xent",
    "at": "64",
    "train": TRAIN,
    "losses": {"NT-Xent": {"set": ["loss=infonce"], "over": OVER}, "DCL": {"set": ["loss=dcl"], "over": OVER}},
    "settings": {"64": {"set": ["batch_size=b64"]}, "32": {"set": ["batch_size=b32"]}},
    "parts": {"a": {"64": ["NT-Xent", "DCL"]}, "b": {"32": ["NT-Xent", "DCL"]}},
    "ends": [["32", "64"]],
    "shares": [["64"]],
    "controls": ["loss=infonce", "batch_size=b64", "evaluate.baselines=[raw,init]"],
}


@pytest.fixture
def design(tmp_path: Path) -> Design:
    """Two losses at two batch sizes."""
    path = tmp_path / "losses.yaml"
    path.write_text(yaml.safe_dump(DESIGN, sort_keys=False))
    return Design(path)


@pytest.fixture
def made(design: Design) -> Numbers:
    """Made numbers of part a, whose two losses differ by 3 points, without controls."""
    numbers, random = Numbers(*2 * [design.path.with_suffix(".json")]), np.random.default_rng(0)
    for cell in design.cells[:2]:
        numbers.optima[cell.name] = {name: at_place(OVER, PLACES[of][0]) for name, of in REPLICATES.items()}
        height = 50.0 + 3 * (cell.loss == "DCL")
        for point, place in zip(design.points(cell), PLACES, strict=True):
            value = round(height - 20 * float(((place - 0.5) ** 2).sum()), 2)
            numbers.runs[point.text] = {"values": {"knn_val": value, "knn": value + 1}}
        for test in itertools.chain.from_iterable(design.tests(cell, numbers.optima).values()):
            numbers.runs[test.text] = {"values": {"knn": round(height + random.normal(0, 0.3), 2)}}
    numbers.write()
    return numbers


def test_a_replicate_is_half_of_sobols_points() -> None:
    """As scipy gives them; each half has one in each of 4 x 2 equal parts of the square."""
    assert np.array_equal(SOBOL, qmc_points())
    for of in REPLICATES.values():
        assert len({(x // 4, y // 8) for x, y in SOBOL[of]}) == 8
    assert at_place({"optimizer.lr": [0.03, 3], "temperature.tau": [0.05, 0.5]}, PLACES[0]) == [
        "optimizer.lr=0.0346",  # 1/32 of the way
        "temperature.tau=0.0537",
    ]
    assert at_place({"framework.momentum": [0.9, 0.999]}, [0.5]) == ["framework.momentum=0.99"]  # below 1


def qmc_points() -> np.ndarray:
    return np.asarray(stats.qmc.Sobol(2, scramble=False).random(16) * 16)


def surface(top: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Accuracies with their highest, 52, at ``top``, and a cliff in a corner."""
    u, v = (places - top).T
    return 52 - (10 * u**2 + 14 * v**2 - 10 * u * v) - 20 * (u - v > 0.7)


def test_optima_are_near_those_of_known_surfaces() -> None:
    """What is lost; with fewer than 8 points of which one diverged, too, and whatever the cliff's depth is."""
    random = np.random.default_rng(0)
    tops, lost = random.uniform(0.35, 0.65, (10, 6, 2)), []
    for of_group in tops:
        for of in REPLICATES.values():
            values = np.stack([surface(top, PLACES[of]) for top in of_group]) + random.normal(0, 0.3, (6, 8))
            chosen = tuned_twice.optima(values, PLACES[of], 6)
            lost += [52 - surface(top, place[None])[0] for top, place in zip(of_group, chosen, strict=True)]
            low = np.where(values < values.max(1, keepdims=True) - 6, np.nan, values)
            assert np.array_equal(tuned_twice.optima(low, PLACES[of], 6), chosen)
    assert np.mean(lost) < 0.15 and np.quantile(lost, 0.9) < 0.4
    nearest = [52 - max(surface(top, PLACES[:8])) for top in tops.reshape(-1, 2)]
    assert np.mean(lost) < 0.75 * np.mean(nearest)  # less than even the best of the points loses


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
    assert decided.answers["C less A"].verdict == "no difference larger than 20"
    alone = tuned_twice.decide(questions[:3], replicates, kinds, Rules(0.01, 0.05, 6))  # without images
    assert [answer.verdict for answer in alone.answers.values()] == ["better", ""]
    half = stats.t.isf(0.05 / 2 / 2, 3) * math.sqrt(variances["one"])  # the second step of Holm, of two that are left
    assert (alone.answers["C less A"].high - alone.answers["C less A"].low) / 2 == pytest.approx(half)


def test_the_committed_design_asks_for_runs_that_can_be_and_its_earlier_points_serve() -> None:
    """The first point of each cell composes, all are different runs, and the run_ids of the points are those asked."""
    design = Design()
    design.content["epochs"] = 10
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
    tables = {"README.md": ("| changed", 12), "ssl_bench/papers/README.md": ("| seeds 18", 15)}
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


def run(design: Design, *words: str) -> int:
    return compare_losses.main([*words, "--design", str(design.path)])


def test_a_dry_run_lists_what_is_missing_in_its_order(design: Design, made: Numbers, capsys: Output) -> None:
    assert run(design, "run", "--dry-run", "--numbers", "nowhere.json") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 2 * 16 + 1  # part a has run; its control and part b have not
    assert "evaluate.baselines=[raw,init]" in lines[0] and all("batch_size=b32" in line for line in lines[1:33])
    assert not Path("nowhere.json").exists()


def test_all_points_come_first_and_optima_stay(design: Design, capsys: Output) -> None:
    assert run(design, "run", "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[33].startswith("# then 4 seeds at each of the 4 optima of part a")
    losses = ["loss=infonce" in line for line in lines[1:33]]
    assert losses == 16 * [True] + 16 * [False]
    for line, point in zip(lines[1:17], design.points(design.cells[0]), strict=True):
        assert all(word in line.split() for word in (*point.words, "seed=0", "threads=1"))


def test_an_optimum_is_chosen_once(design: Design, made: Numbers) -> None:
    made.optima.clear()
    compare_losses.choose(design, made, "a")
    chosen = json.loads(json.dumps(made.optima))
    assert chosen.keys() == {"NT-Xent, 64", "DCL, 64"} and chosen["DCL, 64"].keys() == {"a", "b"}
    for replicate in chosen["DCL, 64"].values():
        rate, tau = (float(word.partition("=")[2]) for word in replicate)
        assert 0.2 < rate < 0.5 and 0.2 < tau < 0.5  # the top is at 0.316 for both
    for number in made.runs.values():
        number["values"] = {"knn_val": 1.0, "knn": 1.0}
    compare_losses.choose(design, made, "a")
    assert made.optima == chosen == Numbers(made.path, made.path).optima


def test_the_tables_of_two_losses(design: Design, made: Numbers, capsys: Output) -> None:
    """No verdict before raw pixels are measured, nor if they are too near."""

    def shown(raw: float | None) -> str:
        if raw is not None:
            values = {"knn": 70.0, "knn_raw": raw, "knn_init": 31.0}
            made.runs[design.controls.text] = {"values": values}
        made.write()
        assert run(design, "show") == 0
        return capsys.readouterr().out

    row = "| DCL, 64 less NT-Xent, 64 | "
    assert "no verdict" in next(line for line in shown(None).splitlines() if line.startswith(row))
    assert "No verdict: raw pixels not 10 below NT-Xent." in shown(45.0)
    text = shown(30.0)
    line = next(line for line in text.splitlines() if line.startswith(row))
    means = [
        [np.mean([made.value(test, "knn") for test in of]) for of in design.tests(cell, made.optima).values()]
        for cell in design.cells[:2]
    ]
    difference, error = np.mean(means[1]) - np.mean(means[0]), np.sqrt(np.mean(np.var(means, axis=1, ddof=1)))
    half = stats.t.isf(0.03 / 2 / len(design.questions), 2) * error
    assert line == f"{row}{difference:+.2f} | [{difference - half:.2f}, {difference + half:.2f}] | better |"
    assert "| DCL, 32 less DCL, 64 |  |  | not run |" in text and "raw pixels 30.00; random weights 31.00" in text
    at = f"lr={made.optima['DCL, 64']['a'][0].partition('=')[2]} tau="
    assert f" at {at}" in next(line for line in text.splitlines() if line.startswith("| DCL, 64 | "))
    best = tuned_twice.expected(*made.of_points(design.points(design.cells[0])))
    assert f"| NT-Xent, 64 | {' | '.join(f'{value:.2f}' for value in best.values())} |" in text
    share = next(line for line in text.splitlines() if line.startswith("| loss | "))
    assert float(share.split()[3]) == pytest.approx(100 * 2.25 / (2.25 + 2 * 400 / 180), abs=2)


def test_a_point_that_diverged_counts_as_the_lowest(design: Design, made: Numbers) -> None:
    first, *others = points = design.points(design.cells[0])
    made.add_diverged([first.text])
    tuned, tested = made.of_points(points)
    assert tuned[0] == -math.inf and tested[0] == min(made.value(point, "knn") for point in others)
    assert not made.missing(points)


def test_a_cell_of_which_a_test_diverged_answers_no_question(design: Design, made: Numbers, capsys: Output) -> None:
    """The row says so, and not that it is still to run; the other cells keep their answers."""
    made.runs[design.controls.text] = {"values": {"knn": 70.0, "knn_raw": 30.0, "knn_init": 31.0}}
    tests = design.tests(design.cells[1], made.optima)
    made.add_diverged([tests["b"][2].text])
    made.write()
    assert made.of_tests(tests) == {} and not made.missing(tests["b"])
    assert run(design, "show") == 0
    text = capsys.readouterr().out
    assert "| DCL, 64 less NT-Xent, 64 |  |  | diverged |" in text
    assert "| DCL, 32 less DCL, 64 |  |  | diverged |" in text
    assert "| NT-Xent, 32 less NT-Xent, 64 |  |  | not run |" in text and "; 1 diverged; " in text


def test_few_worlds_of_the_simulation() -> None:
    cells = [["A, 1", "B, 1"], ["A, 2", "B, 2"]]
    questions = [Question("one", {"B, 1": 1, "A, 1": -1}), Question("two", {"B, 2": 1, "A, 2": -1})]
    kinds, roughness = dict.fromkeys(("A, 1", "B, 1", "A, 2", "B, 2"), "one"), {"one": 0.2}
    found = tuned_twice.simulate(cells, questions, kinds, roughness, Rules(1.5, 0.03, 6), 4)
    assert 0 <= found["wrong"] <= 0.5 and 0 < found["lost"] < 0.6 and 0.3 < found["half of interval"] < 3
    assert found == tuned_twice.simulate(cells, questions, kinds, roughness, Rules(1.5, 0.03, 6), 4)


def test_the_pilot_follows_its_rule(design: Design, capsys: Output) -> None:
    """4 epochs if all three parts of the rule hold, else 10."""
    pilot = Design().content["pilot"]
    design.path.write_text(yaml.safe_dump({**DESIGN, "pilot": pilot}, sort_keys=False))
    numbers = Numbers(*2 * [design.path.with_suffix(".json")])
    assert run(design, "pilot", "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12 and sum("epochs=4 " in line for line in lines) == 6

    def chosen(deviation: float, side: float, raw: float) -> str:
        for epochs, rate in itertools.product(pilot["epochs"], pilot["rates"]):
            for number, seed in enumerate(pilot["seeds"] if rate == 0.3 else pilot["seeds"][:1]):
                more = ["evaluate.baselines=[raw,init]"] if (rate, seed) == (0.3, 100) else []
                value = 46 + deviation * (-1) ** number * math.sqrt(3) / 2 if rate == 0.3 else side
                values = {"knn_val": value, "knn_val_raw": raw, "knn_val_init": 30.0}
                words = (*pilot["set"], *more, f"optimizer.lr={rate}", f"epochs={epochs}")
                numbers.runs[Wanted(words, seed).text] = {"values": values, "seconds": 90}
        numbers.write()
        assert run(design, "pilot") == 0
        return capsys.readouterr().out

    assert chosen(0.45, 44.0, 30.0).endswith("so epochs: 4\n")
    assert "deviation 0.60 (at most 0.5)" in (text := chosen(0.6, 44.0, 30.0)) and text.endswith("so epochs: 10\n")
    assert "costs 1.00 (at least 1.5)" in (text := chosen(0.4, 45.0, 30.0)) and text.endswith("so epochs: 10\n")
    assert "9.0 above" in (text := chosen(0.4, 44.0, 37.0)) and text.endswith("so epochs: 10\n")


def test_without_a_length_nothing_runs(capsys: Output) -> None:
    if Design().content["epochs"] is None:
        assert compare_losses.main(["run", "--dry-run"]) == 2
        assert "compare_losses.py pilot" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_goes_on_from_a_cut_file(design: Design, made: Numbers, capfd: Output) -> None:
    """It trains what the numbers lack: a control, a point, a test. Another time it finds them on the disk."""
    content = {**DESIGN, "parts": {"a": DESIGN["parts"]["a"]}}
    design.path.write_text(yaml.safe_dump(content, sort_keys=False))
    cell = design.cells[1]
    lacking = [design.controls, design.points(cell)[9], design.tests(cell, made.optima)["b"][3]]
    for one in lacking[1:]:
        del made.runs[one.text]
    made.write()
    before = dict(made.runs)
    for _ in range(2):
        assert run(design, "run", "--at-once", "2", "paths.outputs=outputs") == 0, capfd.readouterr()
        now = Numbers(made.path, made.path)
        assert {text: now.runs[text] for text in before} == before
        assert now.runs.keys() - before.keys() == {one.text for one in lacking}
        control, point, test = (now.runs[one.text] for one in lacking)
        assert control["values"].keys() >= {"knn", "knn_raw", "knn_init"} and point["values"].keys() == {
            "knn",
            "knn_val",
        }
        right = np.unpackbits(np.frombuffer(base64.b64decode(test["right"]), dtype=np.uint8))
        assert right.sum() / len(right) <= test["values"]["knn"] / 100 <= right.sum() / (len(right) - 7)
        assert now.machines[test["machine"]]["threads"] == 1 and "right" not in point
        made.write()  # as if the machine had gone away
    assert len(list(Path("outputs/losses").glob("*/results.json"))) == 3
