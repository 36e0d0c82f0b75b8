"""The section "accuracy": short runs on the digits, its verdicts, and trainings that do not learn."""

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ssl_bench.check import accuracy
from ssl_bench.check.accuracy import CIFAR10, DIGITS, AccuracyStudy, Plan, Trained, judge, judge_time
from ssl_bench.check.finding import Finding, Level, Setting, Verdict, findings
from ssl_bench.errors import ConfigError
from ssl_bench.training.step import Stepper
from tests.conftest import no_pictures

# A run of 30 steps takes half a second.
SMALL = ["backbone.width=4", "head.out=16", "batch_size.size=32", "log_every=5"]
PLAN = Plan(raw=0.638, initial=0.16, images=1344, test_images=450, epochs=1, seconds=5)
LEARNED = Trained({"knn/top1": 0.75}, [7.1, 5.0, 3.0], images_s=1000.0, seconds=60.0, steps=400, epochs=80)


@pytest.fixture(autouse=True)
def undrawn() -> Iterator[None]:
    with no_pictures():
        yield


def setting(tmp_path: Path, seconds: float = 60, level: Level = Level.FULL) -> Setting:
    folder = tmp_path / "section"
    folder.mkdir()
    return Setting(torch.device("cpu"), 1, level, folder, tmp_path / "data", time.monotonic() + seconds)


def measured(study: AccuracyStudy) -> dict[str, Finding]:
    return {name: finding for name, finding, _ in findings(lambda _: study.checks(), study.setting)}


def cifar10(folder: Path, side: int = 32) -> None:
    """Random images in the files of CIFAR-10."""
    folder.mkdir(parents=True)
    for split, count in (("train", 300), ("test", 20)):
        np.save(folder / f"{split}_images.npy", np.zeros((count, side, side, 3), np.uint8))
        np.save(folder / f"{split}_labels.npy", np.arange(count) % 10)


def without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    backward = Stepper._backward

    def zero(stepper: Stepper, *arguments: Any) -> Any:
        result = backward(stepper, *arguments)
        for parameter in stepper.state.method.parameters():
            if isinstance(parameter.grad, Tensor):
                parameter.grad.zero_()
        return result

    monkeypatch.setattr(Stepper, "_backward", zero)


# Verdicts


def test_an_accuracy_above_both_margins_is_good() -> None:
    finding = judge(LEARNED, PLAN, DIGITS)
    assert finding.verdict is Verdict.GOOD and "kNN 75.0% after 80 epochs" in finding.figure
    assert finding.values["top1"] == 0.75 and finding.values["raw_top1"] == 0.638 and finding.values["steps"] == 400


@pytest.mark.parametrize("top1", [0.68, 0.4, 0.16])
def test_an_accuracy_below_a_margin_is_wrong_after_enough_steps_and_unknown_before(top1: float) -> None:
    run = replace(LEARNED, metrics={"knn/top1": top1})
    late, early = judge(run, PLAN, DIGITS), judge(replace(run, steps=399), PLAN, DIGITS)
    assert late.verdict is Verdict.WRONG and f"{100 * (top1 - 0.638):+.1f} points over raw" in late.reason
    assert early.verdict is Verdict.KNOWN and "399 steps, and 400 would be enough" in early.reason


def test_both_baselines_count() -> None:
    high = replace(PLAN, initial=0.70)
    assert judge(LEARNED, high, DIGITS).verdict is Verdict.WRONG
    assert judge(replace(LEARNED, steps=10), high, DIGITS).verdict is Verdict.KNOWN


def test_a_loss_that_does_not_fall_is_wrong_at_once() -> None:
    stays = replace(LEARNED, losses=[7.1, 7.0, 7.05], steps=30)
    finding = judge(stays, PLAN, DIGITS)
    assert finding.verdict is Verdict.WRONG and "gradients do not reach the weights" in finding.reason
    assert judge(replace(stays, metrics={"knn/top1": 0.2}, steps=29), PLAN, DIGITS).verdict is Verdict.KNOWN


@pytest.mark.parametrize(("dcl", "steps", "verdict"), [(0.78, 400, "good"), (0.6, 400, "wrong"), (0.6, 300, "known")])
def test_the_two_losses_are_compared(tmp_path: Path, dcl: float, steps: int, verdict: str) -> None:
    study = AccuracyStudy(setting(tmp_path), plan=PLAN)
    assert study.compare().verdict is Verdict.SKIPPED
    study.runs = {"simclr": LEARNED, "dcl": replace(LEARNED, metrics={"knn/top1": dcl}, steps=steps)}
    finding = study.compare()
    assert finding.verdict.value == verdict and finding.values["dcl_top1"] == dcl
    assert finding.values["bound"] == pytest.approx(3 * math.sqrt((0.75 * 0.25 + dcl * (1 - dcl)) / 450))


