"""Claims: criteria against scipy's tests, verdicts, what a file may say, and runs that never fill a paper's cell."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats

from ssl_bench import cli
from ssl_bench.commands import table
from ssl_bench.config.identity import run_id
from ssl_bench.errors import ConfigError
from ssl_bench.papers import claims, measurements, tables, verdicts
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import Cell
from ssl_bench.papers.claims import ClaimVerdict, Criterion, PaperClaim
from ssl_bench.papers.selection import Selection
from ssl_bench.report import filled as report
from tests.conftest import SMALL
from tests.papers.conftest import cell_run_id, composed

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
import commit_numbers

CLAIMS = [claim for paper in tables.papers() for claim in tables.claims(paper)]
COMMON = ["dataset=scattered_digits", "max_steps=2", *[o for o in SMALL if not o.startswith("evaluate")]]
CLAIM: dict[str, Any] = {
    "title": "t",
    "claim": "DCL is better.",
    "where": "table 1",
    "minutes": 1,
    "metric": "knn/top1",
    "set": [*COMMON, "evaluate=[knn]", "evaluate.baselines=[]"],
    "seeds": [0, 1, 2],
    "columns": [16, 32],
    "each": ["batch_size.size={column}"],
    "x": {"label": "batch size"},
    "rows": {"SimCLR": ["loss=infonce"], "DCL": ["loss=dcl"]},
    "criteria": [{"says": "DCL minus SimCLR", "of": {"row": "DCL"}, "minus": {"row": "SimCLR"}, "above": 0}],
}
PAPER = {"paper": "mine", "title": "t", "cite": "c", "tables": {"table1": {**CLAIM, "rows": {"DCL": ["loss=dcl"]}}}}
for key in ("claim", "where", "minutes", "criteria"):
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
    assert len(CLAIMS) >= 14 and {claim.paper for claim in CLAIMS} == set(tables.papers())
    for claim in CLAIMS:
        assert claim.criteria and claim.where and claim.minutes > 0, claim.name
        assert all(cell.paper is None and cell.settings["scale"] == "reduced" for cell in claim.cells), claim.name
        assert all(len(cell.seeds) >= 3 for cell in claim.cells), claim.name
        if claim.beside:
            selection = Selection.of(claim.beside)
            shown = [cell for table in selection.tables() for cell in selection.cells(table)]
            assert any(cell.paper is not None for cell in shown), claim.name


def test_an_interval_is_that_of_scipys_t_test() -> None:
    numbers = list(np.random.default_rng(0).normal(1.0, 0.5, 5))
    expected = stats.ttest_1samp(numbers, 0).confidence_interval(0.90)
    assert np.allclose(claims.interval(numbers), (expected.low, expected.high), rtol=1e-12)
    assert claims.interval([2.0, 2.0, 2.0]) == (2.0, 2.0)
    assert all(math.isnan(end) for end in claims.interval([2.0]))


@pytest.mark.parametrize(
    ("numbers", "verdict"),
    [
        ([1.0, 1.1, 0.9], ClaimVerdict.SHOWN),
        ([-1.0, -1.1, -0.9], ClaimVerdict.NOT_SHOWN),
        ([1.0, -1.0, 0.5], ClaimVerdict.UNDECIDED),
        ([0.0, 0.0, 0.0], ClaimVerdict.NOT_SHOWN),  # not above the threshold
        ([1.0, 1.1], ClaimVerdict.NOT_RUN),
    ],
)
@pytest.mark.parametrize("above", [True, False])
def test_the_verdict_is_where_the_interval_lies(
    numbers: list[float], verdict: ClaimVerdict, above: bool, write: Any
) -> None:
    side = {"above": 0} if above else {"below": 0}
    first = [{"says": "s", "of": {"row": "DCL", "column": 16}, **side}]
    claim = write(criteria=first)
    sign = 1 if above else -1
    (finding,) = claim.findings(lambda cell: {seed: sign * number for seed, number in enumerate(numbers)})
    assert finding.verdict is verdict and claims.verdict([finding]) is verdict
    assert finding.mean == pytest.approx(sign * sum(numbers) / len(numbers), abs=1e-12)


def test_a_claim_is_shown_only_if_all_of_its_criteria_are() -> None:
    def of(*found: ClaimVerdict) -> ClaimVerdict:
        return claims.verdict([claims.Tested(None, [], 0, 0, 0, each) for each in found])  # type: ignore[arg-type]

    shown, undecided, refuted, missing = (
        ClaimVerdict.SHOWN,
        ClaimVerdict.UNDECIDED,
        ClaimVerdict.NOT_SHOWN,
        ClaimVerdict.NOT_RUN,
    )
    assert of(shown, shown) is shown and of(shown, undecided) is undecided
    assert of(undecided, refuted, shown) is refuted and of(refuted, missing) is missing


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
    assert numbers("trend", of={"row": "DCL"}) == [1.0, -1.0, 1.0]
    assert claims.STATISTICS["trend"]([1.0, 2.0, 3.0, 3.0]) == pytest.approx(5 / math.sqrt(6 * 5))  # tau-b
    assert claims.STATISTICS["trend"]([1.0, 1.0, 1.0]) == 0
    assert numbers("mean", of={"row": "DCL", "column": 16}, minus={"row": "DCL", "column": 32}) == [-0.5, 2.0, -5.0]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"criteria": None}, "mine/better: a claim needs criteria"),
        ({"rows": {"DCL": {"values": [1.0, 2.0]}}}, "a claim has no values of the paper: name their table in beside"),
        (
            {"criteria": [{"says": "s", "of": {}, "above": 0, "below": 1}]},
            "a criterion has says, of, and above or",
        ),
        (
            {"criteria": [{"says": "s", "of": {}, "statistic": "sum", "above": 0}]},
            "statistic to one of mean, largest",
        ),
        ({"criteria": [{"says": "s", "of": {"row": "MACL"}, "above": 0}]}, "no cell has row MACL and column *"),
    ],
)
def test_a_wrong_claim_is_refused(keys: dict[str, Any], message: str, write: Any) -> None:
    with pytest.raises(ConfigError) as error:
        write(**keys)
    assert message in str(error.value)


def _finished(folder: Path, cell: Cell, seed: int, top1: float) -> None:
    """Write the results of a run of a cell, as a training does."""
    config = composed(cell.overrides, cell.command, seed)
    path = folder / "mine" / run_id(config)
    path.mkdir(parents=True, exist_ok=True)
    environment = {"git": "0123456789", "device": "a CPU", "threads": 1, "torch": "2.15.0", "ssl_bench": "0.2.0"}
    results = {"run_id": run_id(config), "name": "mine", "config": config, "metrics": {"knn/top1": top1}}
    (path / "results.json").write_text(json.dumps({**results, "environment": environment, "seconds": 3.4}))


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
    reported = report.of_papers(Path("outputs"))
    assert [each["verdict"] for each in reported["claims"]] == ["shown"]
    filled = {each["name"]: each["cells"] for each in reported["tables"]}
    assert [cell["ours"] for cell in filled["mine/better"] if cell["row"] == "DCL"] == [pytest.approx([60, 61, 62])] * 2
    assert all(cell["reduced"] and not cell["ours"] for cell in filled["mine/table1"])

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
    row = "| mine/better | shown | project | 3 | 1 | DCL is better. (table 1) |"
    assert row in capsys.readouterr().out.splitlines()
    assert table.main(["mine/better", "--format", "md"]) == 0
    assert "- DCL minus SimCLR: 10, 90% interval 10 to 10, n = 3; must be above 0: shown" in capsys.readouterr().out
    assert table.main(["--claims", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["criteria"][0]["verdict"] == "shown"

    commit_numbers.main([])
    lines = (tmp_path / "measured" / "README.md").read_text().splitlines()
    assert row in lines and "![t](mine_better.png)" in lines and "kept" in lines
    assert "| DCL | project | 61.00 ± 1.00 (3) | 61.00 ± 1.00 (3) |" in lines
    assert (tmp_path / "measured" / "mine_better.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_says_which_metric_its_runs_lack(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = write(metric="knn/digit14/top1")
    monkeypatch.chdir(tmp_path)
    _finished(tmp_path / "outputs", claim.cells[0], 0, 0.5)
    assert judged(claim).verdict is ClaimVerdict.NOT_RUN
    assert table.main(["mine/better", "--format", "md"]) == 0
    assert capsys.readouterr().out.count("its runs have no knn/digit14/top1") == 1


def judged(claim: PaperClaim) -> verdicts.Judged:
    return verdicts.judge(claim, Results(Path("outputs"), claim.cells))


def test_the_committed_page_is_made_from_the_committed_numbers() -> None:
    folder = tables.directory() / "measured"
    assert (folder / "README.md").read_text() == commit_numbers.page()
    measured = {measurements.path_of(table) for table in commit_numbers.measured()}
    assert measured == set(folder.glob("*.json"))
    figures = {measurements.path_of(table).stem for table in commit_numbers.measured() if table.x}
    assert {path.stem for path in folder.glob("*.png")} == figures


def test_committed_numbers_are_those_of_the_cells_as_they_are_now() -> None:
    """A claim whose set-up has changed since its runs has other run_ids."""
    for each in commit_numbers.measured():
        committed = {(c["row"], c["column"], c["seed"]): c.get("run_id") for c in measurements.read(each)["cells"]}
        for cell in each.cells:
            for seed in cell.seeds:
                if identity := committed.get((cell.label, cell.column, seed)):
                    assert identity == cell_run_id(cell, seed), (each.name, cell.label, cell.column)


def test_claims_are_found_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert [claim.name for claim in tables.find("dcl/claims")] == [c.name for c in CLAIMS if c.paper == "dcl"]
    assert tables.find("dcl/multiplier") == [CLAIMS[0]] and CLAIMS[0] not in tables.load("dcl")
    assert table.main(["--claims", "nobody"]) == 2
    assert "--claims: there is no paper 'nobody': name dcl, eqco" in capsys.readouterr().err
    assert cli.READERS  # table needs no torch
