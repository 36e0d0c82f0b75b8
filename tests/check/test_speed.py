"""The sections ``speed`` and ``environment`` of a check: figures, verdicts and planted faults, with a small network."""

import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from ssl_bench.check import environment, speed
from ssl_bench.check.answer import Setting, Verdict
from ssl_bench.training.precision import Precision
from ssl_bench.training.step import Stepper

SMALL = ["dataset=scattered_digits", "backbone.width=4", "head.out=16"]
NETWORK = speed.Network(SMALL, 20, 0.04, 1.0, 1600, (64, 16, 64))


def floors(arithmetic: float, with_memory: float) -> dict[str, float]:
    return {"arithmetic floor": arithmetic, "arithmetic and memory floor": with_memory}


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    monkeypatch.setattr(speed, "NETWORKS", {"resnet18 32px": NETWORK})
    monkeypatch.setattr(speed, "SECONDS", 0.1)
    return Setting(torch.device("cpu"), 2, True, tmp_path)


def test_ten_lines_of_speed(setting: Setting) -> None:
    answers = {answer.name: answer for answer in speed.section(setting)}
    assert list(answers) == ["copy", "arithmetic fp32", "resnet18 32px", "photos"]
    assert answers["copy"].values["bytes_s"] > 1e8 and answers["arithmetic fp32"].values["tflops"] > 1e-3
    step = answers["resnet18 32px"]
    assert step.values["images_s"] > 1 and step.values["gflop_per_image"] == 2 * NETWORK.gflop
    one, both = (step.values[f"share_of_arithmetic_{floor}"] for floor in ("floor", "and_memory_floor"))
    assert 0 < one < both
    assert step.figure.endswith(f", {speed.in_words(floors(one, both))} (batch 16, fp32)")
    photos = answers["photos"]
    needed = math.ceil(1000 / (photos.values["images_s"] / photos.values["cores"]))
    assert photos.figure.endswith(f" cores, 500 x 375 pixels; a GPU that takes 1,000/s needs {needed} cores")
    assert list(setting.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("rate", "images_s", "gpus", "cores", "says"),
    [
        (511.0, 525.0, 8, 9, "for ResNet-50 at 525/s on 8 GPUs 9 cores are needed"),
        (500.0, 2500.0, 1, 5, "for ResNet-50 at 2,500/s on 1 GPU 5 cores are needed"),
        (400.0, 0.0, 1, 3, "a GPU that takes 1,000/s needs 3 cores"),
    ],
)
def test_the_cores_that_decode_for_gpus(rate: float, images_s: float, gpus: int, cores: int, says: str) -> None:
    assert speed.cores_needed(rate, images_s, gpus) == (cores, says)


def test_floors_are_times_at_measured_rates_and_none_is_said_to_be_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []

    def copy(device: torch.device, count: int) -> float:
        copies.append(count)
        return 40.0

    monkeypatch.setattr(speed, "copy_gigabytes", copy)
    resnet, device = speed.NETWORKS["resnet18 32px"], torch.device("cpu")
    least = speed.floors(resnet, 64, Precision.of("bf16", False), device, 0.5, 80.0)
    assert least == pytest.approx(floors(0.85248, 0.85248 + 0.028))  # 128 views of 3.33 GFLOP and 17.5 MB
    least = speed.floors(resnet, 64, Precision.of("fp32", False), device, 0.5, 20.0)
    assert least == pytest.approx(floors(0.85248, 0.85248 + 0.112))  # a cache holds its tensors
    assert copies == [128 * 65_536 * 2, 128 * 65_536 * 4]
    assert speed.in_words(floors(0.98, 1.0)) == "98% of the arithmetic floor, 100% of the arithmetic and memory floor"
    said = speed.in_words(floors(0.98, 1.09))
    assert said.endswith(", faster than the arithmetic and memory floor: its rates were measured too low")


def test_a_slow_step_is_named_with_its_share_of_the_floor(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    compute, wait = Stepper.compute, 0.25

    def slow(*arguments: Any) -> Any:
        time.sleep(wait)
        return compute(*arguments)

    assert speed.step_answer("resnet18 32px", 16, floors(1.0, 1.0), setting).verdict is Verdict.GOOD
    monkeypatch.setattr(Stepper, "compute", slow)
    answer = speed.step_answer("resnet18 32px", 16, floors(0.01, 0.08 * wait), setting)
    assert answer.verdict is Verdict.SLOW
    assert answer.reason.endswith("% of the arithmetic and memory floor is less than 10%")
    assert answer.values["share_of_arithmetic_and_memory_floor"] < 0.08


def test_a_batch_that_does_not_fit_says_what_to_set(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Stepper, "compute", full)
    answer = speed.step_answer("resnet18 32px", 16, floors(1.0, 1.0), setting)
    assert (answer.figure, answer.verdict) == ("does not fit", Verdict.KNOWN)
    assert answer.advice == "set batch_size.chunk to 8 or less"


def test_the_versions_here(setting: Setting) -> None:
    versions, devices = environment.section(setting)
    assert versions.values["torch"] == torch.__version__.split("+")[0] and versions.values["cores"] >= 1
    assert devices.verdict is Verdict.KNOWN and devices.figure.endswith(", no GPU")


def test_a_gpu_that_torch_was_not_built_for(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Tesla V100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90"])
    _, answer = environment.section(dataclasses.replace(setting, device=torch.device("cuda", 0), devices=1))
    assert answer.verdict is Verdict.WRONG and "Tesla V100 has compute capability 7.0" in answer.reason
    assert answer.advice.startswith("install one that was built for it, which for a V100 is `pip install ")
