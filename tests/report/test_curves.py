"""Curves of a run: what is kept of them, and what is said about the rest."""

import itertools
import json
import math
import random
from pathlib import Path

import pytest

from ssl_bench.record.runs import Run
from ssl_bench.report import curves


@pytest.mark.parametrize("count", [1, 5, 40, 41, 1000])
def test_thinning_keeps_the_ends_and_the_extremes(count: int) -> None:
    numbers = [random.Random(n).gauss(0, 1) for n in range(count)]
    kept = curves.thin(numbers, 40)
    assert kept == sorted(set(kept)) and len(kept) <= 40
    assert {0, count - 1, numbers.index(min(numbers)), numbers.index(max(numbers))} <= set(kept)
    assert kept == list(range(count)) or count > 40


@pytest.mark.parametrize("count", [41, 100, 333])
def test_thinning_loses_no_extreme_wherever_it_is(count: int) -> None:
    for sign, place in itertools.product((1.0, -1.0), range(count)):
        assert place in curves.thin([sign * (n == place) for n in range(count)], 40)


def test_read_counts_rows_and_leaves_out_what_is_no_number(tmp_path: Path) -> None:
    rows = [
        {"step": 2 * n, "epoch": n / 5, "loss": 1 / 3 + n, "on": True, "name": "a", "tau": 10**400} for n in range(1, 4)
    ]
    rows[1]["loss"] = math.nan
    for n, (marks, k) in enumerate([(["1"], 0.5), (["1"], 0.25), (["2", "9"], 0.125), (["2", "9"], 0.75)]):
        rows.append({"step": n, "knn/top1": k, "evaluations": marks})  # the last two are of another evaluation
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"loss": 9.0}]) + '{"step": 7, "lo')
    entries = [{"evaluator": name, "id": mark} for name, mark in (("knn", "1"), ("knn", "2"), ("linear", "9"))]
    found, steps_per_epoch = curves.read(Run(tmp_path, {}, {"evaluations": entries}), 40)
    assert steps_per_epoch == pytest.approx(10)
    assert found == {
        "loss": [[2, 6], [1.333, 3.333], 3, 1],
        "tau": [[], [], 3, 3],
        "knn/top1": [[2, 3], [0.125, 0.75], 2, 0],
    }
    assert curves.read(Run(tmp_path / "none", {}), 40) == ({}, None)
