"""``ssl-bench table`` and ``figure`` of any runs: means over seeds only, by two settings."""

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import ssl_bench
from ssl_bench.commands import figure, table
from ssl_bench.config.identity import run_id
from ssl_bench.errors import ConfigError
from ssl_bench.results.pivot import pivot
from ssl_bench.results.select import chosen
from ssl_bench.results.statistics import half_width
from tests.evaluated import with_evaluations
from tests.papers.conftest import composed

Output = pytest.CaptureFixture[str]


def write(top1: float | None, *overrides: str, experiment: str = "grid", **edited: Any) -> Path:
    """Write a finished run, or without an accuracy one that has failed.

    Args:
        edited: keys of the configuration that no command sets, with ``__`` for a dot.
    """
    seed = next(int(each.partition("=")[2]) for each in overrides if each.startswith("seed="))
    config = composed([f"name={experiment}", *(o for o in overrides if not o.startswith("seed="))], seed=seed)
    for name, value in edited.items():
        group, _, key = name.partition("__")
        config[group] = {**config.get(group, {}), key: value}
    folder = Path("outputs", experiment, run_id(config))
    folder.mkdir(parents=True)
    (folder / "command.txt").write_text(f"ssl-bench train name={experiment} {' '.join(overrides)}")
    if top1 is None:
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        (folder / "failed.json").write_text(json.dumps({"reason": "out of memory"}))
        return folder
    content = {"run_id": folder.name, "config": config, "metrics": {"knn/top1": top1}, "seconds": 1.0}
    (folder / "results.json").write_text(json.dumps(with_evaluations(content)))
    return folder


@pytest.fixture
def grid() -> None:
    for size, base in ((32, 0.50), (128, 0.60)):
        for seed in range(3):
            write(base + 0.01 * seed, "loss=infonce", f"batch_size=b{size}", f"seed={seed}")
            write(base + 0.02 * seed, "loss=dcl", f"batch_size=b{size}", f"seed={seed}")


