"""Whether training learns: kNN accuracy after some minutes of SimCLR and DCL, beside raw pixels and random weights.

A GPU trains a ResNet-18 on CIFAR-10 if that is under ``paths.data``. Otherwise, and on a CPU, which would not learn
CIFAR-10 in ten minutes, it is the small network of ``ssl-bench train`` on the scattered digits, which need no files. A
few steps tell how many epochs fit into the time. The runs are those of ``ssl-bench train``, on one device.
"""

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch

from ssl_bench import files
from ssl_bench.check.finding import Check, Finding, Level, Setting, Verdict
from ssl_bench.check.floors import COSTS, floor_images, known_rates, product_format
from ssl_bench.config.compose import load
from ssl_bench.config.identity import run_id
from ssl_bench.data.arrays import MissingData
from ssl_bench.parts import Parts
from ssl_bench.precision import Precision
from ssl_bench.training.engine import train

TRIAL_STEPS, LOG_EVERY = 40, 10
COMMON = ["batch_size=b256", "evaluate=knn", "tracking=off", "checkpoint.every=100000", f"log_every={LOG_EVERY}"]
LOSSES = {"simclr": "infonce", "dcl": "dcl"}
FALL, FEWEST = 0.2, 30  # nats by which the loss falls at least in so many steps; on the digits it falls by 2
BEHIND = 0.05  # accuracy that DCL may be behind SimCLR; in its paper it is ahead at every batch size
LATER = 1.5  # times the expected time of an epoch, above which training is slow


@dataclass(frozen=True)
class AccuracyTask:
    """The dataset that is trained on, and when its accuracy can be judged.

    Attributes:
        name: in words.
        overrides: of the configuration of ``ssl-bench train``.
        longest: epochs after which more do not help.
        enough: steps after which an accuracy below the margins is wrong.
        over_raw, over_init: margins of the accuracy over raw pixels and over random weights.
    """

    name: str
    overrides: Sequence[str]
    longest: int
    enough: int
    over_raw: float
    over_init: float


# On the digits 400 steps reach 79% and 800 steps 83% (raw pixels 64%, random weights 16%), and 200 steps only 60%. On
# CIFAR-10 200 epochs reach 85% in lightly's benchmark (raw pixels: 43%); 1,950 steps are ten epochs.
DIGITS = AccuracyTask("scattered digits, small network", ["dataset=scattered_digits"], 160, 400, 0.05, 0.30)
CIFAR10 = AccuracyTask("CIFAR-10, ResNet-18", ["dataset=cifar10"], 200, 1950, 0.05, 0.10)


@dataclass(frozen=True)
class Trained:
    """A finished run.

    Attributes:
        metrics: of its evaluation.
        losses: the means of each ``LOG_EVERY`` steps.
        images_s: images per second, the median without the first steps.
        seconds: of the whole run.
        steps, epochs: that it trained for.
    """

    metrics: dict[str, float]
    losses: list[float]
    images_s: float
    seconds: float
    steps: int
    epochs: float


@dataclass(frozen=True)
class Plan:
    """How long the two runs are, from a short one.

    Attributes:
        raw, initial: accuracies of raw pixels and of random weights.
        images: of an epoch.
        test_images: on which accuracies are measured.
        epochs: of each run.
        seconds: that each run takes.
    """

    raw: float
    initial: float
    images: int
    test_images: int
    epochs: int
    seconds: float


def section(setting: Setting) -> Iterator[Check]:
    """Yield the checks of the accuracy."""
    if setting.level < Level.FULL:
        yield Check("training", lambda: Finding("", Verdict.SKIPPED, "it takes ten minutes", "add --full"), 0)
        return
    yield from AccuracyStudy(setting).checks()


