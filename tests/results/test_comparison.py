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


def test_a_difference_has_its_interval_and_a_cell_of_one_pair_has_commands(
    grid: None, capfd: pytest.CaptureFixture[str]
) -> None:
    found = printed(capfd, "--by", "loss", "--to", "dcl", "grid")
    cells = {(cell["of"], cell["n"]): cell for cell in found["cells"]}
    pairs, single = cells["infonce", 3], cells["byol", 1]
    t = stats.t.isf(0.025, 2)  # the differences are -10, -11 and -9: their deviation is 1
    assert math.isclose(pairs["difference"], -10) and math.isclose(pairs["mean"], 52)
    assert math.isclose(pairs["low"], -10 - t / math.sqrt(3)) and math.isclose(pairs["high"], -10 + t / math.sqrt(3))
    assert (pairs["verdict"], pairs["varies"], pairs["seeds"]) == ("worse", "seeds only", [0, 1, 2])
    assert single["verdict"] == "no verdict" and single["low"] is None
    assert single["commands"] == [f"ssl-bench train loss={loss} optimizer.lr=0.3 seed=1" for loss in ("byol", "dcl")]
    assert found["alone"] == 0 and found["unit"] == "percent"
    table: Any = ssl_bench.compare(by="loss", to="dcl")
    assert table["difference"].round(9).tolist() == [cell["difference"].__round__(9) for cell in found["cells"]]


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
    """A difference with p = 0.03 is a verdict in one cell, and none in two (Holm)."""
    least = stats.t.isf(0.015, 2) / math.sqrt(3)
    for lr in (0.1, 0.3):
        for loss, seeds in {"infonce": [0, 0, 0], "dcl": [least - 1, least, least + 1]}.items():
            for seed, more in enumerate(seeds):
                folder = run("grid/", 0.5 + more / 100, loss=loss, optimizer__lr=lr, seed=seed)
                add(folder, environment={"git": loss})
    (cell,) = printed(capfd, "--by", "loss", "--to", "infonce", "optimizer.lr=0.1")["cells"]
    assert (cell["verdict"], cell["differ"]) == ("better", ["git (dcl, infonce)"])
    over, *both = printed(capfd, "--by", "loss", "--to", "infonce")["cells"]
    assert over["where"] == "all cells" and over["verdict"] == "better"
    assert [cell["verdict"] for cell in both] == ["undecided", "undecided"]
    assert all(cell["low"] < 0 < cell["single_low"] for cell in both)
