"""scripts/conformance.py: its comparison, and the losses of the package on one process."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
import conformance


def test_a_cell_has_the_error_the_number_of_ranks_or_the_difference() -> None:
    value, gradient = torch.tensor(2.0).double(), torch.tensor([3.0, 4.0]).double()
    right = value, gradient
    assert conformance.cell((value * (1 + 1e-9), gradient), right) == "1e-09"
    assert conformance.cell((4 * value, gradient), right, 4) == "value x4"
    assert conformance.cell((value, gradient / 4), right, 4) == "gradient x0.25"
    assert conformance.cell((4 * value, 1.02 * gradient), right, 2) == "value 300.0% off, gradient 2.0% off"
    assert conformance.cell((value / 0, gradient), right) == "value not finite off"


def test_the_losses_of_the_package_are_their_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "IMAGES", 4)
    rows, missing = conformance.make_rows(["ssl_bench"])
    assert len(rows) >= 6 and not missing
    for row in rows:
        for resume in (False, True):
            batches = conformance.make_batches(images=4)
            found = conformance.measure(row, batches, 0.1, resume)
            errors = [*map(conformance.error, found, conformance.expected(row, batches, 0.1))]
            assert max(errors) < 1e-6, (row.name, resume, errors)  # some keep averages in float32


def test_an_absent_library_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libauc", None)
    rows, missing = conformance.make_rows(["libauc"])
    assert not rows and missing["libauc"].startswith("not installed: ")
