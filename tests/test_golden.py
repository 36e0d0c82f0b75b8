"""The numbers of two dozen short runs, bit for bit as recorded: a change of structure must not change a result.

After a change that is meant to change results, record anew (``python -m tests.golden --record``) and mark the change
**results** in CHANGELOG.md.
"""

from typing import Any

import pytest

from tests import golden
from tests.ranks import train_on_two_ranks


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return golden.read()


TWO_RANKS = [name for name in golden.RUNS if name.endswith("2ranks")]
# The default run takes a minute. The ranks of a run with devices=2 import torch again.
# The other runs of SimCLR differ in their loss, which tests/objective compares with its formula.
QUICK = ("simclr-infonce", "simclr-dcl-cross_view", "simclr-macl_w-memory_bank", "simclr-dclw-multicrop")
LONG = {name: [pytest.mark.exhaustive] for name in golden.RUNS if name.startswith("simclr-") and name not in QUICK}
# The losses of these are compared with formulas in tests/objective and tests/methods.
LONG |= {
    name: [pytest.mark.exhaustive] for name in ("moco_v3", "relic", "exemplar", "inv_spread", "moco_cld", "npid_cld")
}
LONG[TWO_RANKS[0]] = [pytest.mark.slow]
LONG |= {name: [pytest.mark.exhaustive] for name in TWO_RANKS[1:]}
LONG["default"] = [pytest.mark.exhaustive, pytest.mark.timeout(900)]


@pytest.mark.parametrize("name", [pytest.param(name, marks=LONG.get(name, [])) for name in golden.RUNS])
def test_a_run_equals_its_record(name: str, recorded: dict[str, Any]) -> None:
    compare(name, recorded, golden.observe(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", TWO_RANKS)
def test_ranks_that_were_started_elsewhere_equal_the_record(
    name: str, recorded: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("COLUMNS", "100")

    def carry_out(command: str, *overrides: str) -> tuple[int, str]:
        assert command == "train"
        return train_on_two_ranks(*(override for override in overrides if override != "devices=2"))

    compare(name, recorded, golden.observe(name, carry_out))


def compare(name: str, recorded: dict[str, Any], observed: golden.Run) -> None:
    level = golden.strictness(recorded["machine"])
    found = golden.differences(name, recorded["runs"][name], observed, level)
    assert not found, f"{len(found)} differences ({level}): {found[:5]}"
