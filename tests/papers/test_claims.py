"""Claims: criteria against scipy's tests, verdicts, what a file may say, and runs that never fill a paper's cell."""

import json
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from matplotlib.collections import LineCollection
from scipy import stats

from ssl_bench.commands import table
from ssl_bench.config.compositions import compositions
from ssl_bench.config.identity import run_id
from ssl_bench.papers import claims, measurements, sheets, tables, verdicts
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import Cell
from ssl_bench.papers.claims import ClaimVerdict, Criterion, PaperClaim
from ssl_bench.papers.fill import fill
from tests.door.door import refused
from tests.papers.conftest import COMMON, composed, write_result

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
import commit_numbers

SHOWN, CONTRADICTED, UNDECIDED, NOT_RUN = (
    *(ClaimVerdict.SHOWN, ClaimVerdict.CONTRADICTED, ClaimVerdict.UNDECIDED, ClaimVerdict.NOT_RUN),
)
CLAIMS = [claim for path in tables.paths().values() for claim in tables.read(path)[1]]
TABLE: dict[str, Any] = {
    "title": "t",
    "metric": "knn/top1",
    "set": COMMON,
    "seeds": [0, 1, 2],
    "columns": [16, 32],
    "each": ["batch_size.size={column}"],
    "x": {"label": "batch size", "doubling": True},
    "rows": {"SimCLR": ["loss=infonce"], "DCL": ["loss=dcl"]},
}
CLAIM: dict[str, Any] = TABLE | {
    "claim": "DCL is better.",
    "where": "table 1",
    "kind": "comparison",
    "seeds_because": "three were a pilot",
    "minutes": 1,
    "criteria": [{"says": "DCL minus SimCLR", "of": {"row": "DCL"}, "minus": {"row": "SimCLR"}, "above": 0}],
}
PAPER = {"paper": "mine", "title": "t", "cite": "c", "tables": {"table1": {**TABLE, "rows": {"DCL": ["loss=dcl"]}}}}
ENVIRONMENT = {"git": "0123456789", "device": "a CPU", "threads": 1, "torch": "2.15.0", "ssl_bench": "0.2.0"}
ENVIRONMENT |= {"started": "2026-01-01T00:00:00+00:00", "finished": "2026-01-01T00:01:00+00:00"}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write the paper ``mine`` with a claim that has other keys."""
    monkeypatch.setenv("SSL_BENCH_PAPERS", str(tmp_path))

    def _write(**keys: Any) -> PaperClaim:
        node = {key: value for key, value in (CLAIM | keys).items() if value is not None}
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(PAPER | {"claims": {"better": node}}, sort_keys=False))
        (claim,) = tables.find("mine/claims")
        assert isinstance(claim, PaperClaim)
        return claim

    return _write


def test_every_paper_has_claims_with_criteria() -> None:
    assert len(CLAIMS) >= 14 and {claim.name.partition("/")[0] for claim in CLAIMS} == set(tables.paths())
    for claim in CLAIMS:
        assert claim.criteria and claim.where and claim.minutes > 0, claim.name
        assert all(cell.settings["scale"] == "reduced" and len(cell.seeds) >= 3 for cell in claim.cells), claim.name
    assert [claim.name for claim in CLAIMS if claim.ours] == ["less/snr_given_weights"]


def finding(write: Any, numbers: list[float], error: float = claims.ERROR, **limit: float) -> claims.Tested:
    """A criterion of three seeds, judged by some numbers."""
    criterion = write(criteria=[{"says": "s", "of": {"row": "DCL", "column": 16}, **limit}]).criteria[0]
    return claims.judge(criterion, numbers, error)


def test_interval_and_p_are_those_of_scipys_t_test(write: Any) -> None:
    numbers = list(np.random.default_rng(0).normal(1.0, 0.5, 5))
    found = finding(write, numbers, above=0.2)
    expected = stats.ttest_1samp(numbers, 0.2, alternative="greater")
    both = stats.ttest_1samp(numbers, 0).confidence_interval(0.90)
    assert np.allclose((found.low, found.high), (both.low, both.high), rtol=1e-12)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-9) and finding(write, [], above=0).p == 1
    edge = finding(write, numbers, found.p, above=0.2)  # at the error p the interval ends at the limit
    assert edge.low == pytest.approx(0.2, abs=1e-12)


@pytest.mark.parametrize(
    ("numbers", "limit", "verdict"),
    [
        ([1.0, 1.1, 0.9], {"above": 0}, SHOWN),
        ([-1.0, -1.1, -0.9], {"above": 0}, CONTRADICTED),
        ([-1.0, -1.1, -0.9], {"below": 0}, SHOWN),
        ([1.0, 1.1, 0.9], {"below": 0}, CONTRADICTED),
        ([1.0, -1.0, 0.5], {"above": 0}, UNDECIDED),
        ([1.0, 1.1], {"above": 0}, NOT_RUN),
        ([0.1, -0.1, 0.0], {"within": 0.2}, SHOWN),  # half of the interval is 0.169
        ([0.1, -0.1, 0.0], {"within": 0.16}, UNDECIDED),
        ([-1.0, -1.1, -0.9], {"within": 0.2}, CONTRADICTED),
        ([0.0, 0.0, 0.0], {"within": 1e-9}, SHOWN),  # an identity without any deviation
        ([1e-8, 1e-8, 1e-8], {"within": 1e-9}, CONTRADICTED),
        ([0.0, 0.0, 0.0], {"above": 0}, UNDECIDED),
    ],
)
def test_the_verdict_is_where_the_interval_lies(
    numbers: list[float], limit: dict[str, float], verdict: ClaimVerdict, write: Any
) -> None:
    found = finding(write, numbers, **limit)
    assert found.verdict is verdict and claims.verdict([found]) is verdict


def of_rows(claim: PaperClaim, numbers: dict[str, list[float]]) -> list[claims.Tested]:
    """The findings of a claim whose cells have the numbers of their row, by seed."""
    return claim.findings(lambda cell: dict(enumerate(numbers[cell.row])))


def test_the_criteria_of_a_claim_share_an_error_by_holms_steps(write: Any) -> None:
    rng = np.random.default_rng(3)
    rows = {name: list(rng.normal(size=6)) for name in "abc"}
    criteria = [{"says": name, "of": {"row": name}, "above": 0} for name in rows]
    claim = write(seeds=list(range(6)), rows={name: ["loss=dcl"] for name in rows}, criteria=criteria)

    def errors(*aims: float) -> list[float]:
        """The error at which each criterion is judged if its p-value is ``aims``."""
        moved = {}
        for (name, numbers), aim in zip(rows.items(), aims, strict=True):
            centred = np.array(numbers) - np.mean(numbers)
            moved[name] = list(centred + stats.t.isf(aim, 5) * stats.sem(centred))
        found = of_rows(claim, moved)
        assert [each.p for each in found] == pytest.approx(aims)
        for each in found:  # what is printed is what decides
            assert (each.low > 0) == (each.verdict is SHOWN) == (each.p < each.error)
        return [each.error for each in found]

    third, half = 0.05 / 3, 0.05 / 2
    assert errors(0.02, 0.001, 0.04) == [half, third, 0.05]  # all are shown
    assert errors(0.03, 0.001, 0.04) == [half, third, half]  # the second fails, and so the third
    assert errors(0.02, 0.03, 0.04) == [third] * 3  # none is shown
    claim = write(rows={name: ["loss=dcl"] for name in rows}, criteria=criteria)
    for rest in ([9.0, 9.0], []):  # runs that are not complete share the error, whatever they are
        found = of_rows(claim, {"a": [1.0, 1.1, 1.2], "b": rest, "c": [2.0, 2.2, 2.3]})
        assert [each.error for each in found] == [half, 0.05, third]
        assert [each.verdict for each in found] == [SHOWN, NOT_RUN, SHOWN]


def test_a_claim_is_as_good_as_the_worst_of_its_criteria_and_that_one_is_printed(write: Any) -> None:
    criteria = [{"says": row, "of": {"row": row, "column": 16}, "above": 0} for row in ("DCL", "SimCLR")]
    claim = write(criteria=criteria, contradicted="the opposite here")
    sure, unsure, low = [5.0, 5.1, 5.3], [0.1, 1.0, 2.0], [-1.0, -1.3, -1.5]
    for dcl, simclr, named, words in (
        (sure, sure, "DCL", "shown"),
        (sure, unsure, "SimCLR", "undecided"),
        (unsure, sure, "DCL", "undecided"),
        (unsure, low, "SimCLR", "the opposite here"),
        (low, sure[:2], "SimCLR", "not run"),
    ):
        tested = of_rows(claim, {"DCL": dcl, "SimCLR": simclr})
        found = verdicts.Judged(claim, tested, "ours", claims.verdict(tested))
        assert (found.main.criterion.says, found.words) == (named, words)


def test_statistics_pair_the_cells_of_a_seed(write: Any) -> None:
    values = {("SimCLR", "16"): {0: 1.0, 1: 5.0, 2: 9.0}, ("SimCLR", "32"): {0: 4.0, 1: 7.0}}
    values |= {("DCL", "16"): {0: 2.0, 1: 6.0, 2: 3.0}, ("DCL", "32"): {0: 2.5, 1: 4.0, 2: 8.0}}

    def numbers(statistic: str, **selection: Any) -> list[float]:
        criterion: Criterion = write(
            criteria=[{"says": "s", "statistic": statistic, **selection, "above": 0}]
        ).criteria[0]
        return criterion.numbers(lambda cell: values[cell.label, cell.column])

    row = {"row": "SimCLR"}
    assert numbers("mean", of=row) == [2.5, 6.0]  # seed 2 has no run at 32
    assert numbers("range", of={"row": "DCL"}, minus=row) == [0.5 - 3.0, 2.0 - 2.0]
    assert numbers("largest", of={"row": "D*"}) == [2.5, 6.0, 8.0]
    assert numbers("endpoints", of={"row": "DCL"}) == [0.5, -2.0, 5.0]
    assert numbers("slope", of={"row": "DCL"}) == pytest.approx([0.5, -2.0, 5.0])  # from 16 to 32 is one doubling
    assert claims.STATISTICS["slope"]([1.0, 2.0, 6.0], [2, 4, 16]) == pytest.approx(
        np.polyfit([1, 2, 4], [1, 2, 6], 1)[0]
    )
    assert numbers("mean", of={"row": "DCL", "column": 16}, minus={"row": "DCL", "column": 32}) == [-0.5, 2.0, -5.0]
    claim = write(seeds=[10, 11, 12])  # no other seed counts
    pilot = dict.fromkeys(range(3), 1.0)
    assert len(claim.findings(lambda cell: pilot | {10: 1.0, 12: 2.0})[0].numbers) == 2


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({"criteria": None}, "mine/better criteria"),
        ({"seeds_because": None}, "mine/better seeds_because"),
        ({"kind": "guess"}, "mine/better kind=guess exact trend comparison"),
        ({"by": "theirs"}, "mine/better by=theirs paper ours"),
        ({"theory": {"limit": [1.0]}}, "mine/better limit row"),
        ({"criteria": [{"says": "s", "of": {}, "above": 0, "below": 1}]}, "above below within"),
        ({"criteria": [{"says": "s", "of": {}, "statistic": "sum", "above": 0}]}, "statistic mean largest"),
        ({"criteria": [{"says": "s", "of": {}, "over": 0}]}, "mine/better over"),
        (
            {"x": {"label": "batch size"}, "criteria": [{"says": "s", "of": {}, "statistic": "slope", "above": 0}]},
            "statistic=slope doubling",
        ),
        ({"controls": [{"says": "s", "of": {"row": "MACL"}, "above": 0}]}, "MACL"),
        ({"controls": [{"says": "s", "of": {"row": "DCL", "metric": "knn@x"}, "above": 0}]}, "metric=knn@x"),
    ],
)
def test_a_wrong_claim_is_refused(keys: dict[str, Any], names: str, write: Any) -> None:
    with refused(names):
        write(**keys)


def judged(claim: PaperClaim, outputs: str = "outputs") -> verdicts.Judged:
    return verdicts.judge(claim, Results(Path(outputs), claim.cells))


def finish(claim: PaperClaim, cells: tuple[Cell, ...] | None = None, seeds: int = 3, **known: Any) -> None:
    """Write the results of the runs of a claim; DCL is ten points better, and both begin with 47 or ``initial``."""
    initial = known.pop("initial", 0.47)
    for cell in cells or claim.cells:
        for seed in range(seeds):
            top1 = {"knn/top1": 0.5 + seed / 100 + (0.1 if cell.row == "DCL" else 0), "knn_init/top1": initial}
            write_result(cell, seed, top1, environment=ENVIRONMENT | known)


def test_runs_of_a_claim_are_judged_committed_and_fill_no_cell_of_the_paper(
    write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim, file = write(), tmp_path / "measured" / "mine_better.json"
    assert [judged(claim).verdict, judged(claim).source] == [NOT_RUN, "ours"]
    finish(claim)
    found = judged(claim)
    assert found.verdict is SHOWN and found.source == "ours"
    assert found.findings[0].numbers == pytest.approx([10.0] * 3, abs=1e-9)  # percent
    (paper,) = tables.find("mine/table1")  # its cells are those of the claim, but for the scale
    assert not any(Results(Path("outputs"), paper.cells).values(cell) for cell in paper.cells)

    commit_numbers.main(["mine/better"])
    content = json.loads(file.read_text())
    assert len(content["cells"]) == 12 and content["commit"] == "0123456" and content["seconds"] == round(12 * 3.4)
    assert content["cells"][0]["value"] == 50.0 and content["hardware"].startswith("a CPU, ")
    earlier = content["cells"][0] | {"seed": 100, "value": 1.0}  # of a seed that the claim does not name
    content |= {"note": ["kept"], "errata": "Seed 100 was a pilot.", "cells": [earlier, *content["cells"]]}
    commit_numbers.write(file, content)
    commit_numbers.main(["mine/better"])
    assert json.loads(file.read_text()) == content

    Path("elsewhere").mkdir()
    found = judged(claim, "elsewhere")
    assert found.verdict is SHOWN and found.source == "project"
    capsys.readouterr()
    assert table.main(["--claims", "paths.outputs=elsewhere", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["criteria"][0]["verdict"] == "shown"
    commit_numbers.main([])
    page = (tmp_path / "measured" / "README.md").read_text()
    assert "## mine/better" in page and f"{verdicts.sentence(found.main)}: shown" in page
    assert (tmp_path / "measured" / "mine_better.png").read_bytes()[1:4] == b"PNG"


def test_a_control_that_fails_leaves_a_claim_undecided(write: Any) -> None:
    """It is about the baselines of the same runs, and is named first."""
    minus = {"row": "SimCLR", "metric": "knn_init/top1"}
    control = {"says": "SimCLR minus random initialisation", "of": {"row": "SimCLR"}, "minus": minus, "above": 5}
    claim = write(controls=[control], set=[*COMMON, "evaluate.baselines=[init]"])
    finish(claim)
    found = judged(claim)
    assert found.verdict is UNDECIDED and [each.verdict for each in found.findings][1] is SHOWN
    assert found.main.criterion.control and found.findings[0].numbers == pytest.approx([3.0, 4.0, 5.0])
    finish(claim, initial=0.3)
    assert judged(claim).verdict is SHOWN
    commit_numbers.main(["mine/better"])
    found = judged(claim, "elsewhere")
    assert found.source == "project" and found.findings[0].numbers == pytest.approx([20.0, 21.0, 22.0])


def test_a_figure_has_the_intervals_of_the_seeds_and_theory(write: Any) -> None:
    claim = write(theory={"limit": [55.0, 65.0], "SimCLR": "row"})
    finish(claim)
    results = Results(Path("outputs"), claim.cells)
    (axis,) = sheets.figure([(claim, fill(claim, claim.cells, results))], results).axes
    assert np.allclose(np.asarray(axis.lines[0].get_ydata()), [51.0, 51.0])
    (bars,) = [each for each in axis.collections if isinstance(each, LineCollection)]
    half = stats.t.isf(0.05, 2) / math.sqrt(3)
    assert list(np.asarray(bars.get_segments()[0])[:, 1]) == pytest.approx([61 - half, 61 + half])


def test_the_committed_page_is_made_from_the_committed_numbers() -> None:
    folder, page = tables.directory() / "measured", commit_numbers.page()
    found = commit_numbers.decided(commit_numbers.judged())
    assert (folder / "README.md").read_text() == page
    readme = Path(__file__).parents[2] / "README.md"
    asked = len(CLAIMS) + len(tables.dropped())
    assert f"Of {asked} claims committed runs decide {len(found)}: " in page
    assert f"[{len(found)} of {asked} are decided]" in readme.read_text()
    assert not tables.dropped().keys() & {claim.name for claim in CLAIMS}
    of_tables = [each.name for each in commit_numbers.measured() if not isinstance(each, PaperClaim)]
    assert len(of_tables) == 2  # of 55, says the README of papers
    assert {measurements.path_of(each) for each in commit_numbers.measured()} == set(folder.glob("*.json"))
    figures = {measurements.path_of(each).stem for each in commit_numbers.measured() if commit_numbers.drawn(each)}
    assert {path.stem for path in folder.glob("*.png")} == figures


def test_baselines_that_a_criterion_asks_for_are_evaluated_by_its_runs() -> None:
    asked = {(cell.overrides, cell.metric) for claim in CLAIMS for cell in commit_numbers.asked(claim)}
    wanted = [(overrides, kind) for overrides, metric in asked for kind in ("init", "raw") if f"_{kind}/" in metric]
    assert len(wanted) > 8 and sum("knn_raw" in metric for _, metric in asked) >= 4
    for overrides, kind in wanted:
        assert kind in composed(overrides)["evaluate"]["baselines"], overrides


def test_criteria_are_those_of_the_commit_at_which_the_runs_began(
    write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=me", "-c", "user.email=me@example.org", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    claim, control = write(), {"says": "learned", "of": {"row": "SimCLR"}, "above": 5}
    for words in ("init -q", "add mine.yaml", "commit -q -m criteria"):
        git(*words.split())
    start = git("rev-parse", "HEAD")
    finish(claim, seeds=1, git=f"{start}+", git_later=["0123456789"])
    (renamed,) = [{**each, "says": "other words"} for each in CLAIM["criteria"]]
    write(criteria=[renamed], controls=[control], claim="DCL is better here.")  # no other decision, or a stricter one
    commit_numbers.main(["mine/better"])
    content = json.loads((tmp_path / "measured" / "mine_better.json").read_text())
    assert content["commit"] == "; ".join(sorted(["0123456", f"{start[:7]}+"]))
    assert content["criteria"] == commit_numbers.rules(claim)
    assert (content["started"], content["finished"]) == (ENVIRONMENT["started"], ENVIRONMENT["finished"])
    for changed in ({"above": 0.1}, {"minus": {"row": "SimCLR", "column": 16}}, {"statistic": "largest"}):
        write(criteria=[{**renamed, **changed}])
        with pytest.raises(SystemExit):
            commit_numbers.main(["mine/better"])
        assert "mine/better" in capsys.readouterr().err


def test_committed_numbers_are_those_of_the_cells_as_they_are_now() -> None:
    """A claim whose set-up has changed since its runs has other run_ids. One of 60 cells is composed."""
    tables_of_numbers, draw = [*commit_numbers.measured()], random.Random(0)
    cells = {each.name: draw.sample(each.cells, -(-len(each.cells) // 60)) for each in tables_of_numbers}
    made = compositions(cell.overrides for some in cells.values() for cell in some)
    for each in tables_of_numbers:
        content = measurements.read(each)
        if isinstance(each, PaperClaim) and commit_numbers.counted(each):
            assert content["criteria"] == commit_numbers.rules(each), f"{each.name}: name new seeds"
        committed = {(c["row"], c["column"], c["seed"]): c.get("run_id") for c in content["cells"]}
        for cell in cells[each.name]:
            places = {seed: (cell.label, cell.column, seed) for seed in cell.seeds}
            found = {seed: identity for seed, place in places.items() if (identity := committed.get(place))}
            run_ids = {seed: run_id(made[cell.overrides].config(seed)) for seed in found}
            assert run_ids == found, (each.name, cell.label, cell.column)
