"""``ssl-bench conformance``: its formulas against our losses, planted faults that it finds, and what it refuses."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from ssl_bench.api import options
from ssl_bench.check import conformance, formulas, recognised
from ssl_bench.check.conformance import Subject
from ssl_bench.commands.conformance import main
from tests.check import planted

README = Path(__file__).parents[2] / "ssl_bench/check/README.md"


def rows_of(names: list[str]) -> dict[str, conformance.ConformanceRow]:
    subjects = [Subject(f"tests.check.planted:{name}", name.partition("__")[0]) for name in names]
    measured = zip(names, subjects, conformance.measure_on_ranks(subjects), strict=True)
    return {name: conformance.compare_with_formula(subject, columns) for name, subject, columns in measured}


def test_five_planted_faults_are_found_and_right_losses_are_right() -> None:
    rows = rows_of([*planted.RIGHT, *planted.FAULTS])
    assert not any(rows[name].wrong for name in planted.RIGHT)
    own, no_gradient = "a rank has only its own images", "gathered vectors have no gradient"
    assert rows["nt_xent__own"].wrong == {"2 ranks": own, "4 ranks": own}
    assert rows["nt_xent__detached"].wrong == {"2 ranks": no_gradient, "4 ranks": no_gradient}
    assert rows["dcl__positive_kept"].wrong["1 rank"] == "it is that of nt_xent"
    assert rows["nt_xent__overflow"].wrong == {"tau": "more than 0.1% off in float32"}
    assert rows["nt_xent__overflow"].cells["tau"] == "0.01: not finite"
    assert rows["moco__unsaved"].wrong == {"resume": "the state_dict lacks something that a step changes"}


VALUE = {"2 ranks": "value x2", "4 ranks": "value x4"}  # of a sum over the ranks


@pytest.mark.parametrize(
    ("adapter", "package", "formula", "cells"),
    [
        ("lightly", "lightly", "nt_xent", {}),
        ("metric_learning", "pytorch_metric_learning", "nt_xent", VALUE),
        ("open_clip", "open_clip", "clip", {}),
    ],
)
def test_the_adapters_of_the_readme_work(adapter: str, package: str, formula: str, cells: dict[str, str]) -> None:
    pytest.importorskip(package)
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    adapters = re.split(r"^(?=def )", code, flags=re.MULTILINE)[1:]
    lengths = [len(text.strip().splitlines()) for text in adapters]
    assert len(lengths) == 3 and max(lengths) <= 20
    Path("adapters.py").write_text(code)
    subject = Subject("adapters.py:" + adapter, formula)
    (columns,) = conformance.measure_on_ranks([subject])
    row = conformance.compare_with_formula(subject, columns)
    assert row.wrong.keys() == cells.keys()
    assert {column: row.cells[column] for column in cells} == cells


# The options of conf/loss that a formula is of, where its name differs; conf has other defaults of a few options.
NAMES = {"nt_xent": "infonce", "clip": "infonce", "moco": "infonce"}
GIVEN: dict[str, Any] = {"clip": {"negatives": "cross_view"}, "siglip": {"negatives": "cross_view"}}
GIVEN |= {"spectral": {"negatives": "cross_view"}, "align_uniform": {"negatives": "own_view"}}
GIVEN |= {"moco": {"negatives": "queue", "k": 32}, "sogclr": {"instances": 16}, "isogclr": {"instances": 16}}


def test_the_losses_of_the_package_are_the_formulas() -> None:
    """Two definitions that know nothing of each other, each with its own defaults."""
    assert {NAMES.get(name, name) for name in formulas.FORMULAS} <= {*options.names("loss")}
    for name, formula in formulas.FORMULAS.items():
        for resume in (False, True):
            subject = Subject(f"tests.check.test_conformance:{name}", name)
            measured = conformance.measure_here(subject, torch.float64, 0.1, resume)
            right = conformance.apply_formula(formula, conformance.make_batches(), 0.1)
            assert max(map(conformance.error, measured, right)) < 1e-6, (name, resume)  # some keep averages in float32


def __getattr__(name: str) -> object:
    from ssl_bench import PairLoss

    if name not in formulas.FORMULAS:
        raise AttributeError(name)
    tau: dict[str, Any] = {"tau": 0.1} if name == "isogclr" else {}

    def build(temperature: float) -> PairLoss:
        return PairLoss(NAMES.get(name, name), temperature, **GIVEN.get(name, {}), **tau)

    return build


def test_a_cell_has_the_error_the_number_of_ranks_or_the_difference() -> None:
    value, gradient = torch.tensor(2.0).double(), torch.tensor([3.0, 4.0]).double()
    right = value, gradient
    assert conformance.cell((value * (1 + 1e-9), gradient), right) == "1e-09"
    assert conformance.cell((4 * value, gradient), right, 4) == "value x4"
    assert conformance.cell((value, gradient / 4), right, 4) == "gradient x0.25"
    assert conformance.cell((4 * value, 1.02 * gradient), right, 2) == "value 300.0% off, gradient 2.0% off"
    assert conformance.cell((value / 0, gradient), right) == "value not finite off"


def test_a_formula_has_options() -> None:
    batches = conformance.make_batches()
    clip = formulas.make("nt_xent", {"views": "cross"})(batches, 0.1)
    assert torch.equal(clip, formulas.make("clip", {})(batches, 0.1))
    first, second = (formulas.make("siglip", {"bias": bias})(batches, 0.1) for bias in (-10, -5))
    assert not torch.equal(first, second)
    assert all(inspect.signature(formula).parameters for formula in formulas.FORMULAS.values())


REFUSED = {
    "mine.py:NT --as nt-xent": "no such formula (did you mean nt_xent?); they are nt_xent, clip, ",
    "mine.py:NT --as dcl alpha=3": "alpha=3: --as dcl has no such option: its options are views",
    "mine.py:NT --as eqco alpha=x": "alpha=x: set alpha to a number",
    "mine.py:NT --as eqco views=all": "views=all: set views to one of both, cross, own",
    "mine.py:absent --as dcl": "mine.py has no class or function absent",
    "mine.py:Without --as dcl": "--as dcl needs an argument tau or temperature of Without",
    "other.py:NT --as dcl": "other.py cannot be imported (FileNotFoundError",
    "no_such_package:NT --as dcl": "cannot be imported (ModuleNotFoundError: No module named 'no_such_package')",
    "NT --as dcl": "NT: name a loss as MODULE:NAME or FILE.py:NAME",
    "mine.py:NT": "mine.py:NT has value and gradient of no formula (ConfigError: mine.py:NT: NT gives NT, which",
}


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text("class NT:\n    def __init__(self, tau): ...\n\n\nclass Without: ...\n")
    try:
        code = main(line.split())
    except SystemExit as end:
        code = int(end.code or 0)
    printed = capsys.readouterr()
    assert code == 2 and REFUSED[line] in printed.err and printed.err.count("\n") == 1 and not printed.out


def test_the_command_prints_a_row_and_a_loss_that_fails_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    text = "from ssl_bench import PairLoss\n\n\ndef dcl(z1, z2, tau):\n    return PairLoss('dcl', tau{})(z1, z2)\n"
    Path("right.py").write_text(text.format(""))
    assert main(["right.py:dcl"]) == 0
    header, _, row = capsys.readouterr().out.splitlines()
    assert header == "| dcl | 1 rank | 2 ranks | 4 ranks | bf16 | tau | resume |"
    assert row.startswith("| right.py:dcl | ")
    Path("wrong.py").write_text(text.format(", reduction='none'"))
    assert main(["wrong.py:dcl", "--as", "dcl"]) == 1
    why = "TypeError: the loss is [2, 16]: return its mean over the anchors of this rank, with its gradient"
    assert f"1 rank: {why}" in capsys.readouterr().err


LOSSES = """
from ssl_bench import PairLoss
from ssl_bench.objective.loss import Loss


class Mine(Loss):
    needs = frozenset({"negatives"})

    def forward(self, contrast, tau):
        return contrast.log_odds(tau)


def doubled(z1, z2, tau):
    return 2 * PairLoss("dcl", tau)(z1, z2)


def eqco(z1, z2, tau):
    return PairLoss("eqco", tau, alpha=4)(z1, z2)
"""


def test_the_formula_is_found_by_the_value_and_gradient_of_the_loss(capsys: pytest.CaptureFixture[str]) -> None:
    Path("own_losses.py").write_text(LOSSES)
    assert recognised.formula_of("own_losses.py:Mine", {}) == "dcl"  # a class with the base of the package's losses
    assert recognised.formula_of("own_losses.py:eqco", {"alpha": 4.0}) == "eqco"
    assert main(["own_losses.py:doubled"]) == 2  # which has the gradient of dcl, twice
    words = "own_losses.py:doubled has value and gradient of no formula: say which it should have, such as"
    command = "`ssl-bench conformance own_losses.py:doubled --as dcl`; they are nt_xent, "
    assert f"{words} {command}" in capsys.readouterr().err