def as_csv(capsys: Output, *arguments: str) -> list[dict[str, str]]:
    capsys.readouterr()
    assert table.main([*arguments, "--format", "csv"]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_a_grid_is_a_table_of_means_over_seeds(grid: None, capsys: Output) -> None:
    rows = as_csv(capsys, "grid", "--rows", "loss", "--columns", "batch_size")
    found = {(r["loss"], r["batch_size"]): (float(r["mean"]), float(r["std"]), r["n"], r["best"]) for r in rows}
    assert found["dcl", "128"] == (pytest.approx(62), pytest.approx(2), "3", "True")
    assert found["infonce", "32"] == (pytest.approx(51), pytest.approx(1), "3", "False") and len(found) == 4
    assert table.main(["grid", "--rows", "loss", "--columns", "batch_size", "--format", "md"]) == 0
    assert "| dcl | **52.00 ± 2.00 (3)** | **62.00 ± 2.00 (3)** |" in capsys.readouterr().out


def test_what_else_varies_makes_a_table_each_and_is_never_averaged_over(grid: None, capsys: Output) -> None:
    assert {r["loss"] for r in as_csv(capsys, "grid", "--rows", "batch_size", "--columns", "seed")} == {
        "dcl",
        "infonce",
    }
    (only,) = pivot(chosen(["grid", "loss=dcl"]), "batch_size", "seed", None)
    assert only.cells[128, 2].values == [pytest.approx(64)]


def test_the_interval_is_that_of_students_t(grid: None) -> None:
    (means,) = pivot(chosen(["grid"]), "loss", "batch_size", "knn/top1")
    t = 4.302652729911275  # of 2 degrees of freedom
    assert half_width(means.cells["dcl", 32].values) == pytest.approx(t * 2 / 3**0.5)


def test_python_has_what_the_commands_have(grid: None, capsys: Output) -> None:
    table = ssl_bench.table("outputs/grid", rows="loss", columns="batch_size")
    found = table.to_dict("records")
    text = [{name: "" if value is None else str(value) for name, value in row.items()} for row in found]
    printed = as_csv(capsys, "grid", "--rows", "loss", "--columns", "batch_size")
    assert text == [{name: row[name] for name in text[0]} for row in printed] and len(found) == 4
    assert ssl_bench.table("outputs/grid", rows="loss", columns="batch_size").equals(table)  # the folder of the name

    (axis,) = ssl_bench.figure(x="batch_size", lines="loss").axes
    lines: dict[Any, Any] = {bars.get_label(): bars.lines for bars in axis.containers}  # type: ignore[attr-defined]
    assert list(lines) == ["loss=dcl", "loss=infonce"]
    # Each line is moved to its own side by a part of the distance between two places, so that intervals are apart.
    assert lines["loss=dcl"][0].get_ydata().tolist() == [pytest.approx(52), pytest.approx(62)]
    assert lines["loss=dcl"][0].get_xdata().tolist() == pytest.approx([32, 128], rel=0.04)
    ((_, low), (_, high)) = lines["loss=dcl"][2][0].get_segments()[0]
    assert (high - low) / 2 == pytest.approx(4.302652729911275 * 2 / 3**0.5)
    left, right = ssl_bench.figure(x="seed", lines="batch_size").axes  # a panel for each loss
    assert left.get_ylim() == right.get_ylim() and left.get_ylim()[0] < 50 and left.get_ylim()[1] > 64
    panels: list[Any] = ssl_bench.figure(x="seed", y="batch_size", metric="knn/top1").axes
    images = {axis.get_title(): axis.images[0].get_array().tolist() for axis in panels if axis.images}
    assert images["knn/top1 (%), loss=dcl"] == [pytest.approx([50, 52, 54]), pytest.approx([60, 62, 64])]
    assert len(images) == 2
    assert len({axis.images[0].get_clim() for axis in panels if axis.images}) == 1  # the colours of both mean the same
    with pytest.raises(ConfigError, match=r"^lines=loss, y=batch_size: "):
        ssl_bench.figure(lines="loss", y="batch_size")


def test_a_grid_is_drawn_as_lines_and_as_a_heat_map(grid: None) -> None:
    assert figure.main(["grid", "--x", "batch_size", "--lines", "loss", "--out", "lines.pdf"]) == 0
    assert Path("lines.pdf").read_bytes()[:4] == b"%PDF"
    assert table.main(["grid", "--columns", "batch_size", "--rows", "loss", "--out", "same.pdf"]) == 0
    assert figure.main(["grid", "loss=dcl", "--x", "seed", "--y", "batch_size", "--out", "heat.png"]) == 0
    assert Path("heat.png").read_bytes()[1:4] == b"PNG"


def test_a_setting_that_no_command_named_divides_tables_and_panels() -> None:
    """The learning rate of an edited file, the source of a plugin, and other images under the same name."""
    for seed, (rate, source, images) in enumerate([(0.1, "1 #a", "x"), (0.1, "1 #b", "x"), (0.2, "1 #a", "x")]):
        for place in range(2):
            of: dict[str, Any] = {"optimizer__lr": rate, "plugins__mine": source, "dataset__content": images}
            write(0.5 + 0.1 * seed, "loss=dcl", f"seed={2 * seed + place}", **of)
    for seed in (0, 1):
        write(0.9, "loss=dcl", f"seed={seed}", optimizer__lr=0.1, plugins__mine="1 #a", dataset__content="y")
    found = pivot(chosen(["grid"]), "loss", "batch_size", None)
    (values,) = {tuple(one.of) for one in found}
    assert {*values} == {"optimizer.lr", "plugins.mine", "dataset.content"} and len(found) == 4
    assert all(len(cell.values) == 2 for one in found for cell in one.cells.values())
    (of_y,) = (cell for one in found if one.of["dataset.content"] == "y" for cell in one.cells.values())
    assert of_y.values == pytest.approx([90, 90])
    assert len(ssl_bench.figure(x="batch_size", lines="loss").axes) == 4
    assert ssl_bench.table(rows="loss", columns="batch_size", where={"experiment": "grid"})["n"].tolist() == [2] * 4


def test_what_is_missing_is_counted_and_what_varies_in_a_column_is_named(grid: None) -> None:
    write(None, "loss=eqco", "batch_size=b32", "seed=0")
    for seed in (0, 1):
        write(0.7, "loss=eqco", "batch_size=b128", f"seed={seed}", optimizer__lr=7.0)
        write(0.8, "loss=swd", "batch_size=b128", f"seed={seed}", optimizer__momentum=0.5 + 0.0 * seed)
    (means,) = pivot(chosen([]), "loss", "batch_size", None)
    missing, between = means.below
    assert "failed: 1 of 17 runs" in missing and "loss=eqco" in missing and "batch_size=32" in missing
    assert "optimizer.lr" in between and "optimizer.momentum" in between and "batch_size" not in between
    (of_b32,) = pivot(chosen(["batch_size=32"]), "loss", "batch_size", None)
    assert len(of_b32.below) == 1  # in their column nothing else varies


def test_a_copy_counts_once_and_other_numbers_of_one_training_are_refused(grid: None) -> None:
    folder = write(0.8, "loss=swd", "seed=0")
    copy = Path("outputs/copies") / folder.name
    shutil.copytree(folder, copy)
    (means,) = pivot(chosen(["loss=swd"]), "loss", "batch_size", None)
    assert [cell.values for cell in means.cells.values()] == [pytest.approx([80])]
    (by_experiment,) = pivot(chosen(["loss=swd"]), "name", "", None)
    assert [len(cell.values) for cell in by_experiment.cells.values()] == [1, 1]
    (copy / "results.json").write_text((copy / "results.json").read_text().replace('top1": 0.8', 'top1": 0.7'))
    with pytest.raises(ConfigError, match=r"0\.[78] in outputs/.* and 0\.[78] in outputs/"):
        pivot(chosen(["loss=swd"]), "loss", "batch_size", None)
