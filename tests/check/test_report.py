"""The report of a check: its lines and ``check.json``, whose rates a dry run uses."""

import datetime
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ssl_bench import files
from ssl_bench.check import report
from ssl_bench.check.answer import Answer, Verdict
from ssl_bench.commands import reproduce
from ssl_bench.papers import cost

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


def keep(name: str, values: Mapping[str, Any], **changes: Any) -> None:
    """Write a check.json of this host."""
    result = "speed", Answer("resnet18 32px", "", values=values)
    gpus = changes.pop("gpus", 2)
    folder = Path("outputs/checks") / f"{socket.gethostname()}-{name}"
    folder.mkdir(parents=True)
    files.write_json(folder / "check.json", content([RESULTS[0], result], gpus) | changes)


def test_an_answer_is_a_line_with_its_reason_below() -> None:
    assert report.text(RESULTS[0]).split() == ["machine", "versions", "torch", "2.15.0", "known"]
    first, second = report.text(RESULTS[1]).splitlines()
    assert first.endswith("wrong") and first.index("1.2e-3") == report.text(RESULTS[0]).index("torch")
    assert "1.2e-3, above 1e-6" in second and "do not use it" in second
    assert report.summary(RESULTS) == "3 checks: 1 known, 1 wrong, 1 slow"


def test_the_record_has_everything() -> None:
    made = content()
    assert made["machine"] == "2 x NVIDIA H100" and content(gpus=0)["machine"] == "16 cores of NVIDIA H100"
    assert (made["started"], made["command"], made["gpus"]) == ("2026-03-04T05:06:07+00:00", "ssl-bench check", 2)
    versions, wrong, slow = made["findings"]
    assert versions["values"] == FACTS
    assert wrong["section"] == "methods" and wrong["advice"] == "do not use it" and slow["values"] == RATE


def test_the_newest_check_of_this_host_with_speeds_gives_the_rates() -> None:
    outputs = Path("outputs")
    assert cost.rates(outputs) is cost.V100
    keep("20260101-000000", RATE)
    keep("20260102-000000", RATE | {"images_s": 2000.0})
    keep("20260103-000000", {})  # measured no speed
    Path(f"outputs/checks/{socket.gethostname()}-20260106-000000").mkdir()
    rates = cost.rates(outputs)
    assert rates.machine == f"2 x NVIDIA H100, as checked in {socket.gethostname()}-20260102-000000"
    assert rates.gflop_s == {"resnet18 32px": pytest.approx(512 * 6.66 / (512 / 2000 - cost.REPLAYED))}
    assert (rates.devices, rates.fixed) == (2, cost.REPLAYED)


@pytest.mark.parametrize(("batch", "milliseconds"), [(64, 3.17), (256, 8.49), (1024, 28.8)])
def test_hours_of_other_batches_hold_on_a_gpu(batch: int, milliseconds: float) -> None:
    """A check at batch 512 of the H200 on which these steps were measured (ssl_bench/check/README.md)."""
    keep("20260101-000000", RATE | {"images_s": 34_000.0}, gpus=1)
    choices = {"choices": {"backbone": "resnet18_cifar"}, "framework": {"momentum": None, "symmetric": True}}
    view = {"augment": {"_target_": "x", "size": 32}, "dataset": {"train_images": batch}, "devices": 1}
    run = choices | view | {"batch_size": {"size": batch}, "epochs": 1, "max_steps": None}
    assert (cost.hours(run, cost.rates(Path("outputs"))) or 0) * 3.6e6 == pytest.approx(milliseconds, rel=0.1)


def test_a_dry_run_uses_the_rates_of_the_newest_check(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["dcl/table1", "row=CIFAR-10 DCL", "col=256", "seed=0", "--dry-run"]
    assert reproduce.main(arguments) == 0
    out = capsys.readouterr().out
    assert " h of pre-training on 8 V100 at MoCo's published pace (ssl-bench check measures this machine)" in out
    on_v100 = float(out.partition("about ")[2].split()[0])
    keep("20260101-000000", RATE | {"images_s": 10.0}, gpus=0, machine="2 cores")
    assert reproduce.main(arguments) == 0
    words = capsys.readouterr().out.partition("about ")[2]
    assert float(words.split()[0]) == pytest.approx(on_v100 * 543, rel=0.1)  # the former has one digit
    end = f"h of pre-training on 2 cores, as checked in {socket.gethostname()}-20260101-000000"
    assert words.splitlines()[0].endswith(end)
