"""``ssl-bench compare GRID``: differences and trends in every form, and what is left out or refused."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import ssl_bench
from ssl_bench.commands import compare
from ssl_bench.errors import ConfigError
from ssl_bench.report import verdicts
from ssl_bench.results.matters import what_matters
from ssl_bench.results.table import chosen, name_numbers
from tests import given
from tests.results.folders import fail, run

LOSSES, BATCHES, KEYS = {"infonce": 0, "dcl": 2}, {32: 0, 128: 1.5, 512: 3}, {4: 0, 32: 4, 256: 8}


def add(loss: str, size: int, k: int, seed: int, value: float | None) -> Path:
    """Make a run with an accuracy in percent, or one that has diverged."""
    top1 = None if value is None else value / 100
    folder = run("g/", top1, loss=loss, batch_size=size, negatives__k=k, seed=seed)
    return fail(folder) if value is None else folder


@pytest.fixture
def grid() -> dict[tuple[str, int, int, int], Path]:
    """Accuracies of 18 cells and three seeds with a deviation of 2; K matters most by far. Folders by the settings."""
    folders = dict[tuple[str, int, int, int], Path]()
    noise = iter(np.random.default_rng(5).normal(scale=2, size=54))
    for (loss, of_loss), (size, of_size), (k, of_k) in itertools.product(LOSSES.items(), BATCHES.items(), KEYS.items()):
        for seed in range(3):
            folders[loss, size, k, seed] = add(loss, size, k, seed, 50 + of_loss + of_size + of_k + next(noise))
    return folders


def printed(capfd: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert compare.main([*words, "--format", "json"]) == 0
    content: dict[str, Any] = json.loads(capfd.readouterr().out)
    return content


def test_the_answer_in_every_form(
    grid: object, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = printed(capfd, "g")
    by_name = {of["setting"]: of for of in record["settings"]}
    assert [*by_name] == ["negatives.k", "batch_size", "loss"]  # those that matter most first
    truths = {"negatives.k": (4, 256, 8), "batch_size": (32, 512, 3), "loss": ("infonce", "dcl", 2)}
    for name, (start, end, truth) in truths.items():
        of = by_name[name]
        assert (of["from"], of["to"]) == (start, end) and of["low"] < truth < of["high"] and of["verdict"] == "matters"
    trend = by_name["negatives.k"]["per_doubling"]
    assert trend["low"] < 8 / 6 < trend["high"] and by_name["loss"]["per_doubling"] is None
    assert record["beyond"]["p"] > 0.05 and record["beyond"]["low"] < 0 < record["beyond"]["high"]
    seeds = record["seeds"]
    assert (seeds["least"], seeds["most"]) == (3, 3) and 1.5 < seeds["deviation"] < 2.5
    assert record["runs"] == 54 and record["missing"] == 0
    now, more = record["smallest"]
    assert (now["seeds"], more["seeds"]) == (3, 5) and now["half"] > more["half"] > 0.5 * now["half"]
    monkeypatch.setenv("COLUMNS", "80")
    for form in ("rich", "md", "tex", "csv"):
        assert compare.main(["g", "--format", form]) == 0
        text = capfd.readouterr().out
        assert "batch\\_size" in text if form == "tex" else "batch_size" in text
        assert (form == "csv" or "matters" in text) and ("ssl-bench train" in text) == (form != "tex")
        assert form != "rich" or max(map(len, text.splitlines())) <= 80
    what = ssl_bench.compare("outputs/g", margin=20)
    assert what.settings["difference"].tolist() == [of["difference"] for of in record["settings"]]
    assert all(verdict.endswith("smaller than 20") for verdict in what.settings["verdict"])
    (axis,) = what.figure().axes
    assert axis.get_yticklabels()[0].get_text().startswith("negatives.k") and "negatives.k" in str(what)


def test_a_value_all_of_whose_runs_have_diverged_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    for size in BATCHES:
        for seed in range(2):
            add("infonce", size, 4, seed, 50 + BATCHES[size] + seed)
            add("dcl", size, 4, seed, None)
    record = printed(capfd, "g")
    assert [of["setting"] for of in record["settings"]] == ["batch_size"] and record["diverged"] == 6
    assert compare.main(["g"]) == 0 and "loss=dcl " in capfd.readouterr().out
    (cell,) = printed(capfd, "g", "--by", "loss", "--to", "infonce")["cells"]
    assert (cell["of"], cell["to"], cell["n"], cell["verdict"]) == ("dcl", "infonce", 0, "no verdict")
    assert compare.main(["g", "batch_size=32"]) == 0
    assert "loss=dcl " in capfd.readouterr().out  # nothing else varies
    with pytest.raises(ConfigError, match="6 diverged"):
        ssl_bench.compare("outputs/g", where={"loss": "dcl"})


@pytest.mark.parametrize(("seeds", "code"), [((), 0), ((3, 4), 3)])
def test_a_gate_is_undecided_where_runs_of_one_side_have_diverged(
    seeds: tuple[int, ...], code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    for seed in range(3):
        add("infonce", 32, 4, seed, 50 + seed)
        add("dcl", 32, 4, seed, 60 + seed + 0.1 * seed)
    for loss in LOSSES:  # a seed that diverges on both sides says nothing about one of them
        add(loss, 32, 4, 9, None)
    for seed in seeds:
        add("dcl", 32, 4, seed, None)
    for expected in ("better", "not-worse"):
        assert compare.main(["g", "--by", "loss", "--to", "infonce", "--expect", expected]) == code
    assert compare.main(["g", "--by", "loss", "--to", "infonce", "--expect", "equivalent", "--margin", "20"]) == 0
    capfd.readouterr()
    (row,) = (of for of in printed(capfd, "g", "--by", "loss")["left_out"] if of["why"] == "diverged")
    assert len(row["runs"]) == 2 + len(seeds) and {"loss=infonce seed=9", "loss=dcl seed=9"} <= {*row["runs"]}


def test_settings_that_vary_together_are_not_told_apart() -> None:
    given.together()
    with pytest.raises(ConfigError, match="vary together"):
        what_matters(chosen([]))


def test_one_seed(capfd: pytest.CaptureFixture[str]) -> None:
    """Without three degrees of freedom beyond the sum of the settings there are no intervals, with them there are."""
    for loss, of_loss in LOSSES.items():
        for size, of_size in BATCHES.items():
            add(loss, size, 4, 0, 50.0 + 5 * of_loss + of_size + 0.1 * (loss == "dcl") * (size == 32))
    record = printed(capfd, "g")
    assert [of["verdict"] for of in record["settings"]] == ["one seed", "one seed"] and record["beyond"] is None
    assert all(of["low"] is None for of in record["settings"]) and record["seeds"]["deviation"] is None
    assert record["smallest"] == [] and compare.main(["g"]) == 0 and "seed=0,1,2" in capfd.readouterr().out
    (cell, *_) = printed(capfd, "g", "--by", "loss")["cells"]
    assert cell["verdict"] == "no verdict" and cell["low"] is None
    for loss, of_loss in LOSSES.items():
        for size, of_size in BATCHES.items():
            add(loss, size, 32, 0, 51.0 + 5 * of_loss + of_size)
    record = printed(capfd, "g")
    assert record["settings"][0]["verdict"] == "matters" and record["beyond"] is None
    first, *cells = printed(capfd, "g", "--by", "loss", "--to", "infonce")["cells"]
    assert first["verdict"] == "better" and {cell["verdict"] for cell in cells} == {"no verdict"}
    assert first["difference"] == pytest.approx(record["settings"][0]["difference"])


def test_nothing_to_compare(capfd: pytest.CaptureFixture[str]) -> None:
    for seed in range(2):
        add("dcl", 32, 4, seed, 50.0 + seed)
    with pytest.raises(ConfigError, match=r"2 runs .*knn/top1.* 50\.50, deviation 0\.71"):
        what_matters(chosen([]))
    for seed in range(2):
        add("infonce", 32, 4, seed, 50.0)
    with pytest.raises(ConfigError, match="all runs have the same number"):
        what_matters(chosen(["knn/top1=0.5"]))


def test_one_difference_has_one_interval(capfd: pytest.CaptureFixture[str]) -> None:
    """In both tables, Python, the report and the figure it is the same, also where cells vary unlike each other."""
    for seed, (one, other) in enumerate(zip((50, 51, 53), (60, 66, 72), strict=True)):
        add("infonce", 32, 4, seed, one)
        add("dcl", 32, 4, seed, other)
    (setting,) = printed(capfd, "g")["settings"]
    (cell,) = printed(capfd, "g", "--by", "loss", "--to", "infonce")["cells"]
    of_report = verdicts.of(table := chosen(["g"]), name_numbers(table["run"]))
    what, by = ssl_bench.compare("outputs/g"), ssl_bench.compare("outputs/g", by="loss", to="infonce")
    reported = [*of_report["matters"]["knn/top1"]["settings"], *of_report["verdicts"]["knn/top1"][0]["cells"]]
    for name in ("difference", "low", "high"):
        every = [cell[name], what.settings[name][0], by[name][0], *(of[name] for of in reported)]  # type: ignore[index]
        assert every == pytest.approx([setting[name]] * 5)
    bars: Any = what.figure().axes[0].containers[0]
    assert bars.lines[2][0].get_segments()[0][:, 0] == pytest.approx([setting["low"], setting["high"]])
    variances = np.var([50, 51, 53], ddof=1) / 3, np.var([60, 66, 72], ddof=1) / 3
    assert setting["high"] - setting["difference"] == pytest.approx(stats.t.isf(0.025, 4) * np.sqrt(sum(variances)))


def test_the_mean_over_all_cells_is_the_first_comparison(grid: object, capfd: pytest.CaptureFixture[str]) -> None:
    """No cell decides; all of them together do, and each interval agrees with its verdict."""
    first, *cells = printed(capfd, "g", "--by", "loss", "--to", "infonce")["cells"]
    assert (first["where"], first["n"], first["cells"], len(cells)) == ("all cells", 27, 9, 9)
    assert first["difference"] == pytest.approx(np.mean([cell["difference"] for cell in cells]))
    assert first["verdict"] == "better" and first["low"] > 0
    for cell in cells:
        assert (cell["verdict"] == "undecided") == (cell["low"] < 0 < cell["high"])
        assert cell["low"] < cell["single_low"] < cell["single_high"] < cell["high"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--expect", "better"], 0),
        (["--to", "dcl", "--expect", "better"], 1),
        (["--expect", "not-worse"], 0),
        (["--to", "dcl", "--expect", "not-worse"], 1),
        (["--to", "dcl", "--expect", "not-worse", "--margin", "1.8"], 3),
        (["--to", "dcl", "--expect", "not-worse", "--margin", "5"], 0),
        (["--expect", "equivalent", "--margin", "5"], 0),
        (["--expect", "equivalent", "--margin", "0.2"], 1),
        (["negatives.k=32", "batch_size.size=32", "--expect", "better"], 3),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_gate_for_programs(grid: object, words: list[str], code: int) -> None:
    to = [] if "--to" in words else ["--to", "infonce"]
    assert compare.main(["g", "--by", "loss", *to, *words]) == code


def test_numbers_that_agree_by_chance_decide_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Both seeds have one number in each cell: one image of 12 is not shown to matter."""
    images: dict[str, list[int | None]] = {"infonce": [3, 4], "dcl": [None, None]}
    for loss, of_seeds in images.items():
        for seed, wrong in enumerate(of_seeds):
            folder = add(loss, 32, 4, seed, 100 * 11 / 12 if wrong else 100.0)
            right = np.ones(12, dtype=np.uint8)
            right[[] if wrong is None else [wrong]] = 0
            (folder / "hits").mkdir()
            (folder / "hits" / "a.bits").write_bytes(np.packbits(right).tobytes())
            content = json.loads((folder / "results.json").read_text())
            for entry in content["evaluations"]:
                entry["hits"] = {"knn/top1": {"file": "hits/a.bits", "images": 12}}
            (folder / "results.json").write_text(json.dumps(content))
    assert printed(capfd, "g")["settings"][0]["verdict"].startswith("not shown")
    (cell,) = printed(capfd, "g", "--by", "loss", "--to", "infonce", "--margin", "0.5")["cells"]
    assert cell["verdict"] == "undecided" and cell["low"] < 0 < 8 < cell["high"]
