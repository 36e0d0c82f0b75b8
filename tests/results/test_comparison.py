"""``ssl-bench compare``: pairs by seed, cells by what else varies, verdicts after Holm, and what is refused."""

import json
import math
from typing import Any

import pytest
from scipy import stats

import ssl_bench
from ssl_bench.commands import compare
from ssl_bench.errors import ConfigError
from tests.results.folders import add, run

ACCURACY = {
    ("infonce", 0.1): [0.50, 0.52, 0.54],
    ("dcl", 0.1): [0.60, 0.63, 0.63],
    ("dcl", 0.3): [0.4],
    ("byol", 0.3): [0.3],
}


@pytest.fixture
def grid() -> None:
    """Three seeds of two losses at one rate, and one of two at another rate."""
    for (loss, lr), values in ACCURACY.items():
        for seed, value in enumerate(values):
            run("grid/", value, loss=loss, optimizer__lr=lr, seed=seed)


def printed(capfd: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert compare.main([*words, "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    return found


def test_differences_have_one_deviation_of_all_runs(grid: None, capfd: pytest.CaptureFixture[str]) -> None:
    """A cell with one run on each side has an interval, too; without several seeds it has commands."""
    found = printed(capfd, "--by", "loss", "--to", "dcl", "grid")
    cells = {(cell["of"], cell["n"]): cell for cell in found["cells"]}
    several, single = cells["infonce", 3], cells["byol", 1]
    assert math.isclose(several["difference"], -10) and math.isclose(several["mean"], 52)
    t = stats.t.isf(0.025 / 2, 4)  # of two comparisons; four degrees of freedom
    half = t * math.sqrt((8 + 6) / 3 * 8 / 4 / 3)  # the own errors of the two cells are larger than those of all
    assert [several["low"], several["high"]] == pytest.approx([-10 - half, -10 + half])
    assert (several["verdict"], several["varies"], several["seeds"]) == ("worse", "seeds only", [0, 1, 2])
    assert (
        single["high"] - single["difference"] == pytest.approx(t * math.sqrt(2 * (8 + 6) / 4))
        and single["commands"] == []
    )
    assert found["alone"] == 0 and found["unit"] == "percent"
    table: Any = ssl_bench.compare(by="loss", to="dcl")
    assert table["difference"].round(9).tolist() == [cell["difference"].__round__(9) for cell in found["cells"]]
    (alone,) = printed(capfd, "--by", "loss", "--to", "dcl", "grid", "optimizer.lr=0.3")["cells"]
    assert alone["verdict"] == "no verdict" and alone["low"] is None
    assert alone["commands"] == [f"ssl-bench train loss={loss} optimizer.lr=0.3 seed=1" for loss in ("byol", "dcl")]


def test_two_values_two_experiments_and_a_margin(grid: None, capfd: pytest.CaptureFixture[str]) -> None:
    by = ("--by", "loss", "--to", "infonce")
    (cell,) = printed(capfd, "loss=dcl,infonce", *by, "--margin", "20")["cells"]
    assert (cell["of"], cell["to"], cell["verdict"]) == ("dcl", "infonce", "better, no difference larger than 20")
    with pytest.raises(ConfigError, match=r"^margin=-1\.0: "):
        ssl_bench.compare(by="loss", margin=-1.0)
    run("other/", 0.7, loss="byol", optimizer__lr=0.1, seed=1)
    found = printed(capfd, "grid", "other", "optimizer.lr=0.1", "--by", "loss", "--to", "byol")
    assert {(cell["of"], cell["to"], cell["n"]) for cell in found["cells"]} == {
        ("infonce", "byol", 1),
        ("dcl", "byol", 1),
    }


def test_verdicts_hold_together_and_other_code_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    """A difference with p = 0.03 is a verdict in one cell, and none in two of the same deviation (Holm)."""
    for count, lrs in ((1, [0.1]), (2, [0.1, 0.3])):
        # seeds have no part of their own in one cell, and in two they have, with three times two degrees
        free = 4 if count == 1 else 6
        least = stats.t.isf(0.015, free) * math.sqrt(2 / 3)
        for lr in lrs:
            for loss, shift, sign in (("infonce", 0.0, 1), ("dcl", least, 1 if count == 1 else -1)):
                for seed, noise in enumerate((-1.0, 0.0, 1.0)):
                    more = shift + sign * noise * (1 if lr == 0.1 else -1) * (math.sqrt(1.5 / 2) if count == 2 else 1)
                    folder = run(f"g{count}/", 0.5 + more / 100, loss=loss, optimizer__lr=lr, seed=seed)
                    add(folder, environment={"git": loss})
    (cell,) = printed(capfd, "--by", "loss", "--to", "infonce", "g1")["cells"]
    assert (cell["verdict"], cell["differ"]) == ("better", ["versions of the code (dcl, infonce)"])
    over, *both = printed(capfd, "--by", "loss", "--to", "infonce", "g2")["cells"]
    assert over["where"] == "all cells" and over["verdict"] == "better"
    assert [cell["verdict"] for cell in both] == ["undecided", "undecided"]
    assert all(cell["low"] < 0 < cell["single_low"] for cell in both)
