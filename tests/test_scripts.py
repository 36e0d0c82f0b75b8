"""The benchmarks of scripts/ on a CPU: their tables and files."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "scripts"))

import benchmark_losses
import benchmark_step


def test_a_step_is_timed_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*arguments: object) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(benchmark_step, "other", failing)
    file = tmp_path / "step.json"
    benchmark_step.main(["--precision", "fp32", "--batch", "1", "--rounds", "1", "--json", str(file)])
    rows = json.loads(file.read_text())["rows"]
    assert [row["name"] for row in rows] == ["ssl_bench", "plain loop", "plain loop, channels_last", "lightly"]
    assert rows[0]["images_s"] == pytest.approx(1e3 / rows[0]["median_ms"])
    assert {row["missing"] for row in rows[1:]} == {"failed: RuntimeError: no such luck"}
    assert "| ms of a step, fp32, by batch size | 1 |" in capsys.readouterr().out


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
