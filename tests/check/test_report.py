"""The report of a check: its lines and ``check.json``."""

import datetime
import shutil
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.check import report
from ssl_bench.check.answer import Answer, Verdict

NOW = datetime.datetime(2026, 3, 4, 5, 6, 7, tzinfo=datetime.UTC)
FACTS = {"torch": "2.15.0", "device": "NVIDIA H100", "git": None, "cores": 16}
RATE = {"images_s": 1000.0, "gflop_per_image": 6.66, "batch": 512, "precision": "bf16"}
RESULTS = [
    ("machine", Answer("versions", "torch 2.15.0", values=FACTS)),
    ("methods", Answer("fp32", "1.2e-3", Verdict.WRONG, "1.2e-3, above 1e-6", "do not use it")),
    ("speed", Answer("resnet18 32px", "1,000 images/s", Verdict.SLOW, "9% of the floor", values=RATE)),
]


def content(results: list[report.Found] = RESULTS, gpus: int = 2) -> dict[str, Any]:
    made: dict[str, Any] = files.read_json(report.save(Path("kept"), "ssl-bench check", gpus, NOW, results))
    shutil.rmtree("kept")
    return made


def test_an_answer_is_a_line_with_its_reason_below() -> None:
    assert report.text(RESULTS[0]).split() == ["machine", "versions", "torch", "2.15.0", "known"]
    first, second = report.text(RESULTS[1]).splitlines()
    assert first.endswith("wrong") and first.index("1.2e-3") == report.text(RESULTS[0]).index("torch")
    assert "1.2e-3, above 1e-6" in second and "do not use it" in second
    assert report.summary(RESULTS) == "3 checks: 1 known, 1 wrong, 1 slow"


def test_the_record_has_everything() -> None:
    made = content()
    assert made["machine"] == "2 x NVIDIA H100" and content(gpus=0)["machine"] == "16 cores of NVIDIA H100"
    assert (made["started"], made["command"]) == ("2026-03-04T05:06:07+00:00", "ssl-bench check")
    versions, wrong, slow = made["findings"]
    assert versions["values"] == FACTS
    assert wrong["section"] == "methods" and wrong["advice"] == "do not use it" and slow["values"] == RATE
