"""Hours of the papers' tables at measured rates."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from ssl_bench.check import plan
from ssl_bench.check.finding import Finding, Level, Setting, Verdict, findings
from ssl_bench.papers import cost, runs, tables

TABLES = ["intriguing/fig3", "intriguing/fig4", "less/fig1a"]  # the first two share runs; few configurations


def speed(images_s: float, gflop: float) -> dict[str, Any]:
    return {"images_s": images_s, "gflop_per_image": gflop, "batch": 256, "precision": "fp32", "mode": "eager"}


@pytest.fixture(autouse=True)
def few_tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    some = [table for table in tables.every() if table.name in TABLES]
    monkeypatch.setattr(tables, "every", lambda: some)
    yield


def planned(values: Mapping[str, Mapping[str, Any]], device: str = "cpu", devices: int = 2) -> dict[str, Finding]:
    earlier = {"speed": values} if values else {}
    until = time.monotonic() + 60
    setting = Setting(torch.device(device), devices, Level.QUICK, Path(), Path("data"), until, earlier)
    return {name: finding for name, finding, _ in findings(plan.section, setting)}


def test_without_speeds_the_plan_is_skipped_and_says_what_to_run() -> None:
    cases: list[dict[str, dict[str, Any]]] = [{}, {"resnet18 32px": {}}, {"another": speed(1, 1)}]
    for values in cases:
        found = planned(values)
        assert list(found) == ["tables"] and found["tables"].verdict is Verdict.SKIPPED
        assert found["tables"].reason == "the section speed has measured no rate"
        assert "--only speed,plan" in found["tables"].advice


@pytest.mark.slow
def test_hours_are_those_of_the_runs_at_the_measured_rate() -> None:
    rates = {"resnet18 32px": speed(100, 6.66)}
    found = planned(rates)
    assert list(found) == ["rates", *sorted(TABLES), "all tables"]
    assert found["rates"].figure == "0.67 TFLOP/s as resnet18 32px"
    (table,) = tables.find("less/fig1a")
    distinct = {(cell.overrides, seed): cell for cell in table.cells if cell.available for seed in cell.seeds}
    seconds = 0.0
    for cell in distinct.values():
        on_v100 = cost.hours(runs.compose(cell.overrides))
        assert on_v100 is not None
        seconds += 3600 * on_v100 * 8322 * 24.3 / 666.0
    values = found["less/fig1a"].values
    assert (values["cells"], values["runs"]) == (len(table.cells), len(distinct))
    assert values["hours"] == pytest.approx(seconds / 3600, rel=1e-6)
    assert found["all tables"].values["hours"] <= sum(found[name].values["hours"] for name in TABLES) * (1 + 1e-9)
    assert found["all tables"].values["runs"] < sum(found[name].values["runs"] for name in TABLES)
    halves = planned({"resnet18 32px": speed(200, 6.66)})
    assert halves["all tables"].values["hours"] == pytest.approx(found["all tables"].values["hours"] / 2, rel=1e-6)


def test_gpus_work_in_parallel_and_cores_are_one_device() -> None:
    rates = {"resnet18 32px": speed(100, 6.66)}
    one, eight = planned(rates, "cuda", 1), planned(rates, "cuda", 8)
    assert one["all tables"].values["hours"] == pytest.approx(8 * eight["all tables"].values["hours"], rel=1e-5)
    assert eight["rates"].figure == "5.33 TFLOP/s as resnet18 32px on 8 GPUs, a run on each"
    assert planned(rates)["all tables"].values == one["all tables"].values


def test_a_run_takes_the_rate_of_the_network_most_like_it() -> None:
    every = {name: float(place) for place, name in enumerate(cost.MEASURED, 1)}
    rates = cost.Rates("", every)
    assert [rates.of("resnet18_cifar", 32), rates.of("resnet50_cifar", 32), rates.of("conv_n", 28)] == [1, 1, 1]
    assert [rates.of("resnet18_cifar", 96), rates.of("resnet50", 96), rates.of("resnet18", 224)] == [2, 2, 2]
    assert [rates.of("resnet50", 224), rates.of("resnet50_x4", 224)] == [3, 3]
    assert cost.Rates("", {"resnet18 32px": 5.0}).of("resnet50", 224) == 5
    assert cost.Rates("", {name: every[name] for name in cost.MEASURED[:2]}).of("resnet50", 224) == 2


def test_a_price_has_a_fitting_unit() -> None:
    assert plan.price(2, {"a": 1.0, "b": 0.26}).figure == "1.3 h for 2 runs of 2 cells"
    assert plan.price(2, {"a": 60.0}).figure == "2.5 days for 1 run of 2 cells"
    assert plan.price(1, {"a": 8766.0 * 3}).figure == "3.0 years for 1 run of 1 cells"
    assert plan.price(4, {"a": 0.0}).figure == "1 run without training for 4 cells"
    assert plan.price(4, {}).figure == "4 cells without a run"