@dataclass
class AccuracyStudy:
    """A trial and two runs, with what the later ones use of the earlier ones.

    Attributes:
        extra: further overrides of the configuration.
    """

    setting: Setting
    extra: Sequence[str] = ()
    plan: Plan | None = None
    runs: dict[str, Trained] = field(default_factory=dict)

    def checks(self) -> Iterator[Check]:
        """Yield the trial and, if it succeeds, the runs and their comparison."""
        yield Check("trial and baselines", self.trial, 90 if self.setting.device.type == "cuda" else 45)
        if self.plan is None:
            return
        for name in LOSSES:
            yield Check(name, partial(self.train, name), self.plan.seconds)
        yield Check("dcl against simclr", self.compare, 0)
        yield Check("time per epoch", self.speed, 0)

    # ---- runs

    @cached_property
    def task(self) -> AccuracyTask:
        """The task for this device and these data.

        Raises:
            ConfigError: CIFAR-10 is there and damaged.
        """
        if self.setting.device.type != "cuda":
            return DIGITS
        try:
            Parts(self._config(CIFAR10)).dataset.check()
        except MissingData:
            return DIGITS
        return CIFAR10

    def _config(self, task: AccuracyTask, overrides: Sequence[str] = ()) -> dict[str, Any]:
        config = load([*task.overrides, *COMMON, *overrides])
        config["paths"] = {"data": str(self.setting.data), "outputs": str(self.setting.folder)}
        return config

    def run(self, name: str, overrides: Sequence[str]) -> Trained:
        """Carry out a run in a folder ``name`` of its own."""
        start = time.monotonic()
        config, folder = self._config(self.task, [*self.extra, *overrides]), self.setting.folder / name
        folder.mkdir(parents=True)
        metrics = train(config, run_id(config), folder, self.setting.device)
        rows = [row for row in files.read_json_lines(folder / "metrics.jsonl") if "loss" in row]
        return Trained(
            metrics,
            [row["loss"] for row in rows],
            statistics.median(row["images_per_second"] for row in rows[1:] or rows),
            time.monotonic() - start,
            rows[-1]["step"],
            rows[-1]["epoch"],
        )

    def trial(self) -> Finding:
        """Train for some steps: the rate, the baselines, and the epochs that fit into the time."""
        task, config = self.task, self._config(self.task, self.extra)
        trial = self.run("trial", [f"max_steps={TRIAL_STEPS}", "loss=infonce"])
        raw, initial = trial.metrics["knn_raw/top1"], trial.metrics["knn_init/top1"]
        dataset, size = Parts(config).dataset, config["batch_size"]["size"]
        images = dataset.check() // size * size
        per_epoch = images / trial.images_s
        overhead = max(0.0, trial.seconds - trial.steps * size / trial.images_s)
        fitting = (0.9 * self.setting.seconds_left() / len(LOSSES) - overhead) / per_epoch
        epochs = min(task.longest, max(1, math.floor(fitting)))
        test_images = len(dataset.split("test"))
        self.plan = Plan(raw, initial, images, test_images, epochs, overhead + epochs * per_epoch)
        values = {"raw_top1": raw, "init_top1": initial, "images_s": trial.images_s, "epochs": epochs}
        figure = f"{task.name}: kNN {raw:.1%} on raw pixels, {initial:.1%} with random weights ({test_images} test "
        figure += f"images); {trial.images_s:,.0f} images/s, so that {epochs} epochs fit into the time"
        return Finding(figure, values=values)

    def train(self, name: str) -> Finding:
        """Train with one loss and judge the accuracy."""
        assert self.plan is not None
        self.runs[name] = self.run(
            name, [f"loss={LOSSES[name]}", f"epochs={self.plan.epochs}", "evaluate.baselines=[]"]
        )
        return judge(self.runs[name], self.plan, self.task)

    # ---- judgements

    def compare(self) -> Finding:
        """Compare the accuracies of the two losses."""
        if self.plan is None or len(self.runs) < len(LOSSES):
            return Finding("", Verdict.SKIPPED, "one of the two runs has no result")
        simclr, dcl = (self.runs[name].metrics["knn/top1"] for name in LOSSES)
        deviation = math.sqrt((simclr * (1 - simclr) + dcl * (1 - dcl)) / self.plan.test_images)
        bound = max(BEHIND, 3 * deviation)
        values = {"simclr_top1": simclr, "dcl_top1": dcl, "bound": bound}
        figure = f"DCL {dcl:.1%}, SimCLR {simclr:.1%}: {100 * (dcl - simclr):+.1f} points, one run each"
        if min(run.steps for run in self.runs.values()) < self.task.enough:
            return Finding(figure, Verdict.KNOWN, "the time was too short to tell", values=values)
        if dcl >= simclr - bound:
            return Finding(figure, Verdict.GOOD, values=values)
        reason = (
            f"DCL is {100 * (simclr - dcl):.1f} points behind SimCLR (bound {100 * bound:.1f}); its paper has it ahead"
        )
        return Finding(
            figure, Verdict.WRONG, reason, "see the section exact; report this finding with check.md", values
        )

    def speed(self) -> Finding:
        """Compare the time of an epoch with that of a known GPU."""
        if self.plan is None or not self.runs:
            return Finding("", Verdict.SKIPPED, "no run has a result")
        rate = max(run.images_s for run in self.runs.values())
        seconds = self.plan.images / rate
        values = {"images_s": rate, "seconds_per_epoch": seconds}
        figure = f"{seconds:.3g} s per epoch of {self.plan.images:,} images, {rate:,.0f} images/s"
        floor = self._floor() if self.task is CIFAR10 else None
        return judge_time(figure, values, self.plan.images, floor)

    def _floor(self) -> float | None:
        """Images per second at the floor of this GPU for a ResNet-18; None for an unknown one."""
        device = self.setting.device
        number_format = product_format(Precision.of("auto", True).name, device)
        rates = known_rates(torch.cuda.get_device_name(device), number_format)
        return None if rates is None else floor_images(COSTS["resnet18 32px"], rates, number_format)


