"""The numbers of six runs, bit for bit as recorded: a change of structure must not change a result.

After a change that is meant to change results, record anew (``python -m tests.golden --record``) and mark the change
**results** in CHANGELOG.md.
"""

import json

import pytest

from tests import golden

LONG = ("default", "moco_v2-dcl-2ranks")
MARKS = [pytest.mark.slow, pytest.mark.timeout(600)]
NAMES = [pytest.param(name, marks=MARKS) if name in LONG else name for name in golden.RUNS]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_equals_its_record(name: str) -> None:
    recorded = json.loads(golden.RECORD.read_text(encoding="utf-8"))
    found = golden.differences(name, recorded["runs"][name], golden.observe(name), recorded["machine"])
    assert not found, f"{len(found)} differences: {found[:5]}"
