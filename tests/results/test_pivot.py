"""``ssl-bench table`` and ``figure`` of any runs: intervals, labels, files, and what stands below."""

from pathlib import Path
from typing import Any

import pytest

import ssl_bench
from ssl_bench.commands import figure, table
from ssl_bench.errors import ConfigError
from ssl_bench.results.pivot import pivot
from ssl_bench.results.table import chosen
from tests.results.folders import fail, run

Output = pytest.CaptureFixture[str]
BY = ["grid", "--rows", "loss", "--columns", "batch_size"]


@pytest.fixture
def grid() -> None:
    for size, base in ((32, 0.50), (128, 0.60)):
        for seed in range(3):
            for loss, step in (("infonce", 0.01), ("dcl", 0.02)):
                run("grid/", base + step * seed, loss=loss, batch_size=size, seed=seed)


def test_the_best_of_a_column_is_bold(grid: None, capsys: Output) -> None:
    assert table.main([*BY, "--format", "md"]) == 0
    assert "| dcl | **52.00 ± 2.00 (3)** | **62.00 ± 2.00 (3)** |" in capsys.readouterr().out
    frame = ssl_bench.table("outputs/grid", rows="loss", columns="batch_size")
    assert frame["best"].tolist() == [True, True, False, False] and frame["std"].tolist() == pytest.approx([2, 2, 1, 1])


def test_lines_have_intervals_and_panels_one_scale(grid: None) -> None:
    (axis,) = ssl_bench.figure(x="batch_size", lines="loss").axes
    lines: dict[Any, Any] = {bars.get_label(): bars.lines for bars in axis.containers}  # type: ignore[attr-defined]
    assert list(lines) == ["loss=dcl", "loss=infonce"]
    # Each line is moved to its own side by a part of the distance between two places, so that intervals are apart.
    assert lines["loss=dcl"][0].get_xdata().tolist() == pytest.approx([32, 128], rel=0.04)
    ((_, low), (_, high)) = lines["loss=dcl"][2][0].get_segments()[0]
    assert (high - low) / 2 == pytest.approx(2)  # the deviation of both cells
    assert axis.lines[0].get_ydata() == pytest.approx([50, 52, 54, 60, 62, 64])  # the seeds
    left, right = ssl_bench.figure(x="seed", lines="batch_size").axes  # a panel for each loss
    assert left.get_ylim() == right.get_ylim() and left.get_ylim()[0] < 50 and left.get_ylim()[1] > 64
    panels: list[Any] = ssl_bench.figure(x="seed", y="batch_size", metric="knn/top1").axes
    images = {axis.get_title(): axis.images[0].get_array().tolist() for axis in panels if axis.images}
    assert images["knn/top1 (%), loss=dcl"] == [pytest.approx([50, 52, 54]), pytest.approx([60, 62, 64])]
    assert len({axis.images[0].get_clim() for axis in panels if axis.images}) == 1  # the colours of both mean the same
    with pytest.raises(ConfigError, match=r"^y=batch_size: .* lines"):
        ssl_bench.figure(lines="loss", y="batch_size")


def test_a_grid_is_drawn_as_lines_and_as_a_heat_map(grid: None) -> None:
    assert table.main([*BY, "--out", "lines.pdf"]) == 0 and Path("lines.pdf").read_bytes()[:4] == b"%PDF"
    assert figure.main(["grid", "loss=dcl", "--x", "seed", "--y", "batch_size", "--out", "heat.svg"]) == 0


def test_a_setting_that_no_command_named_divides_tables_and_panels() -> None:
    """The learning rate of an edited file, the source of a plugin, and other images under the same name."""
    recipes = [(0.1, "1 #a", "x"), (0.1, "1 #b", "x"), (0.2, "1 #a", "x"), (0.1, "1 #a", "y")]
    for place, (rate, source, images) in enumerate(recipes):
        edited: dict[str, Any] = {"optimizer__lr": rate, "plugins__mine": source, "dataset__content": images}
        for seed in range(2):
            run("grid/", 0.5 + 0.1 * place, command="loss=dcl", loss="dcl", seed=2 * (place % 3) + seed, **edited)
    found = pivot(chosen(["grid"]), "loss", "dataset", None)
    assert len(found) == 4 and {*found[0].of} == {"optimizer.lr", "plugins.mine", "dataset.content"}
    means = ssl_bench.table(rows="loss", columns="dataset", where={"experiment": "grid"})
    assert means["n"].tolist() == [2] * 4 and sorted(means["mean"]) == pytest.approx([50, 60, 70, 80])
    assert len(ssl_bench.figure(x="dataset", lines="loss").axes) == 4


def test_what_is_missing_is_counted_and_what_varies_in_a_column_is_named(grid: None) -> None:
    fail(run("grid/", None, loss="eqco", batch_size=32, seed=0), "out of memory")
    for seed, loss in enumerate(("eqco", "swd")):
        run("grid/", 0.7, command="", loss=loss, batch_size=128, seed=seed, optimizer__lr=7.0 + seed)
    (means,) = pivot(chosen([]), "loss", "batch_size", None)
    missing, between = means.below
    assert "failed: 1 of 15 runs" in missing and "loss=eqco" in missing and "batch_size=32" in missing
    assert "optimizer.lr" in between and "batch_size" not in between
    (of_b32,) = pivot(chosen(["batch_size=32"]), "loss", "batch_size", None)
    assert len(of_b32.below) == 1  # in their column nothing else varies
