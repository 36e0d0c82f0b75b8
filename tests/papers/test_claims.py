"""Claims: criteria against scipy's tests, verdicts, what a file may say, and runs that never fill a paper's cell.

The last test trains one seed of each decided claim again.
"""

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

from ssl_bench import cli
from ssl_bench.commands import reproduce, table
from ssl_bench.config.compositions import compositions
from ssl_bench.config.identity import run_id
from ssl_bench.errors import ConfigError
from ssl_bench.papers import claims, drawing, measurements, tables, verdicts
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import Cell
from ssl_bench.papers.claims import ClaimVerdict, Criterion, PaperClaim, verdict
from ssl_bench.papers.fill import fill
from ssl_bench.record.printing import FORMS, text_of
from ssl_bench.results.statistics import half_width
from tests.conftest import SMALL
from tests.door.door import refused
from tests.papers.conftest import composed

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
import commit_numbers

from tests.evaluated import with_evaluations

CLAIMS = [claim for path in tables.paths().values() for claim in tables.read(path)[1]]
COMMON = ["dataset=scattered_digits", "max_steps=2", *[o for o in SMALL if not o.startswith("evaluate")]]
CLAIM: dict[str, Any] = {
    "title": "t",
    "claim": "DCL is better.",
    "where": "table 1",
    "kind": "comparison",
    "seeds_because": "three were a pilot",
    "minutes": 1,
    "metric": "knn/top1",
    "set": [*COMMON, "evaluate=[knn]", "evaluate.baselines=[]"],
    "seeds": [0, 1, 2],
    "columns": [16, 32],
    "each": ["batch_size.size={column}"],
    "x": {"label": "batch size", "doubling": True},
    "rows": {"SimCLR": ["loss=infonce"], "DCL": ["loss=dcl"]},
    "criteria": [{"says": "DCL minus SimCLR", "of": {"row": "DCL"}, "minus": {"row": "SimCLR"}, "above": 0}],
}
PAPER = {"paper": "mine", "title": "t", "cite": "c", "tables": {"table1": {**CLAIM, "rows": {"DCL": ["loss=dcl"]}}}}
for key in ("claim", "where", "kind", "seeds_because", "minutes", "criteria"):
    PAPER["tables"]["table1"].pop(key)  # type: ignore[index]


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
        assert all(cell.settings["scale"] == "reduced" for cell in claim.cells), claim.name
        assert all(len(cell.seeds) >= 3 for cell in claim.cells), claim.name


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
    assert found.p == pytest.approx(expected.pvalue, rel=1e-9)
    edge = finding(write, numbers, found.p, above=0.2)  # at the error p the interval ends at the limit
    assert edge.low == pytest.approx(0.2, abs=1e-12)
    assert math.isnan(half_width([2.0])) and finding(write, [], above=0).p == 1


