"""The benchmarks of scripts/: their tables and files."""

import json
import re
import sys
from pathlib import Path

import pytest

from ssl_bench.check import speed
from ssl_bench.config.compose import load

SCRIPTS = Path(__file__).parents[1] / "scripts"
sys.path.append(str(SCRIPTS))

import benchmark_step  # noqa: E402


@pytest.mark.slow
def test_a_step_is_timed_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*arguments: object) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(benchmark_step, "other", failing)
    monkeypatch.setattr(speed, "SECONDS", 0.02)
    file = tmp_path / "step.json"
    words = ["--precision", "fp32", "--batch", "2", "--rounds", "1", "--set", "optimizer=lars"]
    benchmark_step.main([*words, "--json", str(file)])
    rows = json.loads(file.read_text())["rows"]
    least = ["arithmetic floor", "arithmetic and memory floor"]
    ours = ["ssl_bench", "ssl_bench, optimizer=lars"]
    others = ["plain loop", "plain loop, channels_last", "lightly"]
    assert [row["name"] for row in rows] == [*least, *ours, *others]
    assert 0 < rows[0]["median_ms"] < rows[1]["median_ms"]
    assert rows[2]["images_s"] == pytest.approx(2e3 / rows[2]["median_ms"])
    assert all("no such luck" in row["missing"] for row in rows[4:])


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
