"""The benchmarks of scripts/ without a GPU: their tables and files. With one: tests/gpu/test_scripts.py."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch

from ssl_bench.check import speed
from ssl_bench.config.compose import load
from ssl_bench.training.precision import Precision

SCRIPTS = Path(__file__).parents[1] / "scripts"
sys.path.append(str(SCRIPTS))

import benchmark_losses  # noqa: E402
import benchmark_step  # noqa: E402
import floors  # noqa: E402
import half_hour_report  # noqa: E402


def test_a_step_is_timed_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*arguments: object) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(benchmark_step, "other", failing)
    monkeypatch.setattr(speed, "SECONDS", 0.02)
    file, kernels = tmp_path / "step.json", tmp_path / "kernels.json"
    words = ["--precision", "fp32", "--batch", "1", "--rounds", "1", "--set", "optimizer=lars"]
    benchmark_step.main([*words, "--json", str(file), "--kernels", str(kernels)])
    rows = json.loads(file.read_text())["rows"]
    least = ["arithmetic floor", "arithmetic and memory floor"]
    ours = ["ssl_bench", "ssl_bench, optimizer=lars"]
    others = ["plain loop", "plain loop, channels_last", "lightly"]
    assert [row["name"] for row in rows] == [*least, *ours, *others]
    assert 0 < rows[0]["median_ms"] < rows[1]["median_ms"]
    assert rows[2]["images_s"] == pytest.approx(1e3 / rows[2]["median_ms"])
    assert {row["missing"] for row in rows[4:]} == {"failed: RuntimeError: no such luck"}
    assert "| ms of a step, fp32, by batch size | 1 |" in capsys.readouterr().out
    rows = json.loads(kernels.read_text())["rows"]
    assert rows[0]["us"] > rows[1]["us"] and sum(row["share"] for row in rows) == pytest.approx(1)
    assert next(row for row in rows if row["kernel"] == "aten::_fused_sgd_")["launches"] == 2  # with decay, and without


def test_floors_are_times_at_measured_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []

    def copy(device: torch.device, count: int) -> float:
        copies.append(count)
        return 40.0

    monkeypatch.setattr(floors, "copy_gigabytes", copy)
    for form, size, rate, memory in (("bf16", 2, 80.0, 0.028), ("fp32", 4, 20.0, 0.112)):  # a cache holds the second
        least = floors.floors(64, Precision.of(form, False), torch.device("cpu"), 0.5, rate)
        expected = {
            floors.ARITHMETIC: 0.85248,
            floors.WITH_MEMORY: 0.85248 + memory,
        }  # 128 views of 3.33 GFLOP, 17.5 MB
        assert least == pytest.approx(expected) and copies.pop() == 128 * 65_536 * size


def test_losses_that_take_no_memory_have_no_ratio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark_losses, "extra_megabytes", lambda *arguments: 0.0)  # as found at N = 8
    file = tmp_path / "losses.json"
    words = ["benchmark_losses.py", "--images", "8", "--variants", "--rounds", "1", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", words)
    benchmark_losses.main()
    rows = {row["name"]: row for row in json.loads(file.read_text())["rows"]}
    assert rows[benchmark_losses.OURS]["extra_mb"] == 0.0 and rows["plain cross-entropy"]["images"] == 8
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("plain cross-entropy"))
    assert line.split()[-2:] == ["0", "-"]


def test_the_parts_of_half_an_hour_fit_into_it_and_its_runs_can_be_configured() -> None:
    text = (SCRIPTS / "gpu_half_hour.sh").read_text()
    found = re.findall(r"^ +part (\w+) (\d+) (.*)", text, re.MULTILINE)
    assert [name for name, *_ in found] == re.findall(r'^NAMES="(.*)"', text, re.MULTILINE)[0].split()
    assert sum(int(limit) for _, limit, _ in found) <= 29 * 60
    common = re.findall(r'^cifar="(.*) paths.outputs=\$OUT"', text, re.MULTILINE)[0]
    for name, loss in {"simclr": "infonce", "dcl": "dcl"}.items():
        words = next(command for part, _, command in found if part == name).split()
        assert words[:5] == ["python", "-m", "ssl_bench", "train", "$cifar"]
        config = load([*common.split(), *words[5:]])
        assert (config["choices"]["loss"], config["epochs"], config["batch_size"]["size"]) == (loss, 20, 512)


def test_runs_of_the_half_hour_are_reported_also_unfinished(tmp_path: Path) -> None:
    for name, file, content in (
        ("simclr", "metrics.jsonl", {"step": 70, "loss": 5.5}),
        ("dcl", "results.json", {"metrics": {"knn/top1": 0.81}, "seconds": 25.4, "environment": {}}),
    ):
        (tmp_path / name / "0123456789").mkdir(parents=True)
        (tmp_path / name / "0123456789" / file).write_text(json.dumps(content) + "\n")
    (tmp_path / "parts.tsv").write_text("check\t300\t12\t0\tssl-bench check\nstep\t42")  # cut off
    found = half_hour_report.collect(tmp_path)
    assert [part["part"] for part in found["parts"]] == ["check"]
    page = half_hour_report.page(found)
    assert "| simclr | unfinished: loss 5.500 in step 70 |  |  |" in page and "| dcl | 81.0% |  | 25 |" in page