@pytest.mark.parametrize(
    ("numbers", "limit", "verdict"),
    [
        ([1.0, 1.1, 0.9], {"above": 0}, ClaimVerdict.SHOWN),
        ([-1.0, -1.1, -0.9], {"above": 0}, ClaimVerdict.CONTRADICTED),
        ([-1.0, -1.1, -0.9], {"below": 0}, ClaimVerdict.SHOWN),
        ([1.0, 1.1, 0.9], {"below": 0}, ClaimVerdict.CONTRADICTED),
        ([1.0, -1.0, 0.5], {"above": 0}, ClaimVerdict.UNDECIDED),
        ([1.0, 1.1], {"above": 0}, ClaimVerdict.NOT_RUN),
        ([0.1, -0.1, 0.0], {"within": 0.2}, ClaimVerdict.SHOWN),  # half of the interval is 0.169
        ([0.1, -0.1, 0.0], {"within": 0.16}, ClaimVerdict.UNDECIDED),
        ([-1.0, -1.1, -0.9], {"within": 0.2}, ClaimVerdict.CONTRADICTED),
        ([0.0, 0.0, 0.0], {"within": 1e-9}, ClaimVerdict.SHOWN),  # an identity without any deviation
        ([1e-8, 1e-8, 1e-8], {"within": 1e-9}, ClaimVerdict.CONTRADICTED),
        ([0.0, 0.0, 0.0], {"above": 0}, ClaimVerdict.UNDECIDED),
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
            assert (each.low > 0) == (each.verdict is ClaimVerdict.SHOWN) == (each.p < each.error)
        return [each.error for each in found]

    third, half = 0.05 / 3, 0.05 / 2
    assert errors(0.02, 0.001, 0.04) == [half, third, 0.05]  # all are shown
    assert errors(0.03, 0.001, 0.04) == [half, third, half]  # the second fails, and so the third
    assert errors(0.02, 0.03, 0.04) == [third] * 3  # none is shown


def test_a_criterion_whose_runs_are_not_complete_is_one_of_those_that_share_the_error(write: Any) -> None:
    criteria = [{"says": name, "of": {"row": name}, "above": 0} for name in "abc"]
    claim = write(rows={name: ["loss=dcl"] for name in "abc"}, criteria=criteria)
    for rest in ([9.0, 9.0], []):  # the smallest p-value, and none
        found = of_rows(claim, {"a": [1.0, 1.1, 1.2], "b": rest, "c": [2.0, 2.2, 2.3]})
        assert [each.error for each in found] == [0.05 / 2, 0.05, 0.05 / 3]
        assert [each.verdict for each in found] == [ClaimVerdict.SHOWN, ClaimVerdict.NOT_RUN, ClaimVerdict.SHOWN]


def test_a_line_has_the_first_criterion_with_the_verdict_of_the_claim_and_its_name(write: Any) -> None:
    criteria = [
        {"says": "the effect", "of": {"row": "DCL", "column": 16}, "above": 0},
        {"says": "a check", "of": {"row": "SimCLR", "column": 16}, "above": 0},
    ]
    claim = write(criteria=criteria, contradicted="the opposite here")

    def told(dcl: list[float], simclr: list[float]) -> tuple[str, str]:
        found = verdicts.Judged(
            claim, tested := of_rows(claim, {"DCL": dcl, "SimCLR": simclr}), "ours", verdict(tested)
        )
        assert found.row()[2].startswith(f"{found.main.criterion.says}: {found.main.mean:.3g} [")
        assert found.row(brief=True)[2] == f"{verdicts._mean(found.main)} above 0"
        lines = text_of([verdicts.sheet([found], True)], "rich").splitlines()
        assert lines[-1] == f"mine/better: DCL is better. (table 1) Effect: {found.main.criterion.says}"
        return found.main.criterion.says, found.row()[1]

    sure, unsure = [5.0, 5.1, 5.3], [0.1, 1.0, 2.0]
    assert told(sure, [1.0, 1.3, 1.5]) == ("the effect", "shown")  # the check has the larger p-value
    assert told(sure, unsure) == ("a check", "undecided")
    assert told(unsure, sure) == ("the effect", "undecided")
    assert told(sure, [-1.0, -1.3, -1.5]) == ("a check", "the opposite here")


def test_a_control_that_fails_leaves_a_claim_undecided_and_is_named_first(write: Any) -> None:
    control = {"says": "SimCLR has learned", "of": {"row": "SimCLR", "column": 16}, "above": 50}
    claim = write(controls=[control])
    up, down = [70.0, 70.1, 70.2], [40.0, 40.1, 40.2]

    def found(simclr: list[float], dcl: list[float]) -> verdicts.Judged:
        tested = of_rows(claim, {"SimCLR": simclr, "DCL": dcl})
        return verdicts.Judged(claim, tested, "ours", claims.verdict(tested))

    learned = found(up, [number + 2 + number % 1 for number in up])
    assert learned.verdict is ClaimVerdict.SHOWN and learned.row()[3] == "passed"
    assert found(up, down).verdict is ClaimVerdict.CONTRADICTED
    assert found(up, up[:2]).verdict is ClaimVerdict.NOT_RUN
    for simclr in (down, [49.0, 50.5, 52.0]):  # on the wrong side, and on no side
        invalid = found(simclr, [number + 2 + number % 1 for number in simclr])
        assert [each.verdict for each in invalid.findings][1] is ClaimVerdict.SHOWN
        assert invalid.verdict is ClaimVerdict.UNDECIDED and invalid.row()[3] == "failed"
        assert invalid.row()[2].startswith("control: SimCLR has learned: ")
        assert invalid.row(brief=True)[2].endswith("] above 50")
        assert invalid.lines()[1].startswith("- control: SimCLR has learned: ")


def test_an_equivalence_says_its_margin(write: Any) -> None:
    claim = write(
        kind="equivalence", criteria=[{"says": "s", "of": {"row": "DCL"}, "minus": {"row": "SimCLR"}, "within": 1.5}]
    )
    for dcl, words in (([1.1, 2.0, 3.2], "no difference larger than 1.5"), ([5.1, 6.0, 7.2], "contradicted")):
        tested = of_rows(claim, {"SimCLR": [1.0, 2.0, 3.0], "DCL": dcl})
        found = verdicts.Judged(claim, tested, "ours", claims.verdict(tested))
        assert found.row()[1] == found.record()["verdict"] == words


def test_a_claim_is_as_good_as_the_worst_of_its_criteria(write: Any) -> None:
    criterion = write().criteria[0]

    def of(*found: ClaimVerdict) -> ClaimVerdict:
        return claims.verdict([claims.Tested(criterion, [], 0, 0, 0, 0, 0, each) for each in found])

    shown, undecided, contradicted, missing = (
        ClaimVerdict.SHOWN,
        ClaimVerdict.UNDECIDED,
        ClaimVerdict.CONTRADICTED,
        ClaimVerdict.NOT_RUN,
    )
    assert of(shown, shown) is shown and of(shown, undecided) is undecided
    assert of(undecided, contradicted, shown) is contradicted and of(contradicted, missing) is missing


def test_only_the_seeds_that_the_file_names_count(write: Any) -> None:
    claim = write(seeds=[10, 11, 12])
    pilot = dict.fromkeys(range(3), 1.0)
    assert claim.findings(lambda cell: pilot)[0].verdict is ClaimVerdict.NOT_RUN
    assert len(claim.findings(lambda cell: pilot | {10: 1.0, 12: 2.0})[0].numbers) == 2


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
    assert numbers("ratio", of={"row": "DCL"}) == [2.5 / 2, 4 / 6, 8 / 3]
    assert numbers("slope", of={"row": "DCL"}) == pytest.approx([0.5, -2.0, 5.0])  # from 16 to 32 is one doubling
    assert claims.STATISTICS["slope"]([1.0, 2.0, 6.0], [2, 4, 16]) == pytest.approx(
        np.polyfit([1, 2, 4], [1, 2, 6], 1)[0]
    )
    assert numbers("mean", of={"row": "DCL", "column": 16}, minus={"row": "DCL", "column": 32}) == [-0.5, 2.0, -5.0]


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({"criteria": None}, "mine/better criteria"),
        ({"seeds_because": None}, "mine/better seeds_because"),
        ({"kind": "guess"}, "mine/better kind=guess exact trend comparison"),
        ({"kind": "equivalence"}, "mine/better kind=equivalence within"),
        ({"theory": {"limit": [1.0]}}, "mine/better limit row"),
        ({"criteria": [{"says": "s", "of": {}, "above": 0, "below": 1}]}, "above below within"),
        ({"criteria": [{"says": "s", "of": {}, "statistic": "sum", "above": 0}]}, "statistic mean largest"),
        ({"criteria": [{"says": "s", "of": {}, "over": 0}]}, "mine/better over"),
        (
            {"x": {"label": "batch size"}, "criteria": [{"says": "s", "of": {}, "statistic": "slope", "above": 0}]},
            "statistic=slope doubling",
        ),
        ({"controls": [{"says": "s", "of": {"row": "MACL"}, "above": 0}]}, "MACL"),
    ],
)
def test_a_wrong_claim_is_refused(keys: dict[str, Any], names: str, write: Any) -> None:
    with refused(names):
        write(**keys)