def judge(run: Trained, plan: Plan, task: AccuracyTask) -> Finding:
    """Judge the accuracy of a run by the fall of its loss, and by its margins over the baselines."""
    top1, first, last = run.metrics["knn/top1"], run.losses[0], run.losses[-1]
    values = {"top1": top1, "raw_top1": plan.raw, "init_top1": plan.initial, "steps": run.steps, "epochs": run.epochs}
    values |= {"images_s": run.images_s, "seconds": run.seconds, "first_loss": first, "last_loss": last}
    figure = f"kNN {top1:.1%} after {run.epochs:.0f} epochs (raw pixels {plan.raw:.1%}, random weights "
    figure += f"{plan.initial:.1%}), loss {first:.2f} to {last:.2f}, {run.images_s:,.0f} images/s"
    over_raw, over_init = top1 - plan.raw, top1 - plan.initial
    margins = (
        f"{100 * over_raw:+.1f} points over raw pixels (bound {100 * task.over_raw:+.0f}) and {100 * over_init:+.1f} "
        f"over random weights (bound {100 * task.over_init:+.0f})"
    )
    if run.steps >= FEWEST and first - last < FALL:
        reason = f"the loss does not fall: {first:.2f} in the first steps, {last:.2f} in the last (bound {FALL} nats): "
        reason += f"gradients do not reach the weights; kNN is {margins}"
        return Finding(
            figure, Verdict.WRONG, reason, "see the section exact; report this finding with check.md", values
        )
    if over_raw >= task.over_raw and over_init >= task.over_init:
        return Finding(figure, Verdict.GOOD, values=values)
    if run.steps < task.enough:
        reason = f"the time was too short to tell: {run.steps} steps, and {task.enough} would be enough; {margins}"
        return Finding(figure, Verdict.KNOWN, reason, values=values)
    reason = f"after {run.steps} steps the accuracy is {margins}"
    advice = "see the section exact, and train with precision=fp32 graph=false compile_views=false to compare"
    return Finding(figure, Verdict.WRONG, reason, advice, values)


def judge_time(figure: str, values: dict[str, float], images: int, floor: float | None) -> Finding:
    """Judge the seconds of an epoch by the ``floor`` in images per second, of which good code reaches 60% to 75%."""
    if floor is None:
        return Finding(figure, values=values)
    least, most = images / (0.75 * floor), images / (0.6 * floor)
    values |= {"expected_seconds": most, "share_of_floor": images / values["seconds_per_epoch"] / floor}
    figure = f"{figure}; expected {least:.2g} to {most:.2g} s on this GPU"
    seconds = values["seconds_per_epoch"]
    if seconds <= LATER * most:
        return Finding(figure, Verdict.GOOD, values=values)
    reason = f"an epoch takes {seconds:.3g} s, expected are {least:.2g} to {most:.2g} s (bound {LATER} times more)"
    advice = "see the section speed for where the time goes; nothing else may use this GPU"
    return Finding(figure, Verdict.SLOW, reason, advice, values)
