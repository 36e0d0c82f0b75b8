"""The sections ``speed`` and ``machine`` of a check, with a small network."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from ssl_bench.check import machine, speed
from ssl_bench.check.answer import Setting, Verdict
from ssl_bench.training.step import Stepper

SMALL = ["dataset=scattered_digits", "backbone.width=4", "head.out=16"]
NETWORK = (SMALL, 20, (64, 16))


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    monkeypatch.setattr(speed, "NETWORKS", {"resnet18 32px": NETWORK})
    monkeypatch.setattr(speed, "SECONDS", 0.1)
    return Setting(torch.device("cpu"), 2, tmp_path)


def test_images_per_second(setting: Setting) -> None:
    answers = {answer.name: answer for answer in speed.section(setting)}
    assert list(answers) == ["resnet18 32px", "photos"]
    step = answers["resnet18 32px"]
    assert step.values["images_s"] > 1 and step.values["batch"] == 16 and step.verdict is Verdict.KNOWN
    assert answers["photos"].values["images_s"] > 1 and answers["photos"].values["cores"] >= 1
    assert list(setting.folder.iterdir()) == []


def test_a_batch_that_does_not_fit_says_what_to_set(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Stepper, "compute", full)
    answer = speed.step_answer("resnet18 32px", setting)
    assert (answer.figure, answer.verdict) == ("does not fit", Verdict.KNOWN)
    assert answer.advice == "set batch_size.chunk to 8 or less"


def test_the_versions_here(setting: Setting) -> None:
    versions, devices = machine.section(setting)
    assert versions.values["torch"] == torch.__version__.split("+")[0] and versions.values["cores"] >= 1
    assert devices.verdict is Verdict.KNOWN and devices.figure.endswith(", no GPU")


def test_a_gpu_that_torch_was_not_built_for(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Tesla V100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90"])
    _, answer = machine.section(dataclasses.replace(setting, device=torch.device("cuda", 0), devices=1))
    assert answer.verdict is Verdict.WRONG and "Tesla V100 has compute capability 7.0" in answer.reason
    assert answer.advice.startswith("install one that was built for it, which for a V100 is `pip install ")