def _finished(
    folder: Path, cell: Cell, seed: int, top1: float = 0.0, environment: Any = None, **metrics: float
) -> None:
    """Write the results of a run of a cell, as a training does; ``metrics`` in place of ``top1``."""
    config = composed(cell.overrides, seed)
    path = folder / "mine" / run_id(config)
    path.mkdir(parents=True, exist_ok=True)
    known = {"git": "0123456789", "device": "a CPU", "threads": 1, "torch": "2.15.0", "ssl_bench": "0.2.0"}
    results: dict[str, Any] = {
        "run_id": run_id(config),
        "name": "mine",
        "config": config,
        "metrics": metrics or {"knn/top1": top1},
    }
    known |= {"started": "2026-01-01T00:00:00+00:00", "finished": "2026-01-01T00:01:00+00:00"}
    results |= {"environment": known | (environment or {}), "seconds": 3.4}
    (path / "results.json").write_text(json.dumps(with_evaluations(results)))


def test_runs_of_a_claim_are_judged_committed_and_fill_no_cell_of_the_paper(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = write()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs").mkdir()
    assert [judged(claim).verdict, judged(claim).source] == [ClaimVerdict.NOT_RUN, "ours"]
    for cell in claim.cells:
        for seed in range(3):
            _finished(tmp_path / "outputs", cell, seed, 0.5 + seed / 100 + (0.1 if cell.row == "DCL" else 0))
    found = judged(claim)
    assert found.verdict is ClaimVerdict.SHOWN and found.source == "ours"
    assert found.findings[0].numbers == pytest.approx([10.0] * 3, abs=1e-9)  # percent

    (paper,) = tables.find("mine/table1")  # its cells are those of the claim, but for the scale
    assert not any(Results(Path("outputs"), paper.cells).values(cell) for cell in paper.cells)

    commit_numbers.main(["mine/better"])
    content = json.loads((tmp_path / "measured" / "mine_better.json").read_text())
    assert len(content["cells"]) == 12 and content["commit"] == "0123456" and content["seconds"] == round(12 * 3.4)
    assert content["cells"][0]["value"] == 50.0 and content["hardware"] == "a CPU, threads of a run: 1"
    content["note"] = ["kept"]
    commit_numbers.write(tmp_path / "measured" / "mine_better.json", content)
    commit_numbers.main(["mine/better"])
    assert json.loads((tmp_path / "measured" / "mine_better.json").read_text()) == content

    (tmp_path / "outputs").rename(tmp_path / "elsewhere")
    found = judged(claim)
    assert found.verdict is ClaimVerdict.SHOWN and found.source == "project"
    capsys.readouterr()
    assert table.main(["--claims", "mine", "--format", "md"]) == 0
    effect = "DCL minus SimCLR: 10 [10, 10], must be above 0"
    row = f"| mine/better: DCL is better. (table 1) | shown | {effect} | none | 3 | 0.0 |"
    assert row in capsys.readouterr().out.splitlines()
    assert table.main(["mine/better", "--format", "md"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert "- DCL minus SimCLR: 10 [10, 10], must be above 0: shown (90%, n = 3)" in printed
    assert "Verdict: shown (project, commit 0123456)" in printed and "Seeds: three were a pilot" in printed
    assert table.main(["--claims", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["criteria"][0]["verdict"] == "shown"

    earlier = content["cells"][0] | {"seed": 100, "value": 1.0}  # of a seed that the claim does not name
    content |= {"errata": "Seed 100 was a pilot.", "cells": [*content["cells"], earlier]}
    commit_numbers.write(tmp_path / "measured" / "mine_better.json", content)
    (tmp_path / "outputs").symlink_to("elsewhere")
    commit_numbers.main(["mine/better"])
    again = json.loads((tmp_path / "measured" / "mine_better.json").read_text())
    assert again["cells"] == [earlier, *content["cells"][:-1]] and again["errata"] == content["errata"]
    (tmp_path / "outputs").unlink()
    assert table.main(["mine/better", "--format", "md"]) == 0
    assert "Errata of the project's numbers: Seed 100 was a pilot." in capsys.readouterr().out.splitlines()

    commit_numbers.main([])
    lines = (tmp_path / "measured" / "README.md").read_text().splitlines()
    assert row in lines and "![t](mine_better.png)" in lines and "kept" in lines
    assert "| DCL | project | 61.00 ± 1.00 (3) | 61.00 ± 1.00 (3) |" in lines
    assert (tmp_path / "measured" / "mine_better.png").read_bytes().startswith(b"\x89PNG")
    marked = "Ours.\n<!-- decided claims -->\nold\n<!-- end -->\n"
    written = commit_numbers.readme(marked, {"mine/better": ("DCL wins.", ["its gain"])}).splitlines()
    assert "| DCL wins. | shown | its gain: 10 [10, 10], must be above 0 |" in written and "old" not in written


def test_a_figure_has_the_verdict_the_intervals_of_the_seeds_and_theory(write: Any, tmp_path: Path) -> None:
    claim = write(theory={"limit": [55.0, 65.0], "SimCLR": "row"})
    for cell in claim.cells:
        for seed, top1 in enumerate((0.50, 0.52, 0.54)):
            _finished(tmp_path, cell, seed, top1 + (0.1 if cell.row == "DCL" else 0))
    results = Results(tmp_path, claim.cells)
    (axis,) = drawing.draw([(claim, fill(claim, claim.cells, results))], results).axes
    assert axis.get_title() == "mine/better: shown\nDCL is better."
    legend = axis.get_legend()
    assert legend is not None and legend.get_title().get_text() == "mean and 90% interval of 3 seeds"
    assert [text.get_text() for text in legend.get_texts()] == ["theory: SimCLR", "theory: limit", "DCL"]
    assert np.allclose(np.asarray(axis.lines[0].get_ydata()), [52.0, 52.0])
    (bars,) = [each for each in axis.collections if isinstance(each, LineCollection)]
    segment = np.asarray(bars.get_segments()[0])
    half = stats.t.isf(0.05, 2) * 2 / math.sqrt(3)
    assert list(segment[:, 1]) == pytest.approx([62 - half, 62 + half])


def test_a_claim_of_one_column_has_its_rows_beside_each_other(write: Any, tmp_path: Path) -> None:
    claim = write(columns=[16])
    for cell in claim.cells:
        for seed, top1 in enumerate((0.50, 0.52, 0.54)):
            _finished(tmp_path, cell, seed, top1 + (0.1 if cell.row == "DCL" else 0))
    results = Results(tmp_path, claim.cells)
    (axis,) = drawing.draw([(claim, fill(claim, claim.cells, results))], results).axes
    assert [text.get_text() for text in axis.get_xticklabels()] == ["SimCLR", "DCL"]
    assert axis.get_xlabel().startswith("batch size: 16\nmean and 90% interval; a thin line for each seed")
    lines = [list(np.asarray(line.get_ydata())) for line in axis.lines]
    assert all(any(each == pytest.approx(seed) for each in lines) for seed in ([50, 60], [52, 62], [54, 64]))


def test_a_table_says_which_metric_its_runs_lack(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = write(metric="knn/digit14/top1")
    monkeypatch.chdir(tmp_path)
    _finished(tmp_path / "outputs", claim.cells[0], 0, 0.5)
    assert judged(claim).verdict is ClaimVerdict.NOT_RUN
    assert table.main(["mine/better", "--format", "md"]) == 0
    assert capsys.readouterr().out.count("no knn/digit14/top1") == 1


def judged(claim: PaperClaim) -> verdicts.Judged:
    return verdicts.judge(claim, Results(Path("outputs"), claim.cells))


def test_the_committed_page_is_made_from_the_committed_numbers() -> None:
    folder, page = tables.directory() / "measured", commit_numbers.page()
    found = commit_numbers.decided(commit_numbers.judged())
    assert (folder / "README.md").read_text() == page
    readme = Path(__file__).parents[2] / "README.md"
    assert readme.read_text() == commit_numbers.readme(readme.read_text())
    of_papers = sum(not each.claim.ours for each in found)
    asked = len(CLAIMS) + len(commit_numbers.DROPPED)
    decide = f"Of {asked} claims committed runs decide {len(found)}: {of_papers} sentences of the"
    assert decide in page
    assert f"[{len(found)} of {asked} are decided]" in readme.read_text()
    assert commit_numbers.FIRST.keys() <= {each.claim.name for each in found}
    assert not {*commit_numbers.DROPPED} & {claim.name for claim in CLAIMS}
    of_tables = {table.name for table in commit_numbers.measured() if not isinstance(table, PaperClaim)}
    assert len(of_tables) == 2  # of 55, say both READMEs
    measured = {measurements.path_of(table) for table in commit_numbers.measured()}
    assert measured == set(folder.glob("*.json"))
    figures = {measurements.path_of(table).stem for table in commit_numbers.measured() if commit_numbers.drawn(table)}
    assert {path.stem for path in folder.glob("*.png")} == figures


def test_a_control_is_about_the_baselines_of_the_same_runs(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minus = {"row": "SimCLR", "metric": "knn_init/top1"}
    control = {"says": "SimCLR minus random initialisation", "of": {"row": "SimCLR"}, "minus": minus, "above": 5}
    claim = write(controls=[control], set=[*COMMON, "evaluate=[knn]", "evaluate.baselines=[init]"])
    monkeypatch.chdir(tmp_path)

    def run(initial: float) -> verdicts.Judged:
        for cell in claim.cells:
            for seed in range(3):
                top1 = {"knn/top1": 0.5 + seed / 100 + (0.1 if cell.row == "DCL" else 0), "knn_init/top1": initial}
                _finished(tmp_path / "outputs", cell, seed, **top1)
        return judged(claim)

    found = run(0.47)
    assert (found.verdict, found.row()[3]) == (ClaimVerdict.UNDECIDED, "failed")
    assert found.findings[0].numbers == pytest.approx([3.0, 4.0, 5.0])
    assert run(0.3).verdict is ClaimVerdict.SHOWN
    commit_numbers.main(["mine/better"])
    (tmp_path / "outputs").rename(tmp_path / "elsewhere")
    found = judged(claim)
    assert found.source == "project" and found.findings[0].numbers == pytest.approx([20.0, 21.0, 22.0])
    with pytest.raises(ConfigError, match="metric=knn@x: "):
        write(controls=[{**control, "of": {"row": "SimCLR", "metric": "knn@x"}}])


def test_baselines_that_a_criterion_asks_for_are_evaluated_by_its_runs() -> None:
    asked = {(cell.overrides, cell.metric) for claim in CLAIMS for cell in commit_numbers.asked(claim)}
    wanted = [(overrides, kind) for overrides, metric in asked for kind in ("init", "raw") if f"_{kind}/" in metric]
    assert len(wanted) > 8 and sum("knn_raw" in metric for _, metric in asked) >= 4
    for overrides, kind in wanted:
        assert kind in composed(overrides)["evaluate"]["baselines"], overrides


def test_criteria_are_those_of_the_commit_at_which_the_runs_began(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=me", "-c", "user.email=me@example.org", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    claim, control = write(), {"says": "learned", "of": {"row": "SimCLR"}, "above": 5}
    monkeypatch.chdir(tmp_path)
    git("init", "-q")
    git("add", "mine.yaml")
    git("commit", "-q", "-m", "criteria")
    start = git("rev-parse", "HEAD")
    environment = {"git": f"{start}+", "git_later": ["0123456789"]}
    for cell in claim.cells:
        _finished(tmp_path / "outputs", cell, 0, 0.5, environment=environment)
    (renamed,) = [{**each, "says": "other words"} for each in CLAIM["criteria"]]
    write(criteria=[renamed], controls=[control], claim="DCL is better here.")  # no other decision, or a stricter one
    commit_numbers.main(["mine/better"])
    assert "mine/better: commit 0123456 " in capsys.readouterr().out
    content = json.loads((tmp_path / "measured" / "mine_better.json").read_text())
    assert content["commit"] == "; ".join(sorted(["0123456", f"{start[:7]}+"]))
    assert content["criteria"] == commit_numbers.rules(claim)
    assert (content["started"], content["finished"]) == ("2026-01-01T00:00:00+00:00", "2026-01-01T00:01:00+00:00")
    for changed in ({"above": 0.1}, {"minus": {"row": "SimCLR", "column": 16}}, {"statistic": "largest"}):
        write(criteria=[{**renamed, **changed}])
        with pytest.raises(SystemExit):
            commit_numbers.main(["mine/better"])
        assert "mine/better" in capsys.readouterr().err


def test_claims_fit_a_terminal_and_are_lines_of_a_wide_one() -> None:
    sheet = verdicts.sheet(commit_numbers.judged(), True)
    lines = text_of([sheet], "rich", 110).splitlines()
    assert [line.split()[0] for line in lines[1 : len(CLAIMS) + 2] if line] == [claim.name for claim in CLAIMS]
    assert max(map(len, text_of([sheet], "rich", 80).splitlines())) <= 80


@pytest.mark.parametrize("share", [60, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_committed_numbers_are_those_of_the_cells_as_they_are_now(share: int) -> None:
    """A claim whose set-up has changed since its runs has other run_ids. One of ``share`` cells is composed."""
    tables_of_numbers = [*commit_numbers.measured()]
    draw = random.Random(0)
    cells = {each.name: draw.sample(each.cells, -(-len(each.cells) // share)) for each in tables_of_numbers}
    made = compositions(cell.overrides for some in cells.values() for cell in some)
    for each in tables_of_numbers:
        if isinstance(each, PaperClaim) and commit_numbers.counted(each):
            assert measurements.read(each)["criteria"] == commit_numbers.rules(each), (
                f"{each.name}: a criterion changed: name new seeds"
            )
        committed = {(c["row"], c["column"], c["seed"]): c.get("run_id") for c in measurements.read(each)["cells"]}
        for cell in cells[each.name]:
            places = {seed: (cell.label, cell.column, seed) for seed in cell.seeds}
            found = {seed: identity for seed, place in places.items() if (identity := committed.get(place))}
            run_ids = {seed: run_id(made[cell.overrides].config(seed)) for seed in found}
            assert run_ids == found, (each.name, cell.label, cell.column)


def test_a_sentence_of_ours_is_marked_wherever_it_is_printed(write: Any) -> None:
    assert [claim.name for claim in CLAIMS if claim.ours] == ["less/snr_given_weights"]
    assert write().says == "DCL is better." and not write().ours
    found = judged(write(by="ours"))
    assert found.record()["ours"] and "Ours: DCL is better." in found.row()[0] + found.lines()[0]
    assert all("Ours: DCL is better." in text_of([verdicts.sheet([found], form == "rich")], form) for form in FORMS)
    with pytest.raises(ConfigError, match=r"by=theirs: .*mine/better: by .*paper or ours"):
        write(by="theirs")


def test_claims_are_found_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert [claim.name for claim in tables.find("dcl/claims")] == [c.name for c in CLAIMS if c.name.startswith("dcl/")]
    assert tables.find("dcl/multiplier") == [CLAIMS[0]] and CLAIMS[0] not in tables.find("dcl")
    assert cli.READERS  # table needs no torch


@pytest.mark.exhaustive
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize(
    "found", [pytest.param(each, id=each.claim.name) for each in commit_numbers.decided(commit_numbers.judged())]
)
def test_a_decided_claim_comes_out_again(found: verdicts.Judged, tmp_path: Path) -> None:
    """One seed of it, trained again, gives each criterion's committed number up to the spread of its seeds."""
    criteria = [each.criterion for each in found.findings]
    seed = criteria[0].seeds[0]
    assert reproduce.main([found.claim.name, f"seed={seed}", f"paths.outputs={tmp_path}"]) == 0
    results = Results(tmp_path, found.claim.cells)
    for criterion, each in zip(criteria, found.findings, strict=True):
        (again,) = criterion.numbers(results.values)
        committed, spread = each.numbers[criterion.seeds.index(seed)], max(each.numbers) - min(each.numbers)
        assert abs(again - committed) <= max(spread, 1e-5 * abs(committed)), criterion.says
