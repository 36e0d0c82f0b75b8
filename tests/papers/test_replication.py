"""Committed numbers are measured again: equal, within the bound, beyond it or missing, and the record of it."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from ssl_bench.commands import reproduce
from ssl_bench.papers import measurements, tables
from ssl_bench.papers.replication import Number, bound, spreads
from tests import golden
from tests.conftest import no_pictures
from tests.door.door import refuses

Train = Callable[..., tuple[int, str]]
HERE = golden.machine()
SAME = golden.RECENT and all(
    HERE[key] == golden.read()["machine"][key] for key in ("processor", "capability", "threads", "weights")
)


def numbers(claim: str, who: str = "me") -> list[dict[str, Any]]:
    content = json.loads(Path("replications", f"{who}.json").read_text())
    found: list[dict[str, Any]] = content["tables"][claim]["numbers"]
    return found


@pytest.mark.exhaustive
def test_a_seed_of_a_claim_comes_out_again_to_six_digits(capfd: pytest.CaptureFixture[str]) -> None:
    """The run takes six seconds and makes its own data. On another processor it need only agree."""
    assert reproduce.main(["--committed", "eqco/toy", "row=EqCo", "col=64", "seed=20", "--who", "me"]) == 0
    (found,) = numbers("eqco/toy")
    assert found["committed"] == 6.09245 and (found["equal"] or not SAME)
    assert f"eqco/toy: {int(found['equal'])} of 1 equal" in capfd.readouterr().out


@pytest.mark.exhaustive
def test_the_first_epochs_of_a_claims_run_have_its_committed_numbers(train: Train) -> None:
    """Run 3a324a7233, the default training with seed 10, where macl/multiplier measures it first.

    On another processor rounding alone makes another training of it, like that of another seed.
    """
    (claim,) = tables.find("macl/multiplier")
    cells = [cell for cell in claim.cells if cell.metric.endswith("@3")]
    assert {cell.overrides for cell in cells} == {cells[0].overrides} and len(cells) == 8
    code, printed = train(*cells[0].overrides, "seed=10", small=False)
    assert code == 0, printed
    (path,) = Path("outputs").glob("*/*/metrics.jsonl")
    last = [row for line in path.read_text().splitlines() if (row := json.loads(line))["epoch"] == 3][-1]
    for cell in cells:
        committed, found = measurements.values(claim, cell), last[cell.metric.removesuffix("@3")]
        assert abs(found - mean(committed.values())) < 5 * stdev(committed.values())
        assert f"{found:.6g}" == f"{committed[10]:.6g}" or not SAME


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_one_run_checks_three_claims_to_six_digits() -> None:
    """The same run to its end, with the evaluators of the claims. It needs no download."""
    claims = ["dcl/decoupled_gradient", "macl/multiplier", "less/snr_given_weights"]
    with no_pictures():
        assert reproduce.main(["--committed", *claims, "seed=10", "--who", "me"]) == 0
    for claim in claims:
        found = numbers(claim)
        assert len(found) > 5 and (not SAME or all(each["equal"] for each in found)), claim


def test_what_differs_is_named_and_the_record_keeps_other_tables(
    tiny: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    refuses("reproduce --committed tiny/table1", "tiny/table1: no committed number is selected", capfd)
    place = {"row": "digits", "metric": "knn/top1", "seed": 0}
    cells: list[dict[str, Any]] = [{**place, "column": name, "value": 0.0} for name in ("infonce", "dcl")]
    folder = tmp_path / "papers" / "measured"
    folder.mkdir()

    def commit() -> None:
        (folder / "tiny_table1.json").write_text(
            json.dumps({"table": "tiny/table1", "commit": "0123456", "cells": cells})
        )

    commit()
    refuses("reproduce --committed tiny/table1 optimizer.lr=1", "optimizer.lr=1: leave it out", capfd)
    refuses("reproduce --committed tiny/table1 --who a/b", "--who=a/b: set --who to letters", capfd)
    with no_pictures():
        assert reproduce.main(["--committed", "tiny/table1", "col=infonce", "--who", "me"]) == 1
    out = capfd.readouterr().out
    (number,) = numbers("tiny/table1")
    assert "tiny/table1: 0 of 1 equal" in out and "digits | infonce | knn/top1, seed 0: 0 committed" in out
    assert "bound 7.5 (no seeds: a deviation of 1.5 points)" in out
    cells[0]["value"] = float(f"{number['found']:.6g}")
    commit()
    Path("replications", "me.json").write_text(json.dumps({"tables": {"other/table": 1}}))
    assert reproduce.main(["--committed", "tiny/table1", "col=infonce", "--who", "me"]) == 0  # nothing is left to train
    (number,) = numbers("tiny/table1")
    content = json.loads(Path("replications", "me.json").read_text())
    assert number["equal"] and content["tables"]["other/table"] == 1 and content["who"] == "me"
    assert content["tables"]["tiny/table1"]["environment"]["threads"] == HERE["threads"]
    cells[0]["value"] += 1  # within 5 standard deviations of these seeds
    cells[1:] = [{**cells[0], "seed": 1, "value": cells[0]["value"] + 2}]
    commit()
    assert reproduce.main(["--committed", "tiny/table1", "col=infonce", "seed=0", "--who", "me"]) == 0
    assert "0 of 1 equal, 1 within the bound (its seeds)" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("name", "metric", "room", "rests"),
    [
        ("intriguing/fig7_mnist", "linear_randbit/top1", 5.103, "the seeds of 17 cells of intriguing/few_bits, "),
        ("eqco/table9", "mutual_information/estimate", 0.02034, "the seeds of 4 cells of eqco/toy"),
    ],
)
def test_the_bound_of_one_seed_is_of_the_seeds_of_other_cells(name: str, metric: str, room: float, rests: str) -> None:
    every = [table for path in tables.paths().values() for kind in tables.read(path) for table in kind]
    (table,), others = tables.find(name), spreads(every)
    cells = [cell for cell in table.cells if cell.metric == metric and measurements.values(table, cell)]
    assert cells
    for cell in cells:
        ((seed, committed),) = measurements.values(table, cell).items()
        given, words = bound(table, cell, committed, others)
        assert given == pytest.approx(room, rel=1e-3) and words.startswith(rests)
        shares = (-0.99, 0.99, -1.01, 1.01)
        apart = [Number(cell, seed, committed, committed + share * room, given, words) for share in shares]
        assert [number.agrees for number in apart] == [True, True, False, False]
        alone, _ = bound(table, cell, committed, [])
        assert alone == pytest.approx(0.2 if "_raw" in metric else 7.5 if "top1" in metric else 0.1 * committed)


def test_missing_images_are_refused_before_anything_is_trained(capfd: pytest.CaptureFixture[str]) -> None:
    refuses("reproduce --committed intriguing/few_bits paths.data=nowhere", "prepare dataset=mnist", capfd)