def test_the_time_of_an_epoch_is_compared_with_a_known_gpu() -> None:
    fast: dict[str, float] = {"seconds_per_epoch": 1.2}
    finding = judge_time("1.2 s", fast, 50_000, 60_500.0)
    assert finding.verdict is Verdict.GOOD and "expected 1.1 to 1.4 s" in finding.figure
    assert finding.values["share_of_floor"] == pytest.approx(0.689, abs=0.001)
    slow = judge_time("9 s", {"seconds_per_epoch": 9.0}, 50_000, 60_500.0)
    assert slow.verdict is Verdict.SLOW and "takes 9 s" in slow.reason
    assert judge_time("9 s", {"seconds_per_epoch": 9.0}, 50_000, None).verdict is Verdict.KNOWN


# Runs


def test_only_a_full_check_trains(tmp_path: Path) -> None:
    ((name, finding, _),) = findings(accuracy.section, setting(tmp_path, level=Level.DEFAULT))
    assert name == "training" and finding.verdict is Verdict.SKIPPED and "--full" in finding.advice


def test_the_task_follows_the_data_and_the_device(tmp_path: Path) -> None:
    cpu = setting(tmp_path)
    gpu = replace(cpu, device=torch.device("cuda"))
    assert AccuracyStudy(gpu).task is DIGITS
    cifar10(tmp_path / "data" / "cifar10")
    assert AccuracyStudy(gpu).task is CIFAR10 and AccuracyStudy(cpu).task is DIGITS
    cifar10(tmp_path / "other" / "cifar10", side=16)
    with pytest.raises(ConfigError, match="16 x 16"):
        _ = AccuracyStudy(replace(gpu, data=tmp_path / "other")).task


@pytest.mark.slow
def test_a_run_reports_its_accuracy_its_losses_and_its_rate(tmp_path: Path) -> None:
    study = AccuracyStudy(setting(tmp_path), SMALL, PLAN)
    finding = study.train("dcl")
    assert finding.verdict is Verdict.KNOWN  # 42 steps are too few
    run = study.runs["dcl"]
    assert run.steps == 42 and run.epochs == 1 and len(run.losses) == 9 and run.losses[0] - run.losses[-1] > 0.2
    assert 0 < run.metrics["knn/top1"] < 1 and run.images_s > 0 and "loss: dcl" not in run.metrics
    assert (tmp_path / "section" / "dcl" / "results.json").is_file()


@pytest.mark.slow
def test_a_training_without_gradients_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_gradients(monkeypatch)
    finding = AccuracyStudy(setting(tmp_path), SMALL, PLAN).train("simclr")
    assert finding.verdict is Verdict.WRONG and "gradients do not reach the weights" in finding.reason
    assert abs(finding.values["first_loss"] - finding.values["last_loss"]) < 0.2


@pytest.mark.slow
def test_the_whole_section_learns_in_the_time_that_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is judged after 60 steps, within 60 s: trial, both runs, their comparison and the time per epoch."""
    monkeypatch.setattr(accuracy, "DIGITS", replace(DIGITS, enough=60, longest=4, over_raw=-0.25, over_init=0.1))
    given = setting(tmp_path, 60)
    found = measured(AccuracyStudy(given, SMALL))
    assert list(found) == ["trial and baselines", *accuracy.LOSSES, "dcl against simclr", "time per epoch"]
    verdicts = [finding.verdict for finding in found.values()]
    assert verdicts == [Verdict.KNOWN, Verdict.GOOD, Verdict.GOOD, Verdict.GOOD, Verdict.KNOWN]
    trial = found["trial and baselines"].values
    assert trial["epochs"] == 4 and trial["raw_top1"] == pytest.approx(0.638, abs=0.001) and given.seconds_left() > 0
    assert found["simclr"].values["steps"] == 4 * 42 and found["simclr"].values["top1"] > trial["init_top1"] + 0.1


@pytest.mark.exhaustive
def test_epochs_are_at_most_the_longest_and_runs_that_do_not_fit_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accuracy, "DIGITS", replace(DIGITS, longest=2))
    study = AccuracyStudy(setting(tmp_path, 60), SMALL)
    found = measured(replace(study, setting=replace(study.setting, until=time.monotonic() + 60)))
    assert found["trial and baselines"].values["epochs"] in (1, 2)
    study = AccuracyStudy(replace(study.setting, folder=tmp_path / "other", until=time.monotonic() - 1), SMALL)
    study.trial()
    assert study.plan is not None and study.plan.epochs == 1
    late = measured(replace(study, plan=study.plan))
    assert late["trial and baselines"].verdict is Verdict.SKIPPED and late["simclr"].verdict is Verdict.SKIPPED
    assert late["dcl against simclr"].verdict is Verdict.SKIPPED
