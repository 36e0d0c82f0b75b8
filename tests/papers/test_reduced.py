"""Reduced rows: one family of runs for all cells that are compared, and what it differs in from the paper's recipe."""

from dataclasses import replace
from pathlib import Path

import pytest

from ssl_bench.commands import table
from ssl_bench.papers import tables
from ssl_bench.papers.cells import Cell
from tests.papers.test_commands import write_result

SMALL = ("backbone=conv_n", "dataset.train_images=5000", "epochs=5", "scale=reduced")


def cell(name: str, row: str, column: str) -> Cell:
    """A cell without the settings of its network and optimiser, which others do not have."""
    found = next(c for t in tables.find(name) for c in t.cells if (c.label, c.column) == (row, column))
    kept = (o for o in found.overrides if not o.startswith(("backbone.", "optimizer.")) or name == "mine/t")
    return replace(found, overrides=tuple(kept))


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    capsys.readouterr()
    assert table.main([*arguments, "--format", "md"]) == 0
    return [line for line in capsys.readouterr().out.splitlines() if "reduced" in line or "recipe" in line]


def test_a_grid_over_the_batch_size_has_one_batch_size_in_a_table_that_does_not_vary_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """InfoNCE has 30, 31 and 35 at three batch sizes, DCL 31, 36 and 34; 32 has no runs of DCLW, 128 has most."""
    measured = {32: (0.30, 0.31, None), 128: (0.31, 0.36, 0.33), 512: (0.35, 0.34, 0.36)}
    for size, values in measured.items():
        for column, top1 in zip(("Baseline", "DCL", "DCLW"), values, strict=True):
            for seed in range(3 if size != 512 else 2):
                if top1 is not None:
                    of = cell("dcl/table3", "CIFAR-10", column)
                    write_result(of, seed, {"knn/top1": top1}, f"batch_size=b{size}", *SMALL)
    lines = printed(capsys, "dcl/table3", "row=CIFAR-10*")
    assert lines[0] == (
        "|  | reduced | 31.00 ± 0.00 (3)<sup>2</sup> | 36.00 ± 0.00 (3)<sup>2</sup> | 33.00 ± 0.00 (3)<sup>2</sup> |"
    )
    assert lines[1:] == [
        "<sup>2</sup> not the paper's recipe: backbone=conv_n, not resnet18_cifar; dataset.train_images=5000, "
        "not 50000; epochs=5, not 200; batch_size.size=128, not 256; optimizer.lr=0.12, not 0.03; "
        "optimizer.warmup_epochs=0, not 5; 1 more"
    ]
    # The same line without the other columns: a selection changes no number.
    assert (
        printed(capsys, "dcl/table3", "row=CIFAR-10*", "col=DCL")[0] == "|  | reduced | 36.00 ± 0.00 (3)<sup>1</sup> |"
    )


def test_runs_of_another_loss_fill_no_cell_and_others_name_six_settings_and_a_count(
    capsys: pytest.CaptureFixture[str],
) -> None:
    of = cell("macl/table1", "SimCLR kNN", "Fixed")
    other = ("temperature.tau=0.5", "backbone=conv_n", "optimizer=adam", "scale=reduced")
    write_result(of, 0, {"knn/top1": 0.4}, "loss=dcl", *other)
    assert printed(capsys, "macl/table1") == []
    write_result(of, 0, {"knn/top1": 0.3}, *other, "max_steps=9", "evaluate.knn.k=5", "precision=fp32", *SMALL[1:3])
    value, note = printed(capsys, "macl/table1")
    assert value.startswith("|  | reduced | 30.00 (1)<sup>1</sup> |  |")
    names = [part.split("=")[0] for part in note.partition("recipe: ")[2].split("; ")]
    assert names[:4] == ["backbone", "dataset.train_images", "epochs", "max_steps"] and len(names) == 7
    assert names[-3:] == ["temperature.tau", "evaluate.knn.k", "1 more"] and "epochs=5, not 500" in note


def test_one_rate_for_all_and_the_rate_of_each_recipe_are_both_families(capsys: pytest.CaptureFixture[str]) -> None:
    """Two losses that the paper trains at different rates; a mixture of both is none."""
    dcl, infonce = (cell("mine/t", row, "A") for row in ("DCL", "InfoNCE"))
    for of, rates in ((infonce, (0.1, 0.3)), (dcl, (0.3,))):
        for rate in rates:
            write_result(of, 0, {"knn/top1": rate}, f"optimizer.lr={rate}", "epochs=5", "scale=reduced")
    lines = printed(capsys, "mine/t")  # the recipe is 0.1 and 0.2: only at 0.3 there are both
    assert [line.split("|", 2)[2] for line in lines[:-1]] == [" reduced | 30.00 (1)<sup>1</sup> |"] * 2
    assert "epochs=5, not 200; optimizer.lr=0.3, not 0.1/0.2" in lines[-1]
    write_result(dcl, 0, {"knn/top1": 0.2}, "optimizer.lr=0.2", "epochs=5", "scale=reduced")
    lines = printed(capsys, "mine/t")  # now at the recipe's, too, which is nearer
    numbers = [line.split("|")[3].split()[0] for line in lines if "| reduced" in line]
    assert numbers == ["10.00", "20.00"] and "optimizer.lr" not in lines[-1]


@pytest.fixture(autouse=True)
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """For the last test, a paper with a rate for each loss."""
    if "rate" in request.node.name:
        rows = "{InfoNCE: [loss=infonce, optimizer.lr=0.1], DCL: [loss=dcl, optimizer.lr=0.2]}"
        text = "paper: mine\ntitle: A\ncite: B\ntables:\n  t: {title: t, metric: knn/top1, set: [dataset=cifar10], "
        (tmp_path / "mine.yaml").write_text(f"{text}columns: [A], rows: {rows}}}\n")
        monkeypatch.setenv("SSL_BENCH_PAPERS", str(tmp_path))
